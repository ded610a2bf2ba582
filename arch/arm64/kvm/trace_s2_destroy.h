/* SPDX-License-Identifier: GPL-2.0 */
#if !defined(_TRACE_S2_DESTROY_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_S2_DESTROY_H

#include <linux/tracepoint.h>

#include "s2_destroy.h"
#include "s2_destroy_stats.h"

#undef TRACE_SYSTEM
#define TRACE_SYSTEM kvm

TRACE_EVENT(kvm_s2_destroy_begin,
	    TP_PROTO(const struct kvm_s2_run *run),
	    TP_ARGS(run),

	    TP_STRUCT__entry(__field(bool, rust)
			     __field(bool, pkvm)
			     __field(u32, ia_bits)),

	    TP_fast_assign(__entry->rust = run->impl == KVM_S2_IMPL_RUST;
			   __entry->pkvm = run->pkvm;
			   __entry->ia_bits = run->ia_bits;),

	    TP_printk("impl=%s backend=%s ia_bits=%u",
		      __entry->rust ? "rust" : "c", __entry->pkvm ? "pkvm" : "table",
		      __entry->ia_bits)
);

/* A figure that was not measured shows as -1. */
TRACE_EVENT(kvm_s2_destroy_end,
	    TP_PROTO(const struct kvm_s2_run *run, const struct kvm_s2_figures *figures),
	    TP_ARGS(run, figures),

	    TP_STRUCT__entry(__field(bool, rust)
			     __field(u64, ns)
			     __field(u64, leaves)
			     __field(u64, pages)
			     __field(u64, tables)
			     __field(u64, chunks)
			     __field(u64, rescheds)
			     __field(u64, hypercalls)
			     __field(u64, leaked)),

	    TP_fast_assign(__entry->rust = run->impl == KVM_S2_IMPL_RUST;
			   __entry->ns = run->ns;
			   __entry->leaves = figures->leaves;
			   __entry->pages = figures->pages;
			   __entry->tables = figures->tables;
			   __entry->chunks = figures->chunks;
			   __entry->rescheds = figures->rescheds;
			   __entry->hypercalls = figures->hypercalls;
			   __entry->leaked = figures->leaked;),

	    TP_printk("impl=%s ns=%llu leaves=%lld pages=%lld tables=%lld chunks=%lld rescheds=%lld hypercalls=%lld leaked=%lld",
		      __entry->rust ? "rust" : "c", __entry->ns, (s64)__entry->leaves,
		      (s64)__entry->pages, (s64)__entry->tables, (s64)__entry->chunks,
		      (s64)__entry->rescheds, (s64)__entry->hypercalls, (s64)__entry->leaked)
);

#endif /* _TRACE_S2_DESTROY_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace_s2_destroy

/* This part must be outside protection */
#include <trace/define_trace.h>
