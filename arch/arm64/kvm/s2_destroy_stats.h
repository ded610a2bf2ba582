/* SPDX-License-Identifier: GPL-2.0 */
#ifndef __ARM64_KVM_S2_DESTROY_STATS_H__
#define __ARM64_KVM_S2_DESTROY_STATS_H__

#include <linux/string.h>
#include <linux/types.h>

#include <asm/virt.h>

#include "s2_destroy.h"

struct kvm;
struct kvm_pgtable;
struct page;

enum kvm_s2_impl {
	KVM_S2_IMPL_RUST,
	KVM_S2_IMPL_C,
	KVM_S2_NR_IMPLS,
};

extern const char * const kvm_s2_impl_names[KVM_S2_NR_IMPLS];

/* A figure nobody measured. */
#define KVM_S2_UNKNOWN	(~0ULL)

/* Figures of which none is measured yet. */
static inline struct kvm_s2_figures kvm_s2_nothing_measured(void)
{
	struct kvm_s2_figures figures;

	memset(&figures, 0xff, sizeof(figures));
	return figures;
}

/**
 * struct kvm_s2_run - One destroy, seen from outside
 * @seq:	Its number since boot, from 1.
 * @impl:	Who does it.
 * @pkvm:	Whether EL2 holds the mappings.
 * @deferred:	Whether it ran after the MMU notifier's release that unlinked it.
 * @kvm:	The VM, which may be gone when its destroy is over.
 * @ia_bits:	Size of the guest's address space.
 * @start:	When it began.
 * @ns:		How long it took.
 */
struct kvm_s2_run {
	u64 seq;
	enum kvm_s2_impl impl;
	bool pkvm;
	bool deferred;
	struct kvm *kvm;
	u32 ia_bits;
	u64 start;
	u64 ns;
};

void kvm_s2_begin(struct kvm_s2_run *run);
void kvm_s2_end(struct kvm_s2_run *run, struct kvm_s2_figures *figures);

void kvm_s2_late_call(u64 seq, u64 ns);
void kvm_s2_last_figures(struct kvm_s2_run *run, struct kvm_s2_figures *figures);

/* Whether EL2 has the tables of guests, and not the host. */
static inline bool kvm_s2_el2_maps(void)
{
	return IS_ENABLED(CONFIG_KVM_S2_PKVM) && is_protected_kvm_enabled();
}

/* s2_destroy.c */
enum kvm_s2_impl kvm_s2_impl(void);
void kvm_s2_destroy_now(struct kvm_pgtable *pgt, struct kvm_s2_run *run);
struct kvm_s2_tables kvm_s2_tables_of(const struct kvm_pgtable *pgt, u64 start);
void kvm_s2_destroy_ordinary(struct kvm_pgtable *pgt, u64 start, struct kvm_s2_figures *figures);
void kvm_s2_calm_allocator(const struct page *freed);

/* s2_destroy_defer.c */
bool kvm_s2_defer(const struct kvm_pgtable *pgt, const struct kvm_s2_run *run);

/* s2_destroy_watch.c */
enum kvm_s2_watch {
	KVM_S2_WATCH_NOTHING,
	KVM_S2_WATCH_STEPS,	/* the longest time between two chances to schedule */
	KVM_S2_WATCH_TABLES,	/* what is done to tables, and how much of them is read */
};

#if IS_ENABLED(CONFIG_KVM_S2_BENCH)
extern u32 kvm_s2_watch;

bool kvm_s2_destroy_watched(struct kvm_pgtable *pgt, struct kvm_s2_figures *figures);
#else
static inline bool kvm_s2_destroy_watched(struct kvm_pgtable *pgt, struct kvm_s2_figures *figures)
{
	return false;
}
#endif

/* s2_destroy_pkvm.c */
#ifdef CONFIG_KVM_S2_PKVM_FAULTS
extern u64 kvm_s2_refuse_every;	/* EL2 refuses guest frames that it divides; 0 for none */
extern bool kvm_s2_refuse_runs;	/* EL2 refuses runs of pages */
#else
#define kvm_s2_refuse_every	0ULL
#define kvm_s2_refuse_runs	false
#endif

/*
 * A protected guest's pages are unpinned, a run at once and with a chance to schedule
 * around it, at about 350 instructions each, and 1,700 where that frees them.
 */
#define KVM_S2_RUN_PROTECTED	18

void kvm_s2_pkvm_begin(struct kvm *kvm);
void kvm_s2_pkvm_end(struct kvm *kvm, u64 seq, struct kvm_s2_figures *figures);
void kvm_s2_destroy_pkvm(struct kvm_pgtable *pgt, u64 start, struct kvm_s2_figures *figures);

#endif /* __ARM64_KVM_S2_DESTROY_STATS_H__ */
