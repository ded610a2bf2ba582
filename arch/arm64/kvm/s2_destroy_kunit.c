// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit: stage-2 tables that KVM's own page-table code built, destroyed by both
 * implementations. No guest and no EL2 is needed.
 */

#include <kunit/test.h>
#include <linux/kvm_host.h>
#include <linux/mm.h>

#include <asm/kvm_mmu.h>
#include <asm/kvm_pgtable.h>
#include <asm/kvm_s2_destroy.h>
#include <asm/stage2_pgtable.h>

#include "s2_destroy.h"
#include "s2_destroy_kunit.h"
#include "s2_destroy_stats.h"

struct s2_test {
	struct kvm_pgtable pgt;
	struct kvm_s2_mmu mmu;
	struct kvm_mmu_memory_cache cache;
	long tables_before;
};

long s2_test_tables(void)
{
	long nr = global_node_page_state(NR_SECONDARY_PAGETABLE);
	pg_data_t *pgdat;
	int cpu;

	for_each_online_pgdat(pgdat) {
		for_each_online_cpu(cpu)
			nr += per_cpu_ptr(pgdat->per_cpu_nodestats,
					  cpu)->vm_node_stat_diff[NR_SECONDARY_PAGETABLE];
	}
	return nr;
}

void s2_test_init(struct kunit *test, struct kvm_pgtable *pgt, struct kvm_s2_mmu *mmu,
		  u32 ia_bits)
{
	mmu->vtcr = kvm_get_vtcr(read_sanitised_ftr_reg(SYS_ID_AA64MMFR0_EL1),
				 read_sanitised_ftr_reg(SYS_ID_AA64MMFR1_EL1), ia_bits);
	KUNIT_ASSERT_EQ(test, 0, kvm_pgtable_stage2_init(pgt, mmu, kvm_s2_upstream.mm_ops));
}

static struct s2_test *s2_test_start(struct kunit *test, u32 ia_bits)
{
	struct s2_test *s2 = kunit_kzalloc(test, sizeof(*s2), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, s2);
	if (ia_bits > get_kvm_ipa_limit())
		kunit_skip(test, "this CPU has no %u-bit IPA", ia_bits);

	s2->tables_before = s2_test_tables();
	s2->cache.gfp_zero = __GFP_ZERO;
	s2_test_init(test, &s2->pgt, &s2->mmu, ia_bits);
	return s2;
}

void s2_test_map(struct kunit *test, struct kvm_pgtable *pgt, struct kvm_mmu_memory_cache *cache,
		 u64 ipa, u64 size)
{
	for (u64 end = ipa + size, step = min_t(u64, size, PMD_SIZE); ipa < end; ipa += step) {
		KUNIT_ASSERT_EQ(test, 0,
				kvm_mmu_topup_memory_cache(cache,
							   kvm_mmu_cache_min_pages(pgt->mmu)));
		KUNIT_ASSERT_EQ(test, 0,
				kvm_pgtable_stage2_map(pgt, ipa, step, ipa & GENMASK(46, 0),
						       KVM_PGTABLE_PROT_RW, cache,
						       KVM_PGTABLE_WALK_SKIP_CMO));
	}
}

void s2_test_map_pages(struct kunit *test, struct kvm_pgtable *pgt,
		       struct kvm_mmu_memory_cache *cache, u64 ipa, u64 nr)
{
	while (nr--) {
		s2_test_map(test, pgt, cache, ipa, PAGE_SIZE);
		ipa += PAGE_SIZE;
	}
}

static struct kvm_s2_figures s2_test_destroy(struct s2_test *s2)
{
	struct kvm_s2_figures figures = kvm_s2_nothing_measured();

	kvm_mmu_free_memory_cache(&s2->cache);
	kvm_s2_destroy_ordinary(&s2->pgt, kvm_s2_clock(), &figures);
	return figures;
}

static void s2_test_no_leak(struct kunit *test, const struct s2_test *s2,
			    const struct kvm_s2_figures *figures)
{
	KUNIT_EXPECT_EQ(test, figures->leaked, 0);
	KUNIT_EXPECT_EQ(test, s2_test_tables(), s2->tables_before);
	KUNIT_EXPECT_NULL(test, rcu_dereference_raw(s2->pgt.pgd));
}

static const u32 s2_test_ia_bits[] = { 32, 36, 40, 44, 48, 52 };

KUNIT_ARRAY_PARAM(ia_bits, s2_test_ia_bits, NULL);

static u32 s2_test_bits(const struct kunit *test)
{
	return *(const u32 *)test->param_value;
}

static void s2_test_empty(struct kunit *test)
{
	struct s2_test *s2 = s2_test_start(test, s2_test_bits(test));
	struct kvm_s2_figures figures = s2_test_destroy(s2);

	s2_test_no_leak(test, s2, &figures);
	KUNIT_EXPECT_EQ(test, figures.tables, 0);
	KUNIT_EXPECT_EQ(test, figures.chunks, 0);
	KUNIT_EXPECT_EQ(test, figures.rescheds, 0);
}

/* One page past a chunk: the table above both chunks must survive the first. */
static void s2_test_chunk_plus_one(struct kunit *test)
{
	struct s2_test *s2 = s2_test_start(test, s2_test_bits(test));
	u64 chunk = kvm_granule_size(KVM_PGTABLE_MIN_BLOCK_LEVEL);
	struct kvm_s2_figures figures;

	s2_test_map_pages(test, &s2->pgt, &s2->cache, chunk - 16 * PAGE_SIZE, 17);
	figures = s2_test_destroy(s2);

	s2_test_no_leak(test, s2, &figures);
	KUNIT_EXPECT_EQ(test, figures.leaves, 17);
	KUNIT_EXPECT_EQ(test, figures.pages, 17);
	KUNIT_EXPECT_EQ(test, figures.chunks, 2);
}

/* A page at each end of the address space, blocks and pages side by side. */
static void s2_test_mixed(struct kunit *test)
{
	struct s2_test *s2 = s2_test_start(test, s2_test_bits(test));
	/* All at the lower end are one chunk, or each of the four blocks is one. */
	u64 near = kvm_granule_size(KVM_PGTABLE_MIN_BLOCK_LEVEL) > PMD_SIZE ? 1 : 4;
	struct kvm_s2_figures figures;

	s2_test_map_pages(test, &s2->pgt, &s2->cache, 0, 3);
	s2_test_map(test, &s2->pgt, &s2->cache, 2 * PMD_SIZE, PMD_SIZE);
	s2_test_map_pages(test, &s2->pgt, &s2->cache, 3 * PMD_SIZE, 1);
	s2_test_map(test, &s2->pgt, &s2->cache, 4 * PMD_SIZE, PMD_SIZE);
	s2_test_map_pages(test, &s2->pgt, &s2->cache, BIT_ULL(s2_test_bits(test)) - PAGE_SIZE, 1);
	figures = s2_test_destroy(s2);

	s2_test_no_leak(test, s2, &figures);
	KUNIT_EXPECT_EQ(test, figures.leaves, 7);
	KUNIT_EXPECT_EQ(test, figures.pages, 5 + 2 * (PMD_SIZE / PAGE_SIZE));
	/* Where a table leads to the far end, going down it takes a chunk of its own. */
	KUNIT_EXPECT_EQ(test, figures.chunks,
			near + 1 + (s2->pgt.start_level < KVM_PGTABLE_MIN_BLOCK_LEVEL));
}

/* Upstream's destroy of the same table ends in the same state. */
static void s2_test_same_as_upstream(struct kunit *test)
{
	struct s2_test *s2 = s2_test_start(test, s2_test_bits(test));

	s2_test_map_pages(test, &s2->pgt, &s2->cache, 0, 600);
	kvm_mmu_free_memory_cache(&s2->cache);
	kvm_pgtable_stage2_destroy(&s2->pgt);
	KUNIT_EXPECT_EQ(test, s2_test_tables(), s2->tables_before);
}

struct s2_test_tables {
	struct page *pages[8];
	int nr;
};

static int s2_test_take_table(const struct kvm_pgtable_visit_ctx *ctx,
			      enum kvm_pgtable_walk_flags visit)
{
	struct s2_test_tables *tables = ctx->arg;

	if (tables->nr == ARRAY_SIZE(tables->pages))
		return -ENOSPC;
	tables->pages[tables->nr++] = phys_to_page(kvm_pte_to_phys(ctx->old));
	return 0;
}

/*
 * Somebody holds a reference on a table of each level while it is destroyed, as
 * memory hot-remove may: the page lives on until that is dropped, and only then.
 */
static void s2_test_held_tables(struct kunit *test)
{
	struct s2_test *s2 = s2_test_start(test, s2_test_bits(test));
	struct s2_test_tables tables = {};
	struct kvm_pgtable_walker walker = {
		.cb	= s2_test_take_table,
		.flags	= KVM_PGTABLE_WALK_TABLE_PRE,
		.arg	= &tables,
	};
	struct kvm_s2_figures figures;

	s2_test_map_pages(test, &s2->pgt, &s2->cache, PMD_SIZE, 5);
	KUNIT_ASSERT_EQ(test, 0, kvm_pgtable_walk(&s2->pgt, PMD_SIZE, PAGE_SIZE, &walker));
	KUNIT_ASSERT_GT(test, tables.nr, 0);
	for (int i = 0; i < tables.nr; i++)
		get_page(tables.pages[i]);

	figures = s2_test_destroy(s2);
	s2_test_no_leak(test, s2, &figures);
	for (int i = 0; i < tables.nr; i++) {
		KUNIT_EXPECT_EQ(test, page_count(tables.pages[i]), 1);
		put_page(tables.pages[i]);
	}
}

/* An entry that leads to where no memory is: reported and left behind, no more. */
static void s2_test_corrupt_entry(struct kunit *test)
{
	struct s2_test *s2 = s2_test_start(test, 40);
	kvm_pte_t *root = rcu_dereference_raw(s2->pgt.pgd);
	u64 entries = BIT_ULL(40) / kvm_granule_size(s2->pgt.start_level);
	struct kvm_s2_figures figures;

	s2_test_map_pages(test, &s2->pgt, &s2->cache, 0, 5);
	root[min(entries, PTRS_PER_PTE) - 1] = kvm_phys_to_pte(BIT_ULL(47)) | PMD_TYPE_TABLE;
	get_page(virt_to_page(root));
	figures = s2_test_destroy(s2);

	KUNIT_EXPECT_EQ(test, figures.leaked, 1);
	KUNIT_EXPECT_EQ(test, figures.leaves, 5);
	KUNIT_EXPECT_EQ(test, s2_test_tables(), s2->tables_before);
}

static struct kunit_case s2_test_cases[] = {
	KUNIT_CASE_PARAM(s2_test_empty, ia_bits_gen_params),
	KUNIT_CASE_PARAM(s2_test_chunk_plus_one, ia_bits_gen_params),
	KUNIT_CASE_PARAM(s2_test_mixed, ia_bits_gen_params),
	KUNIT_CASE_PARAM(s2_test_same_as_upstream, ia_bits_gen_params),
	KUNIT_CASE_PARAM(s2_test_held_tables, ia_bits_gen_params),
	KUNIT_CASE(s2_test_corrupt_entry),
	{}
};

static struct kunit_suite s2_test_suite = {
	.name		= "kvm_s2_pgtable",
	.test_cases	= s2_test_cases,
};

kunit_test_suite(s2_test_suite);
