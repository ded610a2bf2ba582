// SPDX-License-Identifier: GPL-2.0
/*
 * Destroy of a guest of a protected host: the hypervisor's side of each mapping,
 * and what the host holds for it.
 */

#define pr_fmt(fmt) "kvm_s2: " fmt

#include <linux/kvm_host.h>
#include <linux/math64.h>
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/slab.h>
#include <linux/timex.h>

#include <asm/arch_timer.h>
#include <asm/kvm_mmu.h>
#include <asm/kvm_pkvm.h>
#include <asm/kvm_s2_destroy.h>

#include "s2_destroy.h"
#include "s2_destroy_stats.h"

static_assert(offsetof(struct kvm_s2_mapping, node) == offsetof(struct pkvm_mapping, node));
static_assert(offsetof(struct kvm_s2_mapping, gfn) == offsetof(struct pkvm_mapping, gfn));
static_assert(offsetof(struct kvm_s2_mapping, pfn) == offsetof(struct pkvm_mapping, pfn));
static_assert(offsetof(struct kvm_s2_mapping, nr_pages_nc) + sizeof(u64) ==
	      offsetof(struct pkvm_mapping, __subtree_last));

static const struct pkvm_mapping *kvm_s2_to_pkvm(const struct kvm_s2_mapping *mapping)
{
	return (const struct pkvm_mapping *)mapping;
}

/* Most pages in one call, and most mappings settled between two chances to schedule. */
#define KVM_S2_RUN_SHARED	512
#define KVM_S2_BUDGET_SHARED	256

#ifdef CONFIG_KVM_S2_PKVM_FAULTS
u64 kvm_s2_refuse_every;
bool kvm_s2_refuse_runs;
#endif

static bool kvm_s2_use_runs(void)
{
	return IS_ENABLED(CONFIG_KVM_S2_PKVM_RUNS);
}

static u64 kvm_s2_longest_ns(const struct kvm *kvm)
{
	return mul_u64_u32_div(kvm->arch.pkvm.el2.longest, NSEC_PER_SEC,
			       arch_timer_get_cntfrq());
}

/* From here on calls to EL2 count for the destroy of this VM. */
void kvm_s2_pkvm_begin(struct kvm *kvm)
{
	memset(&kvm->arch.pkvm.el2, 0, sizeof(kvm->arch.pkvm.el2));
}

/* The figures of EL2, as far as there are any; one call is still to come. */
void kvm_s2_pkvm_end(struct kvm *kvm, u64 seq, struct kvm_s2_figures *figures)
{
	figures->hypercalls = kvm->arch.pkvm.el2.calls;
	figures->max_el2_ns = kvm_s2_longest_ns(kvm);
	kvm->arch.pkvm.el2.seq = seq;
}

/* Interrupts wait until EL2 returns; one that is due must not count as a stay there. */
s64 kvm_s2_call_el2(struct kvm *kvm, u64 function, u64 a, u64 b, u64 c, u64 d)
{
	struct arm_smccc_res res;
	u64 start, ticks;

	scoped_guard(irqsave) {
		start = get_cycles();
		arm_smccc_1_1_hvc(function, a, b, c, d, &res);
		ticks = get_cycles() - start;
	}

	kvm->arch.pkvm.el2.calls++;
	kvm->arch.pkvm.el2.longest = max(kvm->arch.pkvm.el2.longest, ticks);
	if (kvm->arch.pkvm.el2.seq)
		kvm_s2_late_call(kvm->arch.pkvm.el2.seq, kvm_s2_longest_ns(kvm));
	return WARN_ON(res.a0 != SMCCC_RET_SUCCESS) ? -EOPNOTSUPP : res.a1;
}

/* One mapping by upstream's calls. Return: pages given back. */
static u64 kvm_s2_pkvm_release_one(struct kvm *kvm, const struct pkvm_mapping *mapping)
{
	pkvm_handle_t handle = kvm->arch.pkvm.handle;
	s64 ret;

	if (kvm_vm_is_protected(kvm))
		ret = kvm_s2_timed_call(kvm, __pkvm_reclaim_dying_guest_page, handle,
					mapping->gfn);
	else
		ret = kvm_s2_timed_call(kvm, __pkvm_host_unshare_guest, handle, mapping->gfn,
					(u64)mapping->nr_pages);
	return ret ? 0 : mapping->nr_pages;
}

/*
 * Ask EL2 for the pages of mappings in a row, starting with @first and linked by
 * their right pointers.
 *
 * Return: pages given back. Fewer than asked for if that is enough for one call, or
 * if the next one is refused; fewer than those of @first if they are.
 */
__u64 kvm_s2_pkvm_release(void *vm, const struct kvm_s2_mapping *first, __u64 gfn,
			  __u64 nr_pages)
{
	struct kvm *kvm = vm;
	s64 done;

	if (kvm_s2_use_runs()) {
		done = kvm_s2_timed_call(kvm, __pkvm_release_dying_guest, kvm->arch.pkvm.handle,
					 gfn, kvm_s2_refuse_runs ? 0 : nr_pages,
					 kvm_s2_refuse_every);
		if (done >= 0)
			return done;
		pr_warn_once("EL2 refuses runs of pages (%lld), going page by page\n", done);
	} else {
		pr_info_once("built without runs of pages, going page by page\n");
	}
	return kvm_s2_pkvm_release_one(kvm, kvm_s2_to_pkvm(first));
}

/* A chance to schedule; how long it took to come to it is among the figures. */
static void kvm_s2_pkvm_resched(u64 *since, struct kvm_s2_figures *figures)
{
	figures->max_stretch_ns = max(figures->max_stretch_ns, kvm_s2_clock() - *since);
	cond_resched();
	*since = kvm_s2_clock();
}

/*
 * Fetch the tables that EL2 does not need any more, a few at a time, and then what
 * it holds for each vCPU, so that none of it is left for the final call.
 */
static void kvm_s2_pkvm_fetch_tables(struct kvm *kvm, struct kvm_s2_figures *figures)
{
	struct kvm_protected_vm *pkvm = &kvm->arch.pkvm;
	u64 since = kvm_s2_clock();
	u64 tables = 0;
	s64 nr;

	if (!kvm_s2_use_runs())
		return;

	while ((nr = kvm_s2_timed_call(kvm, __pkvm_reclaim_dying_tables, pkvm->handle)) > 0) {
		tables += nr;
		free_hyp_memcache(&pkvm->stage2_teardown_mc);
		kvm_s2_pkvm_resched(&since, figures);
	}
	figures->tables = tables;

	for (unsigned int i = 0; i < kvm->created_vcpus; i++) {
		if (kvm_s2_timed_call(kvm, __pkvm_reclaim_dying_vcpu, pkvm->handle, i))
			return;
		free_hyp_memcache(&pkvm->stage2_teardown_mc);
		free_hyp_memcache(&pkvm->teardown_mc);
		kvm_s2_pkvm_resched(&since, figures);
	}
}

static void kvm_s2_pkvm_unpin(struct kvm *kvm, struct kvm_s2_mapping *const *mappings, __u32 nr)
{
	struct page *pages[KVM_S2_BATCH];

	for (__u32 i = 0; i < nr; i++)
		pages[i] = pfn_to_page(mappings[i]->pfn);

	unpin_user_pages_dirty_lock(pages, nr, true);
	account_locked_vm(kvm->mm, nr, false);
}

/* Batches of mappings, to calm the page allocator now and then. */
static DEFINE_PER_CPU(u32, kvm_s2_settled);

/* End mappings whose pages EL2 gave back. */
void kvm_s2_pkvm_settle(void *vm, struct kvm_s2_mapping *const *mappings, __u32 nr)
{
	const struct page *freed = virt_to_page(mappings[0]);
	struct kvm *kvm = vm;

	nr = min_t(__u32, nr, KVM_S2_BATCH);
	if (kvm_vm_is_protected(kvm))
		kvm_s2_pkvm_unpin(kvm, mappings, nr);
	kfree_bulk(nr, (void **)mappings);
	/* Each batch may free the pages it unpinned; a page of mappings takes two batches. */
	if (kvm_vm_is_protected(kvm) || !(this_cpu_inc_return(kvm_s2_settled) % 8))
		kvm_s2_calm_allocator(freed);
}

/*
 * End a mapping whose pages EL2 did not give back. EL2 takes them for the
 * guest's, so they must not reach the page allocator: a protected guest's stay
 * pinned, another's get a reference that nobody drops. The end of the VM shall not
 * have to look for them, so EL2 forgets where the guest had them.
 */
void kvm_s2_pkvm_keep(void *vm, const struct kvm_s2_mapping *node, bool report)
{
	const struct pkvm_mapping *mapping = kvm_s2_to_pkvm(node);
	struct kvm *kvm = vm;

	if (report)
		pr_warn_ratelimited("EL2 keeps gfn %#llx, %llu page(s), and maybe others of this VM\n",
				    mapping->gfn, (u64)mapping->nr_pages);
	if (!kvm_vm_is_protected(kvm) && pfn_valid(mapping->pfn)) {
		for (u64 i = 0; i < mapping->nr_pages; i++)
			get_page(pfn_to_page(mapping->pfn + i));
	}
	if (kvm_s2_use_runs())
		kvm_s2_timed_call(kvm, __pkvm_forget_dying_guest, kvm->arch.pkvm.handle,
				  mapping->gfn);
	kfree(mapping);
}

void kvm_s2_destroy_pkvm(struct kvm_pgtable *pgt, u64 start, struct kvm_s2_figures *figures)
{
	struct kvm *kvm = kvm_s2_mmu_to_kvm(pgt->mmu);
	bool protected = kvm_vm_is_protected(kvm);
	const struct kvm_s2_mappings mappings = {
		.root		= pgt->pkvm_mappings.rb_root.rb_node,
		.kvm		= kvm,
		.start		= start,
		.page_shift	= PAGE_SHIFT,
		.ia_bits	= VTCR_EL2_IPA(pgt->mmu->vtcr),
		.max_run	= protected ? KVM_S2_RUN_PROTECTED : KVM_S2_RUN_SHARED,
		.budget		= protected ? KVM_S2_RUN_PROTECTED : KVM_S2_BUDGET_SHARED,
	};

	/* Without a handle EL2 never knew the VM, and nothing can be mapped. */
	if (!kvm->arch.pkvm.handle)
		return;

	/* From here on EL2 loads no vCPU of this VM, whatever the host asks for. */
	if (pkvm_hyp_vm_is_created(kvm) && !kvm->arch.pkvm.is_dying) {
		WARN_ON(kvm_s2_timed_call(kvm, __pkvm_start_teardown_vm, kvm->arch.pkvm.handle));
		kvm->arch.pkvm.is_dying = true;
	}
	/* EL2 counts the flush of the VMID; after it only upstream's calls invalidate pages. */
	if (kvm_s2_use_runs() && !kvm_s2_refuse_runs)
		figures->tlbis = kvm->arch.pkvm.el2_flushes;

	kvm_s2_destroy_mappings(&mappings, figures);
	pgt->pkvm_mappings = RB_ROOT_CACHED;
	kvm_s2_pkvm_fetch_tables(kvm, figures);
}
