// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Devices as a guest's driver uses them: through registers, rings and workers.
//! There is no guest; the driver is this test.

mod block;
mod driver;
mod net;
mod vsock;

/// A directory that goes with the test.
struct Dir(std::path::PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let name = format!("sandbox-device-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
