//! The list of hosts and the placement of ranks on them.

mod batch;
mod hostfile;
mod placement;

pub use hostfile::HostSourceError;
pub use placement::MapBy;
pub(super) use placement::Placement;

use std::str::FromStr;

/// The hosts for the ranks of a job, parsed from a list.
///
/// `a,b` distributes the ranks evenly; with a remainder, the first hosts get one rank more. `a:4,b:2` gives four places
/// to `a` and two to `b`. [`MapBy`] says in which order ranks take the places. A name is any destination that `ssh` accepts, such as `user@host`. Each entry
/// is a host of its own, even if two entries are the same machine.
///
/// # Examples
/// ```
/// use transom::HostList;
/// let hosts: HostList = "node1:4,node2:2".parse()?;
/// assert_eq!(hosts.names().collect::<Vec<_>>(), ["node1", "node2"]);
/// assert!("node1:4,node2".parse::<HostList>().is_err()); // places for all hosts or for none
/// # Ok::<(), transom::HostListError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostList(Vec<Host>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Host {
    name: String,
    places: Option<usize>,
}

/// A malformed list of hosts.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{entry:?}: {why}; expected e.g. `a,b` or `a:4,b:2`")]
#[non_exhaustive]
pub struct HostListError {
    /// The malformed entry.
    pub entry: String,
    /// The fault, and the form expected.
    pub why: &'static str,
}

impl HostList {
    /// The hosts' names, in the order of the list.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|host| host.name.as_str())
    }

    /// The hosts with these indices, with one place each.
    ///
    /// # Panics
    /// If there is no such index.
    ///
    /// # Examples
    /// ```
    /// let hosts: transom::HostList = "node1:4,node2:2".parse()?;
    /// assert_eq!(hosts.pick(&[1]), "node2:1".parse()?);
    /// # Ok::<(), transom::HostListError>(())
    /// ```
    pub fn pick(&self, indices: &[usize]) -> Self {
        HostList(indices.iter().map(|&index| Host { name: self.0[index].name.clone(), places: Some(1) }).collect())
    }

    /// The places of all hosts together; `None` if the ranks are distributed evenly.
    ///
    /// # Examples
    /// ```
    /// assert_eq!("node1:4,node2:2".parse::<transom::HostList>()?.places(), Some(6));
    /// # Ok::<(), transom::HostListError>(())
    /// ```
    pub fn places(&self) -> Option<usize> {
        self.0.iter().try_fold(0usize, |sum, host| Some(sum.saturating_add(host.places?)))
    }

    /// Returns whether all names are this machine's: `localhost`, or its host name with or without a domain.
    ///
    /// # Examples
    /// ```
    /// assert!("localhost".parse::<transom::HostList>()?.is_this_machine());
    /// # Ok::<(), transom::HostListError>(())
    /// ```
    pub fn is_this_machine(&self) -> bool {
        let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let first_label = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        // Two names with different domains are two machines.
        let is_own = |name: &str| {
            let short = !name.contains('.') || !own.contains('.');
            name == "localhost" || name == own || short && first_label(name) == first_label(&own)
        };
        self.names().all(is_own)
    }

    /// The host name that ranks see. The second and later entries of the same name have a number appended.
    pub(super) fn label(&self, host: usize) -> String {
        let Host { name, .. } = &self.0[host];
        match self.names().take(host).filter(|other| other == name).count() {
            0 => name.clone(),
            before => format!("{name}#{}", before + 1),
        }
    }
}

impl FromStr for HostList {
    type Err = HostListError;

    fn from_str(text: &str) -> Result<Self, HostListError> {
        let mut hosts: Vec<Host> = Vec::new();
        for entry in text.split(',').map(str::trim) {
            let wrong = |why| HostListError { entry: entry.to_owned(), why };
            let (name, places) = split_places(entry).map_err(wrong)?;
            if name.is_empty() {
                return Err(wrong(MISSING));
            }
            if name.starts_with('-') || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
                return Err(wrong("a host name must not begin with `-` or contain spaces"));
            }
            if hosts.last().is_some_and(|host| host.places.is_some() != places.is_some()) {
                return Err(wrong("give the places of all hosts, or of none"));
            }
            hosts.push(Host { name: name.to_owned(), places });
        }
        Ok(HostList(hosts))
    }
}

transom_windows::joins_error!(HostListError);

const MISSING: &str = "the name of a host is missing";

/// Splits `HOST:N`. An IPv6 address contains colons, so brackets must separate it from the number of places.
fn split_places(entry: &str) -> Result<(&str, Option<usize>), &'static str> {
    let (name, places) = match entry.rsplit_once(':') {
        Some((name, _)) if name.contains(':') && !name.ends_with(']') => (entry, None),
        Some((name, places)) => (name, Some(places)),
        None => (entry, None),
    };
    let places =
        places.map(str::parse).transpose().map_err(|_| "the text after the colon is not a number of places")?;
    if places == Some(0) {
        return Err("a host needs at least one place");
    }
    Ok((name.trim_start_matches('[').trim_end_matches(']'), places))
}

/// Checks the name of a host from a file or a batch system.
fn checked_name(name: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-:@%".contains(c);
    if name.is_empty() {
        return Err(MISSING.to_owned());
    }
    if name.starts_with('-') || name.len() > 255 || !name.chars().all(is_plain) {
        let shown: String = name.chars().take(100).collect();
        return Err(format!("{shown:?} is no name of a host; expected letters, digits and . _ - : @ %"));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_host_lists_are_refused() {
        let names = |list: &str| list.parse::<HostList>().unwrap().names().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(names("me@a, b"), ["me@a", "b"]);
        assert_eq!(names("fe80::1,[fe80::2]"), ["fe80::1", "fe80::2"]);
        assert_eq!(names("[fe80::2]:3"), ["fe80::2"]);
        for wrong in ["", "a,", ":2", "a:0", "a:x", "a:-1", "a:2,b", "-oProxyCommand=x", "a b", "a\nb"] {
            assert!(wrong.parse::<HostList>().is_err(), "{wrong}");
        }
        let twice: HostList = "a,b,a".parse().unwrap();
        assert_eq!([0, 1, 2].map(|host| twice.label(host)), ["a", "b", "a#2"]);
    }
}
