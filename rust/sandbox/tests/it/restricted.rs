// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! VMM processes that may do less than usual, as in a container or under a limit.

use std::io;
use std::path::{Path, PathBuf};

use crate::common::{
    from_snapshot, kvm, need, payload, refusal, tap, to_snapshot, wait_touched, Dir, Mount, Vmm,
    MIB,
};
use sandbox::config::{Afterwards, NetConfig, VmConfig};

/// Has the kernel refuse both ways to a userfaultfd to this process.
pub(crate) fn no_userfaultfd() -> io::Result<()> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    // The number of the call is at 0, the low half of its second argument at 24.
    let mut filter = [
        step(LOAD, 0, 0, 0),
        step(EQUAL, libc::SYS_userfaultfd as u32, 3, 0),
        step(EQUAL, libc::SYS_ioctl as u32, 0, 3),
        step(LOAD, 24, 0, 0),
        step(EQUAL, 0xaa00, 0, 1),
        step(RETURN, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the filter outlives the call, which copies it.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) != 0
    };
    match refused {
        true => Err(io::Error::last_os_error()),
        false => Ok(()),
    }
}

/// Takes a capability from this process and all it becomes.
fn forgo(capability: libc::c_ulong) -> io::Result<()> {
    // SAFETY: a plain system call.
    check(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

const CAP_NET_ADMIN: libc::c_ulong = 12;

fn no_net_admin() -> io::Result<()> {
    forgo(CAP_NET_ADMIN)
}

/// An empty /dev, for this process only.
fn no_devices() -> io::Result<()> {
    let none = c"none".as_ptr();
    // SAFETY: plain system calls; all strings are literals.
    unsafe {
        check(libc::unshare(libc::CLONE_NEWNS))?;
        let private = libc::MS_REC | libc::MS_PRIVATE;
        let (root, dev) = (c"/".as_ptr(), c"/dev".as_ptr());
        let nothing = std::ptr::null();
        check(libc::mount(none, root, nothing, private, nothing.cast()))?;
        check(libc::mount(none, dev, c"tmpfs".as_ptr(), 0, nothing.cast()))
    }
}

/// A control group in which a process can start no further thread.
struct NoThreads(PathBuf);

impl NoThreads {
    /// Makes one, where this user may.
    fn new(name: &str) -> Result<Self, String> {
        for root in ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"] {
            let group = Self(Path::new(root).join(name));
            if std::fs::create_dir(&group.0).is_ok() && group.0.join("pids.max").exists() {
                return Ok(group);
            }
        }
        Err("no control group with a pids limit can be made here".to_owned())
    }

    /// Puts a process in, with the threads it has.
    fn hold(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
        std::fs::write(self.0.join("pids.max"), "1").unwrap();
    }
}

impl Drop for NoThreads {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn small(dir: &Dir) -> VmConfig {
    payload(16 * MIB, MIB, Afterwards::Halt, &dir.join("console"))
}

#[test]
fn where_no_thread_can_be_had_memory_goes_before_the_reply() {
    need!(kvm());
    let name = format!("sandbox-test-{}", std::process::id());
    need!(NoThreads::new(&name).map(drop));
    let group = NoThreads::new(&name).unwrap();
    let dir = Dir::new("no-thread");
    let vmm = Vmm::start(&dir.join("api"), &[]);
    vmm.boot(&small(&dir));
    wait_touched(&dir.join("console"));
    group.hold(vmm.pid());
    let body = to_snapshot(&dir.join("snapshot"));
    let reply = vmm.client.put("vm.pause", &body).unwrap();
    assert!(
        reply.contains(r#""release":{"inline":"no-thread"}"#),
        "{reply}"
    );
    let counters = vmm.client.get("vm.counters").unwrap();
    for count in [
        r#""pending":0"#,
        r#""released":0"#,
        r#""inline":1"#,
        r#""failed":0"#,
    ] {
        assert!(counters.contains(count), "{counters}");
    }
    // No vCPU can run either; that is an error, and not the end of the VMM.
    let restore = vmm
        .client
        .put("vm.restore", &from_snapshot(&dir.join("snapshot")));
    let (status, words) = refusal(restore);
    assert_eq!(status, 500);
    assert!(words.contains("cannot start a thread"), "{words}");
    assert!(vmm.shutdown());
}

#[test]
fn a_host_without_kvm_is_named() {
    let dir = Dir::new("no-kvm");
    need!(Mount::new(&dir.join("mount"), "size=1m").map(drop));
    let vmm = Vmm::start_restricted(&dir.join("api"), no_devices);
    let config = serde_json::to_string(&small(&dir)).unwrap();
    vmm.client.put("vm.create", &config).unwrap();
    let (status, words) = refusal(vmm.client.put("vm.boot", ""));
    assert_eq!(status, 500);
    assert!(
        words.contains("/dev/kvm") && words.contains("module loaded"),
        "{words}"
    );
    assert!(vmm.shutdown());
}

#[test]
fn a_tap_that_may_not_be_made_is_named_with_what_is_missing() {
    need!(tap());
    let dir = Dir::new("no-tap");
    let vmm = Vmm::start_restricted(&dir.join("api"), no_net_admin);
    let mut config = small(&dir);
    config.net = vec![NetConfig {
        tap: "sbxnone0".to_owned(),
        mac: "02:00:00:00:00:0a".to_owned(),
    }];
    let config = serde_json::to_string(&config).unwrap();
    vmm.client.put("vm.create", &config).unwrap();
    let (status, words) = refusal(vmm.client.put("vm.boot", ""));
    assert_eq!(status, 422);
    assert!(
        words.contains("sbxnone0") && words.contains("CAP_NET_ADMIN"),
        "{words}"
    );
    assert!(vmm.shutdown());
}
