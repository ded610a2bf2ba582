// SPDX-License-Identifier: GPL-2.0

//! What kind of host this is.

use crate::spec::block;
use crate::Result;
use crate::Stop;
use kvm_bindings::KVM_CAP_ARM_VM_IPA_SIZE;
use kvm_ioctls::Kvm;
use serde::Serialize;
use std::fmt;
use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

/// How KVM runs on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The host kernel runs at EL2.
    Vhe,
    /// The host kernel runs at EL1, KVM's world switch at EL2.
    Nvhe,
    /// As nVHE, and EL2 keeps guests from the host.
    Protected,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Vhe => "vhe",
            Mode::Nvhe => "nvhe",
            Mode::Protected => "protected",
        })
    }
}

/// Opens /dev/kvm.
///
/// # Errors
///
/// [`Stop::Skip`] with what is missing.
pub fn open_kvm() -> Result<Kvm> {
    if !cfg!(target_arch = "aarch64") {
        return Err(Stop::Skip("stage-2 tables are arm64; run it there".into()));
    }
    Kvm::new().map_err(Stop::missing("/dev/kvm"))
}

/// Most bits of guest address space the host can give.
pub fn ipa_limit(kvm: &Kvm) -> u32 {
    // 0 means a kernel from before the choice existed: always 40.
    match kvm.check_extension_raw(KVM_CAP_ARM_VM_IPA_SIZE.into()) {
        bits @ 1.. => bits as u32,
        _ => 40,
    }
}

/// Whether this kernel has protected guests at all. KVM has no capability that says so.
///
/// # Errors
///
/// [`Stop::Skip`] for Linux 6 and older, whose protected mode keeps EL2 from the host and no more.
pub fn knows_protected_guests() -> Result<()> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    match release
        .split('.')
        .next()
        .and_then(|major| major.parse().ok())
    {
        Some(0..=6u32) => Err(Stop::Skip(format!(
            "Linux {} has no protected guests",
            release.trim()
        ))),
        _ => Ok(()),
    }
}

/// How KVM runs here: by its own boot message, else by what was asked of it.
pub fn mode() -> Mode {
    let cmdline = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    mode_from_log(&kernel_log()).unwrap_or_else(|| mode_from_cmdline(&cmdline))
}

fn mode_from_log(log: &str) -> Option<Mode> {
    let line = log
        .lines()
        .find(|l| l.contains("mode initialized successfully"))?;
    Some(if line.contains("Protected ") {
        Mode::Protected
    } else if line.contains("Hyp ") {
        Mode::Nvhe
    } else {
        Mode::Vhe
    })
}

fn mode_from_cmdline(cmdline: &str) -> Mode {
    let asked = cmdline
        .split_whitespace()
        .rev()
        .find_map(|word| word.strip_prefix("kvm-arm.mode="));
    match asked {
        Some("protected") => Mode::Protected,
        Some("nvhe") => Mode::Nvhe,
        _ => Mode::Vhe,
    }
}

/// The records still in the kernel's log, or nothing when it is not ours to read.
pub fn kernel_log() -> String {
    let mut text = String::new();
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/kmsg");
    let Ok(mut file) = file else { return text };
    let mut record = [0; 8192];
    // One read is one record; EAGAIN is the end.
    while let Ok(len) = file.read(&mut record) {
        text.push_str(&String::from_utf8_lossy(&record[..len]));
    }
    text
}

/// Whether the kernel has warned (WARN, not pr_warn) since boot.
pub fn has_warned() -> bool {
    const TAINT_WARN: u64 = 1 << 9;
    let text = fs::read_to_string("/proc/sys/kernel/tainted").unwrap_or_default();
    text.trim()
        .parse::<u64>()
        .is_ok_and(|t| t & TAINT_WARN != 0)
}

/// Allows this process to lock as much memory as a protected guest needs.
///
/// # Errors
///
/// [`Stop::Skip`] when the limit is below `bytes` and may not be raised.
pub fn allow_locking(bytes: u64) -> Result<()> {
    let wanted = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    let mut limit = wanted;
    // SAFETY: both point to a valid rlimit for the length of the calls.
    let allowed = unsafe {
        libc::setrlimit(libc::RLIMIT_MEMLOCK, &wanted) == 0
            || (libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) == 0 && limit.rlim_cur >= bytes)
    };
    if allowed {
        return Ok(());
    }
    Err(Stop::Skip(format!(
        "a protected guest locks {bytes} bytes, the limit is {}; raise it with ulimit -l",
        limit.rlim_cur
    )))
}

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// Huge pages reserved for a run; given back when dropped.
#[derive(Debug)]
pub struct HugePool {
    old: u64,
}

impl HugePool {
    /// Grows the pool by as many 2M pages as `bytes` need.
    ///
    /// # Errors
    ///
    /// [`Stop::Skip`] when the kernel has no pool or it is not ours to change.
    pub fn reserve(bytes: u64) -> Result<Self> {
        let text = fs::read_to_string(POOL).map_err(Stop::missing(POOL))?;
        let old: u64 = text.trim().parse().map_err(Stop::failed(POOL))?;
        let new = old + bytes.div_ceil(block());
        fs::write(POOL, new.to_string()).map_err(Stop::missing(POOL))?;
        Ok(HugePool { old })
    }
}

impl Drop for HugePool {
    fn drop(&mut self) {
        if let Err(error) = fs::write(POOL, self.old.to_string()) {
            eprintln!("# {POOL} could not be put back to {}: {error}", self.old);
        }
    }
}

/// Keeps the calling thread, and those it starts, on one CPU.
///
/// # Errors
///
/// [`Stop::Skip`] when this machine has no such CPU for us.
pub fn stay_on_cpu(cpu: usize) -> Result<()> {
    // SAFETY: a set of CPUs is an array of bits, all zero is an empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is valid, and the macro checks the bit's number.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set is valid and of the size given.
    match unsafe { libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set) } {
        0 => Ok(()),
        _ => Err(Stop::Skip(format!("CPU {cpu} is needed and not there"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_message_decides() {
        let log = |text: &str| mode_from_log(&format!("6,1,0,-;x\n6,2,0,-;kvm [1]: {text}\n"));
        let done = "mode initialized successfully";
        assert_eq!(log(&format!("VHE+NV2 {done}")), Some(Mode::Vhe));
        assert_eq!(log(&format!("Hyp nVHE {done}")), Some(Mode::Nvhe));
        assert_eq!(log(&format!("Hyp hVHE {done}")), Some(Mode::Nvhe));
        assert_eq!(
            log(&format!("Protected hVHE {done}")),
            Some(Mode::Protected)
        );
        assert_eq!(log("HYP mode not available"), None);
    }

    #[test]
    fn the_last_word_of_the_command_line_counts() {
        assert_eq!(mode_from_cmdline("console=ttyAMA0"), Mode::Vhe);
        let both = "kvm-arm.mode=nvhe quiet kvm-arm.mode=protected\n";
        assert_eq!(mode_from_cmdline(both), Mode::Protected);
    }
}
