/* SPDX-License-Identifier: GPL-2.0 */
#ifndef __ARM64_KVM_NVHE_DYING_H__
#define __ARM64_KVM_NVHE_DYING_H__

#include <asm/kvm_host.h>
#include <asm/kvm_hyp.h>

#include <nvhe/pkvm.h>

/* No vCPU of the VM can be loaded any more: what TLBs hold of it can go. */
static inline void pkvm_flush_dying_vm(struct pkvm_hyp_vm *vm)
{
	if (IS_ENABLED(CONFIG_KVM_S2_PKVM_RUNS))
		__kvm_tlb_flush_vmid(&vm->kvm.arch.mmu);
}

/* For the table of hypercalls; without the option they are not there. */
#ifdef CONFIG_KVM_S2_PKVM_RUNS
#define PKVM_DYING_HANDLERS						\
	HANDLE_FUNC(__pkvm_release_dying_guest),			\
	HANDLE_FUNC(__pkvm_reclaim_dying_tables),
#else
#define PKVM_DYING_HANDLERS
#endif

void handle___pkvm_release_dying_guest(struct kvm_cpu_context *host_ctxt);
void handle___pkvm_reclaim_dying_tables(struct kvm_cpu_context *host_ctxt);

#endif /* __ARM64_KVM_NVHE_DYING_H__ */
