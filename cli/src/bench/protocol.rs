//! What a worker is told and what it answers. A worker is a job of ranks that measures one thing once: ours is
//! `transom bench-worker`, a peer's is the C twin under its mpirun. Both understand the same arguments and print the
//! same lines, so that all statistics are made once, here.
//!
//! ```text
//! WORKER MEASUREMENT --sync SYNC --bytes N --ranks N --millis M --cores LIST [--n N] [--block N] [--grid N] [--type T]
//! ```
//!
//! Rank 0 prints on stdout, at the end, one fact a line; empty lines are allowed, anything else is an error:
//!
//! | line | |
//! |---|---|
//! | `crossing NS` | one way of a cache line between the cores of ranks 0 and 1; once before, once after the measurement; not at 1 rank, nor for startup, nor where the two share no memory |
//! | `slowdown X` | how many times as long a loop of additions takes on the core of rank 0 while that of rank 1 runs it too: 1 on cores of their own, up to 2 on two hardware threads of one; with each `crossing` |
//! | `sample NS` | nanoseconds per operation of one batch; a batch takes at least 1 us and M/10,000 ms, or is one operation |
//! | `value NAME NUMBER` | a named figure |
//! | `check ok`, `check bad WHY` | what was moved was verified; exactly once; WHY begins with `unsupported` if the library crashed in the operation |
//!
//! Operations go from rank 0 to rank 1 (to itself at 1 rank), on 8-byte integers (sums on doubles with
//! `--type f64`), and a batch of those that both ranks
//! take part in (fence, pscw, barrier) has its length from rank 0 before its time begins.
//!
//! | measurement | sync | an operation; values |
//! |---|---|---|
//! | `put` `get` `accumulate` `get_accumulate` (Sum) `fetch_and_op` (Sum) `compare_and_swap` | `lock` `lock_exclusive` `lock_all` | lock (shared, exclusive, all), the call, unlock |
//! | | `flush` `flush_local` | the call and the flush, all in one lock_all epoch |
//! | | `fence` | the call, then a fence; ranks 0 and 1 call in turn, as in OSU |
//! | | `pscw` | start, the call, complete by one rank, post and wait by the other; in turn, as in OSU |
//! | `put_bw` `get_bw` | `flush` | one of 64 calls that a flush follows |
//! | `lock` | `lock` `lock_exclusive` | lock, put of 8 bytes, unlock of a free lock |
//! | `contended` | `lock_exclusive` | all ranks, for M ms: lock rank 0, get an i64, flush, put it back plus 1, unlock. `seconds`; for each rank `acquired.R`; `longest_wait` (ns, the longest from one unlock of a rank to its next). No samples |
//! | `readers_writer` | `lock` | all ranks but rank 1 lock rank 0 shared, get 8 bytes and unlock without pause, rank 1 wants the lock exclusively once a ms: lock, get, flush, put, unlock. `seconds`, `wanted`, `writes`, `reads.R` (not of rank 1), `longest_write_wait` (ns, from the wish until the flush has returned: MPI_Win_lock may return before the lock is had). At least 3 ranks. No samples |
//! | `barrier` | `barrier` | a barrier of all ranks |
//! | `broadcast` `reduce` (both of rank 0) `all_reduce` `scan` `all_gather` `all_to_all` | `collective` | a call of all ranks, on doubles (sums), in place but for the last two, whose blocks have N bytes |
//! | `pingpong` | `messages` | a message, one way: half of a round trip |
//! | `pingpong`, `stream`, `bidirectional` | `buffers` | the same from and to memory of `World::buffer`; ours only |
//! | `pingpong` | `gaps` | a message, one way, before which its sender computes for a random time; see below |
//! | `stream` | `messages` | one of 64 blocking sends that an answer follows |
//! | `bidirectional` | `messages` | a message each way, by sendrecv |
//! | `message_rate` | `messages` | one of 64 messages (of more than 64 KiB, as many as 4 MiB have) under way from each rank of the lower half to the one so much higher, that an answer follows; the time of one pair, by the number of pairs |
//! | `polling_set` | `messages` | one of 64 messages from each rank but 0, which receives from any source and then answers each; the time of all, by their number; ours only |
//! | `overhead` | `messages` | rank 0 sends N bytes, calls nothing for twice a round trip, and receives the answer: `send`, `recv` (ns in these calls, without the clock's; medians), `one_way` (ns, half of a round trip) |
//! | `overlap_messages` | `messages` | see below |
//! | `overlap_collectives` | `collective` | the same of an all_reduce of all ranks by a request, the largest of doubles in place |
//! | `registration` | `messages` | half of a round trip between buffers that were written to and in no message yet, and again between these: `first`, `again` (ns, medians); ours only |
//! | `poll_cost` | `messages` | a message of 8 bytes one way between ranks 0 and 1, received from any source; the others have sent 64 to both before, and sleep. `turn` (ns of a turn at rank 0 that finds nothing); ours only |
//! | `pipe` | `messages` | N bytes one way by a pipe; `stream` (ns of one of 64 in a row), `writes` (that rank 0 posts for a message one way, and what it tells the other of its own); ours only |
//! | `kernel` | `none` | LU's block operation, c -= a b of `--block` rows, by rank 0, on blocks at the beginnings of pages: `kernel` (GFLOP/s, the median of 25 batches of 4 MFLOP); for information `peak` (at most) |
//! | `lu` | `lock` | one factorisation; `seconds`, `kernel`; for information `peak`. Blocks of others by shared lock, get, unlock |
//! | | `flush` | the same by gets in one lock_all epoch, each complete before its block is used; barriers instead of fences |
//! | | `shared` | the same where blocks of others are read in place, in memory that ranks share |
//! | | `two_sided` | the same where an owner grants locks only between its block operations; ours only |
//! | `lu_outside` | as `lu` | as `lu`, with a clock around all that is no block operation: `seconds`, `outside_kernel` and, of that, `waiting` at barriers (seconds, mean of the ranks) |
//! | `overlap` | `lock` | see below |
//! | `pipeline` | `one_sided` | PRK Synch_p2p over `--grid` x `--grid`: `mflops` (PRK's: 2 (n-1)^2 a sweep); for information `limit` (as many if ranks waited for nobody). Ours is put_signal, MPI's put, flush and a flag |
//! | | `two_sided` | the same by send and recv |
//! | `startup` | `none` | start and end; `rss` (bytes, VmRSS of rank 0 once the library is up) |
//!
//! `overlap`: rank 1 computes 20 ms at a time and calls nothing. An operation is lock (shared), get of N bytes, unlock, by
//! rank 0. For 0.4 M ms: both begin together; rank 0 sleeps for 1 ms, clears its buffer, does one operation, which is a sample,
//! and checks what it got, until 1 ms before the end. Then rank 0 counts the operations that take half of the compute time
//! while rank 1 is in the library, and medians of the time until both are done are taken of 3 times or more: `compute`,
//! `communication` (so many operations), `both` (at once, for 0.4 M ms), in seconds.
//!
//! `pingpong` by `gaps`: without them the two may fall into a step in which each message comes at the same moment of the other's
//! wait. Before each send a rank computes in turns of a loop, as many as take up to 400 ns, any number as often as any other,
//! from a seed of its own. Of 32 round trips the time is taken by rank 0; then rank 0 computes as long as before its 32 sends,
//! while rank 1 waits for a message, and rank 1 as long as before its own, while rank 0 waits. Each takes the time of its own by
//! the machine's clock, both are taken off, and the rest is of 64 messages. The median of 11 such, or more, is a sample; if one
//! is not above 0, the result is wrong.
//!
//! `overlap_messages`: ranks 0 and 1 each start a receive and a send of N bytes, compute, and wait for both. For M/3 ms each, in
//! batches: without computing, `communication`; with as long a computation as that took, but no messages, `compute`; with
//! both, `both`: seconds, medians.
//!
//! What both must do alike: with no more ranks than there are cores in `--cores`, rank R is bound to the R-th of them, and says
//! so by `value cpu.R` (not for startup); else the system places them, but for the crossing, for which ranks 0 and 1 are on the
//! first two. Windows are zeroed by the ranks whose memory they are, before anything else touches them. Buffers begin at
//! a page. Puts in
//! a row go to the same place. `fetch_and_op` and `compare_and_swap` take 8 bytes whatever N is. The matrix of
//! `lu` is of the element in `worker/lu/grid.rs`, its blocks are dealt row-cyclically and column-cyclically to a grid of
//! ranks as square as can be (rows <= columns), the kernel is that of `examples/lu/block.rs`, which has copies for blocks of 16
//! and 32 rows, compiled for the vectors that the processor has, and the check is
//! |LUx - Ax| <= 10 n eps max|A| |x|, by rank 0.

use super::catalog::{self, Measurement};
use serde::Serialize;
use std::collections::BTreeMap;

/// What a worker is to measure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Task {
    pub measurement: &'static str,
    pub sync: &'static str,
    /// What TRANSOM_MESSAGES is for it, if anything is said of that. Ours only.
    pub config: String,
    /// Without the TRANSOM_MESSAGES that the user set, where there is no configuration. Ours only.
    #[serde(skip)]
    pub by_itself: bool,
    pub bytes: usize,
    /// Of accumulate and get_accumulate: `i64`, `f64`.
    #[serde(rename = "type")]
    pub element: &'static str,
    pub ranks: usize,
    pub millis: u64,
    /// Which cores ranks may take, in their order.
    pub cores: Vec<usize>,
    pub n: usize,
    pub block: usize,
    pub grid: usize,
}

impl Task {
    /// What a worker is told to measure.
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

/// What a worker answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Before and after; none if it was not to be measured.
    pub crossing: Option<[f64; 2]>,
    pub slowdown: Option<[f64; 2]>,
    pub samples: Vec<f64>,
    pub values: BTreeMap<String, f64>,
}

/// Why an answer cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    #[error(
        "line {line} of its output, {text:?}, is not `crossing NS`, `slowdown X`, `sample NS`, `value NAME NUMBER` or `check ok`"
    )]
    Line { line: usize, text: String },
    #[error("line {line} of its output, {text:?}: a number is expected, from 0 on")]
    Number { line: usize, text: String },
    #[error("its output says `{0}` twice")]
    Twice(String),
    #[error("its output does not say whether the result was right (`check ok`)")]
    Unchecked,
    #[error("what it moved was wrong: {0}")]
    Wrong(String),
    #[error("it cannot do it: {0}")]
    Unsupported(String),
    #[error("its output says `{0}` {1} times instead of twice, before and after, as often as the others of its kind")]
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

/// What others wrote, of a length to be shown.
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
    fn a_report_is_read() {
        let report: Report =
            "crossing 24.5\nslowdown 1\nsample 1\n\nsample 2.5e0\nvalue acquired.1 7\ncrossing 190\nslowdown 1.5\ncheck ok\n"
                .parse()
                .unwrap();
        assert_eq!((report.crossing, report.slowdown), (Some([24.5, 190.0]), Some([1.0, 1.5])));
        assert_eq!(report.samples, [1.0, 2.5]);
        assert_eq!(report.values["acquired.1"], 7.0);
    }

    #[test]
    fn what_is_no_report_is_named() {
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
