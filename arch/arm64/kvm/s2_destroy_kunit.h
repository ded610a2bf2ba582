/* SPDX-License-Identifier: GPL-2.0 */
#ifndef __ARM64_KVM_S2_DESTROY_KUNIT_H__
#define __ARM64_KVM_S2_DESTROY_KUNIT_H__

#include <linux/types.h>

struct kunit;
struct kvm_mmu_memory_cache;
struct kvm_pgtable;
struct kvm_s2_mmu;

/* Pages of stage-2 tables that there are, what CPUs have not added up yet included. */
long s2_test_tables(void);

/* An empty stage-2 of @ia_bits for @mmu, which is not told of it. */
void s2_test_init(struct kunit *test, struct kvm_pgtable *pgt, struct kvm_s2_mmu *mmu,
		  u32 ia_bits);

/* Map @size bytes from @ipa on, in blocks where whole ones are asked for. */
void s2_test_map(struct kunit *test, struct kvm_pgtable *pgt, struct kvm_mmu_memory_cache *cache,
		 u64 ipa, u64 size);
void s2_test_map_pages(struct kunit *test, struct kvm_pgtable *pgt,
		       struct kvm_mmu_memory_cache *cache, u64 ipa, u64 nr);

#endif /* __ARM64_KVM_S2_DESTROY_KUNIT_H__ */
