//! Cores, and staying on one.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that this process may run on.
pub fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

/// Keeps this thread on a core; where the system refuses, it runs where it runs.
pub fn bind(core: usize) {
    let mut one = CpuSet::new();
    one.set(core);
    let _ = sched_setaffinity(None, &one);
}

/// Does something on the core of that number, if there is a choice, and is then free again.
pub fn on<R>(number: usize, work: impl FnOnce() -> R) -> R {
    let (cores, before) = (allowed(), sched_getaffinity(None));
    let moved = cores.get(number).filter(|_| cores.len() > 1).zip(before.ok());
    if let Some((&core, _)) = moved {
        bind(core);
    }
    let result = work();
    if let Some((_, before)) = moved {
        let _ = sched_setaffinity(None, &before);
    }
    result
}
