// SPDX-License-Identifier: GPL-2.0
/*
 * Stage-2 tables without a guest, for measuring their destroy. An entry may point
 * anywhere as long as nobody runs on it, so 128 GiB of 4K entries take 256 MiB of
 * tables and nothing else.
 */

#include <linux/file.h>
#include <linux/kvm_host.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>

#include <asm/kvm_mmu.h>
#include <asm/kvm_pgtable.h>
#include <asm/kvm_s2_destroy.h>

#include "s2_destroy.h"
#include "s2_destroy_stats.h"

/* Where a build stands. */
struct kvm_s2_build {
	const struct kvm_s2_bench *what;
	s8 leaf_level;
	u64 leaves;
	u64 tables;
};

static kvm_pte_t kvm_s2_bench_leaf(const struct kvm_s2_build *build, u64 ipa)
{
	kvm_pte_t pte = kvm_phys_to_pte(ipa & GENMASK_ULL(46, PAGE_SHIFT));

	return pte | (build->leaf_level == KVM_PGTABLE_LAST_LEVEL ? PTE_TYPE_PAGE : PMD_TYPE_SECT);
}

static kvm_pte_t *kvm_s2_bench_table(struct kvm_s2_build *build)
{
	void *table = (void *)get_zeroed_page(GFP_KERNEL_ACCOUNT | __GFP_NOWARN);

	if (!table)
		return NULL;
	kvm_account_pgtable_pages(table, 1);
	build->tables++;
	return table;
}

/* The first address at or after @ipa that is to be mapped. */
static u64 kvm_s2_bench_next(const struct kvm_s2_build *build, u64 ipa)
{
	return build->what->stride ? roundup(ipa, build->what->stride) : ipa;
}

/*
 * Fill the table whose first entry, at @level, maps @base. Each entry takes one
 * reference on its table, as in KVM.
 */
static int kvm_s2_bench_fill(struct kvm_s2_build *build, kvm_pte_t *table, s8 level, u64 base)
{
	u64 size = kvm_granule_size(level);
	int counted = 0, ret = 0;
	u64 ipa;

	for (ipa = kvm_s2_bench_next(build, base);
	     ipa < build->what->size && ipa - base < size * PTRS_PER_PTE;
	     ipa = kvm_s2_bench_next(build, ALIGN_DOWN(ipa, size) + size)) {
		kvm_pte_t *slot = &table[(ipa - base) / size];
		kvm_pte_t *child;

		if (level == build->leaf_level) {
			*slot = kvm_s2_bench_leaf(build, ipa);
			build->leaves++;
			counted++;
			continue;
		}

		child = fatal_signal_pending(current) ? NULL : kvm_s2_bench_table(build);
		if (!child) {
			ret = fatal_signal_pending(current) ? -EINTR : -ENOMEM;
			break;
		}
		*slot = kvm_phys_to_pte(__pa(child)) | PMD_TYPE_TABLE;
		counted++;
		cond_resched();
		ret = kvm_s2_bench_fill(build, child, level + 1, ALIGN_DOWN(ipa, size));
		if (ret)
			break;
	}

	page_ref_add(virt_to_page(table), counted);
	return ret;
}

/* Fill all tables of the root, one after the other. */
static int kvm_s2_bench_build(struct kvm_s2_build *build, struct kvm_pgtable *pgt)
{
	kvm_pte_t *root = rcu_dereference_raw(pgt->pgd);
	u64 reach = kvm_granule_size(pgt->start_level) * PTRS_PER_PTE;
	u64 base;
	int ret;

	for (base = 0; base < min(build->what->size, BIT_ULL(pgt->ia_bits)); base += reach) {
		ret = kvm_s2_bench_fill(build, root, pgt->start_level, base);
		if (ret)
			return ret;
		root += PTRS_PER_PTE;
	}
	return 0;
}

static int kvm_s2_bench_level(u64 map_size)
{
	s8 level;

	for (level = KVM_PGTABLE_MIN_BLOCK_LEVEL; level <= KVM_PGTABLE_LAST_LEVEL; level++) {
		if (kvm_granule_size(level) == map_size)
			return level;
	}
	return -EINVAL;
}

static int kvm_s2_bench_check(const struct kvm_s2_bench *what)
{
	if (kvm_s2_el2_maps())
		return -EOPNOTSUPP;
	if (what->ia_bits < ARM64_MIN_PARANGE_BITS || what->ia_bits > get_kvm_ipa_limit())
		return -ERANGE;
	if (what->size > BIT_ULL(what->ia_bits))
		return -ERANGE;
	if (what->stride % PAGE_SIZE || (what->stride && what->stride < what->map_size))
		return -EINVAL;
	return kvm_s2_bench_level(what->map_size);
}

static void kvm_s2_bench_destroy(struct kvm_pgtable *pgt, enum kvm_s2_policy policy,
				 struct kvm_s2_bench_result *result)
{
	struct kvm_s2_run run;

	if (policy != KVM_S2_POLICY_STEPS) {
		const struct kvm_s2_tables tables = kvm_s2_tables_of(pgt, kvm_s2_clock());

		result->rust = true;
		kvm_s2_destroy_by_policy(&tables, policy, &result->figures);
		result->destroy_ns = kvm_s2_clock() - tables.start;
		return;
	}

	/* The last run is ours unless a VM ends now. */
	kvm_s2_destroy(pgt, kvm_s2_upstream.destroy);
	kvm_s2_last_figures(&run, &result->figures);
	result->destroy_ns = run.ns;
	result->rust = run.impl == KVM_S2_IMPL_RUST;
}

/**
 * kvm_s2_bench_fill_vm() - Build a stage-2 table in a VM, for whoever ends that.
 * @vm_fd:	The VM, one that has no memory and has not run.
 * @what:	The table to build.
 *
 * Its entries point anywhere, so it must not run afterwards either.
 *
 * Return: 0; -EBADF if that is no VM, -EBUSY if it has memory, and as of kvm_s2_bench().
 */
int kvm_s2_bench_fill_vm(int vm_fd, const struct kvm_s2_bench *what)
{
	int ret = kvm_s2_bench_check(what);
	struct kvm_s2_build build = { .what = what, .leaf_level = ret };
	struct kvm *kvm;

	CLASS(fd, f)(vm_fd);

	if (ret < 0)
		return ret;
	if (fd_empty(f) || !file_is_kvm(fd_file(f)))
		return -EBADF;
	kvm = fd_file(f)->private_data;

	/* Without memory no notifier looks at the table either. */
	guard(mutex)(&kvm->slots_lock);
	if (kvm->nr_memslot_pages)
		return -EBUSY;
	if (what->size > BIT_ULL(kvm->arch.mmu.pgt->ia_bits))
		return -ERANGE;
	return kvm_s2_bench_build(&build, kvm->arch.mmu.pgt);
}
EXPORT_SYMBOL_GPL(kvm_s2_bench_fill_vm);

/**
 * kvm_s2_bench() - Build a stage-2 table, destroy it, and say what that took.
 * @what:	The table to build.
 * @result:	The figures.
 *
 * The destroy is the one that kvm_s2.impl names, called as KVM calls it.
 *
 * Return: 0; -EOPNOTSUPP where EL2 has the tables, and not the host;
 * -ERANGE or -EINVAL for a table that cannot be; -ENOMEM, -EINTR.
 */
int kvm_s2_bench(const struct kvm_s2_bench *what, struct kvm_s2_bench_result *result)
{
	int ret = kvm_s2_bench_check(what);
	struct kvm_s2_build build = { .what = what, .leaf_level = ret };
	struct kvm_pgtable pgt = {};
	struct kvm_s2_mmu *mmu;

	if (ret < 0)
		return ret;

	mmu = kzalloc_obj(*mmu, GFP_KERNEL);
	if (!mmu)
		return -ENOMEM;
	mmu->vtcr = kvm_get_vtcr(read_sanitised_ftr_reg(SYS_ID_AA64MMFR0_EL1),
				 read_sanitised_ftr_reg(SYS_ID_AA64MMFR1_EL1), what->ia_bits);

	ret = kvm_pgtable_stage2_init(&pgt, mmu, kvm_s2_upstream.mm_ops);
	if (ret)
		goto out;

	result->build_ns = kvm_s2_clock();
	ret = kvm_s2_bench_build(&build, &pgt);
	result->build_ns = kvm_s2_clock() - result->build_ns;
	result->leaves = build.leaves;
	result->tables = build.tables;

	/* What others have put off must not come in between. */
	rcu_barrier();

	/* What was built is destroyed in any case. */
	kvm_s2_bench_destroy(&pgt, what->policy, result);
out:
	kfree(mmu);
	return ret;
}
EXPORT_SYMBOL_GPL(kvm_s2_bench);
