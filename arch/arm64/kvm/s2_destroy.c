// SPDX-License-Identifier: GPL-2.0
/*
 * Destroy of an unlinked stage-2: which implementation, how long it took, and
 * the memory operations of the Rust one.
 */

#define pr_fmt(fmt) "kvm_s2: " fmt

#include <linux/kvm_host.h>
#include <linux/mm.h>
#include <linux/moduleparam.h>
#include <linux/sched/clock.h>
#include <linux/writeback.h>	/* struct folio_batch */

#include <asm/kvm_mmu.h>
#include <asm/kvm_pgtable.h>
#include <asm/kvm_pkvm.h>
#include <asm/kvm_s2_destroy.h>

#include "s2_destroy.h"
#include "s2_destroy_stats.h"

/* The parameter is kvm_s2.impl, whatever object this file is linked into. */
#undef MODULE_PARAM_PREFIX
#define MODULE_PARAM_PREFIX "kvm_s2."

static enum kvm_s2_impl kvm_s2_chosen = KVM_S2_IMPL_RUST;

enum kvm_s2_impl kvm_s2_impl(void)
{
	return READ_ONCE(kvm_s2_chosen);
}

static int kvm_s2_set_impl(const char *val, const struct kernel_param *kp)
{
	int impl = sysfs_match_string(kvm_s2_impl_names, val);

	if (impl < 0) {
		pr_err("impl=%s: not one of rust, c\n", val);
		return impl;
	}
	WRITE_ONCE(kvm_s2_chosen, impl);
	return 0;
}

static int kvm_s2_get_impl(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%s\n", kvm_s2_impl_names[kvm_s2_impl()]);
}

static const struct kernel_param_ops kvm_s2_impl_ops = {
	.set = kvm_s2_set_impl,
	.get = kvm_s2_get_impl,
};
module_param_cb(impl, &kvm_s2_impl_ops, NULL, 0644);
MODULE_PARM_DESC(impl, "Who destroys stage-2 tables: rust (default) or c (upstream)");

struct kvm_s2_tables kvm_s2_tables_of(const struct kvm_pgtable *pgt, u64 start)
{
	return (struct kvm_s2_tables) {
		.pgd		= rcu_dereference_raw(pgt->pgd),
		.start		= start,
		.page_shift	= PAGE_SHIFT,
		.ia_bits	= pgt->ia_bits,
		.start_level	= pgt->start_level,
		.lpa2		= kvm_lpa2_is_enabled(),
	};
}

void kvm_s2_destroy_ordinary(struct kvm_pgtable *pgt, u64 start, struct kvm_s2_figures *figures)
{
	const struct kvm_s2_tables tables = kvm_s2_tables_of(pgt, start);

	kvm_s2_destroy_tables(&tables, figures);
	pgt->pgd = NULL;
}

/* Destroy @pgt by Rust, here and now. */
void kvm_s2_destroy_now(struct kvm_pgtable *pgt, struct kvm_s2_run *run)
{
	struct kvm_s2_figures figures = kvm_s2_nothing_measured();

	kvm_s2_begin(run);
	if (kvm_s2_el2_maps())
		kvm_s2_destroy_pkvm(pgt, run->start, &figures);
	else
		kvm_s2_destroy_ordinary(pgt, run->start, &figures);
	kvm_s2_end(run, &figures);

	if (figures.leaked)
		pr_warn("%llu %s left behind, their state is not what it should be\n",
			figures.leaked, run->pkvm ? "pages" : "tables");
}

void kvm_s2_destroy(struct kvm_pgtable *pgt, kvm_s2_destroy_fn upstream)
{
	struct kvm_s2_figures figures = kvm_s2_nothing_measured();
	struct kvm_s2_run run = {
		.impl	 = kvm_s2_impl(),
		.pkvm	 = kvm_s2_el2_maps(),
		.kvm	 = kvm_s2_mmu_to_kvm(pgt->mmu),
		.ia_bits = VTCR_EL2_IPA(pgt->mmu->vtcr),
	};

	if (run.impl == KVM_S2_IMPL_C) {
		kvm_s2_begin(&run);
		if (!kvm_s2_destroy_watched(pgt, &figures))
			upstream(pgt);
		kvm_s2_end(&run, &figures);
	} else if (!kvm_s2_defer(pgt, &run)) {
		kvm_s2_destroy_now(pgt, &run);
	}
}

/* There is a memory map for all of such a piece of memory, or for none of it. */
#define KVM_S2_MAPPED_SHIFT	21

/*
 * The table at @pa, or NULL if no page of the kernel's is there: a corrupt entry
 * must not be followed. It says in @found how many of its entries hold a reference,
 * if nobody else does; a debug kernel does not trust that and looks at all of them.
 */
void *kvm_s2_find_table(__u64 pa, struct kvm_s2_found *found)
{
	__u64 piece = pa >> KVM_S2_MAPPED_SHIFT;
	struct page *page;

	if (piece != found->piece) {
		if (unlikely(!pfn_valid(PHYS_PFN(pa))))
			return NULL;
		found->piece = piece;
	}
	page = pfn_to_page(PHYS_PFN(pa));
	if (unlikely(PageReserved(page)))
		return NULL;

	found->counted = IS_ENABLED(CONFIG_DEBUG_VM) ? U32_MAX : page_ref_count(page) - 1;
	return __va(pa);
}

static bool kvm_s2_same_owner(const struct folio *folio, const struct folio *other)
{
#ifdef CONFIG_MEMCG
	if (folio->memcg_data != other->memcg_data)
		return false;
#endif
	return folio_pgdat(folio) == folio_pgdat(other);
}

static void kvm_s2_account_tables(struct folio *owner, int nr)
{
	mod_lruvec_page_state(&owner->page, NR_SECONDARY_PAGETABLE, nr);
}

/*
 * To a CPU that only frees, the page allocator takes back ever larger batches from
 * its list, in the end 2,000 pages at once. An allocation makes the next one small.
 */
void kvm_s2_calm_allocator(const struct page *freed)
{
	struct page *page = alloc_pages_node(page_to_nid(freed), GFP_NOWAIT, 0);

	if (page)
		__free_page(page);
}

/*
 * Give up @nr tables: drop the references of their @counted entries and the one
 * that kept them. Somebody may hold another for a moment (memory hot-remove does):
 * the last one to let go frees the page. Fewer references than entries can only
 * be corruption, and such a table is left alone. With @calm the page allocator is
 * kept from long bursts, which every other batch is enough for.
 *
 * Return: the number of tables left alone.
 */
__u32 kvm_s2_put_tables(void *const *tables, const __u32 *counted, __u32 nr, bool calm)
{
	unsigned int refs[KVM_S2_BATCH], gone = 0, same = 0;
	struct folio *owner = virt_to_folio(tables[0]);
	struct folio_batch batch;
	__u32 i;

	BUILD_BUG_ON(ARRAY_SIZE(batch.folios) < KVM_S2_BATCH);

	folio_batch_init(&batch);
	nr = min_t(__u32, nr, KVM_S2_BATCH);
	for (i = 0; i < nr; i++) {
		struct folio *folio = virt_to_folio(tables[i]);

		if (unlikely(folio_ref_count(folio) <= counted[i]))
			continue;
		/* Tables with the same owner are accounted together. */
		if (unlikely(!kvm_s2_same_owner(folio, owner))) {
			kvm_s2_account_tables(owner, -(int)(gone - same));
			same = gone;
			owner = folio;
		}
		refs[gone++] = counted[i] + 1;
		folio_batch_add(&batch, folio);
	}
	if (!gone)
		return nr;

	kvm_s2_account_tables(owner, -(int)(gone - same));
	folios_put_refs(&batch, refs);
	if (calm)
		kvm_s2_calm_allocator(virt_to_page(tables[0]));
	return nr - gone;
}

/*
 * Drop the references of @counted entries of one page of the root.
 *
 * Return: whether the page had that many.
 */
bool kvm_s2_put_root_entries(void *table, __u32 counted)
{
	struct folio *folio = virt_to_folio(table);

	if (folio_ref_count(folio) <= counted)
		return false;
	folio_ref_sub(folio, counted);
	return true;
}

void kvm_s2_free_root(void *root, size_t size)
{
	kvm_account_pgtable_pages(root, -(int)(size >> PAGE_SHIFT));
	free_pages_exact(root, size);
}

/* Return: whether somebody else ran. */
bool kvm_s2_resched(void)
{
	return cond_resched();
}

/* Under an instruction-counting emulator a nanosecond is an instruction. */
__u64 kvm_s2_clock(void)
{
	return local_clock();
}
