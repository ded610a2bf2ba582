// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! What a VM is made of, in Cloud Hypervisor's words where it has them.
//!
//! The same form is the body of `vm.create`, the command line's result and part
//! of every snapshot.

mod memory;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use memory::{MemoryConfig, MAX_MEMORY, MIN_MEMORY};

/// Pages and everything mapped are multiples of this many bytes.
pub const PAGE: u64 = 4096;

/// More vCPUs than this are refused.
pub const MAX_VCPUS: u8 = 32;

/// Body of `vm.create`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmConfig {
    /// Virtual CPUs.
    #[serde(default)]
    pub cpus: CpusConfig,
    /// Guest memory.
    pub memory: MemoryConfig,
    /// What the guest runs.
    pub payload: PayloadConfig,
    /// Disk files, in the order the guest sees them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<DiskConfig>,
    /// Network interfaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub net: Vec<NetConfig>,
    /// The vsock device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vsock: Option<VsockConfig>,
    /// Where the serial console goes.
    #[serde(default)]
    pub serial: SerialConfig,
}

/// Virtual CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpusConfig {
    /// CPUs the guest starts with, 1 to [`MAX_VCPUS`].
    pub boot_vcpus: u8,
    /// Accepted for compatibility; hotplug is not supported, so it must not differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_vcpus: Option<u8>,
}

impl Default for CpusConfig {
    fn default() -> Self {
        Self {
            boot_vcpus: 1,
            max_vcpus: None,
        }
    }
}

/// What the guest runs: a Linux kernel or a built-in payload, not both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PayloadConfig {
    /// Kernel image (x86-64: bzImage or ELF, arm64: Image).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<PathBuf>,
    /// Initial RAM disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initramfs: Option<PathBuf>,
    /// Kernel command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmdline: Option<String>,
    /// A few instructions that touch memory, instead of a kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub builtin: Option<BuiltinConfig>,
}

/// The built-in payload: writes one word to every page, then `T` to the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BuiltinConfig {
    /// Bytes to touch; they follow the payload itself.
    pub touch: u64,
    /// What the first vCPU does afterwards.
    #[serde(default)]
    pub then: Afterwards,
    /// Bytes of the working set, from the first one touched on, for
    /// [`Afterwards::Beat`]; all that was touched by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_set: Option<u64>,
}

/// What the built-in payload does after touching memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Afterwards {
    /// Sleep for good, costing no host CPU.
    #[default]
    Halt,
    /// Count in memory, so that progress can be seen from outside.
    Count,
    /// Go round the working set for good: check the word in every page, write another
    /// one beside it, and `B` to the console after each round. A page that has lost
    /// its word makes it write `!` and halt.
    Beat,
}

/// One disk file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskConfig {
    /// Raw image.
    pub path: PathBuf,
    /// Refuse writes of the guest.
    #[serde(default)]
    pub readonly: bool,
}

/// One network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetConfig {
    /// Name of the tap; it is made when it does not exist and then goes with the VM.
    pub tap: String,
    /// MAC address, as `02:00:00:00:00:01`.
    #[serde(default = "default_mac")]
    pub mac: String,
}

fn default_mac() -> String {
    "02:00:00:00:00:01".to_owned()
}

/// The vsock device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VsockConfig {
    /// The guest's context id, at least 3.
    pub cid: u32,
    /// Unix socket for connections into the guest; connections out of it go to
    /// this path with `_<port>` appended.
    pub socket: PathBuf,
}

/// Where the serial console goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SerialConfig {
    /// Kind of sink.
    pub mode: SerialMode,
    /// The file, for [`SerialMode::File`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
}

/// Kind of serial sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SerialMode {
    /// Output is dropped.
    #[default]
    Null,
    /// Standard output of the VMM, standard input as the guest's input.
    Tty,
    /// Appended to a file.
    File,
}

/// A configuration that cannot become a VM.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// vCPU count out of range.
    #[error("cpus.boot_vcpus is {0}; 1 to {MAX_VCPUS} are possible")]
    Vcpus(u8),
    /// Hotplug was asked for.
    #[error("cpus.max_vcpus must equal boot_vcpus: CPU hotplug is not supported")]
    Hotplug,
    /// Memory size is not usable.
    #[error(
        "memory.size is {0} bytes; it must be a multiple of {PAGE}, at least {MIN_MEMORY} and at \
         most {MAX_MEMORY}"
    )]
    MemorySize(u64),
    /// Memory does not consist of whole huge pages.
    #[error(
        "memory.size is {size} bytes; with hugepage_size {page} it must be a multiple of that, \
         and that a power of two above {PAGE}"
    )]
    HugepageSize {
        /// Bytes of a page.
        page: u64,
        /// Bytes of memory.
        size: u64,
    },
    /// Words about huge pages that are not asked for.
    #[error("memory.hugepage_size and host_numa_node need memory.hugepages")]
    HugepagesOff,
    /// Explicit and transparent ones.
    #[error("memory.thp and memory.hugepages exclude each other")]
    TwoKindsOfHugepages,
    /// Neither or both payloads.
    #[error("payload needs either a kernel or builtin")]
    Payload,
    /// The payload does not fit.
    #[error(
        "payload.builtin.touch is {touch} bytes; this VM has room for {room}, at least one page is \
         touched, and the working set is part of that"
    )]
    Touch {
        /// Bytes asked for.
        touch: u64,
        /// Bytes there are.
        room: u64,
    },
    /// A context id the standard reserves.
    #[error("vsock.cid is {0}; ids below 3 are reserved")]
    Cid(u32),
    /// A MAC address that cannot be read.
    #[error("net.mac {0:?} is not of the form 02:00:00:00:00:01")]
    Mac(String),
    /// A serial file without a path.
    #[error("serial.mode File needs serial.file")]
    SerialFile,
}

impl VmConfig {
    /// Checks everything that can be checked without touching the host.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let vcpus = self.cpus.boot_vcpus;
        if !(1..=MAX_VCPUS).contains(&vcpus) {
            return Err(ConfigError::Vcpus(vcpus));
        }
        if self.cpus.max_vcpus.is_some_and(|max| max != vcpus) {
            return Err(ConfigError::Hotplug);
        }
        self.memory.validate()?;
        self.validate_payload()?;
        if let Some(vsock) = &self.vsock {
            if vsock.cid < 3 {
                return Err(ConfigError::Cid(vsock.cid));
            }
        }
        for net in &self.net {
            parse_mac(&net.mac).ok_or_else(|| ConfigError::Mac(net.mac.clone()))?;
        }
        if self.serial.mode == SerialMode::File && self.serial.file.is_none() {
            return Err(ConfigError::SerialFile);
        }
        Ok(())
    }

    fn validate_payload(&self) -> Result<(), ConfigError> {
        match (&self.payload.kernel, &self.payload.builtin) {
            (Some(_), None) => Ok(()),
            (None, Some(builtin)) => {
                let room = crate::payload::room(self.memory.size);
                let set = builtin.working_set.unwrap_or(builtin.touch);
                if (PAGE..=room).contains(&builtin.touch) && (PAGE..=builtin.touch).contains(&set) {
                    return Ok(());
                }
                Err(ConfigError::Touch {
                    touch: builtin.touch,
                    room,
                })
            }
            _ => Err(ConfigError::Payload),
        }
    }
}

/// Reads `02:00:00:00:00:01`.
pub fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<VmConfig, String> {
        let config: VmConfig = serde_json::from_str(text).map_err(|e| e.to_string())?;
        config.validate().map_err(|e| e.to_string())?;
        Ok(config)
    }

    #[test]
    fn the_smallest_body_is_accepted() {
        let config =
            parse(r#"{"memory":{"size":16777216},"payload":{"builtin":{"touch":4096}}}"#).unwrap();
        assert_eq!(config.cpus.boot_vcpus, 1);
        assert_eq!(config.serial.mode, SerialMode::Null);
    }

    #[test]
    fn mistakes_are_named() {
        let cases = [
            (r#"{"memory":{"size":16777216},"payload":{}}"#, "payload"),
            (
                r#"{"memory":{"size":16777217},"payload":{"kernel":"k"}}"#,
                "memory.size",
            ),
            (
                r#"{"memory":{"size":999999999999999488},"payload":{"kernel":"k"}}"#,
                "at most",
            ),
            (
                r#"{"memory":{"size":17825792,"hugepages":true},"payload":{"kernel":"k"}}"#,
                "hugepage_size 2097152",
            ),
            (
                r#"{"memory":{"size":16777216,"host_numa_node":0},"payload":{"kernel":"k"}}"#,
                "need memory.hugepages",
            ),
            (
                r#"{"memory":{"size":16777216,"thp":true,"hugepages":true},"payload":{"kernel":"k"}}"#,
                "exclude",
            ),
            (
                r#"{"memory":{"size":16777216},"payload":{"builtin":{"touch":16777216}}}"#,
                "touch",
            ),
            (
                r#"{"cpus":{"boot_vcpus":0},"memory":{"size":16777216},"payload":{"kernel":"k"}}"#,
                "boot_vcpus",
            ),
            (
                r#"{"memory":{"size":16777216},"payload":{"kernel":"k"},"vsock":{"cid":2,"socket":"s"}}"#,
                "cid",
            ),
            (
                r#"{"memory":{"size":16777216},"payload":{"kernel":"k"},"net":[{"tap":"t","mac":"02:00"}]}"#,
                "mac",
            ),
            (
                r#"{"memory":{"size":16777216},"payload":{"kernel":"k"},"gpu":1}"#,
                "gpu",
            ),
        ];
        for (body, word) in cases {
            let error = parse(body).unwrap_err();
            assert!(error.contains(word), "{body}: {error}");
        }
    }
}
