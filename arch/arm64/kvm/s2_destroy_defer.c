// SPDX-License-Identifier: GPL-2.0
/*
 * When a stage-2 is destroyed: where no other VM waits for it.
 *
 * KVM unlinks a stage-2 in its MMU notifier's release, which runs in the one SRCU
 * domain that all notifiers share. Every other VM's end waits for that domain, so
 * nothing long belongs there:
 *
 * - The VM goes before its memory: it is destroyed before the notifier is touched.
 * - The memory goes before the VM, as when its process dies: it is unlinked in the
 *   release, and destroyed when the task is about to leave the kernel or to vanish.
 *
 * Both run in the task that ended the VM, at its priority and on its CPUs, and the
 * tables stay accounted until they are freed. What stays in the release is the
 * non-protected guest of a protected host whose memory goes first: its pages are
 * about to be freed, and EL2 must give them back before.
 */

#include <linux/kvm_host.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/task_work.h>

#include <asm/kvm_mmu.h>
#include <asm/kvm_pkvm.h>
#include <asm/kvm_s2_destroy.h>

#include "s2_destroy.h"
#include "s2_destroy_stats.h"

struct kvm_s2_deferred {
	struct callback_head work;
	struct kvm_pgtable pgt;
	struct kvm_s2_run run;	/* with a reference on the VM if EL2 maps it */
};

static void kvm_s2_run_deferred(struct callback_head *work)
{
	struct kvm_s2_deferred *deferred = container_of(work, struct kvm_s2_deferred, work);

	kvm_s2_destroy_now(&deferred->pgt, &deferred->run);
	if (deferred->run.pkvm)
		kvm_put_kvm(deferred->run.kvm);
	kfree(deferred);
}

/* Whether the release is running because the memory goes, and may go on without us. */
static bool kvm_s2_may_defer(struct kvm *kvm)
{
	if (atomic_read(&kvm->mm->mm_users))
		return false;
	/* The pages of a protected guest are pinned, others must be EL2's no more. */
	if (kvm_s2_el2_maps() && !kvm_vm_is_protected(kvm))
		return false;
	/* A kernel thread returns to nowhere. */
	return !(current->flags & PF_KTHREAD);
}

/**
 * kvm_s2_defer() - Destroy an unlinked stage-2 later, in the same task.
 * @pgt:	The stage-2, whose root and tables are taken over.
 * @run:	What is known of the destroy before it begins.
 *
 * Return: whether it was taken over. Otherwise the caller destroys it at once:
 * there is nobody to spare, no task to come back to, or no memory to note it down.
 */
bool kvm_s2_defer(const struct kvm_pgtable *pgt, const struct kvm_s2_run *run)
{
	struct kvm_s2_deferred *deferred;

	/* The bench has tables without a VM. */
	if (!pgt->mmu->arch || !kvm_s2_may_defer(run->kvm))
		return false;

	deferred = kmalloc_obj(*deferred, GFP_NOWAIT);
	if (!deferred)
		return false;
	deferred->pgt = *pgt;
	deferred->run = *run;
	deferred->run.deferred = true;

	/* EL2 still has pages of the VM, which must not be gone before they are back. */
	if (run->pkvm && !kvm_get_kvm_safe(run->kvm))
		goto out_free;

	init_task_work(&deferred->work, kvm_s2_run_deferred);
	if (task_work_add(current, &deferred->work, TWA_RESUME))
		goto out_put;
	return true;

out_put:
	/* Not the last reference: whoever closes the VM waits for this release. */
	if (run->pkvm)
		kvm_put_kvm(run->kvm);
out_free:
	kfree(deferred);
	return false;
}

/**
 * kvm_arch_pre_destroy_vm() - Destroy the stage-2s of a VM that nobody can reach.
 * @kvm:	The VM.
 *
 * The last file of the VM is closed, so no vCPU runs, and its notifier is still
 * registered. Holding its memory keeps pages that EL2 has from being freed.
 */
void kvm_arch_pre_destroy_vm(struct kvm *kvm)
{
	if (kvm_s2_impl() == KVM_S2_IMPL_C || !mmget_not_zero(kvm->mm))
		return;

	kvm_arch_flush_shadow_all(kvm);
	mmput(kvm->mm);
}
