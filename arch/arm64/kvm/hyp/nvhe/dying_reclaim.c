// SPDX-License-Identifier: GPL-2.0
/*
 * Pages that a protected guest owns, on their way back to the host: cleared, and
 * then mapped there.
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

/* What a page without neighbours in host memory costs beside its clearing. */
#define DYING_WORK_ALONE	2

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
			WRITE_ONCE(ptep[done++], 0);	/* the mark, so that its table can go */
			++*cleared;
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
			WRITE_ONCE(ptep[done++], 0);	/* unreachable: no TLBI */
	}
	return done;
}

/* Return: how many of @nr pages the host owns again, the first at the end of @path. */
u64 dying_reclaim(struct pkvm_hyp_vm *vm, struct dying_path *path, kvm_pte_t *ptep,
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
