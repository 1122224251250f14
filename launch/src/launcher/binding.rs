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
}

impl BindTo {
    const NAMES: [(&'static str, BindTo); 3] = [("none", BindTo::None), ("core", BindTo::Core), ("numa", BindTo::Numa)];
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
        named.map(|(_, bind)| *bind).ok_or("expected none, core or numa")
    }
}

/// A core that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Core {
    /// Its processors (hardware threads) that this process may use.
    processors: Vec<usize>,
    /// Its NUMA node; 0 if the system does not tell.
    node: usize,
}

/// The processors of each rank on this machine; `None` if the ranks are not bound.
pub(super) fn here(bind: BindTo, ranks: usize) -> Option<Vec<Vec<usize>>> {
    (bind != BindTo::None).then(cores).and_then(|cores| assign(bind, ranks, &cores))
}

fn assign(bind: BindTo, ranks: usize, cores: &[Core]) -> Option<Vec<Vec<usize>>> {
    if ranks > cores.len() {
        return None;
    }
    let of_node = |node: usize| {
        let of_node = cores.iter().filter(|core| core.node == node);
        of_node.flat_map(|core| core.processors.iter().copied()).collect()
    };
    (0..ranks)
        .map(|rank| match bind {
            BindTo::None => None,
            BindTo::Core => Some(cores[rank].processors.clone()),
            BindTo::Numa => Some(of_node(cores[rank * cores.len() / ranks].node)),
        })
        .collect()
}

/// The cores that this process may use, in the order of their first processors.
fn cores() -> Vec<Core> {
    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    let mut cores: Vec<(Vec<usize>, Core)> = Vec::new();
    for processor in (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor)) {
        let folder = format!("/sys/devices/system/cpu/cpu{processor}");
        let siblings = std::fs::read_to_string(format!("{folder}/topology/thread_siblings_list"));
        let siblings = siblings.ok().map_or_else(|| vec![processor], |text| list(&text));
        match cores.iter_mut().find(|(others, _)| *others == siblings) {
            Some((_, core)) => core.processors.push(processor),
            None => cores.push((siblings, Core { processors: vec![processor], node: node_in(&folder) })),
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
    fn ranks_are_assigned_to_cores_and_nodes() {
        let core = |processors: &[usize], node| Core { processors: processors.to_vec(), node };
        let cores = [core(&[0, 4], 0), core(&[1, 5], 0), core(&[2, 6], 1), core(&[3, 7], 1)];
        assert_eq!(assign(BindTo::Core, 3, &cores).unwrap(), [[0, 4], [1, 5], [2, 6]]);
        assert_eq!(assign(BindTo::Numa, 2, &cores).unwrap(), [[0, 4, 1, 5], [2, 6, 3, 7]]);
        assert_eq!(assign(BindTo::Numa, 3, &cores).unwrap(), [[0, 4, 1, 5], [0, 4, 1, 5], [2, 6, 3, 7]]);
        assert_eq!(assign(BindTo::Core, 5, &cores), None, "more ranks than cores");
        assert_eq!(assign(BindTo::None, 1, &cores), None);
        assert_eq!(list("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(list("x,1-,3"), [3]);
    }
}
