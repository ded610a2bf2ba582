// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit: a VM with shadow stage-2s, as one with guests of its own has. No CPU with
 * nested virtualization is needed for their end.
 */

#include <kunit/test.h>
#include <linux/kvm_host.h>
#include <linux/mm.h>

#include <asm/kvm_mmu.h>
#include <asm/kvm_nested.h>
#include <asm/kvm_pgtable.h>
#include <asm/kvm_s2_destroy.h>

#include "s2_destroy.h"
#include "s2_destroy_kunit.h"
#include "s2_destroy_stats.h"

#define NESTED_TEST_MMUS	2
#define NESTED_TEST_PAGES	600

/* The stage-2 of one MMU, as kvm_init_stage2_mmu() leaves it, with @nr pages. */
static void nested_test_fill(struct kunit *test, struct kvm *kvm, struct kvm_s2_mmu *mmu, u64 nr)
{
	struct kvm_mmu_memory_cache cache = { .gfp_zero = __GFP_ZERO };
	struct kvm_pgtable *pgt = kzalloc_obj(*pgt);

	KUNIT_ASSERT_NOT_NULL(test, pgt);
	mmu->arch = &kvm->arch;
	s2_test_init(test, pgt, mmu, 40);
	mmu->pgt = pgt;

	s2_test_map_pages(test, pgt, &cache, 0, nr);
	kvm_mmu_free_memory_cache(&cache);
}

/* The end of a VM takes its own stage-2 and every shadow, each by a destroy of its own. */
static void nested_test_all_go(struct kunit *test)
{
	struct kvm_s2_mmu *shadows[NESTED_TEST_MMUS];
	struct kvm *kvm = kunit_kzalloc(test, sizeof(*kvm), GFP_KERNEL);
	struct kvm_s2_figures figures;
	struct kvm_s2_run before, after;
	long tables = s2_test_tables();

	KUNIT_ASSERT_NOT_NULL(test, kvm);
	rwlock_init(&kvm->mmu_lock);
	kvm->mm = &init_mm;
	nested_test_fill(test, kvm, &kvm->arch.mmu, NESTED_TEST_PAGES);
	for (int i = 0; i < NESTED_TEST_MMUS; i++) {
		shadows[i] = kunit_kzalloc(test, sizeof(*shadows[i]), GFP_KERNEL);
		KUNIT_ASSERT_NOT_NULL(test, shadows[i]);
		nested_test_fill(test, kvm, shadows[i], NESTED_TEST_PAGES << i);
	}
	kvm->arch.nested_mmus = shadows;
	kvm->arch.nested_mmus_size = NESTED_TEST_MMUS;

	kvm_s2_last_figures(&before, &figures);
	kvm_arch_flush_shadow_all(kvm);
	kvm_s2_last_figures(&after, &figures);

	KUNIT_EXPECT_EQ(test, after.seq, before.seq + 1 + NESTED_TEST_MMUS);
	KUNIT_EXPECT_EQ(test, s2_test_tables(), tables);
	KUNIT_EXPECT_EQ(test, figures.leaves, NESTED_TEST_PAGES);
	KUNIT_EXPECT_EQ(test, figures.leaked, 0);
	KUNIT_EXPECT_NULL(test, kvm->arch.mmu.pgt);
	for (int i = 0; i < NESTED_TEST_MMUS; i++)
		KUNIT_EXPECT_NULL(test, shadows[i]->pgt);
}

static int nested_test_init(struct kunit *test)
{
	if (kvm_s2_el2_maps())
		kunit_skip(test, "a protected host has no shadow stage-2s");
	return 0;
}

static struct kunit_case nested_test_cases[] = {
	KUNIT_CASE(nested_test_all_go),
	{}
};

static struct kunit_suite nested_test_suite = {
	.name		= "kvm_s2_nested",
	.init		= nested_test_init,
	.test_cases	= nested_test_cases,
};

kunit_test_suite(nested_test_suite);
