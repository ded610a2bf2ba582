// SPDX-License-Identifier: GPL-2.0
/*
 * Measures the destroy of a stage-2 table that is built in the kernel. Loading the
 * module runs it once and then fails with EAGAIN, so that it can be loaded again
 * with other parameters. The implementation is the one that kvm_s2.impl names. With
 * vm_fd the table is built in a VM of the process that loads the module, which then
 * ends it as it likes.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/math64.h>
#include <linux/module.h>
#include <linux/overflow.h>
#include <linux/string.h>

#include "s2_destroy.h"
#include "s2_destroy_stats.h"

static ulong size_mib = 1024;
module_param(size_mib, ulong, 0);
MODULE_PARM_DESC(size_mib, "MiB of guest address space to map, from 0 (0: an empty table)");

static ulong stride_mib;
module_param(stride_mib, ulong, 0);
MODULE_PARM_DESC(stride_mib, "map once in so many MiB (0: everywhere)");

static ulong map_kib = 4;
module_param(map_kib, ulong, 0);
MODULE_PARM_DESC(map_kib, "KiB mapped by one entry: a page (4), or a block (2048)");

static uint ipa_bits = 48;
module_param(ipa_bits, uint, 0);
MODULE_PARM_DESC(ipa_bits, "size of the guest's address space in bits");

static int vm_fd = -1;
module_param(vm_fd, int, 0);
MODULE_PARM_DESC(vm_fd, "build the table in this VM of ours, and leave it (-1: destroy it)");

static const char * const policies[] = {
	[KVM_S2_POLICY_STEPS]		= "steps",
	[KVM_S2_POLICY_CHUNK]		= "chunk",
	[KVM_S2_POLICY_MAPPED_CHUNK]	= "mapped-chunk",
	[KVM_S2_POLICY_PAGE]		= "page",
};

static char *policy = "steps";
module_param(policy, charp, 0);
MODULE_PARM_DESC(policy, "when the scheduler is let in: steps, as always; or Rust with chunk, mapped-chunk, page");

/* One figure, or a dash for one that the implementation does not count. */
static void print(const char *name, u64 value, const char *unit)
{
	if (value == KVM_S2_UNKNOWN)
		pr_info("%-16s %16s\n", name, "-");
	else
		pr_info("%-16s %16llu %s\n", name, value, unit);
}

static void show(const struct kvm_s2_bench_result *result)
{
	pr_info("%-16s %16s\n", "implementation", result->rust ? "rust" : "c");
	print("leaves", result->leaves, "");
	print("tables", result->tables, "and the root");
	print("build", result->build_ns, "ns");
	print("destroy", result->destroy_ns, "ns");
	if (result->leaves)
		print("destroy per leaf", div64_u64(result->destroy_ns * 1000, result->leaves),
		      "ps");
	print("chunks", result->figures.chunks, "");
	print("rescheds", result->figures.rescheds, "");
	print("longest stretch", result->figures.max_stretch_ns, "ns");
	print("leaked", result->figures.leaked, "");
}

static int __init kvm_s2_bench_init(void)
{
	struct kvm_s2_bench what = { .ia_bits = ipa_bits };
	struct kvm_s2_bench_result result = {};
	int ret = match_string(policies, ARRAY_SIZE(policies), policy);

	if (ret < 0)
		return ret;
	what.policy = ret;

	if (check_shl_overflow(size_mib, 20, &what.size) ||
	    check_shl_overflow(stride_mib, 20, &what.stride) ||
	    check_shl_overflow(map_kib, 10, &what.map_size))
		return -ERANGE;

	if (vm_fd >= 0)
		return kvm_s2_bench_fill_vm(vm_fd, &what) ?: -EAGAIN;

	ret = kvm_s2_bench(&what, &result);
	if (ret)
		return ret;
	show(&result);
	return -EAGAIN;
}
module_init(kvm_s2_bench_init);

MODULE_DESCRIPTION("Benchmark of the stage-2 destroy");
MODULE_LICENSE("GPL");
