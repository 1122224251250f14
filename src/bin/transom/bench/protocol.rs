//! What a worker is told and what it answers. A worker is a job of ranks that measures one thing once: ours is
//! `transom bench-worker`, a peer's is the C twin under its mpirun. Both understand the same arguments and print the
//! same lines, so that all statistics are made once, here.
//!
//! ```text
//! WORKER MEASUREMENT --sync SYNC --bytes N --ranks N --millis M [--n N] [--block N] [--grid N] [--type T]
//! ```
//!
//! Rank 0 prints on stdout, at the end, one fact a line; empty lines are allowed, anything else is an error:
//!
//! | line | |
//! |---|---|
//! | `crossing NS` | one way of a cache line between the cores of ranks 0 and 1; once before, once after the measurement; not at 1 rank, nor for startup, nor where the two share no memory |
//! | `sample NS` | nanoseconds per operation of one batch; a batch takes at least 1 us and M/10,000 ms, or is one operation |
//! | `value NAME NUMBER` | a named figure |
//! | `check ok`, `check bad WHY` | what was moved was verified; exactly once; WHY begins with `unsupported` if the library crashed in the operation |
//!
//! Operations go from rank 0 to rank 1 (to itself at 1 rank), on 8-byte integers (sums on doubles with
//! `--type f64`), and a batch of those that both ranks
//! take part in (fence, pscw, barrier) has its length from rank 0 before its time begins. Accumulates of 4 KiB and more are in
//! a window of ours with `bulk_accumulates`; MPI libraries lock for each call anyway.
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
//! | `readers_writer` | `lock` | all ranks but rank 1 lock rank 0 shared, get 8 bytes and unlock without pause, rank 1 wants the lock exclusively once a ms, to put. `seconds`, `wanted`, `writes`, `reads.R` (not of rank 1), `longest_write_wait` (ns, from the wish to the lock). At least 3 ranks. No samples |
//! | `barrier` | `barrier` | a barrier of all ranks |
//! | `lu` | `lock` | one factorisation; `seconds`; for information `kernel` and `peak` (GFLOP/s of a core, in the kernel alone and at most). Blocks of others by shared lock, get, unlock |
//! | | `shared` | the same where blocks of others are read in place, in memory that ranks share |
//! | | `two_sided` | the same where an owner grants locks only between its block operations |
//! | `lu_outside` | as `lu` | as `lu`, with a clock around all that is no block operation: `seconds`, `outside_kernel` and, of that, `waiting` at barriers (seconds, mean of the ranks) |
//! | `overlap` | `lock` | rank 1 computes 20 ms at a time and calls nothing. sample: one lock (shared), get of N bytes, unlock by rank 0, begun 1 ms after rank 1 began to compute. `compute`, `communication` (seconds of each alone; operations are as many as take half of the compute time while rank 1 is in the library), `both` (both begun together) |
//! | `pipeline` | `one_sided` | PRK Synch_p2p over `--grid` x `--grid`: `mflops` (PRK's: 2 (n-1)^2 a sweep); for information `limit` (as many if ranks waited for nobody). Ours is put_signal, MPI's put, flush and a flag |
//! | | `two_sided` | the same by MPI_Send and MPI_Recv; twins only |
//! | `startup` | `none` | start and end; `rss` (bytes, VmRSS of rank 0 once the library is up) |
//!
//! What both must do alike: ranks are bound to one core each where there are enough cores (mpirun does it for twins),
//! and left to the system otherwise, but for the crossing, for which ranks 0 and 1 are on the first two cores. Puts in
//! a row go to the same place. `fetch_and_op` and `compare_and_swap` take 8 bytes whatever N is. The matrix of
//! `lu` is of the element in `worker/lu.rs`, its blocks are dealt row-cyclically and column-cyclically to a grid of
//! ranks as square as can be (rows <= columns), the kernel is that of `examples/lu/block.rs`, and the check is
//! |LUx - Ax| <= 10 n eps max|A| |x|, by rank 0.

use serde::Serialize;
use std::collections::BTreeMap;

/// Bytes from which on accumulates are long.
pub const LONG: usize = 4 << 10;

/// What a worker is to measure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Task {
    pub measurement: &'static str,
    pub sync: &'static str,
    pub bytes: usize,
    /// Of accumulate and get_accumulate: `i64`, `f64`.
    #[serde(rename = "type")]
    pub element: &'static str,
    pub ranks: usize,
    pub millis: u64,
    pub n: usize,
    pub block: usize,
    pub grid: usize,
}

impl Task {
    /// The worker's arguments.
    pub fn args(&self) -> Vec<String> {
        let mut args = vec![self.measurement.to_owned()];
        let mut add = |name: &str, value: String| args.extend([format!("--{name}"), value]);
        add("sync", self.sync.to_owned());
        add("bytes", self.bytes.to_string());
        add("ranks", self.ranks.to_string());
        add("millis", self.millis.to_string());
        match self.measurement {
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
    pub crossing: Vec<f64>,
    pub samples: Vec<f64>,
    pub values: BTreeMap<String, f64>,
}

/// Why an answer cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    #[error(
        "line {line} of its output, {text:?}, is not `crossing NS`, `sample NS`, `value NAME NUMBER` or `check ok`"
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
    #[error("its output has {0} crossings of a cache line instead of 2, before and after")]
    Crossings(usize),
}

impl std::str::FromStr for Report {
    type Err = ReportError;

    fn from_str(text: &str) -> Result<Self, ReportError> {
        let mut report = Report::default();
        let mut checked = false;
        for (line, text) in (1..).zip(text.lines().map(str::trim)).filter(|(_, text)| !text.is_empty()) {
            let words: Vec<_> = text.split_whitespace().collect();
            let number = |word: &str| match word.parse() {
                Ok(number) if (0.0..f64::INFINITY).contains(&number) => Ok(number),
                _ => Err(ReportError::Number { line, text: shortened(text) }),
            };
            match words[..] {
                ["crossing", ns] => report.crossing.push(number(ns)?),
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
        match report.crossing.len() {
            _ if !checked => Err(ReportError::Unchecked),
            0 | 2 => Ok(report),
            other => Err(ReportError::Crossings(other)),
        }
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
            "crossing 24.5\nsample 1\n\nsample 2.5e0\nvalue acquired.1 7\ncrossing 190\ncheck ok\n".parse().unwrap();
        assert_eq!(report.crossing, [24.5, 190.0]);
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
        assert_eq!(refused("check ok\ncrossing 1"), ReportError::Crossings(1));
        assert!(refused(&"x".repeat(10_000)).to_string().len() < 300);
    }
}
