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

/* Most tables in one call: each is cleared, unmapped here and mapped in the host. */
#define DYING_MAX_TABLES	8
/*
 * Pages that are cleared take longer, so that a call ends when it has done this much
 * of it. The unit is a page cleared among neighbours, about 300 instructions; one
 * that has none in host memory costs its way there as well.
 */
#define DYING_MAX_WORK		110
#define DYING_WORK_ALONE	1

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

/*
 * The way of a call's pages to the host: a block of host memory that EL2 has mapped to
 * clear pages in it, and what an entry of the host's has beside the address.
 */
struct dying_window {
	phys_addr_t base;
	void *va;
	kvm_pte_t attr;
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
	if (window->va) {
		dsb(sy);	/* for dying_clear_page(), which did not wait */
		hyp_fixblock_unmap();
	}
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

/*
 * Clear a page that the host must not see the contents of, to the point of coherency
 * even with FWB: the host's own mapping may be uncached.
 */
static void dying_clear(struct dying_window *window, phys_addr_t phys)
{
	bool open = dying_open_window(window, phys);
	void *va = open ? window->va + (phys - window->base) : hyp_fixmap_map(phys);

	if (!open || !dying_clear_page(va)) {
		clear_page(va);
		kvm_flush_dcache_to_poc(va, PAGE_SIZE);
	}
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
		dying_clear(window, phys);
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

static bool dying_is_mark(kvm_pte_t pte)
{
	return pte && !kvm_pte_valid(pte);
}

/* The usual way for a page to the host. It shows what an entry looks like then. */
static bool dying_give_first(struct dying_window *window, phys_addr_t phys)
{
	struct dying_path path;
	kvm_pte_t *ptep;

	if (host_stage2_set_owner_locked(phys, PAGE_SIZE, PKVM_ID_HOST))
		return false;

	ptep = dying_find(&host_mmu.pgt, &path, phys);
	if (path.level == KVM_PGTABLE_LAST_LEVEL)
		window->attr = *ptep & ~kvm_phys_to_pte(phys);
	return true;
}

/*
 * Let the host own @nr pages in a row, cleared before. In the host's table they are
 * marks of the guest's ownership, and become what the first page of the call became
 * the usual way: nothing was valid, so that there is nothing to invalidate, and a mark
 * holds a reference on its table as a mapping does.
 *
 * Return: how many, 0 if the first one failed.
 */
static u64 dying_give_to_host(struct dying_window *window, phys_addr_t phys, u64 nr)
{
	struct dying_path path;
	kvm_pte_t *ptep = dying_find(&host_mmu.pgt, &path, phys);
	u64 done = 0;

	if (!window->attr || path.level != KVM_PGTABLE_LAST_LEVEL || !dying_is_mark(*ptep)) {
		if (!dying_give_first(window, phys))
			return 0;
		done = 1;
		ptep = dying_find(&host_mmu.pgt, &path, phys);
		if (path.level != KVM_PGTABLE_LAST_LEVEL)
			return done;
	}

	nr = min(nr, dying_to_end(ptep));
	for (; done < nr && dying_is_mark(ptep[done]); done++) {
		phys_addr_t pa = phys + (done << PAGE_SHIFT);

		WRITE_ONCE(ptep[done], kvm_phys_to_pte(pa) | window->attr);
		set_host_state(hyp_phys_to_page(pa), PKVM_PAGE_OWNED);
	}
	dsb(ishst);
	return done;
}

/*
 * Return: the number of last-level entries, from @ptep on, whose pages the host owns
 * again; fewer than @nr if the next one is refused, or when enough @work is done.
 */
static u64 dying_reclaim_ptes(struct dying_window *window, kvm_pte_t *ptep, u64 nr,
			      u32 *work, u16 *cleared)
{
	u64 done = 0;

	while (done < nr && *work < DYING_MAX_WORK) {
		phys_addr_t phys = kvm_pte_to_phys(READ_ONCE(ptep[done]));
		/* What one table of the host's has of it. */
		u64 max = min(nr - done, PTRS_PER_PTE - hyp_phys_to_pfn(phys) % PTRS_PER_PTE);
		u64 run = 0;

		if (dying_is_poisoned(ptep[done])) {
			done++;
			continue;
		}

		/* Neighbours in host memory too, so that they go together. */
		*work += DYING_WORK_ALONE;
		do {
			if (kvm_pte_to_phys(ptep[done + run]) != phys + (run << PAGE_SHIFT) ||
			    !dying_prepare(window, ptep[done + run]))
				break;
			run++;
			++*work;
		} while (run < max && *work < DYING_MAX_WORK);

		dsb(sy);	/* for dying_clear_page(), before the host sees them */
		if (run)
			run = dying_give_to_host(window, phys, run);
		if (!run)
			break;

		*cleared += run;
		while (run--)
			WRITE_ONCE(ptep[done++], 0);
	}
	return done;
}

static u64 dying_reclaim(struct pkvm_hyp_vm *vm, struct dying_path *path, kvm_pte_t *ptep,
			 u64 nr, u32 *work)
{
	struct dying_window window = {};
	u16 cleared = 0;
	u64 done;

	/* Protected guests have pages only. */
	if (path->level != KVM_PGTABLE_LAST_LEVEL)
		return 0;

	done = dying_reclaim_ptes(&window, ptep, nr, work, &cleared);
	dying_close_window(&window);
	dying_put_entries(vm, path, cleared);
	return done;
}

static u64 dying_release_run(struct pkvm_hyp_vm *vm, u64 gfn, u64 nr)
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

	hyp_spin_lock(&vm_table_lock);
	for (i = 0; i < vm->kvm.created_vcpus; i++)
		WARN_ON(vm->vcpus[i] && vm->vcpus[i]->loaded_hyp_vcpu);
	hyp_spin_unlock(&vm_table_lock);
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

/* Tests ask for a page to be refused: the run ends before it. */
static u64 dying_before_refused(u64 gfn, u64 nr, u64 refuse_every)
{
	if (!IS_ENABLED(CONFIG_KVM_S2_PKVM_FAULTS) || !refuse_every)
		return nr;
	return min(nr, DIV_ROUND_UP(gfn, refuse_every) * refuse_every - gfn);
}

/*
 * Give pages @gfn to @gfn + @nr of a dying VM back to the host.
 *
 * Return: how many, from the first one on; fewer than @nr if that was enough for
 * one call or if the next one is not what it should be, 0 if that is the first.
 * -EINVAL for a VM that is not dying or a run that cannot be, and nothing was changed.
 */
s64 pkvm_release_dying_guest(pkvm_handle_t handle, u64 gfn, u64 nr, u64 refuse_every)
{
	struct pkvm_hyp_vm *vm = dying_get_vm(handle);
	s64 ret = -EINVAL;

	if (!vm)
		return ret;

	if (dying_run_is_valid(vm, gfn, nr)) {
		/* The order in which mem_protect.c takes them. */
		hyp_spin_lock(&host_mmu.lock);
		hyp_spin_lock(&vm->lock);
		ret = dying_release_run(vm, gfn, dying_before_refused(gfn, nr, refuse_every));
		hyp_spin_unlock(&vm->lock);
		hyp_spin_unlock(&host_mmu.lock);
	}
	put_pkvm_hyp_vm(vm);
	return ret;
}

/*
 * Forget where a dying VM had page @gfn, or the block that it is in, which EL2 would
 * not give back. What the page is stays as it is: the host does not get it.
 *
 * Return: 0, also if there is no such page. -EINVAL as above.
 */
s64 pkvm_forget_dying_guest(pkvm_handle_t handle, u64 gfn)
{
	struct pkvm_hyp_vm *vm = dying_get_vm(handle);
	s64 ret = -EINVAL;

	if (!vm)
		return ret;

	if (dying_run_is_valid(vm, gfn, 1)) {
		struct dying_path path;
		kvm_pte_t *ptep;

		hyp_spin_lock(&vm->lock);
		ptep = dying_find(&vm->pgt, &path, hyp_pfn_to_phys(gfn));
		if (READ_ONCE(*ptep)) {
			WRITE_ONCE(*ptep, 0);
			dying_put_entries(vm, &path, 1);
		}
		hyp_spin_unlock(&vm->lock);
		ret = 0;
	}
	put_pkvm_hyp_vm(vm);
	return ret;
}

/*
 * Give a page of EL2's own to the host, on @mc. A page that cannot be given is left
 * alone; nobody uses it again.
 *
 * Return: whether it was given.
 */
static bool dying_give_page(struct kvm_hyp_memcache *mc, void *page)
{
	push_hyp_memcache(mc, page, hyp_virt_to_phys);
	kvm_flush_dcache_to_poc(page, PAGE_SIZE);
	if (!__pkvm_hyp_donate_host(hyp_virt_to_pfn(page), 1))
		return true;
	pop_hyp_memcache(mc, hyp_phys_to_virt);
	return false;
}

/*
 * Give up to DYING_MAX_TABLES tables that a dying VM does not need any more back
 * to the host, so that none of them is left for the end.
 *
 * Return: how many; 0 when there are none. -EINVAL as above.
 */
s64 pkvm_reclaim_dying_tables(pkvm_handle_t handle)
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
		dying_give_page(mc, table);
	}
	put_pkvm_hyp_vm(vm);
	return done;
}

/* Take a vCPU from a dying VM: no other call finds it any more. */
static struct pkvm_hyp_vcpu *dying_take_vcpu(struct pkvm_hyp_vm *vm, unsigned int idx)
{
	struct pkvm_hyp_vcpu *vcpu = NULL;

	hyp_spin_lock(&vm_table_lock);
	if (idx < vm->kvm.created_vcpus && vm->vcpus[idx] && !vm->vcpus[idx]->loaded_hyp_vcpu) {
		vcpu = vm->vcpus[idx];
		vm->vcpus[idx] = NULL;
	}
	hyp_spin_unlock(&vm_table_lock);
	return vcpu;
}

/* What EL2 shares with the host for a vCPU. */
static void dying_unpin_vcpu(struct pkvm_hyp_vcpu *vcpu)
{
	void *sve_state = vcpu->vcpu.arch.sve_state;

	hyp_unpin_shared_mem(vcpu->host_vcpu, vcpu->host_vcpu + 1);
	if (sve_state)
		hyp_unpin_shared_mem(sve_state, sve_state + vcpu_sve_state_size(&vcpu->vcpu));
}

/*
 * Give what EL2 holds for a vCPU of a dying VM back to the host: its state, cleared,
 * and the pages it had in store for tables. Without it the VM's end would take longer
 * with every vCPU.
 *
 * Return: 0, also if there is no such vCPU. -EINVAL as above.
 */
s64 pkvm_reclaim_dying_vcpu(pkvm_handle_t handle, unsigned int idx)
{
	struct pkvm_hyp_vm *vm = dying_get_vm(handle);
	struct kvm_protected_vm *host;
	struct pkvm_hyp_vcpu *vcpu;
	size_t offset;
	void *page;

	if (!vm)
		return -EINVAL;

	host = &vm->host_kvm->arch.pkvm;
	vcpu = dying_take_vcpu(vm, idx);
	if (vcpu) {
		dying_unpin_vcpu(vcpu);
		while ((page = pop_hyp_memcache(&vcpu->vcpu.arch.pkvm_memcache, hyp_phys_to_virt)))
			dying_give_page(&host->stage2_teardown_mc, page);

		memset(vcpu, 0, PAGE_ALIGN(sizeof(*vcpu)));
		for (offset = 0; offset < sizeof(*vcpu); offset += PAGE_SIZE)
			dying_give_page(&host->teardown_mc, (void *)vcpu + offset);
	}
	put_pkvm_hyp_vm(vm);
	return 0;
}

void handle___pkvm_release_dying_guest(struct kvm_cpu_context *host_ctxt)
{
	DECLARE_REG(pkvm_handle_t, handle, host_ctxt, 1);
	DECLARE_REG(u64, gfn, host_ctxt, 2);
	DECLARE_REG(u64, nr_pages, host_ctxt, 3);
	DECLARE_REG(u64, refuse_every, host_ctxt, 4);

	cpu_reg(host_ctxt, 1) = pkvm_release_dying_guest(handle, gfn, nr_pages, refuse_every);
}

void handle___pkvm_forget_dying_guest(struct kvm_cpu_context *host_ctxt)
{
	DECLARE_REG(pkvm_handle_t, handle, host_ctxt, 1);
	DECLARE_REG(u64, gfn, host_ctxt, 2);

	cpu_reg(host_ctxt, 1) = pkvm_forget_dying_guest(handle, gfn);
}

void handle___pkvm_reclaim_dying_tables(struct kvm_cpu_context *host_ctxt)
{
	DECLARE_REG(pkvm_handle_t, handle, host_ctxt, 1);

	cpu_reg(host_ctxt, 1) = pkvm_reclaim_dying_tables(handle);
}

void handle___pkvm_reclaim_dying_vcpu(struct kvm_cpu_context *host_ctxt)
{
	DECLARE_REG(pkvm_handle_t, handle, host_ctxt, 1);
	DECLARE_REG(unsigned int, vcpu_idx, host_ctxt, 2);

	cpu_reg(host_ctxt, 1) = pkvm_reclaim_dying_vcpu(handle, vcpu_idx);
}
