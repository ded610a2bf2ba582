// SPDX-License-Identifier: GPL-2.0
/*
 * A dying VM's stage-2, entry by entry: pages that the host had shared go back here,
 * a protected guest's own in dying_reclaim.c. Why nothing is invalidated is said in
 * dying.c.
 */

#include <linux/kvm_host.h>

#include <asm/kvm_hyp.h>
#include <asm/kvm_mmu.h>
#include <asm/kvm_pgtable.h>
#include <asm/kvm_pkvm.h>

#include <nvhe/dying.h>
#include <nvhe/gfp.h>
#include <nvhe/mem_protect.h>
#include <nvhe/memory.h>
#include <nvhe/mm.h>
#include <nvhe/pkvm.h>

static kvm_pte_t **dying_slot(struct dying_path *path, s8 level)
{
	return &path->ptep[level - KVM_PGTABLE_FIRST_LEVEL];
}

/* Find the leaf entry for @addr, which lies in the table's address space. */
kvm_pte_t *dying_find(struct kvm_pgtable *pgt, struct dying_path *path, u64 addr)
{
	s8 level = pgt->start_level;
	/* Concatenated root tables are one array. */
	kvm_pte_t *ptep = (kvm_pte_t *)pgt->pgd + (addr >> kvm_granule_shift(level));

	for (;;) {
		kvm_pte_t pte = READ_ONCE(*ptep);

		*dying_slot(path, level) = ptep;
		path->level = level;
		if (level == KVM_PGTABLE_LAST_LEVEL || !kvm_pte_valid(pte) ||
		    FIELD_GET(KVM_PTE_TYPE, pte) != KVM_PTE_TYPE_TABLE)
			return ptep;

		level++;
		ptep = (kvm_pte_t *)hyp_phys_to_virt(kvm_pte_to_phys(pte)) +
		       ((addr >> kvm_granule_shift(level)) & (PTRS_PER_PTE - 1));
	}
}

/* Entries from @ptep to the end of its table. */
u64 dying_to_end(const kvm_pte_t *ptep)
{
	return PTRS_PER_PTE - offset_in_page(ptep) / sizeof(*ptep);
}

/*
 * Drop the references of @nr entries that were cleared at the end of @path, and the
 * tables that became empty by it, except the root.
 */
void dying_put_entries(struct pkvm_hyp_vm *vm, struct dying_path *path, u16 nr)
{
	s8 level = path->level;

	if (!nr)
		return;

	hyp_spin_lock(&vm->pool.lock);
	hyp_virt_to_page(*dying_slot(path, level))->refcount -= nr;
	hyp_spin_unlock(&vm->pool.lock);

	for (; level > vm->pgt.start_level; level--) {
		void *table = PTR_ALIGN_DOWN(*dying_slot(path, level), PAGE_SIZE);
		kvm_pte_t *parent = *dying_slot(path, level - 1);

		if (hyp_page_count(table) != 1)
			return;
		WRITE_ONCE(*parent, 0);		/* unreachable: no TLBI */
		hyp_put_page(&vm->pool, parent);
		hyp_put_page(&vm->pool, table);
	}
}

/* One page that the host had shared with the guest. */
static bool dying_unshare_page(struct hyp_page *page)
{
	if (get_host_state(page) != PKVM_PAGE_SHARED_OWNED || !page->host_share_guest_count)
		return false;
	if (!--page->host_share_guest_count)
		set_host_state(page, PKVM_PAGE_OWNED);
	return true;
}

static bool dying_is_shared(kvm_pte_t pte)
{
	return kvm_pte_valid(pte) && pkvm_getstate(pte) == PKVM_PAGE_SHARED_BORROWED;
}

/* Return: the number of last-level entries, from @ptep on, that were unshared. */
static u64 dying_unshare_ptes(kvm_pte_t *ptep, u64 nr)
{
	u64 done;

	for (done = 0; done < nr; done++, ptep++) {
		kvm_pte_t pte = READ_ONCE(*ptep);

		if (!dying_is_shared(pte) ||
		    !dying_unshare_page(hyp_phys_to_page(kvm_pte_to_phys(pte))))
			break;
		WRITE_ONCE(*ptep, 0);	/* unreachable: no TLBI */
	}
	return done;
}

/* A block goes as a whole or not at all. */
static u64 dying_unshare_block(kvm_pte_t *ptep, u64 nr)
{
	kvm_pte_t pte = READ_ONCE(*ptep);
	struct hyp_page *page;
	u64 i;

	if (!dying_is_shared(pte))
		return 0;

	page = hyp_phys_to_page(kvm_pte_to_phys(pte));
	for (i = 0; i < nr; i++) {
		if (get_host_state(&page[i]) != PKVM_PAGE_SHARED_OWNED ||
		    !page[i].host_share_guest_count)
			return 0;
	}
	for (i = 0; i < nr; i++)
		dying_unshare_page(&page[i]);
	WRITE_ONCE(*ptep, 0);		/* unreachable: no TLBI */
	return nr;
}

static u64 dying_unshare(struct pkvm_hyp_vm *vm, struct dying_path *path, kvm_pte_t *ptep,
			 u64 ipa, u64 nr)
{
	u64 block = kvm_granule_size(path->level) >> PAGE_SHIFT;
	u64 done;

	if (block == 1) {
		done = dying_unshare_ptes(ptep, nr);
		dying_put_entries(vm, path, done);
		return done;
	}

	if (nr < block || !IS_ALIGNED(ipa, kvm_granule_size(path->level)))
		return 0;
	done = dying_unshare_block(ptep, block);
	dying_put_entries(vm, path, !!done);
	return done;
}

/*
 * Give pages @gfn to @gfn + @nr back. The host's lock and the VM's are held.
 *
 * Return: how many, from the first one on.
 */
u64 dying_release_run(struct pkvm_hyp_vm *vm, u64 gfn, u64 nr)
{
	u64 done = 0;
	u32 work = 0;

	while (done < nr && work < DYING_MAX_WORK) {
		u64 ipa = hyp_pfn_to_phys(gfn + done);
		struct dying_path path;
		kvm_pte_t *ptep = dying_find(&vm->pgt, &path, ipa);
		u64 left = nr - done, ret;

		if (path.level == KVM_PGTABLE_LAST_LEVEL)
			left = min(left, dying_to_end(ptep));

		if (pkvm_hyp_vm_is_protected(vm))
			ret = dying_reclaim(vm, &path, ptep, left, &work);
		else
			ret = dying_unshare(vm, &path, ptep, ipa, left);
		done += ret;
		if (!ret || (path.level == KVM_PGTABLE_LAST_LEVEL && ret < left))
			break;
	}
	return done;
}

/* Clear the entry that maps @gfn. The VM's lock is held. */
void dying_forget(struct pkvm_hyp_vm *vm, u64 gfn)
{
	struct dying_path path;
	kvm_pte_t *ptep = dying_find(&vm->pgt, &path, hyp_pfn_to_phys(gfn));

	if (!READ_ONCE(*ptep))
		return;
	WRITE_ONCE(*ptep, 0);		/* unreachable: no TLBI */
	dying_put_entries(vm, &path, 1);
}
