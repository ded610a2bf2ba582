// SPDX-License-Identifier: GPL-2.0
/*
 * What EL2 answers to requests for the pages of a dying VM, and what they leave
 * behind. Runs at boot with NVHE_EL2_DEBUG, where a failed WARN_ON() stops the boot.
 */

#include <linux/kvm_host.h>

#include <asm/kvm_pgtable.h>

#include <nvhe/dying.h>
#include <nvhe/mem_protect.h>
#include <nvhe/mm.h>

#ifdef CONFIG_NVHE_EL2_DEBUG

static struct hyp_page *test_page;
static struct pkvm_hyp_vcpu *test_vcpu;
static struct pkvm_hyp_vm *test_vm;
static u64 test_pfn;

static pkvm_handle_t test_handle(void)
{
	return test_vm->kvm.arch.pkvm.handle;
}

static void test_share(u64 gfn)
{
	WARN_ON(__pkvm_host_share_guest(test_pfn, gfn, 1, test_vcpu, KVM_PGTABLE_PROT_RWX));
}

static void test_donate(u64 gfn)
{
	WARN_ON(__pkvm_host_donate_guest(test_pfn, gfn, test_vcpu));
}

static void test_release(u64 gfn, u64 nr, s64 expected)
{
	WARN_ON(pkvm_release_dying_guest(test_handle(), gfn, nr, 0) != expected);
}

static void test_state(enum pkvm_page_state state, u32 shares)
{
	hyp_spin_lock(&host_mmu.lock);
	WARN_ON(get_host_state(test_page) != state);
	WARN_ON(test_page->host_share_guest_count != shares);
	hyp_spin_unlock(&host_mmu.lock);
}

static void test_write(u64 value)
{
	u64 *va = hyp_fixmap_map(hyp_pfn_to_phys(test_pfn));

	WRITE_ONCE(va[PAGE_SIZE / sizeof(*va) - 1], value);
	hyp_fixmap_unmap();
}

static u64 test_read(void)
{
	u64 *va = hyp_fixmap_map(hyp_pfn_to_phys(test_pfn));
	u64 value = READ_ONCE(va[PAGE_SIZE / sizeof(*va) - 1]);

	hyp_fixmap_unmap();
	return value;
}

/* A VM that lives, and handles of none, are refused, and nothing changes. */
static void test_not_dying(u64 gfn)
{
	test_share(gfn);
	test_release(gfn, 1, -EINVAL);
	WARN_ON(pkvm_forget_dying_guest(test_handle(), gfn) != -EINVAL);
	WARN_ON(pkvm_reclaim_dying_tables(test_handle()) != -EINVAL);
	WARN_ON(pkvm_reclaim_dying_vcpu(test_handle(), 0) != -EINVAL);

	test_vm->kvm.arch.pkvm.is_dying = true;
	WARN_ON(pkvm_release_dying_guest(0, gfn, 1, 0) != -EINVAL);
	WARN_ON(pkvm_release_dying_guest(test_handle() + 1, gfn, 1, 0) != -EINVAL);
	WARN_ON(pkvm_release_dying_guest((pkvm_handle_t)-1, gfn, 1, 0) != -EINVAL);
	test_state(PKVM_PAGE_SHARED_OWNED, 1);
	test_release(gfn, 1, 1);
	test_state(PKVM_PAGE_OWNED, 0);
}

/* Runs that cannot be are refused, and nothing changes. */
static void test_bad_runs(u64 gfn)
{
	u64 limit = BIT(test_vm->pgt.ia_bits) >> PAGE_SHIFT;

	test_share(limit - 1);
	test_release(limit - 1, 0, -EINVAL);
	test_release(limit - 1, 2, -EINVAL);
	test_release(limit, 1, -EINVAL);
	test_release(gfn, DYING_MAX_PAGES + 1, -EINVAL);
	test_release(gfn, U64_MAX, -EINVAL);
	test_release(U64_MAX, 2, -EINVAL);
	test_state(PKVM_PAGE_SHARED_OWNED, 1);
	test_release(limit - 1, 1, 1);
	test_state(PKVM_PAGE_OWNED, 0);
}

/* A run ends where nothing is mapped, and each mapping counts for itself. */
static void test_shared(u64 gfn)
{
	test_share(gfn);
	test_share(gfn + 1);
	test_share(gfn + 3);
	test_release(gfn, 4, 2);
	test_state(PKVM_PAGE_SHARED_OWNED, 1);
	test_release(gfn, 4, 0);
	test_release(gfn + 2, 2, 0);
	test_state(PKVM_PAGE_SHARED_OWNED, 1);
	test_release(gfn + 3, 1, 1);
	test_state(PKVM_PAGE_OWNED, 0);
}

/* A page that is the guest's own goes back cleared, and only from a protected one. */
static void test_owned(u64 gfn)
{
	test_write(~0ULL);
	test_donate(gfn);
	test_release(gfn, 1, 0);
	test_state(PKVM_NOPAGE, 0);
	WARN_ON(test_read() != ~0ULL);

	test_vm->kvm.arch.pkvm.is_protected = true;
	test_release(gfn, 1, 1);
	test_state(PKVM_PAGE_OWNED, 0);
	WARN_ON(test_read());

	/* One that the guest shared with the host is the host's to read already. */
	test_donate(gfn);
	WARN_ON(__pkvm_guest_share_host(test_vcpu, gfn));
	test_state(PKVM_PAGE_SHARED_BORROWED, 0);
	test_release(gfn, 1, 1);
	test_state(PKVM_PAGE_OWNED, 0);

	/* One that was taken by force has left a mark, which goes too. */
	test_donate(gfn);
	WARN_ON(__pkvm_host_force_reclaim_page_guest(hyp_pfn_to_phys(test_pfn)));
	test_release(gfn, 1, 1);
	test_state(PKVM_PAGE_OWNED, 0);
	test_vm->kvm.arch.pkvm.is_protected = false;
}

/* What is forgotten is not given back. */
static void test_forget(u64 gfn)
{
	test_share(gfn);
	WARN_ON(pkvm_forget_dying_guest(test_handle(), gfn));
	WARN_ON(pkvm_forget_dying_guest(test_handle(), gfn));
	test_release(gfn, 1, 0);
	test_state(PKVM_PAGE_SHARED_OWNED, 1);

	hyp_spin_lock(&host_mmu.lock);
	test_page->host_share_guest_count = 0;
	set_host_state(test_page, PKVM_PAGE_OWNED);
	hyp_spin_unlock(&host_mmu.lock);
}

void pkvm_dying_selftest(struct pkvm_hyp_vcpu *vcpu, u64 pfn)
{
	u64 gfn = 3 * DYING_MAX_PAGES - 2;	/* on both sides of a table's end */

	test_vcpu = vcpu;
	test_vm = pkvm_hyp_vcpu_to_hyp_vm(vcpu);
	test_pfn = pfn;
	test_page = hyp_phys_to_page(hyp_pfn_to_phys(pfn));

	WARN_ON(__pkvm_hyp_donate_host(pfn, 1));
	test_not_dying(gfn);
	test_bad_runs(gfn);
	test_shared(gfn);
	test_owned(gfn);
	test_forget(gfn);
	test_vm->kvm.arch.pkvm.is_dying = false;
	WARN_ON(__pkvm_host_donate_hyp(pfn, 1));
}

#endif /* CONFIG_NVHE_EL2_DEBUG */
