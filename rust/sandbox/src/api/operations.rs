// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! What each request does with the VM.

use std::path::Path;
use std::time::Instant;

use super::model::{file_url, PauseReply, PauseRequest, RestoreRequest, SnapshotRequest};
use super::service::{Service, Slot, Vm};
use super::ApiError;
use crate::admission;
use crate::config::VmConfig;
use crate::restore::Plan;
use crate::snapshot;
use crate::vcpu::GuestExit;
use crate::vm::{restore, PausedVm, Release, RestoreError, RestoreOptions, RunningVm};

impl Service {
    /// `vm.create`: remembers the configuration, and boots nothing.
    pub fn create(&self, config: VmConfig) -> Result<(), ApiError> {
        self.operate("vm.create", |slot| match slot {
            Slot::Empty | Slot::PausedOut => match config.validate() {
                Ok(()) => (Slot::Created(Box::new(config)), Ok(())),
                Err(error) => (
                    slot,
                    Err(ApiError::Create(crate::vm::CreateError::from(error))),
                ),
            },
            other => (other, Err(ApiError::Exists)),
        })
    }

    /// `vm.boot`.
    pub fn boot(&self) -> Result<(), ApiError> {
        self.operate("vm.boot", |slot| match slot {
            Slot::Created(config) => match self.create_vm(&config) {
                Ok(vm) => self.start(Vm::new(vm, None)),
                Err(error) => (Slot::Created(config), Err(error)),
            },
            other => {
                let error = other.refuse("vm.boot", "created");
                (other, Err(error))
            }
        })
    }

    fn create_vm(&self, config: &VmConfig) -> Result<PausedVm, ApiError> {
        admission::admit(&self.reaper, &config.memory)?;
        Ok(PausedVm::create(config.clone())?)
    }

    /// `vm.resume`.
    pub fn resume(&self) -> Result<(), ApiError> {
        self.operate("vm.resume", |slot| match slot {
            Slot::Paused(vm) => self.start(vm),
            other => {
                let error = other.refuse("vm.resume", "paused");
                (other, Err(error))
            }
        })
    }

    fn start(&self, Vm { vm, plan }: Vm<PausedVm>) -> (Slot, Result<(), ApiError>) {
        let mut vm = *vm;
        vm.release_threads(self.release_threads);
        match vm.resume() {
            Ok(vm) => (Slot::Running(Vm::new(vm, plan)), Ok(())),
            Err(error) => {
                let text = error.to_string();
                let vm = Vm { vm: error.vm, plan };
                (Slot::Paused(vm), Err(ApiError::Resume(text)))
            }
        }
    }

    /// `vm.pause` without a body: the VM stays in memory.
    pub fn pause(&self) -> Result<(), ApiError> {
        self.operate("vm.pause", |slot| match slot {
            Slot::Running(Vm { vm, plan }) => (Slot::Paused(Vm::new(vm.pause(), plan)), Ok(())),
            other => {
                let error = other.refuse("vm.pause", "running");
                (other, Err(error))
            }
        })
    }

    /// `vm.pause` to a snapshot. If that cannot be written the VM runs on.
    pub fn pause_to(&self, request: &PauseRequest) -> Result<PauseReply, ApiError> {
        let directory = file_url(&request.destination_url)?;
        self.operate("vm.pause", |slot| match slot {
            Slot::Running(Vm { vm, plan }) => {
                let start = Instant::now();
                let paused = Vm::new(vm.pause(), plan);
                let stop_ns = nanoseconds(start);
                match paused.vm.snapshot(&directory) {
                    Ok(()) => self.finish_pause(*paused.vm, request.release, start, stop_ns),
                    Err(error) => match self.start(paused) {
                        (slot, Ok(())) => (slot, Err(error.into())),
                        (slot, Err(worse)) => (slot, Err(worse)),
                    },
                }
            }
            other => {
                let error = other.refuse("vm.pause", "running");
                (other, Err(error))
            }
        })
    }

    fn finish_pause(
        &self,
        vm: PausedVm,
        release: Release,
        start: Instant,
        stop_ns: u64,
    ) -> (Slot, Result<PauseReply, ApiError>) {
        let reply = PauseReply {
            stop_ns,
            snapshot_ns: nanoseconds(start) - stop_ns,
            teardown: vm.teardown(&self.reaper, &self.id, release),
        };
        self.events.emit("vm", "paused-to-snapshot", &reply);
        (Slot::PausedOut, Ok(reply))
    }

    /// `vm.snapshot` of a paused VM, which stays.
    pub fn snapshot(&self, request: &SnapshotRequest) -> Result<(), ApiError> {
        let directory = file_url(&request.destination_url)?;
        self.operate("vm.snapshot", |slot| match slot {
            Slot::Paused(vm) => {
                let result = vm.vm.snapshot(&directory).map_err(ApiError::from);
                (Slot::Paused(vm), result)
            }
            other => {
                let error = other.refuse("vm.snapshot", "paused");
                (other, Err(error))
            }
        })
    }

    /// `vm.restore`; says how the memory came. The memory of an earlier VM may still
    /// be on its way back: it is waited for as long as the host has no room for both.
    pub fn restore(&self, request: &RestoreRequest) -> Result<Plan, ApiError> {
        let directory = file_url(&request.source_url)?;
        let options = request.options();
        self.operate("vm.restore", |slot| match slot {
            Slot::Empty | Slot::PausedOut => {
                let (vm, plan) = match self.restore_from(&directory, &options) {
                    Ok(restored) => restored,
                    Err(error) => return (slot, Err(error)),
                };
                self.events.emit("vm", "memory-mode", &plan);
                let vm = Vm::new(vm, Some(plan.clone()));
                match request.resume {
                    true => {
                        let (slot, started) = self.start(vm);
                        (slot, started.map(|()| plan))
                    }
                    false => (Slot::Paused(vm), Ok(plan)),
                }
            }
            other => (other, Err(ApiError::Exists)),
        })
    }

    fn restore_from(
        &self,
        directory: &Path,
        options: &RestoreOptions,
    ) -> Result<(PausedVm, Plan), ApiError> {
        let state = snapshot::load(directory).map_err(RestoreError::from)?;
        admission::admit(&self.reaper, &state.config.memory)?;
        Ok(restore(directory, options)?)
    }

    /// `vm.delete`: waits for what is going on, and succeeds without a VM too.
    pub fn delete(&self, release: Release) -> Result<(), ApiError> {
        self.operate_after("vm.delete", |slot| {
            let vm = match slot {
                Slot::Running(Vm { vm, .. }) => Some(vm.pause()),
                Slot::Paused(Vm { vm, .. }) => Some(*vm),
                _ => None,
            };
            if let Some(vm) = vm {
                let report = vm.teardown(&self.reaper, &self.id, release);
                self.events.emit("vm", "torn-down", report);
            }
            (Slot::Empty, Ok(()))
        })
    }

    /// Why the guest of a running VM stopped by itself, if it has.
    pub fn guest_exit(&self) -> Option<GuestExit> {
        match &*self.lock() {
            Slot::Running(Vm { vm, .. }) => RunningVm::exit(vm),
            _ => None,
        }
    }

    /// The end of the process: no VM and no memory is left behind.
    pub fn shutdown(&self) {
        // Deleting cannot fail; what a release has to say is in the counters.
        let _ = self.delete(Release::Deferred);
        self.reaper.shutdown();
    }
}

fn nanoseconds(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
