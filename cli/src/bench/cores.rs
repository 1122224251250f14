//! The cores that ranks run on, and binding a thread to one.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::path::Path;

/// The cores that this process may run on.
pub fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

/// The allowed cores in the order in which ranks take them, ours and the peers' alike. Packages are filled one after
/// the other. A second hardware thread of a core is taken only when every physical core has a rank.
pub fn choice() -> Vec<usize> {
    let of = |core: usize, what: &str| {
        let path = format!("/sys/devices/system/cpu/cpu{core}/topology/{what}");
        std::fs::read_to_string(Path::new(&path)).unwrap_or_default()
    };
    let place = |core| CorePlace {
        core,
        package: of(core, "physical_package_id").trim().parse().unwrap_or(0),
        siblings: list(&of(core, "thread_siblings_list")),
    };
    ordered(allowed().into_iter().map(place).collect())
}

/// The position of a core in the machine.
struct CorePlace {
    core: usize,
    package: i64,
    /// The hardware threads of the same physical core, including this one; empty if the system does not tell.
    siblings: Vec<usize>,
}

fn ordered(mut places: Vec<CorePlace>) -> Vec<usize> {
    let allowed: Vec<_> = places.iter().map(|place| place.core).collect();
    places.sort_by_key(|place| {
        // The number of ranks already placed on this physical core.
        let before = |&&sibling: &&usize| sibling < place.core && allowed.contains(&sibling);
        (place.siblings.iter().filter(before).count(), place.package, place.core)
    });
    places.into_iter().map(|place| place.core).collect()
}

/// Parses a core list in the kernel's format, such as `0-2,8`.
fn list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

/// Binds this thread to a core. If the system refuses, the thread stays unbound.
pub fn bind(core: usize) {
    let mut one = CpuSet::new();
    one.set(core);
    let _ = sched_setaffinity(None, &one);
}

/// The core that this thread runs on now.
pub fn current() -> usize {
    sched_getcpu()
}

/// Runs `work` bound to `core`, if given, and restores the thread's affinity.
pub fn on<R>(core: Option<usize>, work: impl FnOnce() -> R) -> R {
    let before = sched_getaffinity(None).ok().filter(|_| core.is_some());
    if let Some(core) = core {
        bind(core);
    }
    let result = work();
    if let Some(before) = before {
        let _ = sched_setaffinity(None, &before);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_choice_takes_siblings_last() {
        let machine = |cores: &[(usize, i64, &str)]| {
            ordered(
                cores
                    .iter()
                    .map(|&(core, package, siblings)| CorePlace { core, package, siblings: list(siblings) })
                    .collect(),
            )
        };
        // Sibling threads have adjacent or distant numbers, and packages may alternate.
        assert_eq!(machine(&[(0, 0, "0-1"), (1, 0, "0-1"), (2, 0, "2-3"), (3, 0, "2-3")]), [0, 2, 1, 3]);
        assert_eq!(machine(&[(0, 0, "0,2"), (1, 0, "1,3"), (2, 0, "0,2"), (3, 0, "1,3")]), [0, 1, 2, 3]);
        assert_eq!(machine(&[(0, 0, "0"), (1, 1, "1"), (2, 0, "2"), (3, 1, "3")]), [0, 2, 1, 3]);
        // A sibling outside the allowed cores does not count.
        assert_eq!(machine(&[(1, 0, "0-1"), (2, 0, "2-3"), (3, 0, "2-3")]), [1, 2, 3]);
        // The system does not report the topology.
        assert_eq!(machine(&[(4, 0, ""), (5, 0, "")]), [4, 5]);
    }

    #[test]
    fn kernel_core_list_is_parsed() {
        assert_eq!(list("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(list("7"), [7]);
        assert!(list("").is_empty() && list("x-y").is_empty());
    }
}
