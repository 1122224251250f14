//! What can be measured: names, synchronisations, sizes, and what the machine's own limit of each is.

use super::limits::Limit;
use super::protocol::{LONG, Task};

pub struct Measurement {
    pub name: &'static str,
    pub about: &'static str,
    pub syncs: &'static [&'static str],
    /// Whether it has a size; if not, it is of 8 bytes or of something else altogether.
    pub sized: bool,
    /// With how many ranks it is measured if nothing is said, and with how many at least.
    pub ranks: &'static [usize],
    pub least: usize,
    pub kind: Kind,
    /// How many times as long as a latency it wants to be measured, to say anything.
    pub patience: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Samples of nanoseconds per operation.
    Latency,
    /// The same of operations in a row, each of so many bytes.
    Bandwidth,
    /// Figures with names.
    Figures,
}

const ALL: &[&str] = &["lock", "lock_exclusive", "lock_all", "flush", "flush_local", "fence", "pscw"];

const fn latency(name: &'static str, about: &'static str, sized: bool) -> Measurement {
    Measurement { name, about, syncs: ALL, sized, ranks: &[2], least: 1, kind: Kind::Latency, patience: 1 }
}

const fn figures(name: &'static str, syncs: &'static [&'static str], about: &'static str) -> Measurement {
    Measurement { name, about, syncs, sized: false, ranks: &[2], least: 1, kind: Kind::Figures, patience: 1 }
}

pub const CATALOG: &[Measurement] = &[
    latency("put", "put and its synchronisation (osu_put_latency)", true),
    latency("get", "get and its synchronisation (osu_get_latency)", true),
    latency(
        "accumulate",
        "accumulate by sum of 8-byte integers; ours from 4 KiB on with bulk_accumulates (osu_acc_latency)",
        true,
    ),
    latency("get_accumulate", "the same, and what was there before (osu_get_acc_latency)", true),
    latency("fetch_and_op", "fetch_and_op by sum, 8 bytes (osu_fop_latency)", false),
    latency("compare_and_swap", "compare_and_swap of 8 bytes (osu_cas_latency)", false),
    Measurement {
        kind: Kind::Bandwidth,
        syncs: &["flush"],
        ..latency("put_bw", "64 puts, then a flush (osu_put_bw)", true)
    },
    Measurement {
        kind: Kind::Bandwidth,
        syncs: &["flush"],
        ..latency("get_bw", "64 gets, then a flush (osu_get_bw)", true)
    },
    Measurement {
        syncs: &["lock", "lock_exclusive"],
        ..latency("lock", "a free lock: lock, put of 8 bytes, unlock; shared and exclusive", false)
    },
    Measurement {
        ranks: &[2, 3, 4, 8],
        patience: 4,
        ..figures("contended", &["lock_exclusive"], "all ranks compete for one exclusive lock: lock, get, put, unlock")
    },
    Measurement {
        ranks: &[3],
        least: 3,
        patience: 4,
        ..figures("readers_writer", &["lock"], "rank 1 wants to write once a ms, the others read without pause")
    },
    Measurement { syncs: &["barrier"], ..latency("barrier", "a barrier of all ranks (osu_barrier)", false) },
    figures(
        "lu",
        &["lock", "two_sided", "shared"],
        "dense LU by blocks; two_sided: owners grant locks between block operations; shared: others' blocks are read in place",
    ),
    figures(
        "lu_outside",
        &["lock", "two_sided", "shared"],
        "the same with a clock at all that is no block operation: the time of that",
    ),
    Measurement {
        least: 2,
        ..figures("overlap", &["lock"], "the target computes and calls nothing while the origin locks, gets, unlocks")
    },
    Measurement { patience: 2, ..figures("pipeline", &["one_sided"], "a wavefront by put_signal (PRK Synch_p2p)") },
    figures("startup", &["none"], "start and end of a job that does nothing; memory of a rank"),
];

pub fn find(name: &str) -> Option<&'static Measurement> {
    CATALOG.iter().find(|measurement| measurement.name == name)
}

/// What the machine needs for an operation at least, if anything can be said.
pub fn limit(task: &Task) -> Option<Limit> {
    let words = (task.bytes / 8) as f64;
    // Of a barrier, in which everybody hears of everybody.
    let rounds = f64::from(task.ranks.next_power_of_two().ilog2());
    let sums = matches!(task.measurement, "accumulate" | "get_accumulate");
    let long = sums && task.bytes >= LONG;
    let copies = matches!(task.measurement, "put" | "get" | "put_bw" | "get_bw" | "lock" | "overlap") || long;
    let itself = match task.measurement {
        "put" | "get" | "put_bw" | "get_bw" | "lock" | "overlap" => 0.0,
        // The lock that makes a long one atomic.
        "accumulate" | "get_accumulate" if long => 2.0,
        "accumulate" | "get_accumulate" => words,
        "fetch_and_op" | "compare_and_swap" => 1.0,
        "barrier" => return Some(Limit { crossings: rounds, ..Limit::default() }),
        // The word that says whose turn it is crosses, and then what the lock protects.
        "contended" if task.ranks > 1 => return Some(Limit { crossings: 2.0, ..Limit::default() }),
        _ => return None,
    };
    let (atomics, crossings) = match task.sync {
        "lock" | "lock_exclusive" => (2.0, 0.0),
        "lock_all" => (2.0 * task.ranks as f64, 0.0),
        // An atomic is complete when it has returned, and of 64 puts in a row only one is flushed.
        "flush" if itself == 0.0 && !task.measurement.ends_with("_bw") => (1.0, 0.0),
        "fence" => (0.0, rounds),
        "pscw" if task.ranks > 1 => (0.0, 1.0),
        _ => (0.0, 0.0),
    };
    Some(Limit { atomics: itself + atomics, crossings, copies: f64::from(u8::from(copies)) })
}
