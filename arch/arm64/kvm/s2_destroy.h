/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the C and the Rust side of the stage-2 destroy share. Bindgen reads this
 * file, so it must not include KVM's own headers.
 */
#ifndef __ARM64_KVM_S2_DESTROY_PRIV_H__
#define __ARM64_KVM_S2_DESTROY_PRIV_H__

#include <linux/rbtree_types.h>
#include <linux/types.h>

/**
 * struct kvm_s2_figures - The figures of one destroy
 * @leaves:		Counted entries that were no tables; under pKVM, mappings.
 * @pages:		Pages that those leaves mapped.
 * @tables:		Tables given up, the root not included.
 * @table_bytes:	Bytes of the tables that were visited, the root included.
 * @chunks:		Chunks in which something was given up.
 * @rescheds:		Times the scheduler was let in.
 * @leaked:		Tables or pages left behind for safety.
 * @hypercalls:		Calls to the hypervisor.
 * @tlbis:		TLB invalidations asked for.
 * @atomics:		Atomic operations on reference counts of tables.
 * @helper_calls:	Calls to find, count or give up tables.
 * @max_stretch_ns:	Longest time between two chances to schedule.
 * @max_el2_ns:		Longest call to the hypervisor.
 */
struct kvm_s2_figures {
	__u64 leaves;
	__u64 pages;
	__u64 tables;
	__u64 table_bytes;
	__u64 chunks;
	__u64 rescheds;
	__u64 leaked;
	__u64 hypercalls;
	__u64 tlbis;
	__u64 atomics;
	__u64 helper_calls;
	__u64 max_stretch_ns;
	__u64 max_el2_ns;
};

/**
 * struct kvm_s2_tables - An unlinked stage-2 that the host walks
 * @pgd:		Its root.
 * @page_shift:		PAGE_SHIFT.
 * @ia_bits:		Size of the guest's address space.
 * @start:		When the destroy began, by kvm_s2_clock().
 * @start_level:	Level of the root.
 * @lpa2:		Whether descriptors have the FEAT_LPA2 layout.
 */
struct kvm_s2_tables {
	void *pgd;
	__u64 start;
	__u32 page_shift;
	__u32 ia_bits;
	__s8 start_level;
	bool lpa2;
};

/**
 * struct kvm_s2_found - The table that was found last
 * @piece:	The piece of memory that it is in, ~0 before the first.
 * @counted:	How many of its entries should hold a reference.
 */
struct kvm_s2_found {
	__u64 piece;
	__u32 counted;
};

/*
 * The part of struct pkvm_mapping that a drain looks at; s2_destroy_pkvm.c
 * checks that the two agree.
 */
struct kvm_s2_mapping {
	struct rb_node node;
	__u64 gfn;
	__u64 pfn;
	__u64 nr_pages_nc;
};

/**
 * struct kvm_s2_mappings - The unlinked mappings of a guest of a protected host
 * @root:		Root of the mapping tree.
 * @kvm:		The dying VM, a struct kvm.
 * @start:		When the destroy began, by kvm_s2_clock().
 * @page_shift:		PAGE_SHIFT.
 * @ia_bits:		Size of the guest's address space.
 * @max_run:		Most pages in one request to EL2.
 * @budget:		Most mappings settled between two chances to schedule.
 */
struct kvm_s2_mappings {
	struct rb_node *root;
	void *kvm;
	__u64 start;
	__u32 page_shift;
	__u32 ia_bits;
	__u32 max_run;
	__u32 budget;
};

/**
 * enum kvm_s2_policy - When the scheduler is let in
 * @KVM_S2_POLICY_STEPS:	 After a few tables: what is used outside the bench.
 * @KVM_S2_POLICY_CHUNK:	 After each chunk of the address space.
 * @KVM_S2_POLICY_MAPPED_CHUNK: After each chunk in which something was mapped.
 * @KVM_S2_POLICY_PAGE:	 For each page or block that was mapped.
 */
enum kvm_s2_policy {
	KVM_S2_POLICY_STEPS,
	KVM_S2_POLICY_CHUNK,
	KVM_S2_POLICY_MAPPED_CHUNK,
	KVM_S2_POLICY_PAGE,
};

/**
 * struct kvm_s2_bench - A stage-2 table to build
 * @size:	Bytes of the guest's address space to map, from 0.
 * @stride:	Map once in so many bytes, or 0 for all of it.
 * @map_size:	Bytes mapped by one entry: a page or a block.
 * @ia_bits:	Size of the guest's address space.
 * @policy:	When the scheduler is let in.
 */
struct kvm_s2_bench {
	__u64 size;
	__u64 stride;
	__u64 map_size;
	__u32 ia_bits;
	enum kvm_s2_policy policy;
};

/**
 * struct kvm_s2_bench_result - What became of it
 * @rust:	Whether Rust destroyed it.
 * @leaves:	Entries that map something.
 * @tables:	Tables, the root not included.
 * @build_ns:	Time to build.
 * @destroy_ns:	Time to destroy.
 * @figures:	What the implementation counted; ~0 for what it did not.
 */
struct kvm_s2_bench_result {
	bool rust;
	__u64 leaves;
	__u64 tables;
	__u64 build_ns;
	__u64 destroy_ns;
	struct kvm_s2_figures figures;
};

/* Rust, s2_destroy_rust.rs. Figures not known there are left alone. */
void kvm_s2_destroy_tables(const struct kvm_s2_tables *tables, struct kvm_s2_figures *figures);
void kvm_s2_destroy_by_policy(const struct kvm_s2_tables *tables, enum kvm_s2_policy policy,
			      struct kvm_s2_figures *figures);
void kvm_s2_destroy_mappings(const struct kvm_s2_mappings *mappings,
			     struct kvm_s2_figures *figures);

/* C, for Rust. */
#define KVM_S2_BATCH	31

void *kvm_s2_find_table(__u64 pa, struct kvm_s2_found *found);
__u32 kvm_s2_put_tables(void *const *tables, const __u32 *counted, __u32 nr, bool calm);
bool kvm_s2_put_root_entries(void *table, __u32 counted);
void kvm_s2_free_root(void *root, size_t size);
bool kvm_s2_resched(void);
__u64 kvm_s2_clock(void);

__u64 kvm_s2_pkvm_release(void *kvm, const struct kvm_s2_mapping *first, __u64 gfn,
			  __u64 nr_pages);
void kvm_s2_pkvm_settle(void *kvm, struct kvm_s2_mapping *const *mappings, __u32 nr);
void kvm_s2_pkvm_keep(void *kvm, const struct kvm_s2_mapping *mapping, bool report);

int kvm_s2_bench_fill_vm(int vm_fd, const struct kvm_s2_bench *what);
int kvm_s2_bench(const struct kvm_s2_bench *what, struct kvm_s2_bench_result *result);

#endif /* __ARM64_KVM_S2_DESTROY_PRIV_H__ */
