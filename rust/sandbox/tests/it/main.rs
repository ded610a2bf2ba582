// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Integration tests, in one binary: they need a real /dev/kvm and say so where
//! there is none.

mod api;
mod clones;
mod common;
mod cycles;
mod faults;
mod initramfs;
mod lifecycle;
mod linux;
mod modes;
mod order;
mod restricted;
