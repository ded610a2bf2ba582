// SPDX-License-Identifier: GPL-2.0

//! Memory of a fixed length, from the kernel or from the host.

#[cfg(CONFIG_RUST)]
mod imp {
    use kernel::prelude::*;

    pub(crate) type Buffer<T> = KVVec<T>;

    pub(crate) fn filled<T: Clone>(value: T, len: usize) -> Option<Buffer<T>> {
        KVVec::from_elem(value, len, GFP_KERNEL).ok()
    }
}

#[cfg(not(CONFIG_RUST))]
mod imp {
    extern crate alloc;

    use alloc::vec::Vec;

    pub(crate) type Buffer<T> = Vec<T>;

    pub(crate) fn filled<T: Clone>(value: T, len: usize) -> Option<Buffer<T>> {
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(len).ok()?;
        buffer.resize(len, value);
        Some(buffer)
    }
}

pub(crate) use imp::*;
