//! The comparisons with other libraries, and their targets.

use super::catalog;
use super::cores;
use super::figures::FAIR_STRETCH;
use super::protocol::Task;
use super::rows::Row;

/// One thing that our worker and a peer's do alike.
#[derive(Clone, Copy)]
pub struct Comparison {
    pub measurement: &'static str,
    pub sync: &'static str,
    /// The peer's synchronization, if it has another name.
    pub theirs: &'static str,
    pub bytes: usize,
    /// The element type, as in a task.
    pub element: &'static str,
    pub ranks: usize,
    /// Number of host names, as in a task.
    pub hosts: usize,
    /// The figure that is compared.
    pub figure: &'static str,
    pub more_is_better: bool,
    /// The target: the factor by which ours must be better than the peer's.
    pub ratio: Option<f64>,
    /// False if the two sides do not do the same: the figures are shown, but not their ratio.
    pub equal: bool,
    /// The two figures must be alike. Otherwise comparisons that build on them are skipped.
    pub alike: bool,
    /// Further figures to show.
    pub also: &'static [&'static str],
    /// Absolute bounds on our own figures.
    pub own: &'static [Own],
}

/// An absolute bound on one of our figures.
pub struct Own {
    pub figure: &'static str,
    pub bound: Bound,
}

#[derive(Clone, Copy)]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    pub fn holds(self, value: f64) -> bool {
        match self {
            Bound::AtMost(most) => value <= most,
            Bound::AtLeast(least) => value >= least,
        }
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bound::AtMost(most) => write!(f, "at most {most}"),
            Bound::AtLeast(least) => write!(f, "at least {least}"),
        }
    }
}

impl Own {
    pub fn of(&self, row: &Row) -> Option<f64> {
        match self.figure {
            TCP => row.times_limit,
            ASLEEP => Some(row.figures.get("ns")? / row.asleep_ns?),
            MEMCPY => row.times_limit.map(f64::recip),
            CROSSINGS => Some(row.figures.get("ns")? / row.crossing_ns?),
            name => row.figures.get(name).copied(),
        }
    }
}

const MEMCPY: &str = "of memcpy";
const CROSSINGS: &str = "of a crossing";
/// The multiple of the time of a plain TCP stream whose ends poll, or whose answering end sleeps.
const TCP: &str = "of TCP";
const ASLEEP: &str = "of TCP asleep";
const KERNEL: &str = "kernel_GFLOP/s";

const fn latency(measurement: &'static str, sync: &'static str, bytes: usize, ratio: f64) -> Comparison {
    Comparison {
        measurement,
        sync,
        theirs: sync,
        bytes,
        element: "i64",
        ranks: 2,
        hosts: 1,
        figure: "ns",
        more_is_better: false,
        ratio: Some(ratio),
        equal: true,
        alike: false,
        also: &[],
        own: &[],
    }
}

const fn figure(measurement: &'static str, sync: &'static str, ranks: usize, figure: &'static str) -> Comparison {
    Comparison { ranks, figure, ratio: None, ..latency(measurement, sync, 8, 1.0) }
}

const fn bandwidth(measurement: &'static str, bytes: usize) -> Comparison {
    let own: &[Own] = if bytes >= 1 << 20 { &[Own { figure: MEMCPY, bound: Bound::AtLeast(0.95) }] } else { &[] };
    Comparison { figure: "GB/s", more_is_better: true, own, ..latency(measurement, "flush", bytes, 1.0) }
}

const fn messages(measurement: &'static str, bytes: usize, ratio: f64) -> Comparison {
    let figure = if bytes > 8 { "GB/s" } else { "million/s" };
    Comparison { figure, more_is_better: true, ..latency(measurement, "messages", bytes, ratio) }
}

/// Ours from and to memory of `World::buffer`, which MPI's messages do not have.
const fn buffers(measurement: &'static str, bytes: usize) -> Comparison {
    Comparison { sync: "buffers", theirs: "messages", equal: false, ..untargeted(messages(measurement, bytes, 1.0)) }
}

/// Ours beside loads and stores of the processor in MPI_Win_allocate_shared, which work only within a host.
const fn by_stores(of: Comparison) -> Comparison {
    Comparison { theirs: "shared", ..untargeted(of) }
}

/// Compares the time within a send, and shows that within its receive.
const fn overhead(bytes: usize) -> Comparison {
    Comparison { bytes, ratio: Some(1.0), also: &["recv_ns"], ..figure("overhead", "messages", 2, "send_ns") }
}

const OVERLAP_MESSAGES: Comparison =
    Comparison { also: &["hidden", "communication_us"], ..figure("overlap_messages", "messages", 2, "both_us") };

const OVERLAP_COLLECTIVES: Comparison = Comparison {
    bytes: 1 << 20,
    also: &["hidden", "communication_us"],
    own: &[Own { figure: "hidden", bound: Bound::AtLeast(0.9) }],
    ..figure("overlap_collectives", "collective", 2, "both_us")
};

const fn collective(measurement: &'static str, bytes: usize, ratio: f64) -> Comparison {
    latency(measurement, "collective", bytes, ratio)
}

/// Shown beside the peers', without a target.
const fn untargeted(of: Comparison) -> Comparison {
    Comparison { ratio: None, ..of }
}

/// More ranks than cores.
const fn oversubscribed(ranks: usize, of: Comparison) -> Comparison {
    Comparison { ranks, ratio: Some(5.0), own: &[], ..of }
}

/// Two bounds, of which the machine permits one: the time measured once by shared memory, or half of a crossing.
const BARRIER: Comparison = Comparison {
    own: &[Own { figure: "ns", bound: Bound::AtMost(36.0) }, Own { figure: CROSSINGS, bound: Bound::AtMost(0.5) }],
    ..untargeted(latency("barrier", "barrier", 8, 1.0))
};

const SHORT_ALL_REDUCE: Comparison = Comparison {
    own: &[Own { figure: "ns", bound: Bound::AtMost(30.0) }, Own { figure: CROSSINGS, bound: Bound::AtMost(0.5) }],
    ..collective("all_reduce", 8, 1.67)
};

const fn contended(ranks: usize) -> Comparison {
    let own: &[Own] = if ranks > 2 { &[Own { figure: "most/fewest", bound: Bound::AtMost(1.02) }] } else { &[] };
    Comparison {
        ratio: Some(1.0),
        also: &["million/s", "jain", "most/fewest"],
        own,
        ..figure("contended", "lock_exclusive", ranks, FAIR_STRETCH)
    }
}

const fn lu(sync: &'static str, ratio: Option<f64>) -> Comparison {
    Comparison { ratio, also: &[KERNEL], ..figure("lu", sync, 2, "factor_ms") }
}

const fn lu_outside(sync: &'static str, ratio: Option<f64>) -> Comparison {
    Comparison { ratio, also: &["waiting_ms", KERNEL], ..figure("lu_outside", sync, 2, "outside_kernel_ms") }
}

const fn pipeline(sync: &'static str, ratio: f64) -> Comparison {
    Comparison { more_is_better: true, ratio: Some(ratio), ..figure("pipeline", sync, 2, "MFLOP/s") }
}

pub const COMPARISONS: &[Comparison] = &[
    latency("put", "flush", 8, 5.0),
    by_stores(latency("put", "flush", 8, 1.0)),
    latency("fetch_and_op", "flush", 8, 5.0),
    by_stores(latency("fetch_and_op", "flush", 8, 1.0)),
    latency("compare_and_swap", "flush", 8, 5.0),
    Comparison { figure: "million/s", ratio: Some(3.0), ..bandwidth("put_bw", 8) },
    by_stores(Comparison { figure: "million/s", ..bandwidth("put_bw", 8) }),
    latency("lock", "lock", 8, 3.0),
    latency("lock", "lock_exclusive", 8, 3.0),
    latency("put", "lock_all", 8, 2.0),
    latency("put", "fence", 8, 2.0),
    latency("put", "pscw", 8, 2.0),
    latency("accumulate", "flush", 8, 4.0),
    Comparison { element: "f64", ratio: None, ..latency("accumulate", "flush", 8, 1.0) },
    latency("get_accumulate", "flush", 8, 10.0),
    latency("get_accumulate", "flush", 64 << 10, 4.0),
    Comparison { ratio: None, ..latency("get_accumulate", "lock_exclusive", 64 << 10, 1.0) },
    bandwidth("put_bw", 4 << 10),
    bandwidth("put_bw", 64 << 10),
    bandwidth("put_bw", 1 << 20),
    bandwidth("put_bw", 4 << 20),
    by_stores(bandwidth("put_bw", 64 << 10)),
    bandwidth("get_bw", 4 << 10),
    bandwidth("get_bw", 64 << 10),
    bandwidth("get_bw", 1 << 20),
    bandwidth("get_bw", 4 << 20),
    contended(2),
    contended(3),
    contended(4),
    contended(8),
    Comparison {
        more_is_better: true,
        also: &["longest_write_wait_us"],
        own: &[Own { figure: "writes/1000", bound: Bound::AtLeast(990.0) }],
        ..figure("readers_writer", "lock", 3, "writes/1000")
    },
    BARRIER,
    oversubscribed(4, BARRIER),
    oversubscribed(8, BARRIER),
    collective("broadcast", 8, 1.67),
    collective("broadcast", 64 << 10, 1.43),
    collective("broadcast", 1 << 20, 1.43),
    untargeted(collective("reduce", 8, 1.0)),
    untargeted(collective("reduce", 64 << 10, 1.0)),
    untargeted(collective("reduce", 1 << 20, 1.0)),
    SHORT_ALL_REDUCE,
    collective("all_reduce", 64 << 10, 1.43),
    collective("all_reduce", 1 << 20, 1.43),
    oversubscribed(4, SHORT_ALL_REDUCE),
    oversubscribed(8, SHORT_ALL_REDUCE),
    untargeted(collective("scan", 8, 1.0)),
    untargeted(collective("scan", 64 << 10, 1.0)),
    untargeted(collective("all_gather", 8, 1.0)),
    untargeted(collective("all_gather", 64 << 10, 1.0)),
    collective("all_to_all", 64 << 10, 1.43),
    collective("all_to_all", 1 << 20, 1.43),
    latency("pingpong", "messages", 8, 1.67),
    latency("pingpong", "messages", 4 << 10, 1.25),
    latency("pingpong", "messages", 64 << 10, 1.0),
    untargeted(latency("pingpong", "gaps", 8, 1.0)),
    messages("stream", 8, 2.0),
    messages("stream", 64 << 10, 1.15),
    messages("stream", 4 << 20, 1.15),
    buffers("stream", 64 << 10),
    buffers("stream", 4 << 20),
    messages("bidirectional", 64 << 10, 1.15),
    messages("message_rate", 8, 2.0),
    messages("message_rate", 4 << 10, 2.0),
    overhead(8),
    overhead(4 << 10),
    Comparison { bytes: 64 << 10, ..OVERLAP_MESSAGES },
    Comparison { bytes: 1 << 20, ..OVERLAP_MESSAGES },
    OVERLAP_COLLECTIVES,
    Comparison {
        also: &["hidden"],
        own: &[Own { figure: "get_us", bound: Bound::AtMost(1.0) }],
        ..figure("overlap", "lock", 2, "get_us")
    },
    Comparison { more_is_better: true, alike: true, ..figure("kernel", "none", 1, KERNEL) },
    Comparison { own: &[Own { figure: "process_ms", bound: Bound::AtMost(81.0) }], ..lu("lock", Some(1.1)) },
    lu("flush", None),
    lu("shared", Some(1.1)),
    lu_outside("lock", Some(2.0)),
    lu_outside("flush", None),
    lu_outside("shared", None),
    pipeline("one_sided", 2.0),
    by_stores(pipeline("one_sided", 1.0)),
    pipeline("two_sided", 1.0),
    Comparison { ratio: Some(5.0), also: &["memory_mib"], ..figure("startup", "none", 2, "process_ms") },
];

/// A comparison between hosts, with a bound on the multiple of a plain TCP stream.
const fn over_tcp(own: &'static [Own], of: Comparison) -> Comparison {
    Comparison { hosts: 2, own, ..of }
}

/// At most these multiples of a plain TCP stream.
const ANSWERED: &[Own] = &[Own { figure: ASLEEP, bound: Bound::AtMost(1.3) }];
const LOCKED: &[Own] = &[Own { figure: ASLEEP, bound: Bound::AtMost(3.3) }];
const LONG: &[Own] = &[Own { figure: ASLEEP, bound: Bound::AtMost(1.18) }];
const SENT: &[Own] = &[Own { figure: TCP, bound: Bound::AtMost(1.2) }];

/// Comparisons between host names of this machine, over TCP.
pub const BETWEEN_HOSTS: &[Comparison] = &[
    over_tcp(ANSWERED, latency("put", "flush", 8, 0.67)),
    over_tcp(ANSWERED, latency("get", "flush", 8, 1.0)),
    over_tcp(ANSWERED, latency("fetch_and_op", "flush", 8, 1.0)),
    over_tcp(ANSWERED, latency("compare_and_swap", "flush", 8, 1.0)),
    over_tcp(LOCKED, untargeted(latency("lock", "lock_exclusive", 8, 1.0))),
    over_tcp(LOCKED, untargeted(latency("lock", "lock", 8, 1.0))),
    over_tcp(&[], Comparison { figure: "million/s", ..bandwidth("put_bw", 8) }),
    over_tcp(LONG, latency("put", "flush", 1 << 20, 1.0)),
    over_tcp(LONG, latency("get", "flush", 1 << 20, 1.0)),
    over_tcp(&[], untargeted(latency("put", "fence", 8, 1.0))),
    over_tcp(SENT, latency("pingpong", "messages", 8, 1.0)),
    over_tcp(SENT, latency("pingpong", "messages", 4 << 10, 1.0)),
    over_tcp(SENT, latency("pingpong", "messages", 64 << 10, 1.0)),
    over_tcp(SENT, latency("pingpong", "messages", 1 << 20, 1.0)),
    over_tcp(&[], messages("stream", 8, 1.0)),
    over_tcp(&[], messages("stream", 64 << 10, 1.0)),
    over_tcp(&[], untargeted(latency("barrier", "barrier", 8, 1.0))),
    over_tcp(&[], untargeted(collective("all_reduce", 8, 1.0))),
    over_tcp(&[], untargeted(collective("all_reduce", 1 << 20, 1.0))),
    over_tcp(&[], Comparison { also: &["hidden"], ratio: None, ..figure("overlap", "lock", 2, "get_us") }),
];

/// The rows of the compared LU's matrix and of its blocks; then those of the pipeline's grid.
const LU: (usize, usize) = (1024, 16);
const GRID: usize = 1000;

impl Comparison {
    pub fn task(&self, millis: u64) -> Task {
        let patience = catalog::find(self.measurement).map_or(1, |measurement| measurement.patience);
        Task {
            measurement: self.measurement,
            sync: self.sync,
            config: String::new(),
            by_itself: false,
            bytes: self.bytes,
            element: self.element,
            ranks: self.ranks,
            hosts: self.hosts.min(self.ranks),
            millis: millis * patience,
            cores: cores::choice(),
            n: LU.0,
            block: LU.1,
            grid: GRID,
        }
    }

    /// This comparison with other numbers of ranks and bytes. Targets apply only to the original numbers. A comparison
    /// of kernels does not vary, because it has one rank.
    pub fn varied(self, ranks: usize, bytes: usize) -> Comparison {
        match (ranks, bytes) == (self.ranks, self.bytes) || self.alike {
            true => self,
            false => Comparison { ranks, bytes, ratio: None, own: &[], ..self },
        }
    }

    /// True if both compare the same task.
    pub fn is_of(&self, other: &Comparison) -> bool {
        let of = |of: &Comparison| (of.measurement, of.sync, of.theirs, of.bytes, of.element, of.ranks, of.hosts);
        of(self) == of(other)
    }

    /// True if the comparison is meaningless when the two LU kernels differ.
    pub fn builds_on_the_kernel(&self) -> bool {
        matches!(self.measurement, "lu" | "lu_outside")
    }

    /// The peer's task.
    pub fn their_task(&self, millis: u64) -> Task {
        Task { sync: self.theirs, ..self.task(millis) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::alone::{by_itself, show};
    use super::super::figures::Done;
    use super::super::job::Run;
    use super::super::limits::Bare;
    use super::super::mode::Mode;
    use super::super::protocol::Report;
    use super::*;

    #[test]
    fn comparisons_name_known_measurements() {
        for comparison in COMPARISONS.iter().chain(BETWEEN_HOSTS) {
            let measurement = catalog::find(comparison.measurement).expect(comparison.measurement);
            assert!(measurement.syncs.contains(&comparison.sync), "{} {}", comparison.measurement, comparison.sync);
            assert!(comparison.ranks >= measurement.least, "{}", comparison.measurement);
        }
    }

    /// Both sides also have the synchronizations that MPI users would choose.
    #[test]
    fn lu_comparisons_come_after_their_kernel() {
        let position = |measurement, sync| {
            let is = |comparison: &Comparison| {
                (comparison.measurement, comparison.sync, comparison.theirs) == (measurement, sync, sync)
            };
            COMPARISONS.iter().position(is).unwrap_or_else(|| panic!("no comparison of {measurement} by {sync}"))
        };
        for sync in ["lock", "flush", "shared"] {
            for measurement in ["lu", "lu_outside"] {
                assert!(position(measurement, sync) > position("kernel", "none"));
                assert!(COMPARISONS[position(measurement, sync)].builds_on_the_kernel());
            }
        }
    }

    /// The crossing is measured beside each job.
    #[test]
    fn short_collectives_have_bounds_by_crossing() {
        let run = Run {
            report: Report { crossing: Some([24.0, 26.0]), slowdown: Some([1.0; 2]), ..Report::default() },
            wall: std::time::Duration::ZERO,
            bare: Bare { atomic: 5.0, copy: 1.0, ..Bare::default() },
        };
        let job = Done { mode: Mode::of(&run.report), run, figures: vec![("ns".into(), 40.0)] };
        let (alone, _) = by_itself(&BARRIER, 1, &[job]);
        let shown: Vec<_> =
            show(&alone).lines().skip(2).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            shown,
            [
                "barrier barrier 2 near ns 40.0 - at most 36 MISSED",
                "barrier barrier 2 near of a crossing 1.60 - at most 0.5 MISSED"
            ]
        );
        let crowd: Vec<_> = COMPARISONS
            .iter()
            .filter(|row| row.ranks > 2 && row.ratio == Some(5.0))
            .map(|row| (row.measurement, row.bytes, row.ranks))
            .collect();
        assert_eq!(crowd, [("barrier", 8, 4), ("barrier", 8, 8), ("all_reduce", 8, 4), ("all_reduce", 8, 8)]);
    }

    #[test]
    fn varied_comparison_has_no_target() {
        let [four, sixteen] = [4, 16].map(|ranks| contended(4).varied(ranks, 8));
        assert!(four.ratio == Some(1.0) && four.own.len() == 1 && four.ranks == 4);
        assert!(sixteen.ratio.is_none() && sixteen.own.is_empty() && sixteen.ranks == 16);
        assert!(!four.is_of(&sixteen) && contended(16).is_of(&sixteen));
        let longer = latency("broadcast", "collective", 8, 1.67).varied(2, 4096);
        assert!(longer.ratio.is_none() && longer.bytes == 4096);
    }

    #[test]
    fn bounds_include_their_limit() {
        assert!(Bound::AtMost(1.02).holds(1.02) && !Bound::AtMost(1.02).holds(1.03));
        assert!(Bound::AtLeast(990.0).holds(990.0) && !Bound::AtLeast(990.0).holds(989.0));
    }
}
