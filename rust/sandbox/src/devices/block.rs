// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! virtio-blk on a raw file.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP,
    VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
};
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;
use virtio_queue::{Reader, Writer};

use super::queue::{Chain, DeviceQueue};
use super::virtio::{Backend, Io};
use crate::config::DiskConfig;

const SECTOR: u64 = 512;
/// Type, a reserved word, and the sector.
const HEADER: usize = 16;
/// Bytes moved at once; larger requests take several turns.
const BUFFER: usize = 64 << 10;
const ID: &[u8; 20] = b"sandbox\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// One disk.
#[derive(Debug)]
pub(super) struct Block {
    file: File,
    sectors: u64,
    readonly: bool,
    config: [u8; 8],
}

impl Block {
    pub(super) fn open(config: &DiskConfig) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(!config.readonly)
            .open(&config.path)?;
        let sectors = file.metadata()?.len() / SECTOR;
        Ok(Self {
            file,
            sectors,
            readonly: config.readonly,
            config: sectors.to_le_bytes(),
        })
    }

    /// Serves one request; `None` if there is not even room for a status.
    fn request(&self, queue: &DeviceQueue, chain: &Chain) -> Option<u32> {
        let mut reader = queue.reader(chain)?;
        let mut writer = queue.writer(chain)?;
        let room = writer.available_bytes().checked_sub(1)?;
        let mut status = writer.split_at(room).ok()?;
        let result = self.serve(&mut reader, &mut writer);
        let code = match &result {
            Ok(()) => VIRTIO_BLK_S_OK,
            Err(error) if error.kind() == io::ErrorKind::Unsupported => VIRTIO_BLK_S_UNSUPP,
            Err(_) => VIRTIO_BLK_S_IOERR,
        };
        status.write_all(&[code as u8]).ok()?;
        u32::try_from(writer.bytes_written() + 1).ok()
    }

    fn serve(&self, reader: &mut Reader<'_, ()>, writer: &mut Writer<'_, ()>) -> io::Result<()> {
        let mut header = [0; HEADER];
        reader.read_exact(&mut header)?;
        let [a, b, c, d, .., s0, s1, s2, s3, s4, s5, s6, s7] = header;
        let sector = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
        match u32::from_le_bytes([a, b, c, d]) {
            VIRTIO_BLK_T_IN => {
                let offset = self.offset(sector, writer.available_bytes())?;
                self.read(offset, writer)
            }
            VIRTIO_BLK_T_OUT if !self.readonly => {
                let offset = self.offset(sector, reader.available_bytes())?;
                self.write(offset, reader)
            }
            VIRTIO_BLK_T_FLUSH => self.file.sync_data(),
            VIRTIO_BLK_T_GET_ID => writer.write_all(ID),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Byte offset of a request that lies inside the disk.
    fn offset(&self, sector: u64, bytes: usize) -> io::Result<u64> {
        let count = (bytes as u64).div_ceil(SECTOR);
        match sector.checked_add(count) {
            Some(end) if end <= self.sectors => Ok(sector * SECTOR),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn read(&self, mut offset: u64, writer: &mut Writer<'_, ()>) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER.min(writer.available_bytes())];
        while writer.available_bytes() > 0 {
            let count = buffer.len().min(writer.available_bytes());
            self.file.read_exact_at(&mut buffer[..count], offset)?;
            writer.write_all(&buffer[..count])?;
            offset += count as u64;
        }
        Ok(())
    }

    fn write(&self, mut offset: u64, reader: &mut Reader<'_, ()>) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER.min(reader.available_bytes())];
        while reader.available_bytes() > 0 {
            let count = buffer.len().min(reader.available_bytes());
            reader.read_exact(&mut buffer[..count])?;
            self.file.write_all_at(&buffer[..count], offset)?;
            offset += count as u64;
        }
        Ok(())
    }
}

impl Backend for Block {
    fn kind(&self) -> u32 {
        VIRTIO_ID_BLOCK
    }

    fn name(&self) -> &'static str {
        "block"
    }

    fn features(&self) -> u64 {
        let readonly = u64::from(self.readonly) << VIRTIO_BLK_F_RO;
        (1 << VIRTIO_BLK_F_FLUSH) | readonly
    }

    fn queues(&self) -> usize {
        1
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn start(&mut self, _io: &mut Io<'_>, _restored: bool) -> io::Result<()> {
        Ok(())
    }

    fn on_queue(&mut self, _queue: usize, io: &mut Io<'_>) {
        let queue = &mut io.queues[0];
        while let Some(chain) = queue.pop() {
            let length = self.request(queue, &chain).unwrap_or(0);
            queue.push(chain.head_index(), length);
        }
        queue.notify_guest();
    }

    fn on_event(&mut self, _token: u64, _io: &mut Io<'_>) {}
}
