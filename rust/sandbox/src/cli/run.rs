// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! `sandbox run`: the VMM process.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use sandbox::api::{bind, serve, Options, RestoreRequest, Service};
use sandbox::config::{
    Afterwards, BuiltinConfig, CpusConfig, DiskConfig, MemoryConfig, NetConfig, PayloadConfig,
    SerialConfig, SerialMode, VmConfig, VsockConfig,
};
use sandbox::events::EventLog;
use sandbox::reaper::Limits;
use tokio::signal::unix::{signal, SignalKind};
use vmm_sys_util::terminal::Terminal;

use super::control::{restore_body, Mode};
use super::value::{parse_disk, parse_net, parse_size, parse_vsock};
use super::{Outcome, Target};

const EXAMPLES: &str = "\
Without --kernel, --touch or --restore the process starts without a VM and waits
for vm.create or vm.restore on its control socket.

Examples:
  sandbox run --id a --kernel bzImage --initramfs root.cpio --console
  sandbox run --id b --memory 2G --touch 2000M
  sandbox run --id c --kernel bzImage --disk data.img --net tap0 --vsock 3,/tmp/c.vsock
  sandbox run --id a --restore /var/lib/a.snapshot";

/// Options of `sandbox run`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Run {
    #[command(flatten)]
    target: Target,
    /// Guest memory
    #[arg(long, value_parser = parse_size, default_value = "512M", value_name = "SIZE")]
    memory: u64,
    /// Allow transparent huge pages for guest memory
    #[arg(long)]
    thp: bool,
    /// Virtual CPUs
    #[arg(long, default_value_t = 1, value_name = "N")]
    cpus: u8,
    /// Linux kernel to boot
    #[arg(long, value_name = "FILE", conflicts_with_all = ["touch", "restore"])]
    kernel: Option<PathBuf>,
    /// Initial RAM disk
    #[arg(long, value_name = "FILE", requires = "kernel")]
    initramfs: Option<PathBuf>,
    /// Kernel command line
    #[arg(long, value_name = "TEXT", requires = "kernel")]
    cmdline: Option<String>,
    /// Run the built-in payload, which touches this much memory and halts
    #[arg(long, value_parser = parse_size, value_name = "SIZE", conflicts_with = "restore")]
    touch: Option<u64>,
    /// Let the built-in payload count instead of halting
    #[arg(long, requires = "touch")]
    count: bool,
    /// Go on from this snapshot
    #[arg(long, value_name = "DIR")]
    restore: Option<PathBuf>,
    /// How memory comes from the snapshot
    #[arg(long, value_enum, default_value = "copy", requires = "restore")]
    memory_mode: Mode,
    /// Disk file, as PATH or PATH,readonly; may be repeated
    #[arg(long, value_parser = parse_disk, value_name = "DISK")]
    disk: Vec<DiskConfig>,
    /// Network interface, as TAP or TAP,MAC; may be repeated
    #[arg(long, value_parser = parse_net, value_name = "NET")]
    net: Vec<NetConfig>,
    /// Vsock device, as CID,SOCKET
    #[arg(long, value_parser = parse_vsock, value_name = "VSOCK")]
    vsock: Option<VsockConfig>,
    /// Connect the serial console to this terminal
    #[arg(long, conflicts_with = "console_file")]
    console: bool,
    /// Append the serial console's output to a file
    #[arg(long, value_name = "FILE")]
    console_file: Option<PathBuf>,
    /// Append events to a file, one JSON object per line
    #[arg(long, value_name = "FILE")]
    event_monitor: Option<PathBuf>,
    /// Release inline once this much memory is pending
    #[arg(long, value_parser = parse_size, default_value = "64G", value_name = "SIZE")]
    pending_bytes: u64,
    /// Release inline once this many releases are pending
    #[arg(long, default_value_t = 8, value_name = "N")]
    pending_count: usize,
    /// Threads that give one guest's memory back
    #[arg(long, default_value_t = 1, value_name = "N")]
    release_threads: usize,
    /// Keep the process when the guest powers off
    #[arg(long)]
    keep: bool,
}

impl Run {
    pub(super) fn run(self) -> Outcome {
        let claim = self.target.claim()?;
        let socket = bind(&self.target.socket())?;
        let events = match &self.event_monitor {
            Some(path) => EventLog::to_file(path).map_err(|e| format!("{path:?}: {e}"))?,
            None => EventLog::default(),
        };
        let service = Arc::new(Service::new(Options {
            id: self.target.name(),
            limits: Limits {
                bytes: self.pending_bytes,
                count: self.pending_count,
            },
            release_threads: self.release_threads,
            events,
        }));
        let _terminal = self.console.then(RawTerminal::new).flatten();
        self.start(&service)?;
        let end = end_of_process(service.clone(), self.keep);
        let result = serve(&socket, service.clone(), end);
        service.shutdown();
        // Whoever sees the socket gone may take the id.
        drop(socket);
        drop(claim);
        Ok(result?)
    }

    fn start(&self, service: &Service) -> Outcome {
        if let Some(directory) = &self.restore {
            let body = restore_body(directory, self.memory_mode, true)?;
            let request: RestoreRequest = serde_json::from_str(&body)?;
            service.restore(&request)?;
        } else if self.kernel.is_some() || self.touch.is_some() {
            service.create(self.config())?;
            service.boot()?;
        }
        Ok(())
    }

    fn config(&self) -> VmConfig {
        let then = if self.count {
            Afterwards::Count
        } else {
            Afterwards::Halt
        };
        let mode = match (&self.console_file, self.console) {
            (Some(_), _) => SerialMode::File,
            (None, true) => SerialMode::Tty,
            (None, false) => SerialMode::Null,
        };
        VmConfig {
            cpus: CpusConfig {
                boot_vcpus: self.cpus,
                max_vcpus: None,
            },
            memory: MemoryConfig {
                size: self.memory,
                thp: self.thp,
            },
            payload: PayloadConfig {
                kernel: self.kernel.clone(),
                initramfs: self.initramfs.clone(),
                cmdline: self.cmdline.clone(),
                builtin: self.touch.map(|touch| BuiltinConfig { touch, then }),
            },
            disks: self.disk.clone(),
            net: self.net.clone(),
            vsock: self.vsock.clone(),
            serial: SerialConfig {
                mode,
                file: self.console_file.clone(),
            },
        }
    }
}

/// Over when the process is told to end, or when the guest has.
async fn end_of_process(service: Arc<Service>, keep: bool) {
    // Without handlers the default action of these signals ends the process.
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        return std::future::pending().await;
    };
    let guest = async {
        while keep || service.guest_exit().is_none() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        _ = terminate.recv() => (),
        _ = interrupt.recv() => (),
        () = guest => (),
    }
}

/// The terminal without line editing, as long as the guest has it.
struct RawTerminal;

impl RawTerminal {
    fn new() -> Option<Self> {
        // Input from a file or a pipe has no modes to set.
        std::io::stdin().lock().set_raw_mode().ok().map(|()| Self)
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = std::io::stdin().lock().set_canon_mode();
    }
}
