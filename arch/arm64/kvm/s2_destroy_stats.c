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

/* The figures, in the order they are shown. Of the longest times the longest is kept. */
static const struct kvm_s2_figure {
	const char *name;
	size_t offset;
	bool longest;
} kvm_s2_all_figures[] = {
	{ "leaves",		offsetof(struct kvm_s2_figures, leaves) },
	{ "pages",		offsetof(struct kvm_s2_figures, pages) },
	{ "tables",		offsetof(struct kvm_s2_figures, tables) },
	{ "chunks",		offsetof(struct kvm_s2_figures, chunks) },
	{ "rescheds",		offsetof(struct kvm_s2_figures, rescheds) },
	{ "leaked",		offsetof(struct kvm_s2_figures, leaked) },
	{ "hypercalls",		offsetof(struct kvm_s2_figures, hypercalls) },
	{ "tlbis",		offsetof(struct kvm_s2_figures, tlbis) },
	{ "atomics",		offsetof(struct kvm_s2_figures, atomics) },
	{ "helper_calls",	offsetof(struct kvm_s2_figures, helper_calls) },
	{ "table_bytes",	offsetof(struct kvm_s2_figures, table_bytes) },
	{ "max_stretch_ns",	offsetof(struct kvm_s2_figures, max_stretch_ns), true },
	{ "max_el2_ns",		offsetof(struct kvm_s2_figures, max_el2_ns), true },
};

static DEFINE_SPINLOCK(kvm_s2_lock);
static struct kvm_s2_run kvm_s2_last_run;
static struct kvm_s2_figures kvm_s2_last;
static struct kvm_s2_figures kvm_s2_total;
static u64 kvm_s2_destroys;
static u64 kvm_s2_total_ns;

static u64 kvm_s2_value(const struct kvm_s2_figures *figures, const struct kvm_s2_figure *figure)
{
	return *(const u64 *)((const char *)figures + figure->offset);
}

static void kvm_s2_add(const struct kvm_s2_figures *figures)
{
	for (int i = 0; i < ARRAY_SIZE(kvm_s2_all_figures); i++) {
		const struct kvm_s2_figure *figure = &kvm_s2_all_figures[i];
		u64 *total = (u64 *)((char *)&kvm_s2_total + figure->offset);
		u64 value = kvm_s2_value(figures, figure);

		if (value != KVM_S2_UNKNOWN)
			*total = figure->longest ? max(*total, value) : *total + value;
	}
}

void kvm_s2_begin(struct kvm_s2_run *run)
{
	trace_kvm_s2_destroy_begin(run);
	if (kvm_s2_el2_maps())
		kvm_s2_pkvm_begin(run->kvm);
	run->start = kvm_s2_clock();
}

void kvm_s2_end(struct kvm_s2_run *run, struct kvm_s2_figures *figures)
{
	run->ns = kvm_s2_clock() - run->start;

	scoped_guard(spinlock, &kvm_s2_lock) {
		run->seq = ++kvm_s2_destroys;
		if (kvm_s2_el2_maps())
			kvm_s2_pkvm_end(run->kvm, run->seq, figures);
		kvm_s2_total_ns += run->ns;
		kvm_s2_last_run = *run;
		kvm_s2_last = *figures;
		kvm_s2_add(figures);
	}
	trace_kvm_s2_destroy_end(run, figures);
}

/* The last call to EL2 comes after the end of destroy @seq and belongs to it. */
void kvm_s2_late_call(u64 seq, u64 ns)
{
	guard(spinlock)(&kvm_s2_lock);
	kvm_s2_total.max_el2_ns = max(kvm_s2_total.max_el2_ns, ns);
	kvm_s2_total.hypercalls++;
	if (kvm_s2_last_run.seq == seq) {
		kvm_s2_last.max_el2_ns = max(kvm_s2_last.max_el2_ns, ns);
		kvm_s2_last.hypercalls++;
	}
}

void kvm_s2_last_figures(struct kvm_s2_run *run, struct kvm_s2_figures *figures)
{
	guard(spinlock)(&kvm_s2_lock);
	*run = kvm_s2_last_run;
	*figures = kvm_s2_last;
}

static void kvm_s2_show(struct seq_file *m, const struct kvm_s2_figures *figures)
{
	for (int i = 0; i < ARRAY_SIZE(kvm_s2_all_figures); i++) {
		const struct kvm_s2_figure *figure = &kvm_s2_all_figures[i];
		u64 value = kvm_s2_value(figures, figure);

		if (value == KVM_S2_UNKNOWN)
			seq_printf(m, "%s -\n", figure->name);
		else
			seq_printf(m, "%s %llu\n", figure->name, value);
	}
}

static int last_show(struct seq_file *m, void *unused)
{
	struct kvm_s2_figures figures;
	struct kvm_s2_run run;

	kvm_s2_last_figures(&run, &figures);
	seq_printf(m, "seq %llu\nimpl %s\nbackend %s\nia_bits %u\ndeferred %d\nns %llu\n",
		   run.seq, kvm_s2_impl_names[run.impl], run.pkvm ? "pkvm" : "table", run.ia_bits,
		   run.deferred, run.ns);
	kvm_s2_show(m, &figures);
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
	kvm_s2_show(m, &figures);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(total);

static int __init kvm_s2_stats_init(void)
{
	struct dentry *dir = debugfs_create_dir("kvm_s2", NULL);

	if (!kvm_s2_destroys)
		kvm_s2_last = kvm_s2_nothing_measured();
	debugfs_create_file("last", 0444, dir, NULL, &last_fops);
	debugfs_create_file("total", 0444, dir, NULL, &total_fops);
#if IS_ENABLED(CONFIG_KVM_S2_BENCH)
	debugfs_create_u32("watch", 0600, dir, &kvm_s2_watch);
#endif
#ifdef CONFIG_KVM_S2_PKVM_FAULTS
	debugfs_create_u64("refuse_every", 0600, dir, &kvm_s2_refuse_every);
	debugfs_create_bool("refuse_runs", 0600, dir, &kvm_s2_refuse_runs);
#endif
	return 0;
}
late_initcall(kvm_s2_stats_init);
