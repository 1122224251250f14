//! Files of hosts in the forms of Open MPI and MPICH, and those that batch systems write.

use super::{Host, HostList, checked_name, split_places};
use std::fmt;
use std::io::{self, Read};
use std::path::Path;

/// Largest file of hosts, in bytes.
const LARGEST: u64 = 16 << 20;

/// Hosts from a file or from a batch system cannot be read.
///
/// # Examples
/// ```
/// let error = transom::HostList::read("/no/such/file").unwrap_err();
/// assert!(error.to_string().starts_with("/no/such/file: the file cannot be read"));
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {why}")]
#[non_exhaustive]
pub struct HostSourceError {
    /// File and line, or variable.
    pub place: String,
    /// Value found, the fault, and the form expected.
    pub why: String,
}

transom_windows::joins_error!(HostSourceError);

impl HostSourceError {
    pub(super) fn new(place: impl fmt::Display, why: impl fmt::Display) -> Self {
        HostSourceError { place: place.to_string(), why: why.to_string() }
    }
}

impl HostList {
    /// Reads a file with a host in each line: `HOST`, `HOST slots=N` (Open MPI) or `HOST:N` (MPICH). `#` begins a
    /// comment.
    ///
    /// A line without a number counts as one place, and lines of the same host add up. If no line has a number and no
    /// host has two lines, the ranks are distributed evenly.
    ///
    /// # Errors
    /// [`HostSourceError`] if the file cannot be read or has a malformed line.
    ///
    /// # Examples
    /// ```
    /// use transom::HostList;
    /// let file = std::env::temp_dir().join(format!("hosts-{}", std::process::id()));
    /// std::fs::write(&file, "# two nodes\nnode1 slots=4\nnode2:2\n")?;
    /// assert_eq!(HostList::read(&file)?, "node1:4,node2:2".parse()?);
    /// # std::fs::remove_file(file)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(file: impl AsRef<Path>) -> Result<Self, HostSourceError> {
        let text = text_of(file.as_ref()).map_err(|why| HostSourceError::new(file.as_ref().display(), why))?;
        let file = file.as_ref().display();
        Self::collect(lines(&text).map(|(number, line)| {
            parse_line(line).map_err(|why| HostSourceError::new(format_args!("{file}, line {number}"), why))
        }))?
        .ok_or_else(|| {
            HostSourceError::new(&file, "the file names no host; expected a line for each, e.g. `node1 slots=4`")
        })
    }

    /// Joins the entries of each host; `None` if there are none.
    pub(super) fn collect(
        entries: impl Iterator<Item = Result<(String, Option<usize>), HostSourceError>>,
    ) -> Result<Option<Self>, HostSourceError> {
        let (mut hosts, mut places) = (Vec::<Host>::new(), false);
        let mut numbers = std::collections::HashMap::new();
        for entry in entries {
            let (name, own) = entry?;
            let number = *numbers.entry(name.clone()).or_insert(hosts.len());
            places |= own.is_some() || number < hosts.len();
            match hosts.get_mut(number) {
                Some(host) => host.places = Some(host.places.unwrap_or(1).saturating_add(own.unwrap_or(1))),
                None => hosts.push(Host { name, places: Some(own.unwrap_or(1)) }),
            }
        }
        if !places {
            hosts.iter_mut().for_each(|host| host.places = None);
        }
        Ok((!hosts.is_empty()).then_some(HostList(hosts)))
    }
}

/// The text of a file of hosts, or the reason why it cannot be read.
pub(super) fn text_of(file: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(file).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes));
    let text = read.and_then(|_| String::from_utf8(bytes).map_err(io::Error::other));
    let text = text.map_err(|error| format!("the file cannot be read: {error}"))?;
    if text.len() as u64 > LARGEST {
        return Err(format!("the file has more than {LARGEST} bytes; expected a list of hosts"));
    }
    Ok(text)
}

/// The lines that are not empty, without comments, with their numbers.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()).enumerate();
    lines.filter(|(_, line)| !line.is_empty()).map(|(number, line)| (number + 1, line))
}

/// Parses `HOST`, `HOST:N` or `HOST slots=N max_slots=N`.
fn parse_line(line: &str) -> Result<(String, Option<usize>), String> {
    let mut words = line.split_ascii_whitespace();
    let (name, mut places) = split_places(words.next().unwrap_or_default())?;
    for word in words {
        let number = |text: &str| {
            let number = text.parse::<usize>().ok().filter(|number| *number > 0);
            number.ok_or_else(|| format!("{word:?}: expected a number above 0 after `=`"))
        };
        match word.split_once('=') {
            Some(("slots", text)) if places.is_none() => places = Some(number(text)?),
            Some(("slots", _)) => return Err(format!("{line:?} gives the number of places twice")),
            Some(("max_slots" | "max-slots", text)) => _ = number(text)?,
            _ => return Err(format!("{word:?} is unknown; expected HOST, HOST:N or HOST slots=N")),
        }
    }
    Ok((checked_name(name)?, places))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn file_whose_name_is_not_utf8_is_read() {
        let name = [b"hosts\xff-".as_slice(), std::process::id().to_string().as_bytes()].concat();
        let file = std::env::temp_dir().join(OsStr::from_bytes(&name));
        std::fs::write(&file, "a\nb\n").unwrap();
        let hosts = HostList::read(&file);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(hosts, Ok("a,b".parse().unwrap()));
    }
}
