// SPDX-License-Identifier: GPL-2.0
/*
 * The calls that give back to the host what EL2 has of a dying VM, a bounded part each:
 * runs of pages, tables, vCPUs.
 *
 * No TLB invalidation is needed for any page here. A VM is marked dying under
 * vm_table_lock when none of its vCPUs is loaded, and after that none can be
 * (pkvm_load_hyp_vcpu() looks at the mark under the same lock), so that no
 * hardware walker starts from the VM's stage-2 again. What TLBs still hold was
 * flushed by VMID when the mark was set, before that lock was dropped, and is flushed
 * again before the VMID can be given to another VM. dying_get_vm() checks the premise
 * with NVHE_EL2_DEBUG; the lines that rely on it are marked "unreachable".
 */

#include <linux/kvm_host.h>

#include <asm/kvm_hyp.h>
#include <asm/kvm_mmu.h>
#include <asm/kvm_pgtable.h>
#include <asm/kvm_pkvm.h>

#include <nvhe/dying.h>
#include <nvhe/gfp.h>
#include <nvhe/mem_protect.h>
#include <nvhe/memory.h>
#include <nvhe/mm.h>
#include <nvhe/pkvm.h>
#include <nvhe/trap_handler.h>

/* Most tables in one call: each is cleared, unmapped here and mapped in the host. */
#define DYING_MAX_TABLES	8

static bool dying_run_is_valid(struct pkvm_hyp_vm *vm, u64 gfn, u64 nr)
{
	u64 limit = BIT(vm->pgt.ia_bits) >> PAGE_SHIFT;

	return nr && nr <= DYING_MAX_PAGES && gfn < limit && nr <= limit - gfn;
}

/* What makes it right not to invalidate anything: see the top of this file. */
static void dying_assert_unloaded(struct pkvm_hyp_vm *vm)
{
	unsigned int i;

	if (!IS_ENABLED(CONFIG_NVHE_EL2_DEBUG))
		return;

	hyp_spin_lock(&vm_table_lock);
	for (i = 0; i < vm->kvm.created_vcpus; i++)
		WARN_ON(vm->vcpus[i] && vm->vcpus[i]->loaded_hyp_vcpu);
	hyp_spin_unlock(&vm_table_lock);
}

/* A VM that is dying, with a reference, or NULL. */
static struct pkvm_hyp_vm *dying_get_vm(pkvm_handle_t handle)
{
	struct pkvm_hyp_vm *vm = get_pkvm_hyp_vm(handle);

	if (vm && !vm->kvm.arch.pkvm.is_dying) {
		put_pkvm_hyp_vm(vm);
		return NULL;
	}
	if (vm)
		dying_assert_unloaded(vm);
	return vm;
}

/* Tests ask for a page to be refused: the run ends before it. */
static u64 dying_before_refused(u64 gfn, u64 nr, u64 refuse_every)
{
	if (!IS_ENABLED(CONFIG_KVM_S2_PKVM_FAULTS) || !refuse_every)
		return nr;
	return min(nr, DIV_ROUND_UP(gfn, refuse_every) * refuse_every - gfn);
}

/*
 * Give pages @gfn to @gfn + @nr of a dying VM back to the host.
 *
 * Return: how many, from the first one on; fewer than @nr if that was enough for
 * one call or if the next one is not what it should be, 0 if that is the first.
 * -EINVAL for a VM that is not dying or a run that cannot be, and nothing was changed.
 */
s64 pkvm_release_dying_guest(pkvm_handle_t handle, u64 gfn, u64 nr, u64 refuse_every)
{
	struct pkvm_hyp_vm *vm = dying_get_vm(handle);
	s64 ret = -EINVAL;

	if (!vm)
		return ret;

	if (dying_run_is_valid(vm, gfn, nr)) {
		/* The order in which mem_protect.c takes them. */
		hyp_spin_lock(&host_mmu.lock);
		hyp_spin_lock(&vm->lock);
		ret = dying_release_run(vm, gfn, dying_before_refused(gfn, nr, refuse_every));
		hyp_spin_unlock(&vm->lock);
		hyp_spin_unlock(&host_mmu.lock);
	}
	put_pkvm_hyp_vm(vm);
	return ret;
}

/*
 * Forget where a dying VM had page @gfn, or the block that it is in, which EL2 would
 * not give back. What the page is stays as it is: the host does not get it.
 *
 * Return: 0, also if there is no such page. -EINVAL as above.
 */
s64 pkvm_forget_dying_guest(pkvm_handle_t handle, u64 gfn)
{
	struct pkvm_hyp_vm *vm = dying_get_vm(handle);
	s64 ret = -EINVAL;

	if (!vm)
		return ret;

	if (dying_run_is_valid(vm, gfn, 1)) {
		hyp_spin_lock(&vm->lock);
		dying_forget(vm, gfn);
		hyp_spin_unlock(&vm->lock);
		ret = 0;
	}
	put_pkvm_hyp_vm(vm);
	return ret;
}

/*
 * Give a page of EL2's own to the host, on @mc. A page that cannot be given is left
 * alone; nobody uses it again.
 *
 * Return: whether it was given.
 */
static bool dying_give_page(struct kvm_hyp_memcache *mc, void *page)
{
	push_hyp_memcache(mc, page, hyp_virt_to_phys);
	kvm_flush_dcache_to_poc(page, PAGE_SIZE);
	if (!__pkvm_hyp_donate_host(hyp_virt_to_pfn(page), 1))
		return true;
	pop_hyp_memcache(mc, hyp_phys_to_virt);
	return false;
}

/*
 * Give up to DYING_MAX_TABLES tables that a dying VM does not need any more back
 * to the host, so that none of them is left for the end.
 *
 * Return: how many; 0 when there are none. -EINVAL as above.
 */
s64 pkvm_reclaim_dying_tables(pkvm_handle_t handle)
{
	struct pkvm_hyp_vm *vm = dying_get_vm(handle);
	struct kvm_hyp_memcache *mc;
	s64 done;

	if (!vm)
		return -EINVAL;

	mc = &vm->host_kvm->arch.pkvm.stage2_teardown_mc;
	for (done = 0; done < DYING_MAX_TABLES; done++) {
		void *table = hyp_alloc_pages(&vm->pool, 0);

		if (!table)
			break;
		hyp_virt_to_page(table)->refcount = 0;
		dying_give_page(mc, table);
	}
	put_pkvm_hyp_vm(vm);
	return done;
}

/* Take a vCPU from a dying VM: no other call finds it any more. */
static struct pkvm_hyp_vcpu *dying_take_vcpu(struct pkvm_hyp_vm *vm, unsigned int idx)
{
	struct pkvm_hyp_vcpu *vcpu = NULL;

	hyp_spin_lock(&vm_table_lock);
	if (idx < vm->kvm.created_vcpus && vm->vcpus[idx] && !vm->vcpus[idx]->loaded_hyp_vcpu) {
		vcpu = vm->vcpus[idx];
		vm->vcpus[idx] = NULL;
	}
	hyp_spin_unlock(&vm_table_lock);
	return vcpu;
}

/* What EL2 shares with the host for a vCPU. */
static void dying_unpin_vcpu(struct pkvm_hyp_vcpu *vcpu)
{
	void *sve_state = vcpu->vcpu.arch.sve_state;

	hyp_unpin_shared_mem(vcpu->host_vcpu, vcpu->host_vcpu + 1);
	if (sve_state)
		hyp_unpin_shared_mem(sve_state, sve_state + vcpu_sve_state_size(&vcpu->vcpu));
}

/*
 * Give what EL2 holds for a vCPU of a dying VM back to the host: its state, cleared,
 * and the pages it had in store for tables. Without it the VM's end would take longer
 * with every vCPU.
 *
 * Return: 0, also if there is no such vCPU. -EINVAL as above.
 */
s64 pkvm_reclaim_dying_vcpu(pkvm_handle_t handle, unsigned int idx)
{
	struct pkvm_hyp_vm *vm = dying_get_vm(handle);
	struct kvm_protected_vm *host;
	struct pkvm_hyp_vcpu *vcpu;
	size_t offset;
	void *page;

	if (!vm)
		return -EINVAL;

	host = &vm->host_kvm->arch.pkvm;
	vcpu = dying_take_vcpu(vm, idx);
	if (vcpu) {
		dying_unpin_vcpu(vcpu);
		while ((page = pop_hyp_memcache(&vcpu->vcpu.arch.pkvm_memcache, hyp_phys_to_virt)))
			dying_give_page(&host->stage2_teardown_mc, page);

		memset(vcpu, 0, PAGE_ALIGN(sizeof(*vcpu)));
		for (offset = 0; offset < sizeof(*vcpu); offset += PAGE_SIZE)
			dying_give_page(&host->teardown_mc, (void *)vcpu + offset);
	}
	put_pkvm_hyp_vm(vm);
	return 0;
}

void handle___pkvm_release_dying_guest(struct kvm_cpu_context *host_ctxt)
{
	DECLARE_REG(pkvm_handle_t, handle, host_ctxt, 1);
	DECLARE_REG(u64, gfn, host_ctxt, 2);
	DECLARE_REG(u64, nr_pages, host_ctxt, 3);
	DECLARE_REG(u64, refuse_every, host_ctxt, 4);

	cpu_reg(host_ctxt, 1) = pkvm_release_dying_guest(handle, gfn, nr_pages, refuse_every);
}

void handle___pkvm_forget_dying_guest(struct kvm_cpu_context *host_ctxt)
{
	DECLARE_REG(pkvm_handle_t, handle, host_ctxt, 1);
	DECLARE_REG(u64, gfn, host_ctxt, 2);

	cpu_reg(host_ctxt, 1) = pkvm_forget_dying_guest(handle, gfn);
}

void handle___pkvm_reclaim_dying_tables(struct kvm_cpu_context *host_ctxt)
{
	DECLARE_REG(pkvm_handle_t, handle, host_ctxt, 1);

	cpu_reg(host_ctxt, 1) = pkvm_reclaim_dying_tables(handle);
}

void handle___pkvm_reclaim_dying_vcpu(struct kvm_cpu_context *host_ctxt)
{
	DECLARE_REG(pkvm_handle_t, handle, host_ctxt, 1);
	DECLARE_REG(unsigned int, vcpu_idx, host_ctxt, 2);

	cpu_reg(host_ctxt, 1) = pkvm_reclaim_dying_vcpu(handle, vcpu_idx);
}
