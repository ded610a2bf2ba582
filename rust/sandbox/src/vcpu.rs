// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! One vCPU and the thread that runs it.

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use kvm_ioctls::{VcpuExit, VcpuFd};
use serde::Serialize;
use vmm_sys_util::signal::{register_signal_handler, Killable, SIGRTMIN};

use crate::arch;
use crate::devices::Buses;

/// A vCPU that nobody runs. Dropping it closes its fd and unmaps its `kvm_run`.
#[derive(Debug)]
pub struct Vcpu {
    id: u8,
    fd: VcpuFd,
}

/// Why the guest itself stopped running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuestExit {
    /// It powered off or crashed the CPU beyond repair.
    Shutdown,
    /// It asked for a reset.
    Reset,
    /// It did what KVM cannot run; the text says what.
    Failed(String),
}

/// Where the first vCPU to stop leaves word.
#[derive(Debug, Default)]
pub struct ExitSlot {
    exit: Mutex<Option<GuestExit>>,
    changed: Condvar,
}

impl ExitSlot {
    /// What is known now.
    pub fn get(&self) -> Option<GuestExit> {
        self.lock().clone()
    }

    /// Waits for the guest to stop, at most `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<GuestExit> {
        let guard = self.lock();
        let (exit, _) = self
            .changed
            .wait_timeout_while(guard, timeout, |exit| exit.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        exit.clone()
    }

    /// Leaves word, unless somebody has before.
    pub(crate) fn set(&self, exit: GuestExit) {
        self.lock().get_or_insert(exit);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Option<GuestExit>> {
        self.exit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Vcpu {
    /// Wraps a vCPU of the VM.
    pub fn new(id: u8, fd: VcpuFd) -> Self {
        Self { id, fd }
    }

    /// Its number.
    pub fn id(&self) -> u8 {
        self.id
    }

    /// Its fd, to read and set state.
    pub fn fd(&self) -> &VcpuFd {
        &self.fd
    }

    /// Runs it on a thread of its own, until [`RunningVcpu::signal`] or the guest
    /// stops. Gives the vCPU back when there is no thread.
    pub fn start(
        mut self,
        buses: Arc<Buses>,
        exit: Arc<ExitSlot>,
    ) -> Result<RunningVcpu, (Self, io::Error)> {
        install_handler();
        let flag = ExitFlag(&raw mut self.fd.get_kvm_run().immediate_exit);
        flag.set(0);
        let slot = Arc::new(Mutex::new(Some(self)));
        let inside = slot.clone();
        let take =
            |slot: &Mutex<Option<Self>>| slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        let thread = Builder::new().name("vcpu".into()).spawn(move || {
            let mut vcpu = take(&inside)?;
            vcpu.run(&buses, &exit);
            Some(vcpu)
        });
        match thread {
            Ok(thread) => Ok(RunningVcpu { thread, flag }),
            Err(error) => Err((
                take(&slot).expect("only a running thread empties the slot"),
                error,
            )),
        }
    }

    fn run(&mut self, buses: &Buses, exit: &ExitSlot) {
        loop {
            let stop = match self.fd.run() {
                Ok(reason) => handle(reason, buses),
                // Only after this answer is the last exit complete, and the state
                // fit to be saved.
                Err(error) if error.errno() == libc::EINTR => {
                    if self.fd.get_kvm_run().immediate_exit != 0 {
                        return;
                    }
                    None
                }
                Err(error) if error.errno() == libc::EAGAIN => None,
                Err(error) => Some(GuestExit::Failed(format!("KVM_RUN: {error}"))),
            };
            if let Some(stop) = stop {
                exit.set(stop);
                return;
            }
        }
    }
}

/// Serves one exit; says so when it was the last one.
fn handle(reason: VcpuExit<'_>, buses: &Buses) -> Option<GuestExit> {
    match reason {
        VcpuExit::IoIn(port, data) => buses.pio.read(u64::from(port), data),
        VcpuExit::IoOut(port, data) => {
            if arch::RESET_PORT == Some(u64::from(port)) && data == [0xfe] {
                return Some(GuestExit::Reset);
            }
            buses.pio.write(u64::from(port), data);
        }
        VcpuExit::MmioRead(address, data) => buses.mmio.read(address, data),
        VcpuExit::MmioWrite(address, data) => buses.mmio.write(address, data),
        VcpuExit::Shutdown | VcpuExit::Hlt => return Some(GuestExit::Shutdown),
        VcpuExit::SystemEvent(kind, _) => {
            return Some(match kind {
                kvm_bindings::KVM_SYSTEM_EVENT_SHUTDOWN => GuestExit::Shutdown,
                kvm_bindings::KVM_SYSTEM_EVENT_RESET => GuestExit::Reset,
                other => GuestExit::Failed(format!("system event {other}")),
            });
        }
        other => return Some(GuestExit::Failed(format!("exit {other:?}"))),
    }
    None
}

/// A vCPU inside its thread.
#[derive(Debug)]
pub struct RunningVcpu {
    thread: JoinHandle<Option<Vcpu>>,
    flag: ExitFlag,
}

impl RunningVcpu {
    /// Asks the vCPU to leave the guest. Returns at once.
    pub fn signal(&self) {
        // The flag first: a thread that is about to enter the guest sees it, one
        // that is inside is thrown out by the signal.
        self.flag.set(1);
        // A thread that has ended cannot be signalled, and need not be.
        let _ = self.thread.kill(SIGRTMIN());
    }

    /// Waits for the thread and takes the vCPU back; `None` if it panicked.
    pub fn join(self) -> Option<Vcpu> {
        self.thread.join().ok().flatten()
    }
}

/// The byte in `kvm_run` that makes KVM_RUN return at once.
#[derive(Clone, Copy, Debug)]
struct ExitFlag(*mut u8);

// SAFETY: the byte is only accessed atomically, and the kernel reads it as such.
unsafe impl Send for ExitFlag {}
// SAFETY: as above.
unsafe impl Sync for ExitFlag {}

impl ExitFlag {
    fn set(self, value: u8) {
        // SAFETY: a `RunningVcpu` holds its thread, and the thread or its result
        // holds the vCPU, so `kvm_run` is mapped. Moving the vCPU does not move it.
        unsafe { AtomicU8::from_ptr(self.0) }.store(value, Ordering::SeqCst);
    }
}

/// Interrupting a system call is all that the signal is for.
fn install_handler() {
    static ONCE: Once = Once::new();
    extern "C" fn nothing(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}
    ONCE.call_once(|| {
        register_signal_handler(SIGRTMIN(), nothing)
            .expect("a real-time signal can always be caught");
    });
}
