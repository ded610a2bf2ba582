// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The serial console: a 16550 whose output goes to a sink and whose input comes
//! from standard input, when the sink is the terminal.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use kvm_ioctls::VmFd;
use serde::{Deserialize, Serialize};
use vm_superio::serial::{NoEvents, Serial};
use vm_superio::Trigger;
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::eventfd::{EventFd, EFD_NONBLOCK};

use super::bus::BusDevice;
use super::worker::{Events, Worker};
use super::DeviceError;
use crate::arch;
use crate::config::{SerialConfig, SerialMode};

type Sink = Box<dyn Write + Send>;

/// Registers of the console.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SerialState {
    registers: [u8; 9],
    input: Vec<u8>,
}

/// The console.
pub(super) struct SerialPort {
    uart: Serial<Interrupt, NoEvents, Sink>,
    input: Option<Worker<()>>,
    mode: SerialMode,
}

struct Interrupt(EventFd);

impl Trigger for Interrupt {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        self.0.write(1)
    }
}

impl SerialPort {
    pub(super) fn new(
        vm: &VmFd,
        config: &SerialConfig,
        state: Option<&SerialState>,
    ) -> Result<Self, DeviceError> {
        let event = EventFd::new(EFD_NONBLOCK).map_err(DeviceError::EventFd)?;
        vm.register_irqfd(&event, arch::SERIAL_GSI)?;
        let sink = open_sink(config)?;
        let interrupt = Interrupt(event);
        let uart = match state.and_then(to_uart) {
            // Only an interrupt of the restored state can fail here; an eventfd
            // that nobody has written yet takes it.
            Some(state) => Serial::from_state(&state, interrupt, NoEvents, sink)
                .map_err(|error| DeviceError::EventFd(io::Error::other(error.to_string())))?,
            None => Serial::new(interrupt, sink),
        };
        Ok(Self {
            uart,
            input: None,
            mode: config.mode,
        })
    }

    /// Starts reading standard input, if that is the guest's terminal.
    pub(super) fn start(&mut self, this: &Arc<Mutex<Self>>) -> io::Result<()> {
        if self.mode == SerialMode::Tty && self.input.is_none() {
            let port = Arc::downgrade(this);
            let worker = Worker::spawn("serial", move |events| feed(events, &port))?;
            self.input = Some(worker);
        }
        Ok(())
    }

    pub(super) fn signal(&self) {
        if let Some(worker) = &self.input {
            worker.signal();
        }
    }

    pub(super) fn take_worker(&mut self) -> Option<Worker<()>> {
        self.input.take()
    }

    pub(super) fn save(&self) -> SerialState {
        let state = self.uart.state();
        SerialState {
            registers: [
                state.baud_divisor_low,
                state.baud_divisor_high,
                state.interrupt_enable,
                state.interrupt_identification,
                state.line_control,
                state.line_status,
                state.modem_control,
                state.modem_status,
                state.scratch,
            ],
            input: state.in_buffer,
        }
    }
}

fn to_uart(state: &SerialState) -> Option<vm_superio::SerialState> {
    let [low, high, enable, identification, line, line_status, modem, modem_status, scratch] =
        state.registers;
    // What does not fit the FIFO was never in it.
    (state.input.len() <= 64).then(|| vm_superio::SerialState {
        baud_divisor_low: low,
        baud_divisor_high: high,
        interrupt_enable: enable,
        interrupt_identification: identification,
        line_control: line,
        line_status,
        modem_control: modem,
        modem_status,
        scratch,
        in_buffer: state.input.clone(),
    })
}

fn open_sink(config: &SerialConfig) -> Result<Sink, DeviceError> {
    match (config.mode, &config.file) {
        (SerialMode::Tty, _) => Ok(Box::new(io::stdout())),
        (SerialMode::File, Some(path)) => OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map(|file| Box::new(file) as Sink)
            .map_err(|source| DeviceError::Serial {
                path: path.clone(),
                source,
            }),
        _ => Ok(Box::new(io::sink())),
    }
}

/// Moves standard input to the guest, until it ends or the worker is told to.
fn feed(events: &Events, port: &Weak<Mutex<SerialPort>>) {
    let mut stdin = io::stdin();
    if events.add(&stdin.as_raw_fd(), 0, EventSet::IN).is_err() {
        // A file or /dev/null cannot be waited for: there is no terminal.
        return;
    }
    let mut ended = false;
    events.serve(|_| {
        let mut bytes = [0; 32];
        let read = stdin.read(&mut bytes).unwrap_or(0);
        if read == 0 && !ended {
            ended = true;
            let _ = events.change(&stdin.as_raw_fd(), 0, EventSet::empty());
        }
        if let Some(port) = port.upgrade() {
            let mut port = port.lock().unwrap_or_else(PoisonError::into_inner);
            // A guest that does not read loses input, as on a real line.
            let _ = port.uart.enqueue_raw_bytes(&bytes[..read]);
        }
    });
}

impl BusDevice for SerialPort {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        if let ([byte], Ok(offset)) = (data, u8::try_from(offset)) {
            *byte = self.uart.read(offset);
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if let (&[byte], Ok(offset)) = (data, u8::try_from(offset)) {
            // A sink that fails (a closed pipe, a full disk) must not stop the guest.
            let _ = self.uart.write(offset, byte);
            let _ = self.uart.writer_mut().flush();
        }
    }
}

impl std::fmt::Debug for SerialPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SerialPort")
            .field("mode", &self.mode)
            .finish()
    }
}
