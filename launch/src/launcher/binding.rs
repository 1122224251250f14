//! Binding of ranks to processors, and the report of each rank's place.

use rustix::thread::{CpuSet, sched_getaffinity};
use std::fmt;
use std::str::FromStr;
use transom_locks::Rank;

/// Selects the processors to which the launcher binds each rank.
///
/// A host with more ranks than cores binds none of them.
///
/// # Examples
/// ```
/// use transom::BindTo;
/// assert_eq!("core".parse(), Ok(BindTo::Core));
/// assert_eq!(BindTo::Numa.to_string(), "numa");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BindTo {
    /// No binding.
    #[default]
    None,
    /// Each rank to a core of its own, in the order of the system's processor numbers.
    Core,
    /// Each rank to the processors of a NUMA node; the ranks of a host are spread over its nodes in blocks.
    Numa,
    /// Each rank to the processors of a socket (physical package); the ranks of a host are spread over its sockets in
    /// blocks.
    Socket,
}

impl BindTo {
    const NAMES: [(&'static str, BindTo); 4] =
        [("none", BindTo::None), ("core", BindTo::Core), ("numa", BindTo::Numa), ("socket", BindTo::Socket)];
}

impl fmt::Display for BindTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAMES[*self as usize].0)
    }
}

impl FromStr for BindTo {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::NAMES.iter().find(|(name, _)| *name == text.trim());
        named.map(|(_, bind)| *bind).ok_or("expected none, core, numa or socket")
    }
}

/// A core that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Core {
    /// Its processors (hardware threads) that this process may use.
    processors: Vec<usize>,
    /// Its NUMA node; 0 if the system does not tell.
    node: usize,
    /// Its socket; 0 if the system does not tell.
    socket: usize,
}

/// The processors of each rank on this machine; `None` if the ranks are not bound.
pub(super) fn here(bind: BindTo, ranks: usize) -> Option<Vec<Vec<usize>>> {
    if bind == BindTo::None {
        return None;
    }
    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    let allowed = (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor));
    assign(bind, ranks, &cores(allowed, "/sys/devices/system/cpu"))
}

fn assign(bind: BindTo, ranks: usize, cores: &[Core]) -> Option<Vec<Vec<usize>>> {
    if ranks > cores.len() {
        return None;
    }
    // Ranks are spread over all cores; each gets the whole node or socket of its core.
    let of_group = |rank: usize, group: fn(&Core) -> usize| {
        let own = group(&cores[rank * cores.len() / ranks]);
        let of_group = cores.iter().filter(|core| group(core) == own);
        of_group.flat_map(|core| core.processors.iter().copied()).collect()
    };
    (0..ranks)
        .map(|rank| match bind {
            BindTo::None => None,
            BindTo::Core => Some(cores[rank].processors.clone()),
            BindTo::Numa => Some(of_group(rank, |core| core.node)),
            BindTo::Socket => Some(of_group(rank, |core| core.socket)),
        })
        .collect()
}

/// The cores of the allowed processors, which ascend, as the kernel describes them in this folder.
fn cores(allowed: impl Iterator<Item = usize>, system: &str) -> Vec<Core> {
    let mut cores: Vec<(Vec<usize>, Core)> = Vec::new();
    for processor in allowed {
        let folder = format!("{system}/cpu{processor}");
        let siblings = std::fs::read_to_string(format!("{folder}/topology/thread_siblings_list"));
        let siblings = siblings.ok().map_or_else(|| vec![processor], |text| list(&text));
        match cores.iter_mut().find(|(others, _)| *others == siblings) {
            Some((_, core)) => core.processors.push(processor),
            None => {
                let core = Core { processors: vec![processor], node: node_in(&folder), socket: socket_in(&folder) };
                cores.push((siblings, core));
            }
        }
    }
    cores.into_iter().map(|(_, core)| core).collect()
}

/// The NUMA node of the processor that this folder describes.
fn node_in(folder: &str) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |name: std::ffi::OsString| name.to_str()?.strip_prefix("node")?.parse().ok();
    entries.filter_map(|entry| number(entry.file_name())).next().unwrap_or(0)
}

/// The socket of the processor that this folder describes. Some systems give -1.
fn socket_in(folder: &str) -> usize {
    let number = std::fs::read_to_string(format!("{folder}/topology/physical_package_id")).unwrap_or_default();
    number.trim().parse().unwrap_or(0)
}

/// Parses the kernel's form of a list, such as `0-2,8`.
fn list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let last: usize = last.parse().ok()?;
        Some(first.parse().ok()?..=last.min(CpuSet::MAX_CPU))
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

/// The set of these processors.
pub(super) fn set(processors: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    processors.iter().filter(|processor| **processor < CpuSet::MAX_CPU).for_each(|&processor| set.set(processor));
    set
}

/// Describes the place of a rank, the one with this number among the ranks of its host.
pub(super) fn describe(rank: Rank, host: &str, local: usize, ranks: usize, processors: Option<&[usize]>) -> String {
    let bound = match processors {
        Some(processors) => {
            let all: Vec<_> = processors.iter().map(usize::to_string).collect();
            format!("bound to processors {}", all.join(","))
        }
        None => "not bound".to_owned(),
    };
    format!("rank {rank}: host {host}, local rank {local} of {ranks}, {bound}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_assigned_to_cores_nodes_and_sockets() {
        let core = |processors: &[usize], node, socket| Core { processors: processors.to_vec(), node, socket };
        // Two sockets; the first has two NUMA nodes.
        let cores = [core(&[0, 4], 0, 0), core(&[1, 5], 1, 0), core(&[2, 6], 2, 3), core(&[3, 7], 2, 3)];
        assert_eq!(assign(BindTo::Core, 3, &cores).unwrap(), [[0, 4], [1, 5], [2, 6]]);
        assert_eq!(assign(BindTo::Numa, 2, &cores).unwrap(), [&[0, 4][..], &[2, 6, 3, 7]]);
        assert_eq!(assign(BindTo::Numa, 3, &cores).unwrap(), [&[0, 4][..], &[1, 5], &[2, 6, 3, 7]]);
        assert_eq!(assign(BindTo::Socket, 1, &cores).unwrap(), [[0, 4, 1, 5]]);
        assert_eq!(assign(BindTo::Socket, 2, &cores).unwrap(), [[0, 4, 1, 5], [2, 6, 3, 7]]);
        assert_eq!(assign(BindTo::Socket, 3, &cores).unwrap(), [[0, 4, 1, 5], [0, 4, 1, 5], [2, 6, 3, 7]]);
        for bind in [BindTo::Core, BindTo::Numa, BindTo::Socket] {
            assert_eq!(assign(bind, 5, &cores), None, "{bind}: more ranks than cores");
        }
        assert_eq!(assign(BindTo::None, 1, &cores), None);
        assert_eq!(list("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(list("x,1-,3"), [3]);
    }

    #[test]
    fn cores_are_read_from_the_kernels_files() {
        let system = std::env::temp_dir().join(format!("cores-{}", std::process::id()));
        for (processor, siblings, node, socket) in [
            (0, "0,4", 0, "0"),
            (1, "1,5", 1, "0"),
            (2, "2,6", 2, "3"),
            (4, "0,4", 0, "0"),
            (6, "2,6", 2, "3"),
            (7, "7", 3, "-1"),
        ] {
            let folder = system.join(format!("cpu{processor}"));
            std::fs::create_dir_all(folder.join("topology")).unwrap();
            std::fs::create_dir(folder.join(format!("node{node}"))).unwrap();
            std::fs::write(folder.join("topology/thread_siblings_list"), format!("{siblings}\n")).unwrap();
            std::fs::write(folder.join("topology/physical_package_id"), format!("{socket}\n")).unwrap();
        }
        let core = |processors: &[usize], node, socket| Core { processors: processors.to_vec(), node, socket };
        let expected = [core(&[0, 4], 0, 0), core(&[2, 6], 2, 3), core(&[7], 3, 0), core(&[9], 0, 0)];
        assert_eq!(cores([0, 2, 4, 6, 7, 9].into_iter(), system.to_str().unwrap()), expected);
        std::fs::remove_dir_all(system).unwrap();
    }

    #[test]
    fn names_are_parsed_and_shown() {
        for (name, bind) in
            [("none", BindTo::None), ("core", BindTo::Core), ("numa", BindTo::Numa), ("socket", BindTo::Socket)]
        {
            assert_eq!((name.parse(), bind.to_string().as_str()), (Ok(bind), name));
        }
    }
}
