// SPDX-License-Identifier: GPL-2.0
/*
 * Giving the memory of a dying guest back to the host, a run of pages at a time.
 *
 * No TLB invalidation is needed for any page here. A VM is marked dying under
 * vm_table_lock when none of its vCPUs is loaded, and after that none can be
 * (pkvm_load_hyp_vcpu() looks at the mark under the same lock), so that no
 * hardware walker starts from the VM's stage-2 again. What TLBs still hold was
 * flushed by VMID when the mark was set, and is flushed again before the VMID can
 * be given to another VM.
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
#include <nvhe/trap_handler.h>

/* Most pages in one call, so that EL2 is left again soon. */
#define DYING_MAX_PAGES		512
/* Most tables in one call: each is cleared, unmapped here and mapped in the host. */
#define DYING_MAX_TABLES	16

/* The entries on the way from the root to a leaf, by level from FIRST_LEVEL on. */
struct dying_path {
	kvm_pte_t *ptep[KVM_PGTABLE_LAST_LEVEL - KVM_PGTABLE_FIRST_LEVEL + 1];
	s8 level;
};

static kvm_pte_t **dying_slot(struct dying_path *path, s8 level)
{
	return &path->ptep[level - KVM_PGTABLE_FIRST_LEVEL];
}

/* Find the leaf entry for @ipa, which lies in the VM's address space. */
static kvm_pte_t *dying_find(struct pkvm_hyp_vm *vm, struct dying_path *path, u64 ipa)
{
	s8 level = vm->pgt.start_level;
	/* Concatenated root tables are one array. */
	kvm_pte_t *ptep = (kvm_pte_t *)vm->pgt.pgd + (ipa >> kvm_granule_shift(level));

	for (;;) {
		kvm_pte_t pte = READ_ONCE(*ptep);

		*dying_slot(path, level) = ptep;
		path->level = level;
		if (level == KVM_PGTABLE_LAST_LEVEL || !kvm_pte_valid(pte) ||
		    FIELD_GET(KVM_PTE_TYPE, pte) != KVM_PTE_TYPE_TABLE)
			return ptep;

		level++;
		ptep = (kvm_pte_t *)hyp_phys_to_virt(kvm_pte_to_phys(pte)) +
		       ((ipa >> kvm_granule_shift(level)) & (PTRS_PER_PTE - 1));
	}
}

/*
 * Drop the references of @nr entries that were cleared at the end of @path, and the
 * tables that became empty by it, except the root.
 */
static void dying_put_entries(struct pkvm_hyp_vm *vm, struct dying_path *path, u16 nr)
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
		WRITE_ONCE(*parent, 0);
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
		WRITE_ONCE(*ptep, 0);
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
	WRITE_ONCE(*ptep, 0);
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

/* Clear a page that the host has not seen the contents of. */
static void dying_clear_page(phys_addr_t phys)
{
	void *va = hyp_fixmap_map(phys);

	memset(va, 0, PAGE_SIZE);
	/* To the point of coherency even with FWB: the host's own mapping may be uncached. */
	kvm_flush_dcache_to_poc(va, PAGE_SIZE);
	hyp_fixmap_unmap();
}

/* Whether the page of a guest's last-level entry can go back to the host; clears it first. */
static bool dying_prepare(kvm_pte_t pte)
{
	phys_addr_t phys = kvm_pte_to_phys(pte);
	struct hyp_page *page = hyp_phys_to_page(phys);

	if (!kvm_pte_valid(pte))
		return false;

	switch (pkvm_getstate(pte)) {
	case PKVM_PAGE_OWNED:
		if (get_host_state(page) != PKVM_NOPAGE)
			return false;
		dying_clear_page(phys);
		return true;
	case PKVM_PAGE_SHARED_OWNED:
		return get_host_state(page) == PKVM_PAGE_SHARED_BORROWED;
	default:
		return false;
	}
}

/* The host took the page back by force before, and only the mark is left. */
static bool dying_is_poisoned(kvm_pte_t pte)
{
	return !kvm_pte_valid(pte) &&
	       FIELD_GET(KVM_INVALID_PTE_TYPE_MASK, pte) == KVM_GUEST_INVALID_PTE_TYPE_POISONED;
}

/* Return: the number of last-level entries, from @ptep on, whose pages the host owns again. */
static u64 dying_reclaim_ptes(kvm_pte_t *ptep, u64 nr, u16 *cleared)
{
	u64 done = 0;

	while (done < nr) {
		kvm_pte_t pte = READ_ONCE(ptep[done]);
		u64 run = 0;

		if (dying_is_poisoned(pte)) {
			done++;
			continue;
		}

		/* Neighbours in host memory too: one change of the host's stage-2. */
		while (done + run < nr &&
		       kvm_pte_to_phys(ptep[done + run]) ==
		       kvm_pte_to_phys(pte) + (run << PAGE_SHIFT) &&
		       dying_prepare(ptep[done + run]))
			run++;
		if (!run || host_stage2_set_owner_locked(kvm_pte_to_phys(pte), run << PAGE_SHIFT,
							 PKVM_ID_HOST))
			break;

		for (; run; run--, done++, (*cleared)++)
			WRITE_ONCE(ptep[done], 0);
	}
	return done;
}

static u64 dying_reclaim(struct pkvm_hyp_vm *vm, struct dying_path *path, kvm_pte_t *ptep, u64 nr)
{
	u16 cleared = 0;
	u64 done;

	/* Protected guests have pages only. */
	if (path->level != KVM_PGTABLE_LAST_LEVEL)
		return 0;

	done = dying_reclaim_ptes(ptep, nr, &cleared);
	dying_put_entries(vm, path, cleared);
	return done;
}

static u64 dying_release_run(struct pkvm_hyp_vm *vm, u64 gfn, u64 nr)
{
	u64 done = 0;

	while (done < nr) {
		u64 ipa = hyp_pfn_to_phys(gfn + done);
		struct dying_path path;
		kvm_pte_t *ptep = dying_find(vm, &path, ipa);
		/* To the end of the table at most. */
		u64 left = PTRS_PER_PTE - offset_in_page(ptep) / sizeof(*ptep);
		u64 ret;

		if (path.level == KVM_PGTABLE_LAST_LEVEL)
			left = min(left, nr - done);
		else
			left = nr - done;

		if (pkvm_hyp_vm_is_protected(vm))
			ret = dying_reclaim(vm, &path, ptep, left);
		else
			ret = dying_unshare(vm, &path, ptep, ipa, left);
		done += ret;
		if (!ret || (path.level == KVM_PGTABLE_LAST_LEVEL && ret < left))
			break;
	}
	return done;
}

static bool dying_run_is_valid(struct pkvm_hyp_vm *vm, u64 gfn, u64 nr)
{
	u64 limit = BIT(vm->pgt.ia_bits) >> PAGE_SHIFT;

	return nr && nr <= DYING_MAX_PAGES && gfn < limit && nr <= limit - gfn;
}

/* A VM that is dying, with a reference, or NULL. */
static struct pkvm_hyp_vm *dying_get_vm(pkvm_handle_t handle)
{
	struct pkvm_hyp_vm *vm = get_pkvm_hyp_vm(handle);

	if (vm && !vm->kvm.arch.pkvm.is_dying) {
		put_pkvm_hyp_vm(vm);
		return NULL;
	}
	return vm;
}

/*
 * Give pages @gfn to @gfn + @nr of a dying VM back to the host.
 *
 * Return: how many, from the first one on; fewer than @nr if the next one is not
 * what it should be. -EINVAL for a VM that is not dying or a run that cannot be,
 * and nothing was changed.
 */
static s64 pkvm_release_dying_guest(pkvm_handle_t handle, u64 gfn, u64 nr)
{
	struct pkvm_hyp_vm *vm = dying_get_vm(handle);
	s64 ret = -EINVAL;

	if (!vm)
		return ret;

	if (dying_run_is_valid(vm, gfn, nr)) {
		/* The order in which mem_protect.c takes them. */
		hyp_spin_lock(&host_mmu.lock);
		hyp_spin_lock(&vm->lock);
		ret = dying_release_run(vm, gfn, nr);
		hyp_spin_unlock(&vm->lock);
		hyp_spin_unlock(&host_mmu.lock);
	}
	put_pkvm_hyp_vm(vm);
	return ret;
}

/*
 * Give up to DYING_MAX_TABLES tables that a dying VM does not need any more back
 * to the host, so that none of them is left for the end.
 *
 * Return: how many; 0 when there are none. -EINVAL as above.
 */
static s64 pkvm_reclaim_dying_tables(pkvm_handle_t handle)
{
	struct pkvm_hyp_vm *vm = dying_get_vm(handle);
	struct kvm_hyp_memcache *mc;
	s64 done;

	if (!vm)
		return -EINVAL;

	mc = &vm->host_kvm->arch.pkvm.stage2_teardown_mc;
	for (done = 0; done < DYING_MAX_TABLES; done++) {
		void *table = hyp_alloc_pages(&vm->pool, 0);

		if (!table)
			break;
		hyp_virt_to_page(table)->refcount = 0;
		push_hyp_memcache(mc, table, hyp_virt_to_phys);
		WARN_ON(__pkvm_hyp_donate_host(hyp_virt_to_pfn(table), 1));
	}
	put_pkvm_hyp_vm(vm);
	return done;
}

void handle___pkvm_release_dying_guest(struct kvm_cpu_context *host_ctxt)
{
	DECLARE_REG(pkvm_handle_t, handle, host_ctxt, 1);
	DECLARE_REG(u64, gfn, host_ctxt, 2);
	DECLARE_REG(u64, nr_pages, host_ctxt, 3);

	cpu_reg(host_ctxt, 1) = pkvm_release_dying_guest(handle, gfn, nr_pages);
}

void handle___pkvm_reclaim_dying_tables(struct kvm_cpu_context *host_ctxt)
{
	DECLARE_REG(pkvm_handle_t, handle, host_ctxt, 1);

	cpu_reg(host_ctxt, 1) = pkvm_reclaim_dying_tables(handle);
}
