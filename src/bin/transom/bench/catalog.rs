//! What can be measured: names, synchronisations, sizes, and what the machine's own limit of each is.

use super::limits::{Cost, Limit};
use super::protocol::Task;

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

const LU: &[&str] = &["lock", "two_sided", "flush", "shared"];

const fn latency(name: &'static str, about: &'static str, sized: bool) -> Measurement {
    Measurement { name, about, syncs: ALL, sized, ranks: &[2], least: 1, kind: Kind::Latency, patience: 1 }
}

const fn collective(name: &'static str, about: &'static str) -> Measurement {
    Measurement { syncs: &["collective"], ..latency(name, about, true) }
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
    collective("broadcast", "the elements of rank 0, to all (osu_bcast)"),
    collective("reduce", "sums of doubles, at rank 0 (osu_reduce)"),
    collective("all_reduce", "sums of doubles, at all ranks, in place (osu_allreduce)"),
    collective("scan", "sums of doubles of the ranks up to each (osu_scan)"),
    collective("all_gather", "a block of each, at all ranks (osu_allgather)"),
    collective("all_to_all", "a block of each for each (osu_alltoall)"),
    Measurement { least: 2, syncs: &["messages"], ..latency("pingpong", "a message, one way (osu_latency)", true) },
    Measurement {
        least: 2,
        kind: Kind::Bandwidth,
        syncs: &["messages"],
        ..latency("stream", "64 messages in a row, then an answer (osu_bw, without requests)", true)
    },
    Measurement {
        least: 2,
        kind: Kind::Bandwidth,
        syncs: &["messages"],
        ..latency("bidirectional", "a message each way at once, by sendrecv", true)
    },
    Measurement {
        ranks: &[1],
        ..figures(
            "kernel",
            &["none"],
            "LU's block operation alone, on blocks in the nearest cache, beside the core's peak",
        )
    },
    figures(
        "lu",
        LU,
        "dense LU by blocks; lock: a lock for each block of another; two_sided: its owner grants that between block \
         operations; flush: gets in one epoch; shared: others' blocks are read in place",
    ),
    figures("lu_outside", LU, "the same with a clock at all that is no block operation: the time of that"),
    Measurement {
        least: 2,
        ..figures(
            "overlap",
            &["lock"],
            "the target computes and calls nothing while the origin, which sleeps a ms in between, locks, gets, unlocks",
        )
    },
    Measurement {
        patience: 2,
        ..figures(
            "pipeline",
            &["one_sided"],
            "a wavefront by put_signal (PRK Synch_p2p); its limit is that of its additions, if no rank waited",
        )
    },
    figures("startup", &["none"], "start and end of a job that does nothing; memory of a rank"),
];

pub fn find(name: &str) -> Option<&'static Measurement> {
    CATALOG.iter().find(|measurement| measurement.name == name)
}

/// The measurement that a command line names.
pub fn measurement(name: &str) -> Result<&'static Measurement, String> {
    find(&name.replace('-', "_")).ok_or_else(|| {
        let names: Vec<_> = CATALOG.iter().map(|measurement| measurement.name).collect();
        format!("there is no such measurement; there are {}", names.join(", "))
    })
}

/// The synchronisation that a command line names.
pub fn sync(name: &str) -> Result<&'static str, String> {
    let name = name.replace('-', "_");
    let mut all: Vec<&'static str> = CATALOG.iter().flat_map(|measurement| measurement.syncs).copied().collect();
    all.sort_unstable();
    all.dedup();
    all.iter().find(|&&sync| sync == name).copied().ok_or_else(|| format!("there are {}", all.join(", ")))
}

/// What the machine needs for an operation at least, on so many cores, or why nothing can be said of that; none of what is no
/// operation.
///
/// A lock is one atomic to take and one to give back. Whoever hears of something that another did, hears of it by a cache line
/// that crosses. What many words become at once is, under a lock, as quick as memcpy.
pub fn limit(task: &Task, cores: usize) -> Option<Result<Limit, &'static str>> {
    let (atomics, crossings, copies) = (
        |atomics| Cost { atomics, ..Cost::default() },
        |crossings| Cost { crossings, ..Cost::default() },
        |copies| Cost { copies, ..Cost::default() },
    );
    let alone = task.ranks == 1;
    let sync = match task.sync {
        // What says whose turn it is.
        _ if task.measurement == "contended" => crossings(f64::from(u8::from(!alone))),
        "lock" | "lock_exclusive" | "lock_all" => atomics(2.0),
        // Of 64 puts in a row only one is flushed; what is got or fetched is here already.
        "flush" if task.measurement == "put" => atomics(1.0),
        "fence" | "pscw" | "barrier" | "collective" if !alone => crossings(1.0),
        "messages" if task.measurement == "pingpong" => crossings(1.0),
        _ => Cost::default(),
    };
    // In an epoch that has the target to itself nothing else need be atomic.
    let exclusive = task.sync == "lock_exclusive";
    let ways = match task.measurement {
        "put" | "get" | "put_bw" | "get_bw" | "lock" | "overlap" | "pingpong" | "stream" | "bidirectional" => {
            vec![copies(1.0)]
        }
        "broadcast" | "reduce" | "all_reduce" | "scan" | "all_gather" | "all_to_all" if !alone => vec![copies(1.0)],
        "accumulate" | "get_accumulate" | "fetch_and_op" | "compare_and_swap" if exclusive => vec![copies(1.0)],
        "accumulate" | "get_accumulate" => match task.bytes / 8 {
            // One atomic for each word, or a lock around all.
            words @ 3.. => vec![atomics(words as f64), atomics(2.0) + copies(1.0)],
            words => vec![atomics(words as f64)],
        },
        "fetch_and_op" | "compare_and_swap" => vec![atomics(1.0)],
        "barrier" | "contended" => vec![Cost::default()],
        _ => return None,
    };
    if sync.crossings > 0.0 && task.ranks > cores {
        return Some(Err("none: ranks share cores"));
    }
    let ways: Vec<_> = ways.into_iter().map(|way| way + sync).filter(|way| *way != Cost::default()).collect();
    (!ways.is_empty()).then_some(Ok(Limit(ways)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(measurement: &'static str, sync: &'static str, bytes: usize, ranks: usize, cores: usize) -> String {
        let task = Task { measurement, sync, bytes, ranks, ..Task::default() };
        match limit(&task, cores) {
            Some(Ok(limit)) => limit.describe(),
            Some(Err(why)) => why.to_owned(),
            None => "-".to_owned(),
        }
    }

    /// The machine's, whatever our protocols need.
    #[test]
    fn limits_are_the_machines() {
        for (measurement, sync, bytes, ranks, says) in [
            ("put", "flush", 8, 2, "atomic + memcpy"),
            ("get", "flush", 8, 2, "memcpy"),
            ("put", "flush_local", 8, 2, "memcpy"),
            ("put", "lock", 4096, 2, "2 atomics + memcpy"),
            ("put", "lock_all", 8, 8, "2 atomics + memcpy"),
            ("put", "fence", 8, 8, "crossing + memcpy"),
            ("put", "fence", 8, 1, "memcpy"),
            ("put", "pscw", 8, 2, "crossing + memcpy"),
            ("put_bw", "flush", 1 << 20, 2, "memcpy"),
            ("accumulate", "flush", 8, 2, "atomic"),
            ("accumulate", "flush", 512, 2, "min(64 atomics, 2 atomics + memcpy)"),
            ("get_accumulate", "lock", 4096, 2, "min(514 atomics, 4 atomics + memcpy)"),
            ("get_accumulate", "lock_exclusive", 1 << 16, 2, "2 atomics + memcpy"),
            ("fetch_and_op", "flush", 8, 2, "atomic"),
            ("fetch_and_op", "lock_exclusive", 8, 2, "2 atomics + memcpy"),
            ("lock", "lock_exclusive", 8, 2, "2 atomics + memcpy"),
            ("barrier", "barrier", 8, 2, "crossing"),
            ("barrier", "barrier", 8, 8, "crossing"),
            ("barrier", "barrier", 8, 1, "-"),
            ("all_reduce", "collective", 8, 2, "crossing + memcpy"),
            ("all_to_all", "collective", 8, 1, "-"),
            ("pingpong", "messages", 8, 2, "crossing + memcpy"),
            ("stream", "messages", 4096, 2, "memcpy"),
            ("contended", "lock_exclusive", 8, 2, "crossing"),
            ("contended", "lock_exclusive", 8, 1, "-"),
            ("overlap", "lock", 8, 2, "2 atomics + memcpy"),
            ("lu", "lock", 8, 2, "-"),
        ] {
            assert_eq!(of(measurement, sync, bytes, ranks, 64), says, "{measurement} {sync} {bytes} {ranks}");
        }
    }

    #[test]
    fn ranks_that_share_cores_have_no_limit_where_they_wait_and_it_is_said() {
        for (measurement, sync) in
            [("contended", "lock_exclusive"), ("barrier", "barrier"), ("put", "fence"), ("get", "pscw")]
        {
            assert!(of(measurement, sync, 8, 3, 2).contains("none: ranks share cores"), "{measurement}");
        }
        assert_eq!(of("put", "lock", 8, 3, 2), "2 atomics + memcpy");
    }
}
