// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! `sandbox run`: the VMM process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use sandbox::api::{bind, serve, Options, Service};
use sandbox::config::{
    Afterwards, BuiltinConfig, CpusConfig, DiskConfig, MemoryConfig, NetConfig, PayloadConfig,
    SerialConfig, SerialMode, VmConfig, VsockConfig,
};
use sandbox::events::EventLog;
use sandbox::reaper::Limits;
use sandbox::vcpu::GuestExit;
use sandbox::vm::Overrides;
use serde_json::{json, Value};
use tokio::signal::unix::{signal, SignalKind};
use vmm_sys_util::terminal::Terminal;

use super::control::restore_body;
use super::restoring::{show_notes, Memory};
use super::value::{parse_disk, parse_net, parse_size, parse_vsock};
use super::{Outcome, Target};

const EXAMPLES: &str = "\
Without --kernel, --touch or --restore the process starts without a VM and waits
for vm.create or vm.restore on its control socket.

Examples:
  sandbox run --id a --kernel bzImage --initramfs root.cpio --console
  sandbox run --id b --memory 2G --touch 2000M
  sandbox run --id c --kernel bzImage --disk data.img --net tap0 --vsock 3,/tmp/c.vsock
  sandbox run --id d --memory 1G --hugepages=2M --touch 1000M
  sandbox run --id a --restore /var/lib/a.snapshot --memory-mode on-demand";

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
    /// Let other processes map guest memory
    #[arg(long)]
    shared: bool,
    /// Put guest memory in explicit huge pages, of 2M or the size given
    #[arg(long, value_parser = parse_size, value_name = "SIZE", num_args = 0..=1,
          require_equals = true, default_missing_value = "2M", conflicts_with = "thp")]
    hugepages: Option<u64>,
    /// Take the huge pages from one NUMA node
    #[arg(long, value_name = "NODE", requires = "hugepages")]
    numa_node: Option<u32>,
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
    /// Let it go round this much memory for good instead, printing B
    #[arg(long, value_parser = parse_size, value_name = "SIZE", requires = "touch",
          conflicts_with = "count")]
    beat: Option<u64>,
    /// Go on from this snapshot
    #[arg(long, value_name = "DIR")]
    restore: Option<PathBuf>,
    /// Run as one of many clones: a directory of its own, for a link to the memory file
    #[arg(long, value_name = "DIR", requires = "restore")]
    clone_directory: Option<PathBuf>,
    #[command(flatten)]
    restoring: Memory,
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
        let exit = service.guest_exit();
        service.shutdown();
        // Whoever sees the socket gone may take the id.
        drop(socket);
        drop(claim);
        result?;
        match exit {
            Some(GuestExit::Failed(reason)) => Err(reason.into()),
            _ => Ok(()),
        }
    }

    fn start(&self, service: &Service) -> Outcome {
        if let Some(directory) = &self.restore {
            let request = serde_json::from_value(self.restore_body(directory)?)?;
            let plan = service.restore(&request)?;
            show_notes(&serde_json::to_value(plan)?);
        } else if self.kernel.is_some() || self.touch.is_some() {
            service.create(self.config())?;
            service.boot()?;
        }
        Ok(())
    }

    /// Devices that are named here replace those of the snapshot.
    fn restore_body(&self, directory: &Path) -> Result<Value, std::io::Error> {
        let mut body = restore_body(directory, self.restoring)?;
        body["resume"] = true.into();
        body["clone_directory"] = json!(self.clone_directory);
        body["overrides"] = json!(Overrides {
            serial: (self.console || self.console_file.is_some()).then(|| self.serial()),
            taps: self.net.iter().map(|net| net.tap.clone()).collect(),
            disks: self.disk.iter().map(|disk| disk.path.clone()).collect(),
            vsock_socket: self.vsock.as_ref().map(|vsock| vsock.socket.clone()),
        });
        Ok(body)
    }

    fn serial(&self) -> SerialConfig {
        SerialConfig {
            mode: match (&self.console_file, self.console) {
                (Some(_), _) => SerialMode::File,
                (None, true) => SerialMode::Tty,
                (None, false) => SerialMode::Null,
            },
            file: self.console_file.clone(),
        }
    }

    fn config(&self) -> VmConfig {
        let then = match (self.count, self.beat) {
            (true, _) => Afterwards::Count,
            (false, Some(_)) => Afterwards::Beat,
            (false, None) => Afterwards::Halt,
        };
        let builtin = |touch| BuiltinConfig {
            touch,
            then,
            working_set: self.beat,
        };
        VmConfig {
            cpus: CpusConfig {
                boot_vcpus: self.cpus,
                max_vcpus: None,
            },
            memory: MemoryConfig {
                size: self.memory,
                thp: self.thp,
                shared: self.shared,
                hugepages: self.hugepages.is_some(),
                hugepage_size: self.hugepages,
                host_numa_node: self.numa_node,
            },
            payload: PayloadConfig {
                kernel: self.kernel.clone(),
                initramfs: self.initramfs.clone(),
                cmdline: self.cmdline.clone(),
                builtin: self.touch.map(builtin),
            },
            disks: self.disk.clone(),
            net: self.net.clone(),
            vsock: self.vsock.clone(),
            serial: self.serial(),
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
