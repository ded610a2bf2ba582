// SPDX-License-Identifier: GPL-2.0

//! What the kselftest programs share.
