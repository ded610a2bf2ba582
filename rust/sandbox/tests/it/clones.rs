// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! `sandbox clone`: many at once, what they share, and what they do not.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

use crate::common::{beats, kvm, need, program, wait_for, Dir, MIB};
use sandbox::api::Client;
use serde_json::Value;

/// Pools of huge pages belong to the whole host.
static POOL: Mutex<()> = Mutex::new(());

/// Ids, snapshots and consoles of one test. Whatever runs is killed with it.
struct Fleet(Dir);

impl Fleet {
    fn new(name: &str) -> Self {
        Self(Dir::new(name))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command
            .args(arguments)
            .env("XDG_RUNTIME_DIR", self.0.join(""));
        command
    }

    fn sandbox(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// A snapshot of a guest with 16 MiB that checks its memory for good.
    fn snapshot(&self, options: &[&str]) -> String {
        let console = self.0.join("first").display().to_string();
        let _ = std::fs::remove_file(&console);
        let fixed = [
            "run", "--id", "first", "--memory", "16M", "--touch", "8M", "--beat", "4M",
        ];
        let mut first = self.command(&fixed);
        let mut first = first
            .args(options)
            .args(["--console-file", &console])
            .spawn()
            .unwrap();
        wait_for("a beat", || beats(Path::new(&console)) > 0);
        let place = self.0.join("snapshot").display().to_string();
        let pause = self.sandbox(&["pause", "--id", "first", "--snapshot", &place]);
        assert!(pause.status.success(), "{pause:?}");
        self.sandbox(&["shutdown", "--id", "first"]);
        assert!(first.wait().unwrap().success());
        place
    }

    /// Clones with a console each; the reply for each.
    fn clone(&self, snapshot: &str, count: usize, options: &[&str]) -> Vec<Value> {
        let (number, console) = (count.to_string(), self.0.join("{id}.console"));
        let console = console.display().to_string();
        let fixed = [
            "clone",
            "--id",
            "c",
            "--json",
            "--snapshot",
            snapshot,
            "--count",
            &number,
        ];
        let mut command = self.command(&fixed);
        let command = command.args(["--console-file", &console]).args(options);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    fn console(&self, number: usize) -> PathBuf {
        self.0.join(&format!("c-{number}.console"))
    }

    fn client(&self, id: &str) -> Client {
        Client::new(&self.0.join("kvm_s2").join(id).join("api.sock"))
    }

    fn pid(&self, id: &str) -> Option<i32> {
        let reply = self.client(id).get("vmm.ping").ok()?;
        let reply: Value = serde_json::from_str(&reply).ok()?;
        i32::try_from(reply["pid"].as_i64()?).ok()
    }

    fn kill(&self, id: &str) {
        if let Some(pid) = self.pid(id) {
            // SAFETY: a process of ours, which still answered just now.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }

    fn ids(&self) -> Vec<String> {
        std::fs::read_dir(self.0.join("kvm_s2"))
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for id in self.ids() {
            if let Some(pid) = self.pid(&id) {
                // SAFETY: as above.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        }
    }
}

#[test]
fn clones_go_on_when_their_snapshot_is_deleted() {
    need!(kvm());
    let fleet = Fleet::new("deleted");
    let snapshot = fleet.snapshot(&[]);
    let clones = fleet.clone(&snapshot, 64, &["--parallel", "16"]);
    assert_eq!(clones.len(), 64);
    for clone in &clones {
        assert_eq!(clone["memory_mode"]["effective"], "mmap", "{clone}");
    }
    let links = || {
        let all = std::fs::read_dir(format!("{snapshot}.clones"));
        all.map_or(0, |all| {
            all.filter(|e| e.as_ref().unwrap().path().join("memory").exists())
                .count()
        })
    };
    assert_eq!(links(), 64);
    std::fs::remove_dir_all(&snapshot).unwrap();
    let before: Vec<_> = (0..64)
        .map(|number| beats(&fleet.console(number)))
        .collect();
    wait_for("all clones to go on", || {
        (0..64).all(|number| beats(&fleet.console(number)) > before[number] + 1)
    });
    for number in 0..64 {
        let console = std::fs::read(fleet.console(number)).unwrap();
        assert!(!console.contains(&b'!'), "clone {number} has lost memory");
        fleet.sandbox(&["shutdown", "--id", &format!("c-{number}")]);
    }
    wait_for("the links to go", || links() == 0);
}

#[test]
fn an_id_that_is_in_use_is_not_taken_and_its_owner_runs_on() {
    need!(kvm());
    let fleet = Fleet::new("same");
    let snapshot = fleet.snapshot(&[]);
    let clones = fleet.clone(&snapshot, 1, &[]);
    assert!(clones[0]["error"].is_null(), "{clones:?}");
    let clones = fleet.clone(&snapshot, 2, &["--parallel", "2"]);
    let error = clones[0]["error"].as_str().unwrap();
    assert!(error.contains("c-0") && error.contains("in use"), "{error}");
    assert!(clones[1]["error"].is_null(), "{clones:?}");
    let before = beats(&fleet.console(0));
    wait_for("the first to go on", || beats(&fleet.console(0)) > before);
}

#[test]
fn a_killed_clone_s_id_and_link_can_be_had_again() {
    need!(kvm());
    let fleet = Fleet::new("killed");
    let snapshot = fleet.snapshot(&[]);
    fleet.clone(&snapshot, 1, &[]);
    fleet.kill("c-0");
    let clones = fleet.clone(&snapshot, 1, &[]);
    assert_eq!(clones[0]["memory_mode"]["effective"], "mmap", "{clones:?}");
}

/// A pool of exactly this many pages of 2 MiB, which goes with the test.
struct Pool(String);

const KNOB: &str = "/proc/sys/vm/nr_hugepages";

impl Pool {
    fn new(pages: usize) -> Result<Self, String> {
        kvm()?;
        let before = std::fs::read_to_string(KNOB).map_err(|e| format!("{KNOB}: {e}"))?;
        if meminfo("HugePages_Total") != 0 {
            return Err("somebody else uses huge pages here".to_owned());
        }
        std::fs::write(KNOB, pages.to_string()).map_err(|e| format!("{KNOB}: {e}"))?;
        let pool = Self(before);
        match meminfo("HugePages_Free") == pages {
            true => Ok(pool),
            false => Err(format!("the host cannot make {pages} huge pages")),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = std::fs::write(KNOB, &self.0);
    }
}

fn meminfo(name: &str) -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap().trim().parse().unwrap()
}

fn free() -> usize {
    meminfo("HugePages_Free") - meminfo("HugePages_Rsvd")
}

/// Eight pages for each guest, and room for exactly twelve.
const GUEST: usize = 16 * MIB as usize / (2 << 20);
const ROOM: usize = 12 * GUEST;

#[test]
fn a_pool_for_twelve_guests_runs_twelve_and_tells_the_others() {
    let _alone = POOL.lock().unwrap_or_else(|error| error.into_inner());
    need!(Pool::new(ROOM).map(drop));
    let _pool = Pool::new(ROOM).unwrap();
    let fleet = Fleet::new("huge");
    for node in [None, Some("--numa-node=0")] {
        let mut options = vec!["--hugepages=2M"];
        options.extend(node);
        let snapshot = fleet.snapshot(&options);
        assert_eq!(free(), ROOM, "the first guest has kept pages");
        let clones = fleet.clone(&snapshot, 20, &["--parallel", "20"]);
        let (run, refused): (Vec<_>, Vec<_>) =
            (0..20).partition(|&number: &usize| clones[number]["error"].is_null());
        assert_eq!((run.len(), refused.len()), (12, 8), "{clones:?}");
        for number in refused {
            // How many were left depends on when it looked.
            let error = clones[number]["error"].as_str().unwrap();
            assert!(
                error.contains("8 huge pages of 2 MiB are needed and"),
                "{error}"
            );
        }
        let late = fleet.sandbox(&["run", "--id", "late", "--restore", &snapshot]);
        let error = String::from_utf8_lossy(&late.stderr).into_owned();
        assert!(error.contains("are needed and 0 are available"), "{error}");
        assert!(error.contains("echo 104 > /sys/"), "{error}");
        let before: Vec<_> = run
            .iter()
            .map(|&number| beats(&fleet.console(number)))
            .collect();
        for (&number, before) in run.iter().zip(before) {
            let memory = &clones[number]["memory_mode"];
            assert_eq!(memory["effective"], "copy");
            assert!(memory["notes"][0]
                .as_str()
                .unwrap()
                .contains("huge pages cannot be mapped"));
            wait_for("all that run to go on", || {
                beats(&fleet.console(number)) > before + 1
            });
        }
        // They come back after a delete, and after a sudden end.
        let id = |index: usize| format!("c-{}", run[index]);
        for index in 0..6 {
            fleet
                .client(&id(index))
                .put("vm.delete", r#"{"release":"before-reply"}"#)
                .unwrap();
        }
        assert_eq!(free(), 6 * GUEST);
        for index in 6..12 {
            fleet.kill(&id(index));
        }
        wait_for("huge pages to come back", || free() == ROOM);
        for index in 0..6 {
            fleet.kill(&id(index));
        }
        for number in 0..20 {
            let _ = std::fs::remove_file(fleet.console(number));
        }
        std::fs::remove_dir_all(&snapshot).unwrap();
    }
}

#[test]
fn huge_pages_can_be_loaded_on_demand() {
    let _alone = POOL.lock().unwrap_or_else(|error| error.into_inner());
    need!(Pool::new(ROOM)
        .map(drop)
        .and_then(|()| sandbox::restore::userfault_permitted()));
    let _pool = Pool::new(ROOM).unwrap();
    let fleet = Fleet::new("hugelazy");
    let snapshot = fleet.snapshot(&["--hugepages"]);
    for more in [&["--no-prefetch"][..], &[]] {
        let options = [&["--memory-mode", "on-demand"], more].concat();
        let clones = fleet.clone(&snapshot, 2, &options);
        for (number, clone) in clones.iter().enumerate() {
            assert_eq!(clone["memory_mode"]["effective"], "on-demand", "{clone}");
            wait_for("two beats", || beats(&fleet.console(number)) > 1);
            fleet.kill(&format!("c-{number}"));
            std::fs::remove_file(fleet.console(number)).unwrap();
        }
    }
    wait_for("huge pages to come back", || free() == ROOM);
}

#[test]
fn a_page_size_that_the_host_has_not_is_named_with_those_it_has() {
    need!(kvm());
    let fleet = Fleet::new("size");
    let run = fleet.sandbox(&[
        "run",
        "--id",
        "x",
        "--memory",
        "16M",
        "--touch",
        "8M",
        "--hugepages=8M",
    ]);
    assert!(!run.status.success());
    let words = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(words.contains("no huge pages of 8 MiB"), "{words}");
}
