// SPDX-License-Identifier: GPL-2.0
/*
 * Upstream's destroy, watched. That changes what it costs, so a bench watches one that
 * it does not time: one for the steps it makes, or one for what it does to tables.
 */

#include <linux/kvm_host.h>
#include <linux/mutex.h>

#include <asm/kvm_mmu.h>
#include <asm/kvm_pgtable.h>
#include <asm/kvm_s2_destroy.h>

#include "s2_destroy.h"
#include "s2_destroy_stats.h"

/* Written through debugfs. */
u32 kvm_s2_watch;

/* Operations on tables do not know whose they are, so one destroy at a time is watched. */
static DEFINE_MUTEX(kvm_s2_watch_lock);
static u64 kvm_s2_atomics, kvm_s2_helpers;

static void kvm_s2_watch_put_page(void *addr)
{
	kvm_s2_atomics++;
	kvm_s2_helpers++;
	kvm_s2_upstream.mm_ops->put_page(addr);
}

static int kvm_s2_watch_page_count(void *addr)
{
	kvm_s2_helpers++;
	return kvm_s2_upstream.mm_ops->page_count(addr);
}

static void *kvm_s2_watch_phys_to_virt(phys_addr_t phys)
{
	kvm_s2_helpers++;
	return kvm_s2_upstream.mm_ops->phys_to_virt(phys);
}

static void kvm_s2_watch_free_pages_exact(void *addr, size_t size)
{
	kvm_s2_helpers++;
	kvm_s2_upstream.mm_ops->free_pages_exact(addr, size);
}

static u64 kvm_s2_chunk_end(u64 addr, u64 end)
{
	u64 chunk = kvm_granule_size(KVM_PGTABLE_MIN_BLOCK_LEVEL);

	return min(ALIGN_DOWN(addr, chunk) + chunk, end);
}

static int kvm_s2_count_entry(const struct kvm_pgtable_visit_ctx *ctx,
			      enum kvm_pgtable_walk_flags visit)
{
	(*(u64 *)ctx->arg)++;
	return 0;
}

/* The entries that upstream looks at: those of a walk like its own in each chunk. */
static u64 kvm_s2_count_entries(struct kvm_pgtable *pgt, u64 end)
{
	u64 entries = 0, addr, next;
	struct kvm_pgtable_walker walker = {
		.cb	= kvm_s2_count_entry,
		.arg	= &entries,
		.flags	= KVM_PGTABLE_WALK_LEAF | KVM_PGTABLE_WALK_TABLE_POST,
	};

	for (addr = 0; addr < end; addr = next) {
		next = kvm_s2_upstream.destroy_range ? kvm_s2_chunk_end(addr, end) : end;
		if (kvm_pgtable_walk(pgt, addr, next - addr, &walker))
			return KVM_S2_UNKNOWN;
		cond_resched();
	}
	return entries;
}

static void kvm_s2_watch_tables(struct kvm_pgtable *pgt, u64 end, struct kvm_s2_figures *figures)
{
	struct kvm_pgtable_mm_ops ops = *pgt->mm_ops;
	u64 entries;

	/* EL2 has the tables, and nobody here does anything to one. */
	if (kvm_s2_el2_maps()) {
		kvm_s2_upstream.destroy(pgt);
		return;
	}

	ops.put_page = kvm_s2_watch_put_page;
	ops.page_count = kvm_s2_watch_page_count;
	ops.phys_to_virt = kvm_s2_watch_phys_to_virt;
	ops.free_pages_exact = kvm_s2_watch_free_pages_exact;

	entries = kvm_s2_count_entries(pgt, end);
	kvm_s2_atomics = 0;
	kvm_s2_helpers = 0;
	pgt->mm_ops = &ops;
	kvm_s2_upstream.destroy(pgt);
	pgt->mm_ops = kvm_s2_upstream.mm_ops;

	if (entries != KVM_S2_UNKNOWN)
		figures->table_bytes = entries * sizeof(kvm_pte_t);
	figures->atomics = kvm_s2_atomics;
	figures->helper_calls = kvm_s2_helpers;
}

/* What lies between two chances to schedule, where upstream has them: a chunk, or all. */
static void kvm_s2_watch_steps(struct kvm_pgtable *pgt, u64 end, struct kvm_s2_figures *figures)
{
	u64 addr, next, start = kvm_s2_clock(), longest = 0;

	if (!kvm_s2_upstream.destroy_range) {
		kvm_s2_upstream.destroy(pgt);
		figures->max_stretch_ns = kvm_s2_clock() - start;
		return;
	}

	for (addr = 0; addr < end; addr = next) {
		next = kvm_s2_chunk_end(addr, end);
		start = kvm_s2_clock();
		kvm_s2_upstream.destroy_range(pgt, addr, next);
		longest = max(longest, kvm_s2_clock() - start);
		cond_resched();
	}
	figures->max_stretch_ns = longest;

	if (!kvm_s2_el2_maps()) {
		kvm_s2_free_root(rcu_dereference_raw(pgt->pgd),
				 kvm_pgtable_stage2_pgd_size(pgt->mmu->vtcr));
		pgt->pgd = NULL;
	}
}

/**
 * kvm_s2_destroy_watched() - Upstream's destroy, watched if a bench asks for that.
 * @pgt:	The unlinked stage-2.
 * @figures:	What there was to see.
 *
 * Return: whether it was watched; otherwise nothing was done.
 */
bool kvm_s2_destroy_watched(struct kvm_pgtable *pgt, struct kvm_s2_figures *figures)
{
	u64 end = BIT_ULL(VTCR_EL2_IPA(pgt->mmu->vtcr));
	u32 what = READ_ONCE(kvm_s2_watch);

	if (what != KVM_S2_WATCH_STEPS && what != KVM_S2_WATCH_TABLES)
		return false;

	guard(mutex)(&kvm_s2_watch_lock);
	if (what == KVM_S2_WATCH_STEPS)
		kvm_s2_watch_steps(pgt, end, figures);
	else
		kvm_s2_watch_tables(pgt, end, figures);
	return true;
}
