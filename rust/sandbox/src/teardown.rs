// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Taking a KVM guest apart in the one cheap order, enforced by types.
//!
//! vCPU fds and their `kvm_run` maps go first: either of them keeps the VM alive
//! after its own fd is closed. Then the VM fd: the kernel now destroys the
//! stage-2 tables without locks and without TLB maintenance. Guest memory is
//! unmapped last: unmapping it under a live VM takes the MMU notifier path
//! instead, with a TLB invalidation and the VM's lock per range.
//!
//! Each step consumes the type of the step before, so another order does not
//! compile:
//!
//! ```
//! # use sandbox::teardown::{Guest, Ram};
//! # struct Memory;
//! # impl Ram for Memory {
//! #     type Error = std::convert::Infallible;
//! #     fn bytes(&self) -> u64 { 0 }
//! #     fn unmap(self) -> Result<(), Self::Error> { Ok(()) }
//! # }
//! # let (vcpus, vm, memory) = (vec![()], (), Memory);
//! let guest = Guest::new(vcpus, vm, memory);
//! guest.close_vcpus().close_vm().unmap_ram()?;
//! # Ok::<(), std::convert::Infallible>(())
//! ```
//! ```compile_fail
//! # use sandbox::teardown::{Guest, Ram};
//! # struct Memory;
//! # impl Ram for Memory {
//! #     type Error = std::convert::Infallible;
//! #     fn bytes(&self) -> u64 { 0 }
//! #     fn unmap(self) -> Result<(), Self::Error> { Ok(()) }
//! # }
//! # let (vcpus, vm, memory) = (vec![()], (), Memory);
//! let guest = Guest::new(vcpus, vm, memory);
//! guest.unmap_ram()?; // memory before the VM
//! # Ok::<(), std::convert::Infallible>(())
//! ```
//!
//! A guest, or a step, that is dropped instead goes the same way; the order
//! never depends on the order of fields.

/// Guest memory, as far as teardown is concerned.
pub trait Ram {
    /// Why unmapping failed.
    type Error;

    /// Bytes that [`Ram::unmap`] gives back.
    fn bytes(&self) -> u64;

    /// Unmaps the memory from this process.
    fn unmap(self) -> Result<(), Self::Error>;
}

/// What is left of a guest. Dropped in the right order at every step.
struct Parts<C, V, M> {
    vcpus: Vec<C>,
    vm: Option<V>,
    ram: Option<M>,
}

impl<C, V, M> Drop for Parts<C, V, M> {
    fn drop(&mut self) {
        self.vcpus.clear();
        self.vm = None;
        self.ram = None;
    }
}

/// A whole guest: vCPUs `C`, VM handle `V`, memory `M`.
///
/// Dropping a `C` must close the vCPU's fd and unmap its `kvm_run`; dropping `V`
/// must close the last VM fd.
#[must_use = "dropping it tears the guest down"]
pub struct Guest<C, V, M>(Parts<C, V, M>);

/// A guest whose vCPU fds and `kvm_run` maps are gone.
#[must_use = "dropping it tears the rest down"]
pub struct WithoutVcpus<C, V, M>(Parts<C, V, M>);

/// What is left after the VM fd: memory that no KVM guest maps any more.
#[must_use = "dropping it drops the memory"]
pub struct WithoutVm<C, V, M>(Parts<C, V, M>);

impl<C, V, M> Guest<C, V, M> {
    /// Takes over everything that must go in order. Nobody else may hold a
    /// duplicate of the VM fd, nor a reference that keeps `ram` mapped.
    pub fn new(vcpus: Vec<C>, vm: V, ram: M) -> Self {
        Self(Parts {
            vcpus,
            vm: Some(vm),
            ram: Some(ram),
        })
    }

    /// The vCPUs, in the order given.
    pub fn vcpus(&self) -> &[C] {
        &self.0.vcpus
    }

    /// The vCPUs, to run or configure.
    pub fn vcpus_mut(&mut self) -> &mut Vec<C> {
        &mut self.0.vcpus
    }

    /// The VM handle.
    pub fn vm(&self) -> &V {
        self.0.vm.as_ref().expect("only close_vm() takes it")
    }

    /// The VM handle, to add to it what must go with it.
    pub fn vm_mut(&mut self) -> &mut V {
        self.0.vm.as_mut().expect("only close_vm() takes it")
    }

    /// The memory.
    pub fn ram(&self) -> &M {
        self.0.ram.as_ref().expect("only unmap_ram() takes it")
    }

    /// The memory, to decide how it goes.
    pub fn ram_mut(&mut self) -> &mut M {
        self.0.ram.as_mut().expect("only unmap_ram() takes it")
    }

    /// First step. No vCPU may be running: whoever runs one owns it instead.
    pub fn close_vcpus(mut self) -> WithoutVcpus<C, V, M> {
        self.0.vcpus.clear();
        WithoutVcpus(self.0)
    }
}

impl<C, V, M: Ram> WithoutVcpus<C, V, M> {
    /// Bytes that the remaining steps give back.
    pub fn bytes(&self) -> u64 {
        self.0.ram.as_ref().map_or(0, Ram::bytes)
    }

    /// Second step: the kernel destroys the guest's page tables in here.
    pub fn close_vm(mut self) -> WithoutVm<C, V, M> {
        self.0.vm = None;
        WithoutVm(self.0)
    }
}

impl<C, V, M: Ram> WithoutVm<C, V, M> {
    /// Last step: the memory goes back to the host.
    pub fn unmap_ram(mut self) -> Result<(), M::Error> {
        match self.0.ram.take() {
            Some(ram) => ram.unmap(),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use super::*;

    type Log = Arc<Mutex<Vec<&'static str>>>;

    /// Writes its name into the log when it goes away.
    struct Part(&'static str, Log);

    impl Drop for Part {
        fn drop(&mut self) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    impl Ram for Part {
        type Error = Infallible;

        fn bytes(&self) -> u64 {
            4096
        }

        fn unmap(self) -> Result<(), Infallible> {
            Ok(())
        }
    }

    fn guest() -> (Guest<Part, Part, Part>, Log) {
        let log = Log::default();
        let part = |name| Part(name, log.clone());
        let vcpus = vec![part("vcpu0"), part("vcpu1")];
        (Guest::new(vcpus, part("vm"), part("ram")), log)
    }

    const ORDER: [&str; 4] = ["vcpu0", "vcpu1", "vm", "ram"];

    #[test]
    fn every_step_takes_its_part_and_no_other() {
        let (guest, log) = guest();
        let rest = guest.close_vcpus();
        assert_eq!(*log.lock().unwrap(), ORDER[..2]);
        assert_eq!(rest.bytes(), 4096);
        let rest = rest.close_vm();
        assert_eq!(*log.lock().unwrap(), ORDER[..3]);
        rest.unmap_ram().unwrap();
        assert_eq!(*log.lock().unwrap(), ORDER);
    }

    #[test]
    fn a_drop_at_any_step_keeps_the_order() {
        for steps in 0..3 {
            let (guest, log) = guest();
            match steps {
                0 => drop(guest),
                1 => drop(guest.close_vcpus()),
                _ => drop(guest.close_vcpus().close_vm()),
            }
            assert_eq!(*log.lock().unwrap(), ORDER, "dropped after {steps} steps");
        }
    }
}
