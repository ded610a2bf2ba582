/* SPDX-License-Identifier: GPL-2.0 */
#ifndef __ARM64_KVM_NVHE_DYING_H__
#define __ARM64_KVM_NVHE_DYING_H__

#include <linux/kvm_host.h>
#include <asm/kvm_hyp.h>
#include <asm/kvm_pgtable.h>

#include <nvhe/memory.h>
#include <nvhe/pkvm.h>

/*
 * No vCPU of the VM can be loaded any more: what TLBs hold of it can go. Called with
 * vm_table_lock held, and the flush ends with a DSB, so that whoever sees the mark under
 * that lock also finds the TLBs empty.
 */
static inline void pkvm_flush_dying_vm(struct pkvm_hyp_vm *vm)
{
	if (!IS_ENABLED(CONFIG_KVM_S2_PKVM_RUNS))
		return;

	__kvm_tlb_flush_vmid(&vm->kvm.arch.mmu);
	vm->host_kvm->arch.pkvm.el2_flushes++;
}

/*
 * Free the stage-2 of a VM for good. If its root is empty already, there is no need
 * to look for what hangs there in the whole of the address space.
 */
static inline void pkvm_destroy_dying_stage2(struct kvm_pgtable *pgt)
{
	size_t size = kvm_pgtable_stage2_pgd_size(pgt->mmu->vtcr);
	void *root = (void *)pgt->pgd;
	size_t offset;

	for (offset = 0; offset < size; offset += PAGE_SIZE) {
		if (hyp_page_count(root + offset) != 1) {
			kvm_pgtable_stage2_destroy(pgt);
			return;
		}
	}
	kvm_pgtable_stage2_destroy_pgd(pgt);
}

/* For the table of hypercalls; without the option they are not there. */
#ifdef CONFIG_KVM_S2_PKVM_RUNS
#define PKVM_DYING_HANDLERS						\
	HANDLE_FUNC(__pkvm_release_dying_guest),			\
	HANDLE_FUNC(__pkvm_forget_dying_guest),				\
	HANDLE_FUNC(__pkvm_reclaim_dying_tables),			\
	HANDLE_FUNC(__pkvm_reclaim_dying_vcpu),
#else
#define PKVM_DYING_HANDLERS
#endif

void handle___pkvm_release_dying_guest(struct kvm_cpu_context *host_ctxt);
void handle___pkvm_forget_dying_guest(struct kvm_cpu_context *host_ctxt);
void handle___pkvm_reclaim_dying_tables(struct kvm_cpu_context *host_ctxt);
void handle___pkvm_reclaim_dying_vcpu(struct kvm_cpu_context *host_ctxt);

/* Most pages in one call, so that EL2 is left again soon: a block of the level above. */
#define DYING_MAX_PAGES		PTRS_PER_PTE
/*
 * Pages that are cleared take longer, so that a call ends when it has done this much of
 * it. The unit is a page cleared among neighbours, about 300 instructions.
 */
#define DYING_MAX_WORK		100

/* The entries on the way from the root to a leaf, by level from FIRST_LEVEL on. */
struct dying_path {
	kvm_pte_t *ptep[KVM_PGTABLE_LAST_LEVEL - KVM_PGTABLE_FIRST_LEVEL + 1];
	s8 level;
};

/* dying_pages.c */
kvm_pte_t *dying_find(struct kvm_pgtable *pgt, struct dying_path *path, u64 addr);
u64 dying_to_end(const kvm_pte_t *ptep);
void dying_put_entries(struct pkvm_hyp_vm *vm, struct dying_path *path, u16 nr);
u64 dying_release_run(struct pkvm_hyp_vm *vm, u64 gfn, u64 nr);
void dying_forget(struct pkvm_hyp_vm *vm, u64 gfn);

/* dying_reclaim.c */
u64 dying_reclaim(struct pkvm_hyp_vm *vm, struct dying_path *path, kvm_pte_t *ptep, u64 nr,
		  u32 *work);

/* dying.c */
s64 pkvm_release_dying_guest(pkvm_handle_t handle, u64 gfn, u64 nr, u64 refuse_every);
s64 pkvm_forget_dying_guest(pkvm_handle_t handle, u64 gfn);
s64 pkvm_reclaim_dying_tables(pkvm_handle_t handle);
s64 pkvm_reclaim_dying_vcpu(pkvm_handle_t handle, unsigned int idx);

/* dying_clear.S: does not wait for the caches. Return: whether it can do this here. */
bool dying_clear_page(void *page);

#if defined(CONFIG_NVHE_EL2_DEBUG) && defined(CONFIG_KVM_S2_PKVM_RUNS)
/* Part of pkvm_ownership_selftest(), with the page at @pfn owned by EL2. */
void pkvm_dying_selftest(struct pkvm_hyp_vcpu *vcpu, u64 pfn);
#else
static inline void pkvm_dying_selftest(struct pkvm_hyp_vcpu *vcpu, u64 pfn) { }
#endif

#endif /* __ARM64_KVM_NVHE_DYING_H__ */
