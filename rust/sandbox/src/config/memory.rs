// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Guest memory: how much, and of which kind. It is fixed for the life of a VM and
//! stored with it.

use serde::{Deserialize, Serialize};

use super::{ConfigError, PAGE};
use crate::restore::Kind;

/// Below this not even the built-in payload fits.
pub const MIN_MEMORY: u64 = 4 << 20;

/// More memory than this is refused: the state of a snapshot has a checksum for
/// every block of it, and a bound.
pub const MAX_MEMORY: u64 = 256 << 30;

/// Guest memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryConfig {
    /// Bytes, a multiple of [`PAGE`] and at most [`MAX_MEMORY`].
    pub size: u64,
    /// Whether the host may back the guest with transparent huge pages.
    #[serde(default)]
    pub thp: bool,
    /// Whether other processes may map the memory too.
    #[serde(default)]
    pub shared: bool,
    /// Whether the memory is in explicit huge pages. Never found out by itself.
    #[serde(default)]
    pub hugepages: bool,
    /// Bytes of such a page, 2 MiB by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hugepage_size: Option<u64>,
    /// NUMA node of the host that the huge pages come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_numa_node: Option<u32>,
}

impl MemoryConfig {
    /// Bytes of an explicit huge page, if the memory is in such pages.
    pub fn hugepages(&self) -> Option<u64> {
        self.hugepages
            .then(|| self.hugepage_size.unwrap_or(2 << 20))
    }

    /// What the memory is when it comes to restoring it.
    pub fn kind(&self) -> Kind {
        match self {
            Self {
                hugepages: true, ..
            } => Kind::Hugepages,
            Self { shared: true, .. } => Kind::Shared,
            _ => Kind::Private,
        }
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let size = self.size;
        if !(MIN_MEMORY..=MAX_MEMORY).contains(&size) || size % PAGE != 0 {
            return Err(ConfigError::MemorySize(size));
        }
        let Some(page) = self.hugepages() else {
            return match (self.hugepage_size, self.host_numa_node) {
                (None, None) => Ok(()),
                _ => Err(ConfigError::HugepagesOff),
            };
        };
        if !page.is_power_of_two() || page <= PAGE || size % page != 0 {
            return Err(ConfigError::HugepageSize { page, size });
        }
        match self.thp {
            true => Err(ConfigError::TwoKindsOfHugepages),
            false => Ok(()),
        }
    }
}
