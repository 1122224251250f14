//! The catalogue of measurements: names, synchronizations, sizes, and the lower limit that the machine sets to each.

use super::limits::{Cost, Limit};
use super::protocol::Task;

pub struct Measurement {
    pub name: &'static str,
    pub about: &'static str,
    pub syncs: &'static [&'static str],
    /// True if it is measured at several sizes. Otherwise it moves 8 bytes, or its size is fixed by its definition.
    pub sized: bool,
    /// The default numbers of ranks.
    pub ranks: &'static [usize],
    pub least: usize,
    pub kind: Kind,
    /// The measuring time, as a multiple of that of a latency. Rare events need more.
    pub patience: u64,
    /// The name of the measurement that a worker executes, if this one repeats another in several configurations.
    pub of: Option<&'static str>,
    /// The values of TRANSOM_MESSAGES for its jobs, one job each.
    pub configs: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Samples of nanoseconds per operation.
    Latency,
    /// Samples of nanoseconds per operation, of back-to-back operations that each move the size.
    Bandwidth,
    /// Named figures.
    Figures,
}

const ALL: &[&str] = &["lock", "lock_exclusive", "lock_all", "flush", "flush_local", "fence", "pscw"];

/// By `two_sided` the target grants the lock, as in MPI libraries.
const GET: &[&str] = &["lock", "lock_exclusive", "lock_all", "flush", "flush_local", "fence", "pscw", "two_sided"];
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

/// A measurement of messages, also from and to memory of `World::buffer`.
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
    latency("put", "put and its synchronization (osu_put_latency)", true),
    Measurement { syncs: GET, ..latency("get", "get and its synchronization (osu_get_latency)", true) },
    Measurement {
        syncs: &["lock", "lock_all", "two_sided"],
        ..latency("eight_gets", "8 gets in one epoch, with its lock and unlock", true)
    },
    latency("accumulate", "accumulate by sum of 8-byte integers (osu_acc_latency)", true),
    latency("get_accumulate", "get_accumulate by sum of 8-byte integers (osu_get_acc_latency)", true),
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
        ..latency("lock", "an uncontended lock: lock, put of 8 bytes, unlock; shared and exclusive", false)
    },
    Measurement {
        syncs: &["mutex"],
        ..latency(
            "value",
            "an uncontended GlobalMutex: lock, add 1 to 8 bytes, unlock; compare with lock by lock_exclusive",
            false,
        )
    },
    Measurement {
        syncs: &["sum", "xor", "or", "and", "replace", "scattered"],
        ..latency(
            "random",
            "accumulates of 8 bytes at random places in 256 MiB (HPCC RandomAccess); scattered: xor, 1000 per call",
            false,
        )
    },
    element("element_get", "get_one of an array element by its index, and of a window element"),
    element("element_put", "put_one of an element by its index"),
    element("element_fetch", "fetch_add of an element by its index"),
    Measurement {
        ranks: &[2, 3, 4, 8],
        patience: 4,
        ..figures("contended", &["lock_exclusive"], "all ranks compete for one exclusive lock: lock, get, put, unlock")
    },
    Measurement {
        ranks: &[3],
        least: 3,
        patience: 4,
        ..figures("readers_writer", &["lock"], "rank 1 writes once per ms while the others read without pause")
    },
    Measurement { syncs: &["barrier"], ..latency("barrier", "a barrier of all ranks (osu_barrier)", false) },
    collective("broadcast", "a broadcast from rank 0 (osu_bcast)"),
    collective("reduce", "sums of doubles at rank 0 (osu_reduce)"),
    collective("all_reduce", "sums of doubles at all ranks, in place (osu_allreduce)"),
    collective("scan", "inclusive prefix sums of doubles over the ranks (osu_scan)"),
    collective("all_gather", "one block of each rank, at all ranks (osu_allgather)"),
    collective("all_to_all", "one block from each rank to each rank (osu_alltoall)"),
    Measurement {
        syncs: &["messages", "buffers", "gaps"],
        ..messages(
            "pingpong",
            "a message, one way (osu_latency); buffers: from and to World::buffer; gaps: after random delays, \
             which are not counted",
        )
    },
    Measurement {
        kind: Kind::Bandwidth,
        ..messages_in_buffers("stream", "64 messages back to back, then a reply (osu_bw, without requests)")
    },
    Measurement {
        kind: Kind::Bandwidth,
        ..messages_in_buffers(
            "bidirectional",
            "a message in each direction at once, by sendrecv; GB/s of one direction",
        )
    },
    Measurement {
        kind: Kind::Bandwidth,
        ..messages("message_rate", "64 messages in flight, then a reply; all pairs together (osu_mbw_mr)")
    },
    Measurement {
        kind: Kind::Figures,
        ..messages(
            "overhead",
            "the time within a send, and within the receive of a message that has arrived (o of LogP)",
        )
    },
    Measurement {
        kind: Kind::Figures,
        ..messages("overlap_messages", "the part of a message in each direction that equally long computation hides")
    },
    Measurement {
        kind: Kind::Figures,
        ..collective("overlap_collectives", "the part of an all_reduce by request that equally long computation hides")
    },
    Measurement {
        kind: Kind::Figures,
        ..messages(
            "registration",
            "a message between vectors used first, and again; between buffers of World::buffer taken for it, and held (leased); ranks that share memory register nothing",
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
            "8 bytes from each other rank, in order of arrival; no ring, one, one for each rank",
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
            "8 bytes from any source, and a progress turn that finds nothing, with rings of silent ranks",
        )
    },
    sweep(
        "threshold",
        "pingpong",
        &["eager=0", "eager=1024", "eager=4096", "eager=8192"],
        "pingpong with short messages sent eagerly, or by rendezvous",
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
            "stream, by the number of slots of a ring; the sender waits for a free slot",
        )
    },
    sweep(
        "rendezvous",
        "pingpong",
        &["eager=0,zero_copy_from=1,read_waiting=yes", "eager=0,zero_copy_from=1", "eager=0,zero_copy_from=4294967296"],
        "pingpong by rendezvous: the receiver reads, the sender writes (where the wire can), or both copy",
    ),
    Measurement {
        kind: Kind::Figures,
        ..sweep(
            "pipe",
            "pipe",
            &["pipe=basic", "pipe=piggyback", "pipe=pipeline", "pipe=read", "pipe=write"],
            "a pipe in each of its designs: one message, 64 back to back, and work requests per message",
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
            "a pipe, by the number of bytes of a chunk",
        )
    },
    Measurement {
        kind: Kind::Bandwidth,
        ..sweep(
            "rails",
            "stream",
            &["stripe_from=4294967295", "stripe=even", "stripe=weighted", "stripe=adaptive", "stripe=pull"],
            "stream by the first rail alone, and divided among all rails; tests/soft-roce/rails limits their bandwidth",
        )
    },
    Measurement {
        ranks: &[1],
        ..figures("kernel", &["none"], "LU's block operation alone, on blocks in the L1 cache, and the core's peak")
    },
    figures(
        "lu",
        LU,
        "dense LU by blocks; lock: a lock for each remote block; two_sided: the owner grants it between its block \
         operations; flush: gets in one epoch; shared: remote blocks are read in place",
    ),
    figures(
        "lu_outside",
        LU,
        "dense LU by blocks, with a clock around everything but block operations: their total time",
    ),
    Measurement {
        least: 2,
        ..figures(
            "overlap",
            &["lock", "lock_all", "two_sided"],
            "the target computes and makes no call, while the origin locks, gets, unlocks, and sleeps 1 ms in between; two_sided: the target grants the lock after that",
        )
    },
    Measurement {
        patience: 2,
        ..figures(
            "pipeline",
            &["one_sided", "two_sided"],
            "a wavefront by put_signal or messages (PRK Synch_p2p); the limit is the time of its additions without waiting",
        )
    },
    figures("startup", &["none"], "start and end of an empty job; memory of a rank"),
    Measurement {
        ranks: &[2, 4, 8],
        least: 2,
        ..figures(
            "connections",
            &["messages"],
            "the first empty message of each rank to each other; memory of a rank, and what the machine lost, after 100",
        )
    },
];

pub fn find(name: &str) -> Option<&'static Measurement> {
    CATALOG.iter().find(|measurement| measurement.name == name)
}

impl Measurement {
    /// The name of the measurement that a worker is to execute.
    pub fn worker(&self) -> &'static str {
        self.of.unwrap_or(self.name)
    }

    /// True if TRANSOM_MESSAGES may affect it.
    pub fn is_of_messages(&self) -> bool {
        let sends = |sync: &&str| matches!(*sync, "messages" | "buffers" | "barrier" | "collective");
        // Some synchronizations of the latter send messages too: `two_sided`.
        self.syncs.iter().any(sends) || matches!(self.name, "pipeline" | "get" | "eight_gets" | "overlap")
    }
}

/// The measurement that a command line names.
pub fn measurement(name: &str) -> Result<&'static Measurement, String> {
    find(&name.replace('-', "_")).ok_or_else(|| {
        let names: Vec<_> = CATALOG.iter().map(|measurement| measurement.name).collect();
        format!("no such measurement; expected one of {}", names.join(", "))
    })
}

/// The synchronization that a command line names.
pub fn sync(name: &str) -> Result<&'static str, String> {
    let name = name.replace('-', "_");
    let mut all: Vec<&'static str> = CATALOG.iter().flat_map(|measurement| measurement.syncs).copied().collect();
    all.sort_unstable();
    all.dedup();
    all.iter().find(|&&sync| sync == name).copied().ok_or_else(|| format!("expected one of {}", all.join(", ")))
}

/// The least time that the machine needs for one operation, on `cores` cores. `Err` says why no limit is known; `None`
/// means that the measurement has no single operation.
///
/// A lock costs an atomic to acquire and an atomic to release. A rank learns of another's action by one crossing of a
/// cache line. Combining many words under a lock costs no more than memcpy.
pub fn limit(task: &Task, cores: usize) -> Option<Result<Limit, &'static str>> {
    let (atomics, crossings, copies) = (
        |atomics| Cost { atomics, ..Cost::default() },
        |crossings| Cost { crossings, ..Cost::default() },
        |copies| Cost { copies, ..Cost::default() },
    );
    let (alone, measured) = (task.ranks == 1, task.worker());
    if task.hosts > 1 {
        return limit_between_hosts(task);
    }
    let sync = match task.sync {
        // The turn passes by a cache line.
        _ if measured == "contended" => crossings(f64::from(u8::from(!alone))),
        "lock" | "lock_exclusive" | "lock_all" => atomics(2.0),
        // Only the last of 64 puts is flushed, and a get or fetch has its result at return.
        "flush" if measured == "put" => atomics(1.0),
        "fence" | "pscw" | "barrier" if !alone => crossings(1.0),
        "two_sided" if !alone && matches!(measured, "get" | "eight_gets" | "overlap") => crossings(2.0),
        // In back-to-back operations the senders run ahead of the receivers.
        "collective" if !alone && !matches!(measured, "broadcast" | "reduce" | "scan") => crossings(1.0),
        "messages" | "buffers" | "gaps" if matches!(measured, "pingpong" | "pipe" | "poll_cost") => crossings(1.0),
        _ => Cost::default(),
    };
    // An exclusive epoch needs no further atomic.
    let exclusive = task.sync == "lock_exclusive";
    let ways = match measured {
        // The flush's atomic waits until the store has drained.
        "put" if task.sync == "flush" && task.bytes <= 64 => vec![Cost::default()],
        "put" | "get" | "put_bw" | "get_bw" | "lock" | "overlap" => vec![copies(1.0)],
        "eight_gets" => vec![copies(8.0)],
        // Sender and receiver may copy at the same time.
        "pingpong" | "stream" if task.sync == "buffers" || task.bytes >= 64 << 10 => vec![copies(0.5)],
        "pingpong" | "stream" | "bidirectional" | "polling_set" | "poll_cost" | "pipe" => vec![copies(1.0)],
        // Pairs copy at the same time.
        "message_rate" if task.ranks < 4 => vec![copies(1.0)],
        "broadcast" | "reduce" | "all_reduce" | "scan" | "all_gather" | "all_to_all" if !alone => vec![copies(1.0)],
        "accumulate" | "get_accumulate" | "fetch_and_op" | "compare_and_swap" if exclusive => vec![copies(1.0)],
        "accumulate" | "get_accumulate" => match task.bytes / 8 {
            // One atomic per word, or a lock around all words.
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

/// The same over TCP, with each of two ranks on a host of its own. A lock, an atomic, a get and a flush are answered.
fn limit_between_hosts(task: &Task) -> Option<Result<Limit, &'static str>> {
    let one_ways = |one_ways| Cost { one_ways, ..Cost::default() };
    let round_trips = |round_trips| Cost { round_trips, ..Cost::default() };
    let cost = match (task.worker(), task.sync) {
        _ if task.ranks != 2 => return None,
        ("put" | "get" | "accumulate" | "get_accumulate" | "fetch_and_op" | "compare_and_swap", "flush") => {
            round_trips(1.0)
        }
        ("lock", _) | ("put" | "accumulate", "lock" | "lock_exclusive") => round_trips(2.0),
        ("pingpong" | "pipe", _) | ("barrier", _) | ("put", "fence" | "pscw") => one_ways(1.0),
        _ => return None,
    };
    Some(Ok(Limit(vec![cost])))
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
    fn catalog_worker_names_and_configurations_are_valid() {
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

    /// The limits are those of the machine, independent of our protocols.
    #[test]
    fn limit_names_the_machines_primitive_costs() {
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
            ("overlap", "two_sided", 8, 2, "2 crossings + memcpy"),
            ("lu", "lock", 8, 2, "-"),
        ] {
            assert_eq!(of(measurement, sync, bytes, ranks, 64), says, "{measurement} {sync} {bytes} {ranks}");
        }
    }

    #[test]
    fn limit_between_hosts_is_a_tcp_stream() {
        for (measurement, sync, ranks, says) in [
            ("put", "flush", 2, "TCP round trip"),
            ("fetch_and_op", "flush", 2, "TCP round trip"),
            ("lock", "lock_exclusive", 2, "2 TCP round trips"),
            ("pingpong", "messages", 2, "TCP one way"),
            ("put", "fence", 2, "TCP one way"),
            ("put", "flush", 4, "-"),
            ("put", "flush_local", 2, "-"),
            ("put_bw", "flush", 2, "-"),
        ] {
            let task = Task { measurement, sync, bytes: 8, ranks, hosts: 2, ..Task::default() };
            let limit = limit(&task, 2).map_or("-".to_owned(), |limit| limit.unwrap().describe());
            assert_eq!(limit, says, "{measurement} {sync} {ranks}");
        }
    }

    #[test]
    fn limit_absent_if_waiting_ranks_share_cores() {
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
