/* SPDX-License-Identifier: GPL-2.0 */
#ifndef __ARM64_KVM_S2_DESTROY_H__
#define __ARM64_KVM_S2_DESTROY_H__

#include <linux/compiler_attributes.h>
#include <linux/kconfig.h>
#include <linux/kvm_host.h>

struct kvm_pgtable;
struct kvm_pgtable_mm_ops;

typedef void (*kvm_s2_destroy_fn)(struct kvm_pgtable *pgt);
typedef void (*kvm_s2_destroy_range_fn)(struct kvm_pgtable *pgt, phys_addr_t addr,
					phys_addr_t end);

/**
 * struct kvm_s2_upstream - What arch/arm64/kvm/mmu.c keeps to itself
 * @destroy:	Its way to destroy an unlinked stage-2, root included.
 * @destroy_range: The part of it for a range of guest addresses, or NULL if there is none.
 * @mm_ops:	The memory its tables are made of.
 */
struct kvm_s2_upstream {
	kvm_s2_destroy_fn		 destroy;
	kvm_s2_destroy_range_fn		 destroy_range;
	struct kvm_pgtable_mm_ops	*mm_ops;
};

#ifdef CONFIG_KVM_S2_RUST

extern const struct kvm_s2_upstream kvm_s2_upstream;

#define KVM_S2_UPSTREAM(fn, range, ops)						\
	const struct kvm_s2_upstream kvm_s2_upstream = { (fn), (range), (ops) }

/**
 * kvm_s2_destroy() - Destroy an unlinked stage-2, by the implementation asked for.
 * @pgt:	Page-table structure that no hardware or software walker can
 *		reach any more. Its root is freed, the structure itself is not.
 * @upstream:	What does the work under kvm_s2.impl=c.
 *
 * Context: May sleep. No lock is needed.
 */
void kvm_s2_destroy(struct kvm_pgtable *pgt, kvm_s2_destroy_fn upstream);

/* s2_destroy_pkvm.c; out of line, so that upstream's loops stay as they are. */
s64 kvm_s2_call_el2(struct kvm *kvm, u64 function, u64 a, u64 b, u64 c, u64 d);

/*
 * kvm_call_hyp_nvhe() with one to four arguments, counted and timed in the VM's
 * arch.pkvm.el2. One CPU at a time does that for a VM.
 */
#define kvm_s2_timed_call(kvm, f, ...)						\
	__kvm_s2_timed_call(kvm, f, ##__VA_ARGS__, 0, 0, 0)
#define __kvm_s2_timed_call(kvm, f, a, b, c, d, ...)				\
	kvm_s2_call_el2(kvm, KVM_HOST_SMCCC_FUNC(f), a, b, c, d)

#else

#define KVM_S2_UPSTREAM(fn, range, ops)						\
	static const struct kvm_s2_upstream kvm_s2_upstream __maybe_unused = {	\
		(fn), (range), (ops)						\
	}

static inline void kvm_s2_destroy(struct kvm_pgtable *pgt, kvm_s2_destroy_fn upstream)
{
	upstream(pgt);
}

#define kvm_s2_timed_call(kvm, f, ...)						\
({										\
	(void)(kvm);								\
	kvm_call_hyp_nvhe(f, ##__VA_ARGS__);					\
})

#endif /* CONFIG_KVM_S2_RUST */

#endif /* __ARM64_KVM_S2_DESTROY_H__ */
