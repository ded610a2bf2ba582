// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! A VM whose threads run.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::core::{Core, Parts};
use super::paused::PausedVm;
use crate::config::VmConfig;
use crate::restore::on_demand::Progress;
use crate::vcpu::{ExitSlot, GuestExit, RunningVcpu};

/// A VM could not be set in motion; it is still paused.
#[derive(thiserror::Error)]
#[error("cannot start a thread of the VM: {source}")]
pub struct ResumeError {
    /// The VM.
    pub vm: Box<PausedVm>,
    source: io::Error,
}

impl std::fmt::Debug for ResumeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// A VM whose vCPUs and device workers run.
#[must_use = "dropping it stops the VM and tears it down"]
pub struct RunningVm {
    core: Option<Core>,
    threads: Vec<RunningVcpu>,
}

impl RunningVm {
    /// Starts device workers and vCPUs.
    pub(super) fn start(core: Core) -> Result<Self, ResumeError> {
        let mut running = Self {
            core: Some(core),
            threads: Vec::new(),
        };
        match running.start_threads() {
            Ok(()) => Ok(running),
            Err(source) => Err(ResumeError {
                vm: Box::new(running.pause()),
                source,
            }),
        }
    }

    fn start_threads(&mut self) -> io::Result<()> {
        let core = self.core.as_mut().expect("only pause() takes it");
        core.parts().devices.start()?;
        let buses = core.parts().devices.buses();
        let exit = core.exit.clone();
        let vcpus = core.parts_mut().guest.vcpus_mut();
        let mut waiting = std::mem::take(vcpus).into_iter();
        while let Some(vcpu) = waiting.next() {
            match vcpu.start(buses.clone(), exit.clone()) {
                Ok(thread) => self.threads.push(thread),
                Err((vcpu, error)) => {
                    vcpus.push(vcpu);
                    vcpus.extend(waiting);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// What it was made from.
    pub fn config(&self) -> &VmConfig {
        &self.core().config
    }

    /// Why the guest stopped by itself, if it has.
    pub fn exit(&self) -> Option<GuestExit> {
        self.core().exit.get()
    }

    /// Waits for the guest to stop by itself, at most `timeout`.
    pub fn wait_exit(&self, timeout: Duration) -> Option<GuestExit> {
        self.core().exit.wait(timeout)
    }

    /// Where the guest's exit will be told, to wait for it without the VM.
    pub fn exit_slot(&self) -> Arc<ExitSlot> {
        self.core().exit.clone()
    }

    /// Guest memory; the guest may be writing it.
    pub fn memory(&self) -> &vm_memory::GuestMemoryMmap {
        self.core().parts().guest.ram().map()
    }

    /// How far its memory is, if that is loaded on demand.
    pub fn progress(&self) -> Option<Progress> {
        self.core().parts().guest.ram().progress()
    }

    /// Stops every thread: all are told first, and only then waited for.
    pub fn pause(mut self) -> PausedVm {
        let core = self.stop().expect("only stop() takes it");
        PausedVm::from_core(core)
    }

    fn core(&self) -> &Core {
        self.core.as_ref().expect("only stop() takes it")
    }

    fn stop(&mut self) -> Option<Core> {
        let mut core = self.core.take()?;
        for thread in &self.threads {
            thread.signal();
        }
        core.parts().devices.signal();
        let mut back: Vec<_> = self
            .threads
            .drain(..)
            .filter_map(RunningVcpu::join)
            .collect();
        let Parts { devices, guest } = core.parts_mut();
        back.append(guest.vcpus_mut());
        back.sort_by_key(crate::vcpu::Vcpu::id);
        *guest.vcpus_mut() = back;
        // A vCPU may have started a worker after the first signal.
        devices.join();
        Some(core)
    }
}

impl Drop for RunningVm {
    fn drop(&mut self) {
        drop(self.stop());
    }
}
