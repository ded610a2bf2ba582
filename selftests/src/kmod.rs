// SPDX-License-Identifier: GPL-2.0

//! Module kvm_s2_bench: a stage-2 table that no guest had to fill.

use crate::spec::block;
use crate::spec::page;
use crate::spec::Case;
use crate::spec::Spec;
use crate::Result;
use crate::Stop;
use std::ffi::CString;
use std::fs;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::path::PathBuf;

const MODULE: &str = "kvm_s2_bench.ko";
const MODULES: &str = "/lib/modules";

/// The module's file: `given`, or the one below /lib/modules.
///
/// # Errors
///
/// [`Stop::Skip`] when there is none.
pub fn find(given: Option<&Path>) -> Result<PathBuf> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let found = match given {
        Some(path) => path.exists().then(|| path.to_owned()),
        None => search(&Path::new(MODULES).join(release.trim())),
    };
    found.ok_or_else(|| match given {
        Some(path) => Stop::Skip(format!("no module at {}", path.display())),
        None => Stop::Skip(format!(
            "no {MODULE} below {MODULES}; name it with --module"
        )),
    })
}

fn search(dir: &Path) -> Option<PathBuf> {
    let mut entries = fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path());
    entries.find_map(|path| {
        if path.is_dir() && !path.is_symlink() {
            return search(&path);
        }
        path.file_name()
            .is_some_and(|name| name == MODULE)
            .then_some(path)
    })
}

/// Once in so much of the address space, for the sparse case.
const SPARSE_STRIDE: u64 = 512 << 30;

/// Parameters that make the module build and destroy what `spec` says. It destroys with the
/// implementation that the kernel is set to.
pub fn parameters(spec: &Spec, ipa_bits: u32) -> String {
    let (size, stride, map_kib) = match spec.case {
        Case::Empty => (0, 0, page() >> 10),
        Case::Sparse => (1 << ipa_bits, SPARSE_STRIDE, page() >> 10),
        Case::Dense2m => (spec.size, 0, block() >> 10),
        _ => (spec.size, 0, page() >> 10),
    };
    let (size_mib, stride_mib) = (size >> 20, stride >> 20);
    format!("size_mib={size_mib} stride_mib={stride_mib} map_kib={map_kib} ipa_bits={ipa_bits}")
}

/// Loads the module, which does its work and then leaves on purpose.
///
/// # Errors
///
/// [`Stop::Skip`] when this user may not load modules, the kernel is not the one
/// it was built for, or the host is a protected one; [`Stop::Fail`] when its work failed.
pub fn run(path: &Path, parameters: &str) -> Result<()> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(Stop::missing(&name))?;
    let parameters = CString::new(parameters).map_err(Stop::failed("module parameters"))?;
    // SAFETY: an open file, a terminated string and no flags, alive meanwhile.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_finit_module,
            file.as_raw_fd(),
            parameters.as_ptr(),
            0,
        )
    };
    let error = io::Error::last_os_error();
    match (rc, error.raw_os_error()) {
        (0, _) => Err(Stop::Fail(format!("{name} stayed loaded; rmmod it"))),
        (_, Some(libc::EAGAIN)) => Ok(()),
        (_, Some(libc::EOPNOTSUPP)) => Err(Stop::Skip(
            "a protected host keeps stage-2 tables at EL2; the module builds them at EL1".into(),
        )),
        (_, Some(libc::EPERM | libc::ENOEXEC)) => Err(Stop::missing(&name)(error)),
        _ => Err(Stop::failed(&name)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Backing;
    use crate::spec::Guest;
    use crate::spec::Order;

    #[test]
    fn parameters_say_what_the_case_says() {
        let mut spec = Spec {
            case: Case::Dense2m,
            size: 128 << 30,
            ipa: None,
            backing: Backing::Kernel,
            order: Order::CloseFirst,
            guest: Guest::None,
            vcpus: 1,
        };
        assert_eq!(
            parameters(&spec, 48),
            "size_mib=131072 stride_mib=0 map_kib=2048 ipa_bits=48"
        );
        spec.case = Case::Sparse;
        assert_eq!(
            parameters(&spec, 48),
            "size_mib=268435456 stride_mib=524288 map_kib=4 ipa_bits=48"
        );
    }
}
