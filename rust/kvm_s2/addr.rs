// SPDX-License-Identifier: GPL-2.0

//! Addresses: the guest's and the host's are different types.

use core::fmt;

/// An intermediate physical address: what a guest takes for physical.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Ipa(pub u64);

/// A physical address of the host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct PhysAddr(pub u64);

impl Ipa {
    /// The address `bytes` further on; the top of the address space if that is nearer.
    #[inline]
    pub const fn saturating_add(self, bytes: u64) -> Self {
        Self(self.0.saturating_add(bytes))
    }

    /// The address rounded down to `size`, a power of two.
    #[inline]
    pub const fn align_down(self, size: u64) -> Self {
        Self(self.0 & !size.wrapping_sub(1))
    }
}

impl fmt::Debug for Ipa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ipa({:#015x})", self.0)
    }
}

impl fmt::Debug for PhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PhysAddr({:#015x})", self.0)
    }
}

/// The addresses from `start` up to, not including, `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpaRange {
    /// First address.
    pub start: Ipa,
    /// One past the last address.
    pub end: Ipa,
}

impl IpaRange {
    /// Whether no address lies in the range.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }
}
