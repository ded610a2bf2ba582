/* SPDX-License-Identifier: GPL-2.0 */
#ifndef __ARM64_KVM_S2_DESTROY_KUNIT_H__
#define __ARM64_KVM_S2_DESTROY_KUNIT_H__

/* Pages of stage-2 tables that there are, what CPUs have not added up yet included. */
long s2_test_tables(void);

#endif /* __ARM64_KVM_S2_DESTROY_KUNIT_H__ */
