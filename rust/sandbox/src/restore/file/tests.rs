// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

use super::*;

struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Self {
        let name = format!("sandbox-file-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    fn write(&self, memory: &[u8]) -> Index {
        write(&File::create_new(&self.0).unwrap(), [memory]).unwrap()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Data, a hole, a block with holes inside, and a short last block.
fn memory() -> Vec<u8> {
    let mut memory = vec![0; 4 * BLOCK + PAGE];
    memory[..BLOCK].fill(1);
    memory[2 * BLOCK + PAGE..][..PAGE].fill(2);
    memory[3 * BLOCK - 1] = 3;
    *memory.last_mut().unwrap() = 4;
    memory
}

#[test]
fn memory_comes_back_and_zeroes_take_no_space() {
    let file = Temporary::new("back");
    let (memory, index) = (memory(), file.write(&memory()));
    let metadata = std::fs::metadata(&file.0).unwrap();
    assert_eq!(metadata.len(), memory.len() as u64);
    // 16 pages, 2 pages and 1 page.
    assert_eq!(metadata.blocks() * 512, (BLOCK + 3 * PAGE) as u64);
    assert_eq!(metadata.mode() & 0o222, 0);
    let file = MemoryFile::open(&file.0, index).unwrap();
    assert_eq!(file.unchanged(), Ok(()));
    let mut back = vec![0; memory.len()];
    file.copy_to(0, &mut back).unwrap();
    assert!(back == memory);
    back.fill(9);
    assert_eq!(file.read(0, &mut back).unwrap(), Content::Data);
    assert!(back == memory);
    assert_eq!(
        file.read(BLOCK as u64, &mut back[..BLOCK]).unwrap(),
        Content::Zero
    );
}

#[test]
fn a_change_is_noticed_and_named() {
    let file = Temporary::new("change");
    let (length, index) = (memory().len(), file.write(&memory()));
    let permissions = PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file.0, permissions).unwrap();
    let writer = File::options().write(true).open(&file.0).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    writer.write_all_at(&[9], 2 * BLOCK as u64 + 5).unwrap();
    let opened = MemoryFile::open(&file.0, index.clone()).unwrap();
    assert!(opened.unchanged().is_err());
    let error = opened.copy_to(0, &mut vec![0; length]).unwrap_err();
    assert!(matches!(error, FileError::Corrupt { offset, .. } if offset == 2 * BLOCK as u64));

    writer.set_len(length as u64 - 1).unwrap();
    let error = MemoryFile::open(&file.0, index.clone()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains(&format!("the state says {length}")),
        "{error}"
    );
    let mut short = index;
    short.blocks.pop();
    let error = MemoryFile::open(&file.0, short).unwrap_err();
    assert!(matches!(error, FileError::Index { found: 4, .. }));
}
