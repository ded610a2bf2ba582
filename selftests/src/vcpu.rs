// SPDX-License-Identifier: GPL-2.0

//! One vCPU: what differs between architectures, and running the payload.

use crate::payload::Registers;
use crate::payload::DONE_DOORBELL;
use crate::payload::FAULT_DOORBELL;
use crate::Result;
use crate::Stop;
use kvm_ioctls::VcpuExit;
use kvm_ioctls::VcpuFd;
use kvm_ioctls::VmFd;

/// Creates vCPU `index` in the state the payload starts in.
///
/// # Errors
///
/// [`Stop::Fail`] when an ioctl fails, [`Stop::Skip`] on another architecture.
pub fn create(vm: &VmFd, index: u64, registers: &Registers) -> Result<VcpuFd> {
    let vcpu = vm
        .create_vcpu(index)
        .map_err(Stop::failed("KVM_CREATE_VCPU"))?;
    arch::prepare(vm, &vcpu, registers)?;
    Ok(vcpu)
}

/// Runs the payload to its end and returns how many words it wrote.
///
/// # Errors
///
/// [`Stop::Fail`] when the guest takes an exception or leaves in another way.
pub fn run(vcpu: &mut VcpuFd) -> Result<u64> {
    loop {
        match vcpu.run() {
            Ok(VcpuExit::MmioWrite(DONE_DOORBELL, data)) => return word(data),
            Ok(VcpuExit::MmioWrite(FAULT_DOORBELL, data)) => {
                let esr = word(data)?;
                return Err(Stop::Fail(format!("exception in the guest, ESR {esr:#x}")));
            }
            Ok(exit) => return Err(Stop::Fail(format!("unexpected exit {exit:?}"))),
            Err(error) if [libc::EINTR, libc::EAGAIN].contains(&error.errno()) => {}
            Err(error) => return Err(Stop::Fail(format!("KVM_RUN: {error}"))),
        }
    }
}

fn word(data: &[u8]) -> Result<u64> {
    let bytes = data.try_into().map_err(Stop::failed("doorbell width"))?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(target_arch = "aarch64")]
mod arch {
    use super::*;
    use kvm_bindings::kvm_vcpu_init;
    use kvm_bindings::KVM_REG_ARM64;
    use kvm_bindings::KVM_REG_ARM64_SYSREG;
    use kvm_bindings::KVM_REG_ARM_CORE;
    use kvm_bindings::KVM_REG_SIZE_U64;

    /// Offset of `pc` in `struct kvm_regs`, in units of 32 bits; x0 is at 0.
    const CORE_PC: u64 = 2 * 32;

    const fn core(offset: u64) -> u64 {
        KVM_REG_ARM64 | KVM_REG_SIZE_U64 | KVM_REG_ARM_CORE as u64 | offset
    }

    /// VBAR_EL1 is S3_0_C12_C0_0.
    const VBAR_EL1: u64 =
        KVM_REG_ARM64 | KVM_REG_SIZE_U64 | KVM_REG_ARM64_SYSREG as u64 | (3 << 14) | (12 << 7);

    pub(super) fn prepare(vm: &VmFd, vcpu: &VcpuFd, registers: &Registers) -> Result<()> {
        let mut init = kvm_vcpu_init::default();
        vm.get_preferred_target(&mut init)
            .map_err(Stop::failed("KVM_ARM_PREFERRED_TARGET"))?;
        vcpu.vcpu_init(&init)
            .map_err(Stop::failed("KVM_ARM_VCPU_INIT"))?;
        let x = (0..).map(|n| core(2 * n)).zip(registers.x);
        let rest = [
            (core(CORE_PC), registers.pc),
            (VBAR_EL1, registers.vbar_el1),
        ];
        for (id, value) in x.chain(rest) {
            vcpu.set_one_reg(id, &value.to_le_bytes())
                .map_err(Stop::failed("KVM_SET_ONE_REG"))?;
        }
        Ok(())
    }
}

#[cfg(not(target_arch = "aarch64"))]
mod arch {
    use super::*;

    pub(super) fn prepare(_: &VmFd, _: &VcpuFd, _: &Registers) -> Result<()> {
        Err(Stop::Skip("the guest is arm64 code".into()))
    }
}
