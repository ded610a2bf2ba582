// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Headers of vsock packets.

use virtio_vsock::packet::{VsockPacket, PKT_HEADER_SIZE};

/// The host's context id.
pub(super) const HOST_CID: u64 = 2;
/// Bytes the host takes before it must have forwarded some. Linux splits packets
/// above 32 KiB over descriptors, which the packet type does not read; with less
/// credit than that it never has reason to send one.
pub(super) const CREDIT: u32 = 28 << 10;
/// Most bytes in one packet, either way.
pub(super) const MAX_PAYLOAD: u32 = 64 << 10;

const STREAM: u16 = 1;
/// Flags of a shutdown: neither receives nor sends any more.
pub(super) const SHUTDOWN_BOTH: u32 = 3;
/// The peer will not send any more.
pub(super) const SHUTDOWN_SEND: u32 = 2;

/// Operations.
pub(super) mod op {
    pub(in super::super) const REQUEST: u16 = 1;
    pub(in super::super) const RESPONSE: u16 = 2;
    pub(in super::super) const RST: u16 = 3;
    pub(in super::super) const SHUTDOWN: u16 = 4;
    pub(in super::super) const RW: u16 = 5;
    pub(in super::super) const CREDIT_UPDATE: u16 = 6;
    pub(in super::super) const CREDIT_REQUEST: u16 = 7;
}

/// What identifies a connection: port of the host, port of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ports {
    pub(super) host: u32,
    pub(super) guest: u32,
}

/// The parts of a header that matter here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) source_cid: u64,
    pub(super) target_cid: u64,
    pub(super) ports: Ports,
    pub(super) op: u16,
    pub(super) flags: u32,
    pub(super) credit: u32,
    pub(super) forwarded: u32,
    pub(super) length: u32,
}

impl Header {
    /// Reads a packet of the guest.
    pub(super) fn of(packet: &VsockPacket<'_, ()>) -> Self {
        Self {
            source_cid: packet.src_cid(),
            target_cid: packet.dst_cid(),
            ports: Ports {
                host: packet.dst_port(),
                guest: packet.src_port(),
            },
            op: packet.op(),
            flags: packet.flags(),
            credit: packet.buf_alloc(),
            forwarded: packet.fwd_cnt(),
            length: packet.len(),
        }
    }

    /// A packet for the guest, without data.
    pub(super) fn to_guest(guest_cid: u64, ports: Ports, op: u16) -> Self {
        Self {
            source_cid: HOST_CID,
            target_cid: guest_cid,
            ports,
            op,
            flags: 0,
            credit: CREDIT,
            forwarded: 0,
            length: 0,
        }
    }

    /// Writes it into a buffer of the guest; the header's size in bytes.
    pub(super) fn write_to(&self, packet: &mut VsockPacket<'_, ()>) -> u32 {
        packet
            .set_src_cid(self.source_cid)
            .set_dst_cid(self.target_cid)
            .set_src_port(self.ports.host)
            .set_dst_port(self.ports.guest)
            .set_type(STREAM)
            .set_op(self.op)
            .set_flags(self.flags)
            .set_buf_alloc(self.credit)
            .set_fwd_cnt(self.forwarded)
            .set_len(self.length);
        PKT_HEADER_SIZE as u32
    }
}
