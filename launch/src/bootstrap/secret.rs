//! Hands the job's secret to a rank. TRANSOM_SECRET names an unlinked file, held open by a process of the launcher on
//! this host.
//!
//! The secret itself in a variable would be inherited by everything that the rank starts, and would appear in logs of
//! environments. An inherited descriptor would not survive wrappers that close descriptors. The reader removes the
//! secret from the file and leaves its own process identifier, which its descendants then find.

use super::error::BootstrapError;
use crate::tcp::Secret;
use crate::variables;
use std::fs::{File, OpenOptions};
use std::num::ParseIntError;
use std::os::unix::fs::FileExt;
use std::str::FromStr;

/// Upper bound of the file's contents, in bytes.
const MOST: usize = 128;
/// Prefixes of the file's two forms: before the secret, and before the process that has taken it.
const SECRET: &str = "transom secret ";
const TAKEN: &str = "transom taken by ";

/// Contents of the file.
pub(super) enum Handed {
    Secret(Secret),
    /// The process that took the secret before.
    TakenBy(u32),
}

/// Location of the file: a process and one of its descriptors.
pub(crate) struct SecretPlace {
    process: u32,
    descriptor: u32,
}

impl FromStr for SecretPlace {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (process, descriptor) = text.split_once(',').unwrap_or((text, ""));
        Ok(SecretPlace { process: process.parse()?, descriptor: descriptor.parse()? })
    }
}

/// Takes the secret; `None` if TRANSOM_SECRET is not set.
pub(super) fn take() -> Result<Option<Handed>, BootstrapError> {
    let Some(SecretPlace { process, descriptor }) = variables::SECRET.get()? else { return Ok(None) };
    let wrong = |why: &dyn std::fmt::Display| BootstrapError::Record {
        why: format!(
            "TRANSOM_SECRET={process},{descriptor}: {why}; the launcher has ended, or its processes are not visible here (a container \
             with a process namespace of its own). To start a job of its own, remove TRANSOM_HUB, TRANSOM_RANK, TRANSOM_SIZE and \
             TRANSOM_SECRET from the program's environment"
        ),
    };
    let path = format!("/proc/{process}/fd/{descriptor}");
    // The descriptor number may have been reused. Opening a regular file has no side effects; opening anything else
    // may.
    match std::fs::metadata(&path) {
        Ok(found) if found.is_file() => {}
        Ok(_) => return Err(wrong(&"it is not a file")),
        Err(error) => return Err(wrong(&error)),
    }
    let file = OpenOptions::new().read(true).write(true).open(&path).map_err(|error| wrong(&error))?;
    let handed = read(&file).ok_or_else(|| wrong(&"it does not hold the secret of a job"))?;
    if let Handed::Secret(_) = handed {
        let taken = format!("{TAKEN}{}\n", std::process::id());
        file.set_len(0).and_then(|()| file.write_all_at(taken.as_bytes(), 0)).map_err(|error| wrong(&error))?;
    }
    Ok(Some(handed))
}

fn read(file: &File) -> Option<Handed> {
    let mut bytes = [0; MOST];
    let read = file.read_at(&mut bytes, 0).ok()?;
    let text = std::str::from_utf8(&bytes[..read]).ok()?.strip_suffix('\n')?;
    if let Some(secret) = text.strip_prefix(SECRET) {
        return Secret::from_text(secret).map(Handed::Secret);
    }
    text.strip_prefix(TAKEN)?.parse().ok().map(Handed::TakenBy)
}
