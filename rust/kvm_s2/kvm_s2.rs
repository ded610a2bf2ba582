// SPDX-License-Identifier: GPL-2.0

//! Stage-2 destroy for arm64 KVM.

#![cfg_attr(not(any(test, CONFIG_RUST)), no_std)]
