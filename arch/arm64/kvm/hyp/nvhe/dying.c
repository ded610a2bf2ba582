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
#define DYING_MAX_PAGES		PTRS_PER_PTE	/* a block of the level above */
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

/* Find the leaf entry for @addr, which lies in the table's address space. */
static kvm_pte_t *dying_find(struct kvm_pgtable *pgt, struct dying_path *path, u64 addr)
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
static u64 dying_to_end(const kvm_pte_t *ptep)
{
	return PTRS_PER_PTE - offset_in_page(ptep) / sizeof(*ptep);
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

/* A block of host memory that EL2 has mapped to clear pages in it. */
struct dying_window {
	phys_addr_t base;
	void *va;
};

/* Whether all of the block is memory that the host may map: speculation reaches it too. */
static bool dying_block_is_memory(phys_addr_t base)
{
	unsigned int i;

	for (i = 0; i < hyp_memblock_nr; i++) {
		const struct memblock_region *reg = &hyp_memory[i];

		if (base >= reg->base && base + PMD_SIZE <= reg->base + reg->size)
			return !(reg->flags & MEMBLOCK_NOMAP);
	}
	return false;
}

static void dying_close_window(struct dying_window *window)
{
	if (window->va)
		hyp_fixblock_unmap();
	window->va = NULL;
}

/* Map the block that @phys is in. Return: whether it can be. */
static bool dying_open_window(struct dying_window *window, phys_addr_t phys)
{
	phys_addr_t base = ALIGN_DOWN(phys, PMD_SIZE);
	size_t size;

	if (window->va && window->base == base)
		return true;

	dying_close_window(window);
	if (!dying_block_is_memory(base))
		return false;

	window->base = base;
	window->va = hyp_fixblock_map(base, &size);
	if (size != PMD_SIZE)	/* 64K pages have no block to map with */
		dying_close_window(window);
	return window->va;
}

/* Clear a page that the host must not see the contents of. */
static void dying_clear_page(struct dying_window *window, phys_addr_t phys)
{
	bool open = dying_open_window(window, phys);
	void *va = open ? window->va + (phys - window->base) : hyp_fixmap_map(phys);

	clear_page(va);
	/* To the point of coherency even with FWB: the host's own mapping may be uncached. */
	kvm_flush_dcache_to_poc(va, PAGE_SIZE);
	if (!open)
		hyp_fixmap_unmap();
}

/* Whether the page of a guest's last-level entry can go back to the host; clears it first. */
static bool dying_prepare(struct dying_window *window, kvm_pte_t pte)
{
	phys_addr_t phys = kvm_pte_to_phys(pte);
	struct hyp_page *page = hyp_phys_to_page(phys);

	if (!kvm_pte_valid(pte))
		return false;

	switch (pkvm_getstate(pte)) {
	case PKVM_PAGE_OWNED:
		if (get_host_state(page) != PKVM_NOPAGE)
			return false;
		dying_clear_page(window, phys);
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

/*
 * Let the host own @nr pages in a row, cleared before. The first one goes the usual
 * way. In the host's table its neighbours are marks of the guest's ownership like
 * it was, so they become what it became: nothing was valid, so that there is nothing
 * to invalidate, and a mark holds a reference on its table as a mapping does.
 *
 * Return: how many, 0 if the first one failed.
 */
static u64 dying_give_to_host(phys_addr_t phys, u64 nr)
{
	struct dying_path path;
	kvm_pte_t *ptep, attr;
	u64 done;

	if (host_stage2_set_owner_locked(phys, PAGE_SIZE, PKVM_ID_HOST))
		return 0;

	ptep = dying_find(&host_mmu.pgt, &path, phys);
	if (path.level != KVM_PGTABLE_LAST_LEVEL)
		return 1;

	attr = *ptep & ~kvm_phys_to_pte(phys);
	nr = min(nr, dying_to_end(ptep));
	for (done = 1; done < nr; done++) {
		phys += PAGE_SIZE;
		if (!ptep[done] || kvm_pte_valid(ptep[done]))
			break;
		WRITE_ONCE(ptep[done], kvm_phys_to_pte(phys) | attr);
		set_host_state(hyp_phys_to_page(phys), PKVM_PAGE_OWNED);
	}
	dsb(ishst);
	return done;
}

/* Return: the number of last-level entries, from @ptep on, whose pages the host owns again. */
static u64 dying_reclaim_ptes(struct dying_window *window, kvm_pte_t *ptep, u64 nr,
			      u16 *cleared)
{
	u64 done = 0;

	while (done < nr) {
		phys_addr_t phys = kvm_pte_to_phys(READ_ONCE(ptep[done]));
		u64 run = 0;

		if (dying_is_poisoned(ptep[done])) {
			done++;
			continue;
		}

		/* Neighbours in host memory too, so that they go together. */
		while (done + run < nr &&
		       kvm_pte_to_phys(ptep[done + run]) == phys + (run << PAGE_SHIFT) &&
		       dying_prepare(window, ptep[done + run]))
			run++;
		if (run)
			run = dying_give_to_host(phys, run);
		if (!run)
			break;

		*cleared += run;
		while (run--)
			WRITE_ONCE(ptep[done++], 0);
	}
	return done;
}

static u64 dying_reclaim(struct pkvm_hyp_vm *vm, struct dying_path *path, kvm_pte_t *ptep, u64 nr)
{
	struct dying_window window = {};
	u16 cleared = 0;
	u64 done;

	/* Protected guests have pages only. */
	if (path->level != KVM_PGTABLE_LAST_LEVEL)
		return 0;

	done = dying_reclaim_ptes(&window, ptep, nr, &cleared);
	dying_close_window(&window);
	dying_put_entries(vm, path, cleared);
	return done;
}

static u64 dying_release_run(struct pkvm_hyp_vm *vm, u64 gfn, u64 nr)
{
	u64 done = 0;

	while (done < nr) {
		u64 ipa = hyp_pfn_to_phys(gfn + done);
		struct dying_path path;
		kvm_pte_t *ptep = dying_find(&vm->pgt, &path, ipa);
		u64 left = nr - done, ret;

		if (path.level == KVM_PGTABLE_LAST_LEVEL)
			left = min(left, dying_to_end(ptep));

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

/* What makes it right not to invalidate anything: see the top of this file. */
static void dying_assert_unloaded(struct pkvm_hyp_vm *vm)
{
	unsigned int i;

	if (!IS_ENABLED(CONFIG_NVHE_EL2_DEBUG))
		return;

	for (i = 0; i < vm->kvm.created_vcpus; i++)
		WARN_ON(vm->vcpus[i] && vm->vcpus[i]->loaded_hyp_vcpu);
}

/* A VM that is dying, with a reference, or NULL. */
static struct pkvm_hyp_vm *dying_get_vm(pkvm_handle_t handle)
{
	struct pkvm_hyp_vm *vm = get_pkvm_hyp_vm(handle);

	if (vm && !vm->kvm.arch.pkvm.is_dying) {
		put_pkvm_hyp_vm(vm);
		return NULL;
	}
	if (vm)
		dying_assert_unloaded(vm);
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
