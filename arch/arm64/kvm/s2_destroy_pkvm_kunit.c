// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit: VMs that EL2 knows, with memory but without anything to run, destroyed on
 * a protected host. Whether a page is the host's again is asked of EL2: only then can
 * it be shared with the hypervisor.
 */

#include <kunit/test.h>
#include <linux/kvm_host.h>
#include <linux/mm.h>

#include <asm/kvm_mmu.h>
#include <asm/kvm_pgtable.h>
#include <asm/kvm_pkvm.h>
#include <asm/kvm_s2_destroy.h>
#include <asm/stage2_pgtable.h>

#include "s2_destroy.h"
#include "s2_destroy_stats.h"

/* Pages in one piece, as many as one run of a guest that shares them. */
#define PKVM_TEST_PAGES		512
#define PKVM_TEST_BLOCK		(PMD_SIZE / PAGE_SIZE)
#define PKVM_TEST_GFN		BIT_ULL(20)

enum pkvm_test_kind {
	PKVM_TEST_SHARED,
	PKVM_TEST_PROTECTED,
	PKVM_TEST_NR_KINDS,
};

/* Who destroys. */
enum pkvm_test_way {
	PKVM_TEST_RUNS,
	PKVM_TEST_EACH,		/* EL2 refuses runs */
	PKVM_TEST_UPSTREAM,
	PKVM_TEST_NR_WAYS,
};

struct pkvm_test_vm {
	struct kvm *kvm;
	struct kvm_vcpu *vcpu;
	struct kvm_pgtable pgt;
};

static void *pkvm_test_shared_alloc(struct kunit *test, size_t size)
{
	void *mem = alloc_pages_exact(size, GFP_KERNEL | __GFP_ZERO);

	KUNIT_ASSERT_NOT_NULL(test, mem);
	KUNIT_ASSERT_EQ(test, 0, kvm_share_hyp(mem, mem + size));
	return mem;
}

static void pkvm_test_shared_free(void *mem, size_t size)
{
	kvm_unshare_hyp(mem, mem + size);
	free_pages_exact(mem, size);
}

/* What EL2 looks at when it takes a VM and a vCPU over. */
static void pkvm_test_prepare(struct pkvm_test_vm *vm)
{
	struct kvm *kvm = vm->kvm;

	mutex_init(&kvm->slots_lock);
	mutex_init(&kvm->arch.config_lock);
	rwlock_init(&kvm->mmu_lock);
	kvm->created_vcpus = 1;
	kvm->arch.mmu.arch = &kvm->arch;
	kvm->arch.mmu.pgt = &vm->pgt;
	kvm->arch.mmu.vtcr = kvm_get_vtcr(read_sanitised_ftr_reg(SYS_ID_AA64MMFR0_EL1),
					  read_sanitised_ftr_reg(SYS_ID_AA64MMFR1_EL1),
					  get_kvm_ipa_limit());
	set_bit(KVM_ARCH_FLAG_ID_REGS_INITIALIZED, &kvm->arch.flags);
	vm->vcpu->kvm = kvm;
	vm->vcpu->arch.hw_mmu = &kvm->arch.mmu;
	/* It never runs, so that there is nothing for EL2 to write back. */
	vcpu_set_flag(vm->vcpu, PKVM_HOST_STATE_DIRTY);
}

static void pkvm_test_start(struct kunit *test, struct pkvm_test_vm *vm, enum pkvm_test_kind kind)
{
	unsigned long type = kind == PKVM_TEST_PROTECTED ? KVM_VM_TYPE_ARM_PROTECTED : 0;

	*vm = (struct pkvm_test_vm) {};
	vm->kvm = pkvm_test_shared_alloc(test, sizeof(*vm->kvm));
	vm->vcpu = pkvm_test_shared_alloc(test, sizeof(*vm->vcpu));
	pkvm_test_prepare(vm);
	KUNIT_ASSERT_EQ(test, 0, pkvm_pgtable_stage2_init(&vm->pgt, &vm->kvm->arch.mmu,
							  kvm_s2_upstream.mm_ops));
	KUNIT_ASSERT_EQ(test, 0, pkvm_init_host_vm(vm->kvm, type));
	KUNIT_ASSERT_EQ(test, 0, pkvm_create_hyp_vm(vm->kvm));
	KUNIT_ASSERT_EQ(test, 0, pkvm_create_hyp_vcpu(vm->vcpu));
}

/* The end of a VM whose stage-2 is destroyed. */
static void pkvm_test_end(struct kunit *test, struct pkvm_test_vm *vm)
{
	pkvm_destroy_hyp_vm(vm->kvm);
	KUNIT_EXPECT_EQ(test, vm->kvm->arch.pkvm.handle, 0);
	free_hyp_memcache(&vm->vcpu->arch.pkvm_memcache);
	pkvm_test_shared_free(vm->vcpu, sizeof(*vm->vcpu));
	pkvm_test_shared_free(vm->kvm, sizeof(*vm->kvm));
}

/* @nr is a power of two. */
static struct page *pkvm_test_alloc(struct kunit *test, unsigned int nr)
{
	struct page *pages = alloc_pages(GFP_KERNEL | __GFP_ZERO, ilog2(nr));

	KUNIT_ASSERT_NOT_NULL(test, pages);
	split_page(pages, ilog2(nr));
	return pages;
}

static void pkvm_test_free(struct page *pages, unsigned int nr)
{
	for (unsigned int i = 0; i < nr; i++)
		__free_page(&pages[i]);
}

static struct page *pkvm_test_pages(struct kunit *test)
{
	return pkvm_test_alloc(test, PKVM_TEST_PAGES);
}

static void pkvm_test_free_pages(struct page *pages)
{
	pkvm_test_free(pages, PKVM_TEST_PAGES);
}

static void pkvm_test_map(struct kunit *test, struct pkvm_test_vm *vm, u64 gfn, struct page *page,
			  u64 size)
{
	bool protected = kvm_vm_is_protected(vm->kvm);
	struct kvm_hyp_memcache *mc = &vm->vcpu->arch.pkvm_memcache;
	int ret;

	KUNIT_ASSERT_EQ(test, 0,
			topup_hyp_memcache(mc, kvm_mmu_cache_min_pages(&vm->kvm->arch.mmu)));
	/* What a guest's fault takes with pin_user_pages(). */
	if (protected)
		page_ref_add(page, GUP_PIN_COUNTING_BIAS);

	write_lock(&vm->kvm->mmu_lock);
	kvm_call_hyp_nvhe(__pkvm_vcpu_load, vm->kvm->arch.pkvm.handle, 0, 0);
	ret = pkvm_pgtable_stage2_map(&vm->pgt, gfn << PAGE_SHIFT, size, page_to_phys(page),
				      protected ? KVM_PGTABLE_PROT_RWX : KVM_PGTABLE_PROT_RW,
				      mc, 0);
	kvm_call_hyp_nvhe(__pkvm_vcpu_put);
	write_unlock(&vm->kvm->mmu_lock);
	KUNIT_ASSERT_EQ(test, 0, ret);
}

static void pkvm_test_map_pages(struct kunit *test, struct pkvm_test_vm *vm, u64 gfn,
				struct page *pages, unsigned int nr)
{
	for (unsigned int i = 0; i < nr; i++)
		pkvm_test_map(test, vm, gfn + i, &pages[i], PAGE_SIZE);
}

static struct kvm_s2_figures pkvm_test_destroy(struct pkvm_test_vm *vm)
{
	struct kvm_s2_figures figures = kvm_s2_nothing_measured();

	memset(&vm->kvm->arch.pkvm.el2, 0, sizeof(vm->kvm->arch.pkvm.el2));
	kvm_s2_destroy_pkvm(&vm->pgt, kvm_s2_clock(), &figures);
	return figures;
}

/* Whether EL2 takes @page for the host's alone. */
static bool pkvm_test_is_owned(struct page *page)
{
	u64 pfn = page_to_pfn(page);

	return !kvm_call_hyp_nvhe(__pkvm_host_share_hyp, pfn) &&
	       !kvm_call_hyp_nvhe(__pkvm_host_unshare_hyp, pfn);
}

/* Return: how many of @nr pages are the host's again, with no reference but the test's. */
static unsigned int pkvm_test_returned(struct page *pages, unsigned int nr)
{
	unsigned int returned = 0;

	for (unsigned int i = 0; i < nr; i++)
		returned += pkvm_test_is_owned(&pages[i]) && page_count(&pages[i]) == 1;
	return returned;
}

static int pkvm_test_init(struct kunit *test)
{
	if (!is_protected_kvm_enabled())
		kunit_skip(test, "not a protected host");
	return 0;
}

/* Those about the calls that take runs. */
static void pkvm_test_needs_runs(struct kunit *test)
{
	if (!IS_ENABLED(CONFIG_KVM_S2_PKVM_RUNS))
		kunit_skip(test, "built without CONFIG_KVM_S2_PKVM_RUNS");
}

static const enum pkvm_test_kind pkvm_test_kinds[] = { PKVM_TEST_SHARED, PKVM_TEST_PROTECTED };

static void pkvm_test_kind_name(const enum pkvm_test_kind *kind, char *name)
{
	strscpy(name, *kind == PKVM_TEST_PROTECTED ? "protected" : "non-protected",
		KUNIT_PARAM_DESC_SIZE);
}

KUNIT_ARRAY_PARAM(kind, pkvm_test_kinds, pkvm_test_kind_name);

static enum pkvm_test_kind pkvm_test_kind(const struct kunit *test)
{
	return *(const enum pkvm_test_kind *)test->param_value;
}

static s64 pkvm_test_release(pkvm_handle_t handle, u64 gfn, u64 nr)
{
	return kvm_call_hyp_nvhe(__pkvm_release_dying_guest, handle, gfn, nr, 0);
}

/* All calls but those that are for a dying VM are refused, and change nothing. */
static void pkvm_test_refusals(struct kunit *test)
{
	u64 limit = BIT_ULL(get_kvm_ipa_limit() - PAGE_SHIFT);
	struct pkvm_test_vm vm;
	pkvm_handle_t handle;
	struct page *pages;

	pkvm_test_needs_runs(test);
	pages = pkvm_test_pages(test);
	pkvm_test_start(test, &vm, pkvm_test_kind(test));
	pkvm_test_map_pages(test, &vm, PKVM_TEST_GFN, pages, 4);
	handle = vm.kvm->arch.pkvm.handle;

	/* Not dying. */
	KUNIT_EXPECT_EQ(test, pkvm_test_release(handle, PKVM_TEST_GFN, 4), -EINVAL);
	KUNIT_EXPECT_EQ(test, kvm_call_hyp_nvhe(__pkvm_forget_dying_guest, handle, PKVM_TEST_GFN),
			-EINVAL);
	KUNIT_EXPECT_EQ(test, kvm_call_hyp_nvhe(__pkvm_reclaim_dying_tables, handle), -EINVAL);
	KUNIT_EXPECT_EQ(test, kvm_call_hyp_nvhe(__pkvm_reclaim_dying_vcpu, handle, 0), -EINVAL);

	/* No such VM. */
	KUNIT_ASSERT_EQ(test, 0, kvm_call_hyp_nvhe(__pkvm_start_teardown_vm, handle));
	vm.kvm->arch.pkvm.is_dying = true;
	for (int i = 0; i < 3; i++) {
		const pkvm_handle_t nobody[] = { 0, handle + 1, -1 };
		pkvm_handle_t none = nobody[i];

		KUNIT_EXPECT_EQ(test, pkvm_test_release(none, PKVM_TEST_GFN, 4), -EINVAL);
		KUNIT_EXPECT_EQ(test,
				kvm_call_hyp_nvhe(__pkvm_forget_dying_guest, none, PKVM_TEST_GFN),
				-EINVAL);
		KUNIT_EXPECT_EQ(test, kvm_call_hyp_nvhe(__pkvm_reclaim_dying_tables, none),
				-EINVAL);
		KUNIT_EXPECT_EQ(test, kvm_call_hyp_nvhe(__pkvm_reclaim_dying_vcpu, none, 0),
				-EINVAL);
	}

	/* No such run. */
	KUNIT_EXPECT_EQ(test, pkvm_test_release(handle, PKVM_TEST_GFN, 0), -EINVAL);
	KUNIT_EXPECT_EQ(test, pkvm_test_release(handle, PKVM_TEST_GFN, PTRS_PER_PTE + 1), -EINVAL);
	KUNIT_EXPECT_EQ(test, pkvm_test_release(handle, PKVM_TEST_GFN, U64_MAX), -EINVAL);
	KUNIT_EXPECT_EQ(test, pkvm_test_release(handle, limit, 1), -EINVAL);
	KUNIT_EXPECT_EQ(test, pkvm_test_release(handle, limit - 1, 2), -EINVAL);
	KUNIT_EXPECT_EQ(test, pkvm_test_release(handle, U64_MAX, 2), -EINVAL);
	KUNIT_EXPECT_EQ(test, kvm_call_hyp_nvhe(__pkvm_forget_dying_guest, handle, limit), -EINVAL);

	/* Nothing there. */
	KUNIT_EXPECT_EQ(test, pkvm_test_release(handle, PKVM_TEST_GFN - 1, 2), 0);
	KUNIT_EXPECT_EQ(test, kvm_call_hyp_nvhe(__pkvm_reclaim_dying_vcpu, handle, 1), 0);

	KUNIT_EXPECT_EQ(test, 0, pkvm_test_returned(pages, 4));
	KUNIT_EXPECT_EQ(test, pkvm_test_destroy(&vm).pages, 4);
	KUNIT_EXPECT_EQ(test, PKVM_TEST_PAGES, pkvm_test_returned(pages, PKVM_TEST_PAGES));
	pkvm_test_end(test, &vm);
	pkvm_test_free_pages(pages);
}

/* 512 neighbours go in one call if nothing is unpinned, and in small runs else. */
static void pkvm_test_one_run(struct kunit *test)
{
	enum pkvm_test_kind kind = pkvm_test_kind(test);
	struct kvm_s2_figures figures;
	struct pkvm_test_vm vm;
	struct page *pages;
	u64 other_calls;

	pkvm_test_needs_runs(test);
	pages = pkvm_test_pages(test);
	pkvm_test_start(test, &vm, kind);
	pkvm_test_map_pages(test, &vm, PKVM_TEST_GFN, pages, PKVM_TEST_PAGES);
	figures = pkvm_test_destroy(&vm);

	KUNIT_EXPECT_EQ(test, figures.leaves, PKVM_TEST_PAGES);
	KUNIT_EXPECT_EQ(test, figures.pages, PKVM_TEST_PAGES);
	KUNIT_EXPECT_EQ(test, figures.leaked, 0);
	/* Of the whole VMID, and before anything is given back. */
	KUNIT_EXPECT_EQ(test, figures.tlbis, 1);
	/* Dying, tables, no more tables, one vCPU. */
	other_calls = 1 + 2 + 1;
	if (kind == PKVM_TEST_SHARED)
		KUNIT_EXPECT_EQ(test, vm.kvm->arch.pkvm.el2.calls, 1 + other_calls);
	else
		KUNIT_EXPECT_EQ(test, vm.kvm->arch.pkvm.el2.calls,
				DIV_ROUND_UP(PKVM_TEST_PAGES, KVM_S2_RUN_PROTECTED) + other_calls);
	KUNIT_EXPECT_EQ(test, PKVM_TEST_PAGES, pkvm_test_returned(pages, PKVM_TEST_PAGES));
	pkvm_test_end(test, &vm);
	pkvm_test_free_pages(pages);
}

/* A block goes back whole, between pages. */
static void pkvm_test_block(struct kunit *test)
{
	struct page *block = pkvm_test_alloc(test, PKVM_TEST_BLOCK);
	struct page *pages = pkvm_test_pages(test);
	struct kvm_s2_figures figures;
	struct pkvm_test_vm vm;

	pkvm_test_start(test, &vm, PKVM_TEST_SHARED);
	pkvm_test_map_pages(test, &vm, PKVM_TEST_GFN - 3, pages, 3);
	pkvm_test_map(test, &vm, PKVM_TEST_GFN, block, PMD_SIZE);
	pkvm_test_map_pages(test, &vm, PKVM_TEST_GFN + PKVM_TEST_BLOCK, pages + 3, 3);
	figures = pkvm_test_destroy(&vm);

	KUNIT_EXPECT_EQ(test, figures.leaves, 7);
	KUNIT_EXPECT_EQ(test, figures.pages, 6 + PKVM_TEST_BLOCK);
	KUNIT_EXPECT_EQ(test, PKVM_TEST_BLOCK, pkvm_test_returned(block, PKVM_TEST_BLOCK));
	KUNIT_EXPECT_EQ(test, PKVM_TEST_PAGES, pkvm_test_returned(pages, PKVM_TEST_PAGES));
	pkvm_test_end(test, &vm);
	pkvm_test_free(block, PKVM_TEST_BLOCK);
	pkvm_test_free_pages(pages);
}

static void pkvm_test_destroy_by(struct pkvm_test_vm *vm, enum pkvm_test_way way)
{
	if (way == PKVM_TEST_UPSTREAM) {
		kvm_s2_upstream.destroy(&vm->pgt);
		return;
	}
#ifdef CONFIG_KVM_S2_PKVM_FAULTS
	kvm_s2_refuse_runs = way == PKVM_TEST_EACH;
	pkvm_test_destroy(vm);
	kvm_s2_refuse_runs = false;
#else
	pkvm_test_destroy(vm);
#endif
}

/*
 * The same pages, one VM after the other: each kind after each kind, by each way to
 * destroy. All leave the pages in the same state, or the next VM would not get them.
 */
static void pkvm_test_reuse(struct kunit *test)
{
	struct page *pages = pkvm_test_pages(test);
	struct pkvm_test_vm vm;

	for (unsigned int i = 0; i < 2 * PKVM_TEST_NR_KINDS * PKVM_TEST_NR_WAYS; i++) {
		/* Kinds in the order 0 0 1 1. */
		pkvm_test_start(test, &vm, (i / 2) % PKVM_TEST_NR_KINDS);
		pkvm_test_map_pages(test, &vm, PKVM_TEST_GFN, pages, 40);
		KUNIT_EXPECT_EQ(test, 0, pkvm_test_returned(pages, 40));
		pkvm_test_destroy_by(&vm, i % PKVM_TEST_NR_WAYS);
		KUNIT_EXPECT_EQ(test, PKVM_TEST_PAGES, pkvm_test_returned(pages, PKVM_TEST_PAGES));
		pkvm_test_end(test, &vm);
	}
	pkvm_test_free_pages(pages);
}

/* Pages that two VMs share are the host's again when both are gone. */
static void pkvm_test_two_sharers(struct kunit *test)
{
	struct page *pages = pkvm_test_pages(test);
	struct pkvm_test_vm vms[2];

	for (int i = 0; i < ARRAY_SIZE(vms); i++) {
		pkvm_test_start(test, &vms[i], PKVM_TEST_SHARED);
		pkvm_test_map_pages(test, &vms[i], PKVM_TEST_GFN + i, pages, 40);
	}
	KUNIT_EXPECT_EQ(test, pkvm_test_destroy(&vms[0]).pages, 40);
	pkvm_test_end(test, &vms[0]);
	KUNIT_EXPECT_EQ(test, 0, pkvm_test_returned(pages, 40));
	KUNIT_EXPECT_EQ(test, pkvm_test_destroy(&vms[1]).pages, 40);
	pkvm_test_end(test, &vms[1]);
	KUNIT_EXPECT_EQ(test, PKVM_TEST_PAGES, pkvm_test_returned(pages, PKVM_TEST_PAGES));
	pkvm_test_free_pages(pages);
}

#ifdef CONFIG_KVM_S2_PKVM_FAULTS

/* More than three runs of pages that are cleared. Each run of the test loses one. */
#define PKVM_TEST_RUN	70
#define PKVM_TEST_FEW	128

/* Destroys a VM of which EL2 refuses the page at @index. */
static void pkvm_test_refuse(struct kunit *test, unsigned int index)
{
	struct page *pages = pkvm_test_alloc(test, PKVM_TEST_FEW);
	struct kvm_s2_figures figures;
	struct pkvm_test_vm vm;

	pkvm_test_start(test, &vm, pkvm_test_kind(test));
	pkvm_test_map_pages(test, &vm, PKVM_TEST_GFN - index, pages, PKVM_TEST_RUN);
	kvm_s2_refuse_every = PKVM_TEST_GFN;
	figures = pkvm_test_destroy(&vm);
	kvm_s2_refuse_every = 0;

	KUNIT_EXPECT_EQ(test, figures.leaves, PKVM_TEST_RUN);
	KUNIT_EXPECT_EQ(test, figures.pages, PKVM_TEST_RUN - 1);
	KUNIT_EXPECT_EQ(test, figures.leaked, 1);
	/* It is kept from the page allocator, by a reference that nobody drops. */
	KUNIT_EXPECT_FALSE(test, pkvm_test_is_owned(&pages[index]));
	KUNIT_EXPECT_GT(test, page_count(&pages[index]), 1);
	KUNIT_EXPECT_EQ(test, PKVM_TEST_FEW - 1, pkvm_test_returned(pages, PKVM_TEST_FEW));
	pkvm_test_end(test, &vm);
	pkvm_test_free(pages, PKVM_TEST_FEW);
}

/* A page that EL2 refuses costs itself, wherever it is in a run. */
static void pkvm_test_one_refused(struct kunit *test)
{
	for (unsigned int index = 0; index < PKVM_TEST_RUN; index++)
		pkvm_test_refuse(test, index);
}

/* A page that EL2 does not have is refused by the calls for single pages too. */
static void pkvm_test_one_refused_alone(struct kunit *test)
{
	struct page *pages = pkvm_test_pages(test);
	struct kvm_s2_figures figures;
	struct pkvm_test_vm vm;

	pkvm_test_start(test, &vm, PKVM_TEST_SHARED);
	pkvm_test_map_pages(test, &vm, PKVM_TEST_GFN, pages, 3);
	KUNIT_EXPECT_EQ(test, 0, kvm_call_hyp_nvhe(__pkvm_host_unshare_guest,
						   vm.kvm->arch.pkvm.handle,
						   PKVM_TEST_GFN + 1, 1UL));
	kvm_s2_refuse_runs = true;
	figures = pkvm_test_destroy(&vm);
	kvm_s2_refuse_runs = false;

	KUNIT_EXPECT_EQ(test, figures.pages, 2);
	KUNIT_EXPECT_EQ(test, figures.leaked, 1);
	KUNIT_EXPECT_EQ(test, page_count(&pages[1]), 2);
	/* The host has it, unlike one that is refused in earnest. */
	put_page(&pages[1]);
	KUNIT_EXPECT_EQ(test, PKVM_TEST_PAGES, pkvm_test_returned(pages, PKVM_TEST_PAGES));
	pkvm_test_end(test, &vm);
	pkvm_test_free_pages(pages);
}

#endif /* CONFIG_KVM_S2_PKVM_FAULTS */

static struct kunit_case pkvm_test_cases[] = {
	KUNIT_CASE_PARAM(pkvm_test_refusals, kind_gen_params),
	KUNIT_CASE_PARAM(pkvm_test_one_run, kind_gen_params),
	KUNIT_CASE(pkvm_test_block),
	KUNIT_CASE_SLOW(pkvm_test_reuse),
	KUNIT_CASE(pkvm_test_two_sharers),
#ifdef CONFIG_KVM_S2_PKVM_FAULTS
	KUNIT_CASE_PARAM(pkvm_test_one_refused, kind_gen_params),
	KUNIT_CASE(pkvm_test_one_refused_alone),
#endif
	{}
};

static struct kunit_suite pkvm_test_suite = {
	.name		= "kvm_s2_pkvm",
	.init		= pkvm_test_init,
	.test_cases	= pkvm_test_cases,
};

kunit_test_suite(pkvm_test_suite);
