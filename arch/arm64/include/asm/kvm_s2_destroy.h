/* SPDX-License-Identifier: GPL-2.0 */
#ifndef __ARM64_KVM_S2_DESTROY_H__
#define __ARM64_KVM_S2_DESTROY_H__

#include <linux/kconfig.h>

struct kvm_pgtable;
struct kvm_pgtable_mm_ops;

typedef void (*kvm_s2_destroy_fn)(struct kvm_pgtable *pgt);

#ifdef CONFIG_KVM_S2_RUST

/**
 * struct kvm_s2_upstream - What arch/arm64/kvm/mmu.c keeps to itself
 * @destroy:	Its way to destroy an unlinked stage-2, root included.
 * @mm_ops:	The memory its tables are made of.
 */
struct kvm_s2_upstream {
	kvm_s2_destroy_fn		 destroy;
	struct kvm_pgtable_mm_ops	*mm_ops;
};

extern const struct kvm_s2_upstream kvm_s2_upstream;

#define KVM_S2_UPSTREAM(fn, ops)						\
	const struct kvm_s2_upstream kvm_s2_upstream = { (fn), (ops) }

/**
 * kvm_s2_destroy() - Destroy an unlinked stage-2, by the implementation asked for.
 * @pgt:	Page-table structure that no hardware or software walker can
 *		reach any more. Its root is freed, the structure itself is not.
 * @upstream:	What does the work under kvm_s2.impl=c.
 *
 * Context: May sleep. No lock is needed.
 */
void kvm_s2_destroy(struct kvm_pgtable *pgt, kvm_s2_destroy_fn upstream);

#else

#define KVM_S2_UPSTREAM(fn, ops)						\
	struct kvm_s2_upstream

static inline void kvm_s2_destroy(struct kvm_pgtable *pgt, kvm_s2_destroy_fn upstream)
{
	upstream(pgt);
}

#endif /* CONFIG_KVM_S2_RUST */

#endif /* __ARM64_KVM_S2_DESTROY_H__ */
