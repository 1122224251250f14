//! How a rank gets the job's secret: TRANSOM_SECRET names a file without a name, which a process of the launcher on this
//! host holds. A variable that has the secret itself would be there for all that the rank starts, and in logs of
//! environments; a descriptor would not come through wrappers that close them. Who reads it takes it: what the rank starts
//! finds in its place which process the rank is.

use super::error::BootstrapError;
use crate::tcp::Secret;
use crate::variables;
use std::fs::{File, OpenOptions};
use std::num::ParseIntError;
use std::os::unix::fs::FileExt;
use std::str::FromStr;

/// More than there ever is.
const MOST: usize = 128;
/// Before the secret, and before the process that has taken it.
const SECRET: &str = "transom secret ";
const TAKEN: &str = "transom taken by ";

/// What there is.
pub(super) enum Handed {
    Secret(Secret),
    /// This process has taken it before.
    TakenBy(u32),
}

/// A process and a descriptor of it.
pub(crate) struct Place {
    process: u32,
    descriptor: u32,
}

impl FromStr for Place {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (process, descriptor) = text.split_once(',').unwrap_or((text, ""));
        Ok(Place { process: process.parse()?, descriptor: descriptor.parse()? })
    }
}

/// Takes the secret; `None` if no place is named.
pub(super) fn take() -> Result<Option<Handed>, BootstrapError> {
    let Some(Place { process, descriptor }) = variables::SECRET.get()? else { return Ok(None) };
    let wrong = |why: &dyn std::fmt::Display| BootstrapError::Record {
        why: format!(
            "TRANSOM_SECRET={process},{descriptor}: {why}; the launcher has ended, or it is not seen from here (a container \
             with processes of its own). To start a job of its own, remove TRANSOM_HUB, TRANSOM_RANK, TRANSOM_SIZE and \
             TRANSOM_SECRET from the program's environment"
        ),
    };
    let path = format!("/proc/{process}/fd/{descriptor}");
    // Something else may have got the number. A file is read without harm, anything else may not be.
    match std::fs::metadata(&path) {
        Ok(found) if found.is_file() => {}
        Ok(_) => return Err(wrong(&"it is not a file")),
        Err(error) => return Err(wrong(&error)),
    }
    let file = OpenOptions::new().read(true).write(true).open(&path).map_err(|error| wrong(&error))?;
    let handed = read(&file).ok_or_else(|| wrong(&"there is no secret of a job"))?;
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
