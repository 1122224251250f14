//! Distance of adapters from the cores that this rank may run on.

use rustix::thread::{CpuSet, sched_getaffinity};
use std::collections::BTreeSet;

/// The place of an adapter, as seen by a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Place {
    /// The adapter is near one of the cores that the rank may run on.
    Near = 1,
    /// The kernel does not say where the adapter is.
    #[default]
    Unknown = 2,
    /// The adapter is near none of the cores that the rank may run on.
    Far = 3,
}

impl Place {
    /// The place of an adapter, given the kernel's list of the cores that are near it, and the cores that the rank may
    /// run on.
    pub fn of(near: Option<&str>, allowed: &BTreeSet<usize>) -> Place {
        let near = near.and_then(cores).filter(|near| !near.is_empty());
        match near {
            None => Place::Unknown,
            Some(_) if allowed.is_empty() => Place::Unknown,
            Some(near) if near.is_disjoint(allowed) => Place::Far,
            Some(_) => Place::Near,
        }
    }

    pub fn from_byte(byte: u8) -> Option<Place> {
        [Place::Near, Place::Unknown, Place::Far].into_iter().find(|place| *place as u8 == byte)
    }
}

/// The cores that this thread may run on; empty if the kernel does not say.
pub(super) fn allowed_cores() -> BTreeSet<usize> {
    let Ok(set) = sched_getaffinity(None) else { return BTreeSet::new() };
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

/// Parses a list such as `0-3,8-11`; `None` if it is malformed.
fn cores(list: &str) -> Option<BTreeSet<usize>> {
    let mut cores = BTreeSet::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // No kernel has more cores; a longer range would only fill memory.
        if last >= 1 << 16 {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_follows_cores_of_rank_and_adapter() {
        let of = |near: &str, allowed: &[usize]| Place::of(Some(near), &allowed.iter().copied().collect());
        assert_eq!(of("0-3,8-11\n", &[3, 4]), Place::Near);
        assert_eq!(of("0-3,8-11\n", &[8]), Place::Near);
        assert_eq!(of("0-3,8-11\n", &[4, 7, 12]), Place::Far);
        assert_eq!(of("5\n", &[5]), Place::Near);
        for unknown in ["", "\n", "x", "3-", "0-18446744073709551615", "-1"] {
            assert_eq!(of(unknown, &[0]), Place::Unknown, "{unknown:?}");
        }
        assert_eq!(of("0-3", &[]), Place::Unknown);
        assert_eq!(Place::of(None, &BTreeSet::from([0])), Place::Unknown);
    }

    #[test]
    fn this_thread_may_run_on_a_core() {
        assert!(!allowed_cores().is_empty());
    }
}
