// SPDX-License-Identifier: GPL-2.0

//! The words a test is described with.

use crate::payload::Touch;
use crate::payload::RAM_BASE;
use crate::size;
use crate::Result;
use crate::Stop;
use clap::ValueEnum;
use serde::Serialize;
use std::fmt;

/// Bytes of a page: KVM's stage-2 granule is the host's page size.
pub fn page() -> u64 {
    // SAFETY: the call has no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
}
/// Bytes of a block one level above the pages: 2M, 32M or 512M.
pub fn block() -> u64 {
    page() / 8 * page()
}
/// Bytes from one page of a sparse guest to the next.
pub const SPARSE_STRIDE: u64 = 1 << 30;
/// Bytes from one page of a scattered guest to the next.
pub fn scattered_stride() -> u64 {
    8 * page()
}

/// What the guest has mapped when it ends, or which rule of life is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// A VM that never ran
    Empty,
    /// 1 MiB of pages: what is left is the cost of looking for mappings
    #[value(name = "1m")]
    #[serde(rename = "1m")]
    OneMib,
    /// Every 4K page of --size
    #[value(name = "dense-4k")]
    #[serde(rename = "dense-4k")]
    Dense4k,
    /// Every 2M block of --size
    #[value(name = "dense-2m")]
    #[serde(rename = "dense-2m")]
    Dense2m,
    /// Every eighth 4K page of --size: no two are neighbours
    Scattered,
    /// One page in each GiB of --size
    Sparse,
    /// An open vCPU fd keeps the VM alive after its own fd is closed
    HeldVcpuFd,
    /// A mapped kvm_run keeps the VM alive after all fds are closed
    HeldKvmRun,
}

/// What backs guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backing {
    /// Pages, with huge pages forbidden
    #[value(name = "4k")]
    #[serde(rename = "4k")]
    Page4k,
    /// Transparent huge pages of 2M
    Thp,
    /// Huge pages of 2M from the pool (see --setup)
    Hugetlb,
    /// No guest: a table that module kvm_s2_bench builds in the kernel
    Kernel,
}

/// How the VM ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// vCPU fds, kvm_run, VM fd (timed), then guest memory
    CloseFirst,
    /// Guest memory (timed), then vCPU fds, kvm_run, VM fd (timed)
    UnmapFirst,
    /// The process that holds all of it is killed (timed until it is reaped)
    Sigkill,
}

/// Which kind of guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Guest {
    /// The host can see its memory
    Normal,
    /// The host cannot; needs kvm-arm.mode=protected
    Protected,
    /// No guest; what --backing kernel has
    #[value(skip)]
    None,
}

/// The word for `value` on the command line and in results.
pub fn word<T: ValueEnum>(value: T) -> String {
    value
        .to_possible_value()
        .map_or("none".into(), |v| v.get_name().into())
}

/// One test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// What is mapped.
    pub case: Case,
    /// Bytes of guest address space the case is about.
    pub size: u64,
    /// Bits of guest address space asked for; the default of the case if none.
    pub ipa: Option<u32>,
    /// What backs it.
    pub backing: Backing,
    /// How it ends.
    pub order: Order,
    /// Whose it is.
    pub guest: Guest,
    /// Number of vCPUs that share the touching.
    pub vcpus: u64,
}

impl Spec {
    /// Whether the words fit together.
    ///
    /// # Errors
    ///
    /// [`Stop::Skip`] that says which do not.
    pub fn check(&self) -> Result<()> {
        let no = |why: &str| Err(Stop::Skip(why.into()));
        let held = matches!(self.case, Case::HeldVcpuFd | Case::HeldKvmRun);
        if page() != 4096 && !matches!(self.backing, Backing::Page4k | Backing::Kernel) {
            return no("huge pages are those of a kernel with 4K pages");
        }
        match (self.case, self.backing) {
            (_, Backing::Kernel) if held => return no("a table in the kernel has no vCPU"),
            (Case::Scattered, Backing::Kernel) => return no("the module has no case scattered"),
            (_, Backing::Kernel) => {}
            (Case::Dense2m, Backing::Page4k) => return no("2M blocks need backing thp or hugetlb"),
            (Case::Dense2m | Case::Empty, _) | (_, Backing::Page4k) => {}
            _ => return no("huge pages go with case dense-2m"),
        }
        if self.backing == Backing::Kernel && self.order != Order::CloseFirst {
            return no("a table in the kernel has no order; use close-first");
        }
        if self.guest == Guest::Protected && self.case == Case::Dense2m {
            return no("a protected guest is always mapped in 4K pages");
        }
        if held && self.order != Order::CloseFirst {
            return no("held cases are about close-first");
        }
        if self.size % self.stride() != 0 {
            let (size, stride) = (size::format(self.size), size::format(self.stride()));
            return Err(Stop::Skip(format!("{size} is no multiple of {stride}")));
        }
        Ok(())
    }

    /// Bytes from one mapping to the next.
    pub fn stride(&self) -> u64 {
        match self.case {
            Case::Dense2m => block(),
            Case::Scattered => scattered_stride(),
            Case::Sparse => SPARSE_STRIDE,
            _ => page(),
        }
    }

    /// What the guest is told to touch; `None` for a VM that never runs.
    pub fn touch(&self) -> Option<Touch> {
        (self.case != Case::Empty).then(|| Touch {
            stride: self.stride(),
            pages: self.size / self.stride(),
        })
    }

    /// Number of 4K pages that end up mapped.
    pub fn pages(&self) -> u64 {
        match self.case {
            Case::Empty => 0,
            Case::Scattered | Case::Sparse => self.size / self.stride(),
            _ => self.size / page(),
        }
    }

    /// Number of stage-2 entries that map them.
    pub fn mappings(&self) -> u64 {
        self.touch().map_or(0, |touch| touch.pages)
    }

    /// Bits of guest address space, given the most the host can offer.
    ///
    /// # Errors
    ///
    /// [`Stop::Skip`] when the host cannot, or when the guest does not fit.
    pub fn ipa_bits(&self, limit: u32) -> Result<u32> {
        let usual = if self.case == Case::OneMib { 48 } else { 40 };
        let bits = self.ipa.unwrap_or(usual.min(limit));
        if !(32..=limit).contains(&bits) {
            return Err(Stop::Skip(format!(
                "IPA of {bits} bits is not supported: this host takes 32 to {limit}"
            )));
        }
        if self.touch().is_some_and(|t| t.end() > 1 << bits) {
            return Err(Stop::Skip(format!(
                "{} from IPA {RAM_BASE:#x} does not fit in {bits} bits",
                size::format(self.size)
            )));
        }
        Ok(bits)
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", word(self.case))?;
        // In the kernel a sparse table spans all of the address space.
        let spans_all = self.case == Case::Sparse && self.backing == Backing::Kernel;
        if self.case != Case::Empty && !spans_all {
            write!(f, " {}", size::format(self.size))?;
        }
        if let Some(bits) = self.ipa {
            write!(f, " ipa-{bits}")?;
        }
        write!(f, " {} {}", word(self.backing), word(self.order))?;
        if self.guest != Guest::None {
            write!(f, " {}", word(self.guest))?;
        }
        if self.vcpus > 1 {
            write!(f, " {} vcpus", self.vcpus)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(case: Case, backing: Backing) -> Spec {
        Spec {
            case,
            size: 1 << 30,
            ipa: None,
            backing,
            order: Order::CloseFirst,
            guest: Guest::Normal,
            vcpus: 1,
        }
    }

    #[test]
    fn pages_are_counted_in_4k_whatever_the_mapping() {
        assert_eq!(spec(Case::Dense4k, Backing::Page4k).pages(), 1 << 18);
        assert_eq!(spec(Case::Dense2m, Backing::Thp).pages(), 1 << 18);
        assert_eq!(spec(Case::Scattered, Backing::Page4k).pages(), 1 << 15);
        assert_eq!(spec(Case::Sparse, Backing::Page4k).pages(), 1);
        assert_eq!(spec(Case::Empty, Backing::Page4k).pages(), 0);
    }

    #[test]
    fn words_that_do_not_fit_are_named() {
        let reason = |s: Spec| s.check().unwrap_err().to_string();
        assert!(reason(spec(Case::Dense2m, Backing::Page4k)).contains("thp or hugetlb"));
        assert!(reason(spec(Case::Dense4k, Backing::Thp)).contains("dense-2m"));
        let mut odd = spec(Case::Dense2m, Backing::Thp);
        odd.size = 3 << 20;
        assert_eq!(reason(odd), "3M is no multiple of 2M");
        assert!(spec(Case::Sparse, Backing::Kernel).check().is_ok());
    }

    #[test]
    fn ipa_follows_the_host_unless_asked() {
        let mut s = spec(Case::OneMib, Backing::Page4k);
        assert_eq!(s.ipa_bits(52), Ok(48));
        assert_eq!(s.ipa_bits(36), Ok(36));
        s.ipa = Some(48);
        assert!(s.ipa_bits(40).unwrap_err().to_string().contains("32 to 40"));
    }

    #[test]
    fn a_guest_must_fit_its_address_space() {
        let mut s = spec(Case::Sparse, Backing::Page4k);
        s.size = 8 << 30;
        s.ipa = Some(32);
        assert!(s.ipa_bits(48).unwrap_err().to_string().contains("32 bits"));
        s.size = 3 << 30;
        assert_eq!(s.ipa_bits(48), Ok(32));
    }

    #[test]
    fn names_are_what_a_reader_would_type() {
        let s = spec(Case::Dense4k, Backing::Page4k);
        assert_eq!(s.to_string(), "dense-4k 1G 4k close-first normal");
    }
}
