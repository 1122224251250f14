//! The build of this program, so that ranks with different builds of one file are found at the start.

use sha2::{Digest, Sha256};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Largest note segment that is read, in bytes; a build ID is among the first notes.
const NOTES: u64 = 64 << 10;
const PT_NOTE: u32 = 4;
const NT_GNU_BUILD_ID: u32 = 3;

/// The file that has this code, and its build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Build {
    /// Hash of the file's path: ranks may run different programs, and only builds of one file are compared.
    pub file: String,
    /// Beginning of the build ID that the linker wrote into the file.
    pub id: String,
}

impl Build {
    /// The build of the program or library that has this code; `None` if the file cannot be read, or has no build ID.
    pub fn here() -> Option<Self> {
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        let path = file_at(&maps, Self::here as fn() -> Option<Self> as usize)?;
        let hash = Sha256::digest(path);
        Some(Build { file: hex(&hash[..4]), id: hex(id_of(Path::new(path))?.get(..8)?) })
    }
}

/// The beginning of this program's build ID, which its linker wrote; `None` if it has none. Ranks of several hosts
/// compare it at the start.
///
/// # Examples
/// ```
/// match transom::build_id() {
///     Some(id) => assert_eq!(id.len(), 16),
///     None => println!("different builds on hosts are not noticed"),
/// }
/// ```
pub fn build_id() -> Option<String> {
    Build::here().map(|build| build.id)
}

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

/// The file that is mapped at an address, by the text of `/proc/self/maps`.
fn file_at(maps: &str, address: usize) -> Option<&str> {
    let line = maps.lines().find(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let bound = |text| usize::from_str_radix(text, 16).ok();
        range.and_then(|(first, end)| Some((bound(first)?..bound(end)?).contains(&address))).unwrap_or(false)
    })?;
    line.find('/').map(|at| &line[at..])
}

/// The build ID of an ELF file of 64 bits.
fn id_of(path: &Path) -> Option<Vec<u8>> {
    let file = File::open(path).ok()?;
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0).ok()?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, size, count) = (word(&header, 32)?, u64::from(half(&header, 54)?), u64::from(half(&header, 56)?));
    (0..count).find_map(|number| {
        let mut entry = [0; 56];
        file.read_exact_at(&mut entry, table.checked_add(number * size)?).ok()?;
        if int(&entry, 0)? != PT_NOTE {
            return None;
        }
        let mut notes = vec![0; word(&entry, 32)?.min(NOTES) as usize];
        file.read_exact_at(&mut notes, word(&entry, 8)?).ok()?;
        id_in(&notes)
    })
}

/// The build ID among notes.
fn id_in(mut notes: &[u8]) -> Option<Vec<u8>> {
    let padded = |len: u32| (len as usize).next_multiple_of(4);
    loop {
        let (name, len, kind) = (int(notes, 0)?, int(notes, 4)?, int(notes, 8)?);
        let (begin, next) = (12 + padded(name), 12 + padded(name) + padded(len));
        if kind == NT_GNU_BUILD_ID && notes.get(12..16)? == b"GNU\0" {
            return notes.get(begin..begin + len as usize).map(<[u8]>::to_vec);
        }
        notes = notes.get(next..)?;
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn int(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_id_is_found_among_notes() {
        let note = |kind: u8, name: &[u8; 4], id: &[u8]| {
            [&[4, 0, 0, 0, id.len() as u8, 0, 0, 0, kind, 0, 0, 0], &name[..], id].concat()
        };
        let notes =
            [note(1, b"GNU\0", &[1, 2, 3, 4]), note(3, b"Go\0\0", &[5; 4]), note(3, b"GNU\0", &[7; 20])].concat();
        assert_eq!(id_in(&notes), Some(vec![7; 20]));
        // Cut and malformed notes have none.
        for len in 0..notes.len() {
            assert_eq!(id_in(&notes[..len]), None, "{len}");
        }
        assert_eq!(id_in(&[0xff; 64]), None);
    }

    #[test]
    fn mapped_file_is_found_by_address() {
        let maps = "1000-2000 r-xp 00000000 00:01 7    /a b\n2000-3000 rw-p 00000000 00:00 0 \nx\n";
        assert_eq!(
            [0x1000, 0x1fff, 0x2000, 0x3000].map(|at| file_at(maps, at)),
            [Some("/a b"), Some("/a b"), None, None]
        );
    }

    #[test]
    fn other_files_have_no_build_id() {
        assert_eq!(id_of(Path::new("/proc/self/status")), None);
        assert_eq!(id_of(Path::new("/dev/null")), None);
        assert_eq!(id_of(Path::new("/no/such/file")), None);
    }
}
