// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The interrupt controller, a GICv3, and its state (Arm IHI 0069).

use kvm_bindings::{
    kvm_create_device, kvm_device_attr, kvm_device_type_KVM_DEV_TYPE_ARM_VGIC_V3,
    KVM_DEV_ARM_VGIC_CTRL_INIT, KVM_DEV_ARM_VGIC_GRP_ADDR, KVM_DEV_ARM_VGIC_GRP_CPU_SYSREGS,
    KVM_DEV_ARM_VGIC_GRP_CTRL, KVM_DEV_ARM_VGIC_GRP_DIST_REGS, KVM_DEV_ARM_VGIC_GRP_NR_IRQS,
    KVM_DEV_ARM_VGIC_GRP_REDIST_REGS, KVM_VGIC_V3_ADDR_TYPE_DIST, KVM_VGIC_V3_ADDR_TYPE_REDIST,
};
use kvm_ioctls::{DeviceFd, VmFd};
use serde::{Deserialize, Serialize};

use super::{DISTRIBUTOR, REDISTRIBUTORS};

/// Interrupts, private ones included: a multiple of 32.
const INTERRUPTS: u32 = 96;
const PRIVATE: u64 = 32;

/// Registers of the distributor for shared interrupts: offset, and bits of each
/// interrupt. The control register goes first, as the architecture demands.
const SHARED: [(u64, u64); 7] = [
    (0x80, 1),
    (0x100, 1),
    (0x200, 1),
    (0x300, 1),
    (0x400, 8),
    (0xc00, 2),
    (0x6000, 64),
];

/// Registers of a redistributor: control, waker, and the private interrupts.
const REDISTRIBUTOR: [u64; 16] = [
    0x0, 0x14, 0x1_0080, 0x1_0100, 0x1_0200, 0x1_0300, 0x1_0400, 0x1_0404, 0x1_0408, 0x1_040c,
    0x1_0410, 0x1_0414, 0x1_0418, 0x1_041c, 0x1_0c00, 0x1_0c04,
];

/// Registers of the CPU interface: SRE, CTLR, IGRPEN0, IGRPEN1, PMR, BPR0, BPR1,
/// AP0R0, AP1R0, each as op1, CRn, CRm, op2 (op0 is 3).
const INTERFACE: [[u64; 4]; 9] = [
    [0, 12, 12, 5],
    [0, 12, 12, 4],
    [0, 12, 12, 6],
    [0, 12, 12, 7],
    [0, 4, 6, 0],
    [0, 12, 8, 3],
    [0, 12, 12, 3],
    [0, 12, 8, 4],
    [0, 12, 9, 0],
];

/// The controller. Its handle keeps the VM alive.
#[derive(Debug)]
pub struct Chips {
    gic: DeviceFd,
    vcpus: u8,
}

/// State of the controller, in the order of the tables above.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct GicState {
    distributor: Vec<u32>,
    redistributors: Vec<u32>,
    interfaces: Vec<u64>,
}

impl Chips {
    pub(super) fn new(vm: &VmFd, vcpus: u8) -> Result<Self, kvm_ioctls::Error> {
        let mut device = kvm_create_device {
            type_: kvm_device_type_KVM_DEV_TYPE_ARM_VGIC_V3,
            ..Default::default()
        };
        let gic = vm.create_device(&mut device)?;
        let chips = Self { gic, vcpus };
        let address = KVM_DEV_ARM_VGIC_GRP_ADDR;
        chips.set(address, KVM_VGIC_V3_ADDR_TYPE_DIST.into(), &DISTRIBUTOR)?;
        chips.set(
            address,
            KVM_VGIC_V3_ADDR_TYPE_REDIST.into(),
            &REDISTRIBUTORS,
        )?;
        chips.set(KVM_DEV_ARM_VGIC_GRP_NR_IRQS, 0, &INTERRUPTS)?;
        let init = KVM_DEV_ARM_VGIC_CTRL_INIT.into();
        chips.set(KVM_DEV_ARM_VGIC_GRP_CTRL, init, &0u64)?;
        Ok(chips)
    }

    pub(super) fn save(&self) -> Result<GicState, kvm_ioctls::Error> {
        Ok(GicState {
            distributor: distributor()
                .map(|offset| self.get::<u32>(KVM_DEV_ARM_VGIC_GRP_DIST_REGS, offset))
                .collect::<Result<_, _>>()?,
            redistributors: self
                .redistributors()
                .map(|place| self.get::<u32>(KVM_DEV_ARM_VGIC_GRP_REDIST_REGS, place))
                .collect::<Result<_, _>>()?,
            interfaces: self
                .interfaces()
                .map(|place| self.get::<u64>(KVM_DEV_ARM_VGIC_GRP_CPU_SYSREGS, place))
                .collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn restore(&self, state: &GicState) -> Result<(), kvm_ioctls::Error> {
        for (offset, value) in distributor().zip(&state.distributor) {
            self.set(KVM_DEV_ARM_VGIC_GRP_DIST_REGS, offset, value)?;
        }
        for (place, value) in self.redistributors().zip(&state.redistributors) {
            self.set(KVM_DEV_ARM_VGIC_GRP_REDIST_REGS, place, value)?;
        }
        for (place, value) in self.interfaces().zip(&state.interfaces) {
            self.set(KVM_DEV_ARM_VGIC_GRP_CPU_SYSREGS, place, value)?;
        }
        Ok(())
    }

    fn redistributors(&self) -> impl Iterator<Item = u64> {
        (0..self.vcpus).flat_map(|id| REDISTRIBUTOR.map(|offset| affinity(id) | offset))
    }

    fn interfaces(&self) -> impl Iterator<Item = u64> {
        (0..self.vcpus).flat_map(|id| {
            INTERFACE.map(|[op1, crn, crm, op2]| {
                affinity(id) | (3 << 14) | (op1 << 11) | (crn << 7) | (crm << 3) | op2
            })
        })
    }

    fn set<T>(&self, group: u32, attr: u64, value: &T) -> Result<(), kvm_ioctls::Error> {
        self.gic.set_device_attr(&kvm_device_attr {
            flags: 0,
            group,
            attr,
            addr: std::ptr::from_ref(value) as u64,
        })
    }

    fn get<T: Default>(&self, group: u32, attr: u64) -> Result<T, kvm_ioctls::Error> {
        let mut value = T::default();
        let mut attribute = kvm_device_attr {
            flags: 0,
            group,
            attr,
            addr: std::ptr::from_mut(&mut value) as u64,
        };
        // SAFETY: the kernel writes 4 bytes for registers of the distributors and
        // 8 for those of the interfaces, which is what the callers ask for.
        unsafe { self.gic.get_device_attr(&mut attribute) }?;
        Ok(value)
    }
}

/// Offsets of the distributor's registers.
fn distributor() -> impl Iterator<Item = u64> {
    let shared = SHARED.into_iter().flat_map(|(base, bits)| {
        let byte = |interrupt: u64| base + interrupt * bits / 8;
        (byte(PRIVATE)..byte(INTERRUPTS.into())).step_by(4)
    });
    std::iter::once(0).chain(shared)
}

/// The affinity that KVM gives a vCPU, where an attribute wants it.
fn affinity(id: u8) -> u64 {
    let id = u64::from(id);
    ((id & 0xf) | (id >> 4 << 8)) << 32
}
