// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Values on the command line.

use std::path::PathBuf;

use sandbox::config::{DiskConfig, NetConfig, VsockConfig};

/// Reads bytes with an optional K, M or G.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| "expected bytes with an optional K, M or G, like 512M".to_owned())
}

/// Writes bytes as people do.
pub(crate) fn show_size(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >> shift > 0 {
            let tenths = (u128::from(bytes) * 10) >> shift;
            return match tenths % 10 {
                0 => format!("{} {unit}", tenths / 10),
                rest => format!("{}.{rest} {unit}", tenths / 10),
            };
        }
    }
    format!("{bytes} B")
}

/// Reads `PATH[,readonly]`.
pub(super) fn parse_disk(text: &str) -> Result<DiskConfig, String> {
    let (path, readonly) = match text.strip_suffix(",readonly") {
        Some(path) => (path, true),
        None => (text, false),
    };
    Ok(DiskConfig {
        path: PathBuf::from(path),
        readonly,
    })
}

/// Reads `TAP[,MAC]`.
pub(super) fn parse_net(text: &str) -> Result<NetConfig, String> {
    let (tap, mac) = text.split_once(',').unwrap_or((text, "02:00:00:00:00:01"));
    Ok(NetConfig {
        tap: tap.to_owned(),
        mac: mac.to_owned(),
    })
}

/// Reads `CID,SOCKET`.
pub(super) fn parse_vsock(text: &str) -> Result<VsockConfig, String> {
    text.split_once(',')
        .and_then(|(cid, socket)| {
            Some(VsockConfig {
                cid: cid.parse().ok()?,
                socket: PathBuf::from(socket),
            })
        })
        .ok_or_else(|| "expected CID,SOCKET, like 3,/tmp/vsock.sock".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_go_both_ways() {
        for (text, bytes, shown) in [
            ("4096", 4096, "4 KiB"),
            ("1536K", 1536 << 10, "1.5 MiB"),
            ("2g", 2 << 30, "2 GiB"),
            ("12", 12, "12 B"),
        ] {
            assert_eq!(parse_size(text), Ok(bytes));
            assert_eq!(show_size(bytes), shown);
        }
        for bad in ["", "M", "1.5G", "-1", "99999999999G", "1T"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
