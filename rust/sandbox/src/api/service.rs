// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The one VM of this process, and who may touch it when.
//!
//! An operation takes the VM out of its slot and puts it back when it is done.
//! Whoever comes in between is told so at once, except for delete, which waits:
//! it is meant to succeed whatever the VM is doing.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::model::{CountersReply, InfoReply, MemoryInfo, VmStatus};
use super::ApiError;
use crate::config::VmConfig;
use crate::events::EventLog;
use crate::reaper::{Limits, Reaper};
use crate::restore::on_demand::Progress;
use crate::restore::Plan;
use crate::vm::{PausedVm, RunningVm};

/// How the service treats memory and whom it tells.
#[derive(Debug)]
pub struct Options {
    /// Names the VM in events and releases.
    pub id: String,
    /// How much may be pending after a reply.
    pub limits: Limits,
    /// Threads that give back one guest's memory.
    pub release_threads: usize,
    /// Where events go.
    pub events: EventLog,
}

/// The VM and everything that outlives it.
pub struct Service {
    pub(super) id: String,
    pub(super) release_threads: usize,
    pub(super) reaper: Reaper,
    pub(super) events: Arc<EventLog>,
    slot: Mutex<Slot>,
    idle: Condvar,
}

/// The state of the VM.
pub(super) enum Slot {
    /// There is none, and there was none.
    Empty,
    /// There was one; it is in its snapshot.
    PausedOut,
    /// Configured, not booted.
    Created(Box<VmConfig>),
    /// In motion.
    Running(Vm<RunningVm>),
    /// Standing still.
    Paused(Vm<PausedVm>),
    /// An operation has it.
    Busy(&'static str),
}

/// A VM, and how its memory came.
pub(super) struct Vm<T> {
    pub(super) vm: Box<T>,
    pub(super) plan: Option<Plan>,
}

impl<T> Vm<T> {
    pub(super) fn new(vm: T, plan: Option<Plan>) -> Self {
        let vm = Box::new(vm);
        Self { vm, plan }
    }
}

impl Slot {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Empty => "not there",
            Self::PausedOut => "in its snapshot",
            Self::Created(_) => "created",
            Self::Running(_) => "running",
            Self::Paused(_) => "paused",
            Self::Busy(_) => "busy",
        }
    }

    /// The error for an operation that finds the VM like this.
    pub(super) fn refuse(&self, operation: &'static str, needed: &'static str) -> ApiError {
        match self {
            Self::Empty => ApiError::NoVm,
            Self::PausedOut => ApiError::PausedOut,
            Self::Busy(other) => ApiError::Busy(other),
            _ => ApiError::State {
                operation,
                found: self.name(),
                needed,
            },
        }
    }
}

impl Service {
    /// A service without a VM.
    pub fn new(options: Options) -> Self {
        let events = Arc::new(options.events);
        let log = events.clone();
        let observer = Box::new(move |report: &_| log.release(report));
        Self {
            id: options.id,
            release_threads: options.release_threads,
            reaper: Reaper::with_observer(options.limits, observer),
            events,
            slot: Mutex::new(Slot::Empty),
            idle: Condvar::new(),
        }
    }

    /// Runs one operation on the VM: `change` gets the slot's content and says
    /// what it becomes, also when it fails. Nobody waits for a lock meanwhile.
    pub(super) fn operate<T>(
        &self,
        operation: &'static str,
        change: impl FnOnce(Slot) -> (Slot, Result<T, ApiError>),
    ) -> Result<T, ApiError> {
        let slot = self.lock();
        if let Slot::Busy(other) = *slot {
            return Err(ApiError::Busy(other));
        }
        self.operate_on(slot, operation, change)
    }

    /// The same, after whatever is going on.
    pub(super) fn operate_after<T>(
        &self,
        operation: &'static str,
        change: impl FnOnce(Slot) -> (Slot, Result<T, ApiError>),
    ) -> Result<T, ApiError> {
        let slot = self
            .idle
            .wait_while(self.lock(), |slot| matches!(slot, Slot::Busy(_)))
            .unwrap_or_else(PoisonError::into_inner);
        self.operate_on(slot, operation, change)
    }

    fn operate_on<T>(
        &self,
        mut slot: MutexGuard<'_, Slot>,
        operation: &'static str,
        change: impl FnOnce(Slot) -> (Slot, Result<T, ApiError>),
    ) -> Result<T, ApiError> {
        let content = std::mem::replace(&mut *slot, Slot::Busy(operation));
        drop(slot);
        // If `change` panics the VM is dropped, in order, and the slot is empty.
        let mut back = PutBack {
            service: self,
            content: Slot::Empty,
        };
        let (content, result) = change(content);
        back.content = content;
        drop(back);
        match &result {
            Ok(_) => self.events.emit("vm", operation, &self.id),
            Err(error) => {
                let what = format!("{operation}-failed");
                self.events.emit("vm", &what, error.to_string());
            }
        }
        result
    }

    /// `vm.info`: never waits for an operation.
    pub fn info(&self) -> Result<InfoReply, ApiError> {
        let slot = self.lock();
        let reply = |config, state, memory_mode, exit| InfoReply {
            config,
            state,
            operation: None,
            memory_mode,
            exit,
        };
        match &*slot {
            Slot::Empty => Err(ApiError::NoVm),
            Slot::PausedOut => Err(ApiError::PausedOut),
            Slot::Created(config) => {
                Ok(reply(Some(*config.clone()), VmStatus::Created, None, None))
            }
            Slot::Running(Vm { vm, plan }) => {
                let exit = vm.exit();
                let state = match exit {
                    None => VmStatus::Running,
                    Some(_) => VmStatus::Shutdown,
                };
                let memory = memory_info(plan, vm.progress());
                Ok(reply(Some(vm.config().clone()), state, memory, exit))
            }
            Slot::Paused(Vm { vm, plan }) => Ok(reply(
                Some(vm.config().clone()),
                VmStatus::Paused,
                memory_info(plan, vm.progress()),
                vm.exit(),
            )),
            Slot::Busy(operation) => Ok(InfoReply {
                operation: Some(operation),
                ..reply(None, VmStatus::Busy, None, None)
            }),
        }
    }

    /// `vm.counters`.
    pub fn counters(&self) -> CountersReply {
        CountersReply {
            reaper: self.reaper.counters(),
            failures: self.reaper.failures(),
        }
    }

    /// The event log.
    pub fn events(&self) -> &EventLog {
        &self.events
    }

    /// Waits until all memory is back with the host.
    pub fn wait_released(&self) {
        // Without a timeout there is nothing to fail.
        let _ = self.reaper.wait_released(None);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn memory_info(plan: &Option<Plan>, on_demand: Option<Progress>) -> Option<MemoryInfo> {
    let plan = plan.clone()?;
    Some(MemoryInfo { plan, on_demand })
}

/// Fills the slot again, also while a panic unwinds.
struct PutBack<'a> {
    service: &'a Service,
    content: Slot,
}

impl Drop for PutBack<'_> {
    fn drop(&mut self) {
        let content = std::mem::replace(&mut self.content, Slot::Empty);
        *self.service.lock() = content;
        self.service.idle.notify_all();
    }
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service")
            .field("id", &self.id)
            .field("vm", &self.lock().name())
            .finish_non_exhaustive()
    }
}
