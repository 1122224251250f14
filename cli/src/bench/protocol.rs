//! The protocol of workers. A worker is a job of ranks that measures one thing once. Ours is `transom bench-worker`; a
//! peer's is the C program in `mpi_reference`, started by its mpirun. Both take the same arguments and print the same
//! lines, so that all statistics are computed here.
//!
//! ```text
//! WORKER MEASUREMENT --sync SYNC --bytes N --ranks N --millis M --cores LIST [--n N] [--block N] [--grid N] [--hosts N] [--type T]
//! ```
//!
//! At the end rank 0 prints on stdout one fact per line. Empty lines are allowed, anything else is an error:
//!
//! | line | |
//! |---|---|
//! | `crossing NS` | one-way time of a cache line between the cores of ranks 0 and 1; once before and once after the measurement; absent with 1 rank, for startup and connections, and if the two share no memory |
//! | `slowdown X` | the time of a loop of additions on rank 0's core while rank 1's core executes it too, divided by the time alone: 1 on separate cores, up to 2 on two hardware threads of one; with each `crossing` |
//! | `sample NS` | nanoseconds per operation of one batch; a batch takes at least 1 us and M/10,000 ms, or is one operation |
//! | `value NAME NUMBER` | a named figure; ours, if ranks 0 and 1 share no memory, has `stream.one_way`, `stream.round_trip` and `stream.asleep`: ns over a plain TCP stream between the two, see `worker/stream.rs` |
//! | `check ok`, `check bad WHY` | whether the moved data were right; exactly once; WHY begins with `unsupported` if the library crashed in the operation |
//!
//! Operations go from rank 0 to rank 1 (to itself with 1 rank), on 8-byte integers (sums on doubles with `--type f64`).
//! For operations that both ranks take part in (fence, pscw, barrier), rank 0 announces the length of a batch before
//! its time begins.
//!
//! | measurement | sync | an operation; values |
//! |---|---|---|
//! | `put` `get` `accumulate` `get_accumulate` (Sum) `fetch_and_op` (Sum) `compare_and_swap` | `lock` `lock_exclusive` `lock_all` | lock (shared, exclusive, all), the call, unlock |
//! | | `flush` `flush_local` | the call and the flush, all in one lock_all epoch |
//! | | `fence` | the call, then a fence; ranks 0 and 1 alternate, as in OSU |
//! | | `pscw` | start, the call, complete by one rank, post and wait by the other; alternating, as in OSU |
//! | `get` | `two_sided` | a message to the target that asks for the lock, its answer, the get, a message that returns the lock; ours only |
//! | `put` `put_bw` `fetch_and_op` `pipeline` | `shared` | the same by loads, stores and atomics of the processor in MPI_Win_allocate_shared, with MPI_Win_sync in place of a flush; the peer's only |
//! | `eight_gets` | `lock` `lock_all` `two_sided` | 8 gets of N bytes, all to one buffer, in an epoch; ours only |
//! | `put_bw` `get_bw` | `flush` | one of 64 calls that are followed by a flush |
//! | `lock` | `lock` `lock_exclusive` | lock, put of 8 bytes, unlock of an uncontended lock |
//! | `contended` | `lock_exclusive` | all ranks, for M ms: lock rank 0, get an i64, flush, put it back plus 1, unlock. `seconds`; for each rank `acquired.R`; `longest_wait` (ns, the longest time from one unlock of a rank to its next). A sample for each fair stretch: nanoseconds per acquisition of 500 successive ones of which each rank had 0.7 to 1.4 times its share, among the first 8,192,000 |
//! | `readers_writer` | `lock` | all ranks but rank 1 lock rank 0 shared, get 8 bytes and unlock without pause; rank 1 requests the lock exclusively once per ms: lock, get, flush, put, unlock. `seconds`, `wanted`, `writes`, `reads.R` (not of rank 1), `longest_write_wait` (ns, from the request until the flush has returned: MPI_Win_lock may return before the lock is granted). At least 3 ranks. No samples |
//! | `barrier` | `barrier` | a barrier of all ranks |
//! | `broadcast` `reduce` (both with root 0) `all_reduce` `scan` `all_gather` `all_to_all` | `collective` | a call of all ranks, on doubles (sums), in place except for the last two, whose blocks have N bytes |
//! | `pingpong` | `messages` | a message, one way: half of a round trip |
//! | `pingpong`, `stream`, `bidirectional` | `buffers` | as by `messages`, from and to memory of `World::buffer`; ours only |
//! | `pingpong` | `gaps` | a message, one way, before which its sender computes for a random time; see below |
//! | `stream` | `messages` | one of 64 blocking sends that are followed by a reply |
//! | `bidirectional` | `messages` | a message in each direction, by sendrecv |
//! | `message_rate` | `messages` | one of 64 messages in flight (above 64 KiB as many as make 4 MiB) from each rank of the lower half to its partner in the upper half, followed by a reply; the time of one pair, divided by the number of pairs |
//! | `polling_set` | `messages` | one of 64 messages from each rank but 0, which receives from any source and then replies to each; the time of all, divided by their number; ours only |
//! | `overhead` | `messages` | rank 0 sends N bytes, makes no call for twice a round trip, and receives the reply: `send`, `recv` (ns in these calls, without the clock's; medians of the means of 50), `one_way` (ns, half of a round trip), `clock_step` (ns, the least step of the clock) |
//! | `overlap_messages` | `messages` | see below |
//! | `overlap_collectives` | `collective` | as `overlap_messages`, with an all_reduce of all ranks by a request, the maximum of doubles in place |
//! | `registration` | `messages` | half of a round trip between vectors that were written but not yet used by a message, and again between the same: `first`, `again` (ns, medians); between as many buffers of `World::buffer`, each taken for the message after all were used and dropped (`taken`, with half of the time in which rank 0 takes one), and again (`leased`); their number: `buffers`; ours only |
//! | `poll_cost` | `messages` | a message of 8 bytes one way between ranks 0 and 1, received from any source; the others have sent 64 to both before, and sleep. `turn` (ns of a progress turn at rank 0 that finds nothing); ours only |
//! | `pipe` | `messages` | N bytes one way by a pipe; `stream` (ns of one of 64 back to back), `writes` (that rank 0 posts for a message one way, including its notices to the peer); ours only |
//! | `kernel` | `none` | LU's block operation, c -= a b of `--block` rows, by rank 0, on page-aligned blocks: `kernel` (GFLOP/s, the median of 25 batches of 4 MFLOP); for information `peak` (an upper bound) |
//! | `lu` | `lock` | one factorization; `seconds`, `kernel`; for information `peak`. Remote blocks by shared lock, get, unlock |
//! | | `flush` | as by `lock`, with gets in one lock_all epoch, each complete before its block is used |
//! | | `shared` | as by `flush`, with remote blocks read in place, in memory that the ranks share |
//! | | `two_sided` | as by `lock`, where an owner grants locks only between its block operations; ours only |
//! | `lu_outside` | as `lu` | as `lu`, with a clock around everything but block operations: `seconds`, `outside_kernel` and, of that, `waiting` for other ranks (seconds, mean of the ranks) |
//! | `overlap` | `lock` `lock_all` `two_sided` | see below; ours only but by `lock` |
//! | `pipeline` | `one_sided` | PRK Synch_p2p over `--grid` x `--grid`: `mflops` (PRK's: 2 (n-1)^2 a sweep); for information `limit` (the rate without waiting). Ours is put_signal, MPI's put, flush and a flag |
//! | | `two_sided` | as by `one_sided`, with send and recv |
//! | `startup` | `none` | start and end; `rss` (bytes, VmRSS of rank 0 once the library is initialized) |
//! | `connections` | `messages` | after a barrier each rank exchanges an empty message with each other rank, one after the other, until all have: `seconds`. Then 99 more with each: `rss` (bytes, VmRSS of rank 0), `rss_growth` (since the barrier), `machine_growth` (bytes by which the machine's MemAvailable fell since then, by all ranks, the kernel, and other programs); ours only |
//!
//! `overlap`: rank 1 computes 20 ms at a time and makes no call. An operation of rank 0 is lock (shared, all), get of
//! N bytes, unlock. Both ranks begin together. For 0.4 M ms, until 1 ms before the end, rank 0 sleeps for 1 ms, clears
//! its buffer, does one operation, which is a sample, and checks the data. Then rank 0 counts the operations that take
//! half of the compute time while rank 1 is in the library. Finally it takes medians, over 3 repetitions or more, of
//! `compute`, `communication` (that many operations) and `both` (at once, for 0.4 M ms), in seconds until both ranks
//! are done. By `two_sided` rank 0 asks for the lock by a message, and returns it by another; rank 1 grants it, but not
//! while it computes.
//!
//! `pingpong` by `gaps`: without gaps the ranks may lock into a rhythm in which each message arrives at the same moment
//! of the other's wait. Before each send a rank therefore executes a random number of turns of a loop, uniform up to
//! those that take 400 ns, from its own seed. Rank 0 times 32 round trips. Then rank 0 computes for as long as before
//! its 32 sends while rank 1 waits for a message, and rank 1 likewise while rank 0 waits. Each times its own
//! computation by the machine's clock. Both times are subtracted; the rest is the time of 64 messages. A sample is the
//! median of 11 such rests, or more. If one is not above 0, the result is wrong.
//!
//! `overlap_messages`: ranks 0 and 1 each start a receive and a send of N bytes, compute, and wait for both. There are
//! three phases of M/3 ms in batches: without computing (`communication`); computing for as long as that took, without
//! messages (`compute`); with both (`both`). Values are medians in seconds.
//!
//! Both workers do the following alike. If there are at most as many ranks as cores in `--cores`, rank R is bound to
//! the R-th of them, and reports it by `value cpu.R` (not for startup and connections). Otherwise the system places the ranks; only for
//! the crossing, ranks 0 and 1 are bound to the first two. Each rank zeroes its part of a window before anything else
//! touches it. Buffers are page-aligned. Successive puts go to the same place. `fetch_and_op` and `compare_and_swap`
//! use 8 bytes for any N. The matrix of `lu` has the elements defined in `worker/lu/grid.rs`. Its blocks are
//! distributed row-cyclically and column-cyclically over a grid of ranks that is as square as possible (rows <=
//! columns). The kernel is that of `examples/lu/block.rs`, with variants for blocks of 16 and 32 rows, compiled for the
//! processor's vectors. Rank 0 checks
//! |LUx - Ax| <= 10 n eps max|A| |x|.

use super::catalog::{self, Measurement};
use serde::Serialize;
use std::collections::BTreeMap;

/// The task of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Task {
    pub measurement: &'static str,
    pub sync: &'static str,
    /// The value of TRANSOM_MESSAGES, if not empty. Ours only.
    pub config: String,
    /// If `config` is empty, the worker runs without the user's TRANSOM_MESSAGES. Ours only.
    #[serde(skip)]
    pub by_itself: bool,
    pub bytes: usize,
    /// The element type of accumulate and get_accumulate: `i64` or `f64`.
    #[serde(rename = "type")]
    pub element: &'static str,
    pub ranks: usize,
    /// Number of host names that the ranks have, all of this machine; messages between them go over TCP. At most 1: the
    /// ranks share memory.
    pub hosts: usize,
    pub millis: u64,
    /// The cores for ranks, in the order in which ranks take them.
    pub cores: Vec<usize>,
    pub n: usize,
    pub block: usize,
    pub grid: usize,
}

impl Task {
    /// The name of the measurement that the worker executes.
    pub fn worker(&self) -> &'static str {
        catalog::find(self.measurement).map_or(self.measurement, Measurement::worker)
    }

    /// The worker's arguments.
    pub fn args(&self) -> Vec<String> {
        let mut args = vec![self.worker().to_owned()];
        let mut add = |name: &str, value: String| args.extend([format!("--{name}"), value]);
        add("sync", self.sync.to_owned());
        add("bytes", self.bytes.to_string());
        add("ranks", self.ranks.to_string());
        add("millis", self.millis.to_string());
        let cores: Vec<_> = self.cores.iter().map(ToString::to_string).collect();
        add("cores", cores.join(","));
        if self.hosts > 1 {
            add("hosts", self.hosts.to_string());
        }
        match self.measurement {
            "kernel" => add("block", self.block.to_string()),
            "lu" | "lu_outside" => {
                add("n", self.n.to_string());
                add("block", self.block.to_string());
            }
            "accumulate" | "get_accumulate" => add("type", self.element.to_owned()),
            "pipeline" => add("grid", self.grid.to_string()),
            _ => {}
        }
        args
    }
}

/// A worker's report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Before and after the measurement; `None` if it was not measured.
    pub crossing: Option<[f64; 2]>,
    pub slowdown: Option<[f64; 2]>,
    pub samples: Vec<f64>,
    pub values: BTreeMap<String, f64>,
}

/// Why a report is unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    #[error(
        "line {line} of its output, {text:?}, is not `crossing NS`, `slowdown X`, `sample NS`, `value NAME NUMBER` or `check ok`"
    )]
    Line { line: usize, text: String },
    #[error("line {line} of its output, {text:?}: expected a number of at least 0")]
    Number { line: usize, text: String },
    #[error("its output says `{0}` twice")]
    Twice(String),
    #[error("its output does not say whether the result was right (`check ok`)")]
    Unchecked,
    #[error("it moved wrong data: {0}")]
    Wrong(String),
    #[error("it does not support this: {0}")]
    Unsupported(String),
    #[error("its output says `{0}` {1} times; expected it twice, once before and once after")]
    Pair(&'static str, usize),
}

impl std::str::FromStr for Report {
    type Err = ReportError;

    fn from_str(text: &str) -> Result<Self, ReportError> {
        let mut report = Report::default();
        let (mut crossing, mut slowdown) = (Vec::new(), Vec::new());
        let mut checked = false;
        for (line, text) in (1..).zip(text.lines().map(str::trim)).filter(|(_, text)| !text.is_empty()) {
            let words: Vec<_> = text.split_whitespace().collect();
            let number = |word: &str| match word.parse() {
                Ok(number) if (0.0..f64::INFINITY).contains(&number) => Ok(number),
                _ => Err(ReportError::Number { line, text: shortened(text) }),
            };
            match words[..] {
                ["crossing", ns] => crossing.push(number(ns)?),
                ["slowdown", times] => slowdown.push(number(times)?),
                ["sample", ns] => report.samples.push(number(ns)?),
                ["value", name, value] => {
                    if report.values.insert(name.to_owned(), number(value)?).is_some() {
                        return Err(ReportError::Twice(shortened(&format!("value {name}"))));
                    }
                }
                ["check", "ok"] if checked => return Err(ReportError::Twice("check".to_owned())),
                ["check", "ok"] => checked = true,
                ["check", "bad", "unsupported" | "unsupported:", ..] => {
                    return Err(ReportError::Unsupported(shortened(&words[2..].join(" "))));
                }
                ["check", "bad", ..] => return Err(ReportError::Wrong(shortened(&words[2..].join(" ")))),
                _ => return Err(ReportError::Line { line, text: shortened(text) }),
            }
        }
        if !checked {
            return Err(ReportError::Unchecked);
        }
        let pair = |name, values: &[f64]| match (values, crossing.len() + slowdown.len()) {
            (&[before, after], _) => Ok(Some([before, after])),
            ([], 0) => Ok(None),
            _ => Err(ReportError::Pair(name, values.len())),
        };
        report.crossing = pair("crossing", &crossing)?;
        report.slowdown = pair("slowdown", &slowdown)?;
        Ok(report)
    }
}

/// Truncates foreign text for a message.
fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(100).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_is_parsed() {
        let report: Report =
            "crossing 24.5\nslowdown 1\nsample 1\n\nsample 2.5e0\nvalue acquired.1 7\ncrossing 190\nslowdown 1.5\ncheck ok\n"
                .parse()
                .unwrap();
        assert_eq!((report.crossing, report.slowdown), (Some([24.5, 190.0]), Some([1.0, 1.5])));
        assert_eq!(report.samples, [1.0, 2.5]);
        assert_eq!(report.values["acquired.1"], 7.0);
    }

    #[test]
    fn malformed_report_names_its_fault() {
        let refused = |text: &str| text.parse::<Report>().unwrap_err();
        assert_eq!(refused("smaple 3\n"), ReportError::Line { line: 1, text: "smaple 3".into() });
        assert!(matches!(refused("check ok\nsample"), ReportError::Line { line: 2, .. }));
        for number in ["x", "-1", "NaN", "inf", ""] {
            let text = format!("value a {number}");
            assert!(matches!(refused(&text), ReportError::Number { .. } | ReportError::Line { .. }), "{text}");
        }
        assert_eq!(refused("value a 1\nvalue a 2"), ReportError::Twice("value a".into()));
        assert_eq!(refused("check ok\ncheck ok"), ReportError::Twice("check".into()));
        assert_eq!(refused("sample 1"), ReportError::Unchecked);
        assert_eq!(refused("check bad byte 3"), ReportError::Wrong("byte 3".into()));
        let crashed = "unsupported: the MPI library crashed";
        assert_eq!(refused(&format!("check bad {crashed}")), ReportError::Unsupported(crashed.into()));
        assert_eq!(refused("check ok\ncrossing 1"), ReportError::Pair("crossing", 1));
        assert_eq!(refused("check ok\ncrossing 1\ncrossing 1"), ReportError::Pair("slowdown", 0));
        assert_eq!(refused("check ok\nslowdown 1\nslowdown 1\nslowdown 1"), ReportError::Pair("crossing", 0));
        assert!(refused(&"x".repeat(10_000)).to_string().len() < 300);
    }
}
