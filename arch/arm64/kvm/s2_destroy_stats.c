// SPDX-License-Identifier: GPL-2.0
/*
 * Figures of stage-2 destroys: tracepoints, and /sys/kernel/debug/kvm_s2.
 */

#include <linux/debugfs.h>
#include <linux/init.h>
#include <linux/seq_file.h>
#include <linux/spinlock.h>

#include "s2_destroy.h"
#include "s2_destroy_stats.h"

#define CREATE_TRACE_POINTS
#include "trace_s2_destroy.h"

const char * const kvm_s2_impl_names[KVM_S2_NR_IMPLS] = {
	[KVM_S2_IMPL_RUST]	= "rust",
	[KVM_S2_IMPL_C]		= "c",
};

/* The figures, in the order they are shown and summed. */
#define KVM_S2_EACH_FIGURE(X)							\
	X(leaves) X(pages) X(tables) X(chunks) X(rescheds) X(leaked)		\
	X(hypercalls) X(tlbis) X(atomics) X(table_bytes)			\
	X(max_stretch_ns) X(max_el2_ns)

static DEFINE_SPINLOCK(kvm_s2_lock);
static struct kvm_s2_run kvm_s2_last_run;
static struct kvm_s2_figures kvm_s2_last = KVM_S2_NOTHING_MEASURED;
static struct kvm_s2_figures kvm_s2_total;
static u64 kvm_s2_destroys;
static u64 kvm_s2_total_ns;

/* Sums add up what was measured; of the longest times the longest is kept. */
#define KVM_S2_ADD(f)								\
	if (figures->f != KVM_S2_UNKNOWN)					\
		kvm_s2_total.f = kvm_s2_is_max(#f) ?				\
				 max(kvm_s2_total.f, figures->f) :		\
				 kvm_s2_total.f + figures->f;

static __always_inline bool kvm_s2_is_max(const char *name)
{
	return !__builtin_strncmp(name, "max_", 4);
}

void kvm_s2_begin(struct kvm_s2_run *run)
{
	trace_kvm_s2_destroy_begin(run);
	run->start = kvm_s2_clock();
}

void kvm_s2_end(struct kvm_s2_run *run, const struct kvm_s2_figures *figures)
{
	run->ns = kvm_s2_clock() - run->start;

	scoped_guard(spinlock, &kvm_s2_lock) {
		run->seq = ++kvm_s2_destroys;
		kvm_s2_total_ns += run->ns;
		kvm_s2_last_run = *run;
		kvm_s2_last = *figures;
		KVM_S2_EACH_FIGURE(KVM_S2_ADD)
	}
	trace_kvm_s2_destroy_end(run, figures);
}

void kvm_s2_last_figures(struct kvm_s2_run *run, struct kvm_s2_figures *figures)
{
	guard(spinlock)(&kvm_s2_lock);
	*run = kvm_s2_last_run;
	*figures = kvm_s2_last;
}

static void kvm_s2_show_figure(struct seq_file *m, const char *name, u64 value)
{
	if (value == KVM_S2_UNKNOWN)
		seq_printf(m, "%s -\n", name);
	else
		seq_printf(m, "%s %llu\n", name, value);
}

#define KVM_S2_SHOW(f)	kvm_s2_show_figure(m, #f, figures.f);

static int last_show(struct seq_file *m, void *unused)
{
	struct kvm_s2_figures figures;
	struct kvm_s2_run run;

	kvm_s2_last_figures(&run, &figures);
	seq_printf(m, "seq %llu\nimpl %s\nbackend %s\nia_bits %u\nns %llu\n", run.seq,
		   kvm_s2_impl_names[run.impl], run.pkvm ? "pkvm" : "table", run.ia_bits, run.ns);
	KVM_S2_EACH_FIGURE(KVM_S2_SHOW)
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(last);

static int total_show(struct seq_file *m, void *unused)
{
	struct kvm_s2_figures figures;
	u64 destroys, ns;

	scoped_guard(spinlock, &kvm_s2_lock) {
		destroys = kvm_s2_destroys;
		ns = kvm_s2_total_ns;
		figures = kvm_s2_total;
	}
	seq_printf(m, "destroys %llu\nns %llu\n", destroys, ns);
	KVM_S2_EACH_FIGURE(KVM_S2_SHOW)
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(total);

static int __init kvm_s2_stats_init(void)
{
	struct dentry *dir = debugfs_create_dir("kvm_s2", NULL);

	debugfs_create_file("last", 0444, dir, NULL, &last_fops);
	debugfs_create_file("total", 0444, dir, NULL, &total_fops);
	return 0;
}
late_initcall(kvm_s2_stats_init);
