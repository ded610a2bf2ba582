// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Where the memory of a restored guest comes from.
//!
//! Three parts that another VMM can use together or one by one; nothing here knows
//! of KVM or of this program's snapshots:
//!
//! - [`policy`] decides between copy, mmap and on-demand, and says why;
//! - [`file`] writes and reads a sparse memory file whose blocks are checked;
//! - [`on_demand`] fills memory as the guest touches it, and never lets a page
//!   that it could not fill pass for zeroes.
//!
//! A memory file, and the three ways back:
//!
//! ```
//! use sandbox::restore::{choose, file, Asked, Facts, Kind, Mode, Purpose};
//!
//! # let path = std::env::temp_dir().join(format!("sandbox-doc-{}", std::process::id()));
//! # struct Gone(std::path::PathBuf);
//! # impl Drop for Gone { fn drop(&mut self) { let _ = std::fs::remove_file(&self.0); } }
//! # let _gone = Gone(path.clone());
//! let ram = vec![7u8; 256 << 10];
//! let index = file::write(&std::fs::File::create_new(&path)?, [&ram[..]])?;
//!
//! let memory = file::MemoryFile::open(&path, index)?;
//! let facts = Facts {
//!     held: Err("no hard link was made".into()),
//!     unchanged: memory.unchanged(),
//!     userfault: sandbox::restore::userfault_permitted(),
//! };
//! let plan = choose(Asked::Auto, Kind::Private, Purpose::Clone, &facts)?;
//! assert_eq!(plan.mode, Mode::Copy);
//! println!("{}", plan.notes[0]); // why not mmap, and what to do about it
//!
//! let mut back = vec![0; ram.len()];
//! memory.copy_to(0, &mut back)?;
//! assert_eq!(back, ram);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With [`Mode::Mmap`] the VMM maps the file privately itself; with
//! [`Mode::OnDemand`] it maps anonymous memory and hands it to
//! [`on_demand::OnDemand::start`].

pub mod file;
pub mod link;
pub mod on_demand;
pub mod policy;
mod uffd;

pub use policy::{choose, Asked, Facts, Kind, Mode, Plan, Purpose, Refused};
pub use uffd::permitted as userfault_permitted;
