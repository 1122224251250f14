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
    /// What a worker measures, where that is another measurement in several configurations.
    pub of: Option<&'static str>,
    /// What TRANSOM_MESSAGES is for its jobs, one after the other.
    pub configs: &'static [&'static str],
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
    Measurement {
        name,
        about,
        syncs: ALL,
        sized,
        ranks: &[2],
        least: 1,
        kind: Kind::Latency,
        patience: 1,
        of: None,
        configs: &[""],
    }
}

const fn collective(name: &'static str, about: &'static str) -> Measurement {
    Measurement { syncs: &["collective"], ..latency(name, about, true) }
}

const fn figures(name: &'static str, syncs: &'static [&'static str], about: &'static str) -> Measurement {
    Measurement { syncs, kind: Kind::Figures, ..latency(name, about, false) }
}

const fn element(name: &'static str, about: &'static str) -> Measurement {
    Measurement { syncs: &["window", "cyclic", "tiles"], ..latency(name, about, false) }
}

const fn messages(name: &'static str, about: &'static str) -> Measurement {
    Measurement { least: 2, syncs: &["messages"], ..latency(name, about, true) }
}

/// Also from and to memory of `World::buffer`.
const fn messages_in_buffers(name: &'static str, about: &'static str) -> Measurement {
    Measurement { syncs: &["messages", "buffers"], ..messages(name, about) }
}

/// A measurement of messages in several configurations.
const fn sweep(
    name: &'static str,
    of: &'static str,
    configs: &'static [&'static str],
    about: &'static str,
) -> Measurement {
    Measurement { of: Some(of), configs, ..messages(name, about) }
}

pub const CATALOG: &[Measurement] = &[
    latency("put", "put and its synchronisation (osu_put_latency)", true),
    latency("get", "get and its synchronisation (osu_get_latency)", true),
    latency("accumulate", "accumulate by sum of 8-byte integers (osu_acc_latency)", true),
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
        syncs: &["mutex"],
        ..latency("value", "a free GlobalMutex: lock, + 1 of 8 bytes, unlock; beside lock by lock_exclusive", false)
    },
    Measurement {
        syncs: &["sum", "xor", "or", "and", "replace", "scattered"],
        ..latency(
            "random",
            "accumulates of 8 bytes at random in 256 MiB (HPCC RandomAccess); scattered: xor, 1000 by one call",
            false,
        )
    },
    element("element_get", "get_one of an element, by index; beside that of a window"),
    element("element_put", "put_one of an element, by index"),
    element("element_fetch", "fetch_add of an element, by index"),
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
    Measurement {
        syncs: &["messages", "buffers", "gaps"],
        ..messages(
            "pingpong",
            "a message, one way (osu_latency); buffers: from and to World::buffer; gaps: after random times, \
             which do not count",
        )
    },
    Measurement {
        kind: Kind::Bandwidth,
        ..messages_in_buffers("stream", "64 messages in a row, then an answer (osu_bw, without requests)")
    },
    Measurement {
        kind: Kind::Bandwidth,
        ..messages_in_buffers("bidirectional", "a message each way at once, by sendrecv; GB/s is of one way")
    },
    Measurement {
        kind: Kind::Bandwidth,
        ..messages("message_rate", "64 messages under way, then an answer; of all pairs together (osu_mbw_mr)")
    },
    Measurement {
        kind: Kind::Figures,
        ..messages("overhead", "the time in a send, and in the receive of what is there (o of LogP)")
    },
    Measurement {
        kind: Kind::Figures,
        ..messages("overlap_messages", "how much of a message each way is hidden by computing as long as it takes")
    },
    Measurement {
        kind: Kind::Figures,
        ..collective(
            "overlap_collectives",
            "how much of an all_reduce by a request is hidden by computing as long as it takes",
        )
    },
    Measurement {
        kind: Kind::Figures,
        ..messages(
            "registration",
            "a message between buffers never used before, and used before; where ranks share memory nothing is registered",
        )
    },
    Measurement {
        kind: Kind::Bandwidth,
        sized: false,
        ranks: &[4],
        least: 2,
        ..sweep(
            "polling_set",
            "polling_set",
            &["rings=0", "rings=1", "order=sequential", "order=circular", "order=recent"],
            "8 bytes from all others, whoever is first; without rings, with one, with one each",
        )
    },
    Measurement {
        kind: Kind::Figures,
        sized: false,
        ranks: &[17],
        ..sweep(
            "poll_cost",
            "poll_cost",
            &[
                "ring_after=1,rings=1",
                "ring_after=1,rings=4",
                "ring_after=1,rings=128",
                "ring_after=1,rings=128,order=recent",
            ],
            "8 bytes from any source, and a turn that finds nothing, beside rings of silent ranks",
        )
    },
    sweep(
        "threshold",
        "pingpong",
        &["eager=0", "eager=1024", "eager=4096", "eager=8192"],
        "pingpong with short messages sent at once, or announced",
    ),
    Measurement {
        kind: Kind::Bandwidth,
        ..sweep(
            "ring_slots",
            "stream",
            &[
                "ring_slots=2,window=2",
                "ring_slots=4,window=4",
                "ring_slots=8,window=8",
                "ring_slots=16,window=16",
                "ring_slots=32,window=32",
                "ring_slots=64,window=64",
            ],
            "stream by rings of so many slots, for which a sender waits",
        )
    },
    sweep(
        "rendezvous",
        "pingpong",
        &["eager=0,zero_copy_from=1,read_waiting=yes", "eager=0,zero_copy_from=1", "eager=0,zero_copy_from=4294967296"],
        "pingpong with messages that are announced: read, or written where the wire writes, or copied",
    ),
    Measurement {
        kind: Kind::Figures,
        ..sweep(
            "pipe",
            "pipe",
            &["pipe=basic", "pipe=piggyback", "pipe=pipeline", "pipe=read", "pipe=write"],
            "bytes by a pipe in each of its steps: one way, 64 in a row, and the requests that a message takes",
        )
    },
    Measurement {
        kind: Kind::Figures,
        ..sweep(
            "pipe_chunk",
            "pipe",
            &[
                "pipe=pipeline,pipe_chunk=1024",
                "pipe=pipeline,pipe_chunk=2048",
                "pipe=pipeline,pipe_chunk=4096",
                "pipe=pipeline,pipe_chunk=8192",
                "pipe=pipeline,pipe_chunk=16384",
                "pipe=pipeline,pipe_chunk=32768",
                "pipe=pipeline,pipe_chunk=65536",
            ],
            "the same by chunks of so many bytes",
        )
    },
    Measurement {
        kind: Kind::Bandwidth,
        ..sweep(
            "rails",
            "stream",
            &["stripe_from=4294967295", "stripe=even", "stripe=weighted", "stripe=adaptive", "stripe=pull"],
            "stream by the first rail alone, and divided among all that there are; tests/soft-roce/rails shapes them",
        )
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
            &["one_sided", "two_sided"],
            "a wavefront by put_signal, or messages (PRK Synch_p2p); its limit is that of its additions, if no rank waited",
        )
    },
    figures("startup", &["none"], "start and end of a job that does nothing; memory of a rank"),
];

pub fn find(name: &str) -> Option<&'static Measurement> {
    CATALOG.iter().find(|measurement| measurement.name == name)
}

impl Measurement {
    /// What a worker is told to measure.
    pub fn worker(&self) -> &'static str {
        self.of.unwrap_or(self.name)
    }

    /// Whether TRANSOM_MESSAGES makes a difference to it, or may.
    pub fn is_of_messages(&self) -> bool {
        self.syncs.iter().any(|sync| matches!(*sync, "messages" | "buffers" | "collective")) || self.name == "pipeline"
    }
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
    let (alone, measured) = (task.ranks == 1, task.worker());
    let sync = match task.sync {
        // What says whose turn it is.
        _ if measured == "contended" => crossings(f64::from(u8::from(!alone))),
        "lock" | "lock_exclusive" | "lock_all" => atomics(2.0),
        // Of 64 puts in a row only one is flushed; what is got or fetched is here already.
        "flush" if measured == "put" => atomics(1.0),
        "fence" | "pscw" | "barrier" if !alone => crossings(1.0),
        // In a row, who gives runs ahead of those who get.
        "collective" if !alone && !matches!(measured, "broadcast" | "reduce" | "scan") => crossings(1.0),
        "messages" | "buffers" | "gaps" if matches!(measured, "pingpong" | "pipe" | "poll_cost") => crossings(1.0),
        _ => Cost::default(),
    };
    // In an epoch that has the target to itself nothing else need be atomic.
    let exclusive = task.sync == "lock_exclusive";
    let ways = match measured {
        // A store is over before the atomic after it is.
        "put" if task.sync == "flush" && task.bytes <= 64 => vec![Cost::default()],
        "put" | "get" | "put_bw" | "get_bw" | "lock" | "overlap" => vec![copies(1.0)],
        // Both ends may copy at once.
        "pingpong" | "stream" if task.sync == "buffers" || task.bytes >= 64 << 10 => vec![copies(0.5)],
        "pingpong" | "stream" | "bidirectional" | "polling_set" | "poll_cost" | "pipe" => vec![copies(1.0)],
        // Pairs copy at once.
        "message_rate" if task.ranks < 4 => vec![copies(1.0)],
        "broadcast" | "reduce" | "all_reduce" | "scan" | "all_gather" | "all_to_all" if !alone => vec![copies(1.0)],
        "accumulate" | "get_accumulate" | "fetch_and_op" | "compare_and_swap" if exclusive => vec![copies(1.0)],
        "accumulate" | "get_accumulate" => match task.bytes / 8 {
            // One atomic for each word, or a lock around all.
            words @ 3.. => vec![atomics(words as f64), atomics(2.0) + copies(1.0)],
            words => vec![atomics(words as f64)],
        },
        "fetch_and_op" | "compare_and_swap" | "random" | "element_fetch" => vec![atomics(1.0)],
        "element_get" | "element_put" => vec![copies(1.0)],
        "value" => vec![atomics(2.0)],
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

    #[test]
    fn what_a_worker_is_told_is_in_the_catalog_and_its_configurations_can_be() {
        for measurement in CATALOG {
            let worker = find(measurement.worker()).expect(measurement.name);
            assert_eq!((worker.worker(), worker.kind), (worker.name, measurement.kind), "{}", measurement.name);
            for config in measurement.configs {
                config.parse::<transom_channel::Changes>().unwrap_or_else(|why| panic!("{}: {why}", measurement.name));
            }
            let same = |config| measurement.configs.iter().filter(|other| *other == config).count();
            assert!(measurement.configs.iter().all(|config| same(config) == 1), "{}", measurement.name);
        }
    }

    /// The machine's, whatever our protocols need.
    #[test]
    fn limits_are_the_machines() {
        for (measurement, sync, bytes, ranks, says) in [
            ("put", "flush", 8, 2, "atomic"),
            ("put", "flush", 4096, 2, "atomic + memcpy"),
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
            ("value", "mutex", 8, 2, "2 atomics"),
            ("random", "xor", 8, 2, "atomic"),
            ("element_get", "tiles", 8, 2, "memcpy"),
            ("element_fetch", "window", 8, 2, "atomic"),
            ("barrier", "barrier", 8, 2, "crossing"),
            ("barrier", "barrier", 8, 8, "crossing"),
            ("barrier", "barrier", 8, 1, "-"),
            ("all_reduce", "collective", 8, 2, "crossing + memcpy"),
            ("broadcast", "collective", 8, 2, "memcpy"),
            ("all_to_all", "collective", 8, 1, "-"),
            ("pingpong", "messages", 8, 2, "crossing + memcpy"),
            ("pingpong", "gaps", 8, 2, "crossing + memcpy"),
            ("stream", "messages", 4096, 2, "memcpy"),
            ("threshold", "messages", 8, 2, "crossing + memcpy"),
            ("pipe_chunk", "messages", 8, 2, "crossing + memcpy"),
            ("polling_set", "messages", 8, 4, "memcpy"),
            ("message_rate", "messages", 8, 3, "memcpy"),
            ("message_rate", "messages", 8, 4, "-"),
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
        for (measurement, sync) in [
            ("contended", "lock_exclusive"),
            ("barrier", "barrier"),
            ("put", "fence"),
            ("get", "pscw"),
            ("poll_cost", "messages"),
        ] {
            assert!(of(measurement, sync, 8, 3, 2).contains("none: ranks share cores"), "{measurement}");
        }
        assert_eq!(of("put", "lock", 8, 3, 2), "2 atomics + memcpy");
    }
}
