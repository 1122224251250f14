//! Choice between the two paths of long calls: through cells (two copies by processors), or directly from the sender's
//! buffer (one copy, often by the kernel). The faster path depends on the machine, the call, its length, and the number
//! of concurrent readers: two copies may take a fifth of the time of one, or twice as much. The first calls of each
//! kind and length therefore measure both, and all ranks agree on a path by the times of all. Later calls measure
//! again.

use super::board::ShmCollective;
use super::broken::Failure;
use crate::reach::Reach;
use std::time::Instant;

/// Bytes of a block from which a direct read by the kernel may be faster than two copies through cells.
const MIN_BYTES: usize = 32 << 10;

/// Calls per row, which are measured together: after a broadcast through cells the root returns before its readers, and
/// waits in a later one.
const ROW: u32 = 4;
/// Rows of a trial: first `COPIES` rows through cells, then `READS` rows of direct reads. There are several, so that
/// one disturbed row decides nothing. Rows of the two paths do not alternate, since each leaves caches in a state that
/// slows the other.
const READS: u32 = 2;
const COPIES: u32 = 2;
/// Calls of the first trial, and of each later one except the second.
const TRIAL_CALLS: u32 = (COPIES + READS) * ROW;
/// Bytes of a length's shortest blocks after which the second trial begins, and bytes that this trial moves through
/// cells. The pages of cells are new to each process at first, and slow.
const SECOND_TRIAL_AFTER: usize = 16 << 20;
const CELL_LAP: usize = 8 << 20;
/// Ratio of direct to cell time from which a trial ends early.
const HOPELESS: u64 = 4;
/// Calls after which a trial is repeated: the slower path may take ten times as long.
const TRIAL_INTERVAL: u32 = 1 << 15;
/// Length classes: powers of two, the last of which holds 4 MiB and more.
const LENGTHS: usize = 8;

/// A call that has two paths.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Broadcast,
    AllGather,
    AllToAll,
    Gather,
    Scatter,
    Reduce,
    ReduceScatter,
    AllReduce,
}

/// Times that calls took, and the path chosen for each kind and length. Equal at all ranks, except for times of the
/// current trial.
pub(super) struct PathTuner {
    /// Fixed path of all calls, if paths are not measured: true means direct.
    pub always: Option<bool>,
    measured: [[Measured; LENGTHS]; Kind::AllReduce as usize + 1],
}

#[derive(Clone, Copy, Default)]
struct Measured {
    calls: u32,
    /// Nanoseconds of the calls of this row.
    row: u64,
    /// Shortest row of the latest trial in nanoseconds: through cells, and direct.
    least: [u64; 2],
    direct: bool,
}

/// State of the next call.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    /// The call is part of a trial, and may begin a row.
    Trial {
        begins: bool,
    },
    Settled,
}

impl Measured {
    /// Returns the index of the next call in its trial and the number of rows of that trial, or `None` outside trials.
    /// `shortest` is the length of the class's shortest blocks in bytes.
    fn trial(&self, shortest: usize) -> Option<(u32, u32)> {
        let second = (SECOND_TRIAL_AFTER / shortest).max(TRIAL_CALLS as usize) as u32;
        let long = COPIES.max((CELL_LAP / shortest) as u32 / ROW) + READS;
        let trial = match self.calls.checked_sub(second) {
            Some(at) if at < long * ROW => (at, long),
            _ => (self.calls % TRIAL_INTERVAL, TRIAL_CALLS / ROW),
        };
        Some(trial).filter(|(at, rows)| *at < rows * ROW)
    }

    /// Counts the next call. Returns true if it is direct, and its place in a trial.
    fn next(&mut self, shortest: usize) -> (bool, Next) {
        let trial = self.trial(shortest);
        self.calls = self.calls.wrapping_add(1);
        let Some((at, rows)) = trial else { return (self.direct, Next::Settled) };
        if at == 0 {
            self.least = [u64::MAX; 2];
        }
        (at / ROW >= rows - READS, Next::Trial { begins: at.is_multiple_of(ROW) })
    }

    /// Records the time of a call of a trial. Returns true for the last call of a direct row, after which all ranks
    /// agree on a path.
    fn record(&mut self, direct: bool, nanoseconds: u64) -> bool {
        self.row = self.row.saturating_add(nanoseconds);
        let ends = self.calls.is_multiple_of(ROW);
        if ends {
            let least = &mut self.least[usize::from(direct)];
            *least = std::mem::take(&mut self.row).min(*least);
        }
        ends && direct
    }

    /// Chooses the path by the times of all ranks. The slowest rank counts, since the others wait for it. Direct reads
    /// must gain an eighth. Where they take many times as long, the rest of the trial is skipped.
    fn settle(&mut self, shortest: usize, found: impl Iterator<Item = [u64; 2]> + Clone) {
        let [cells, read] = [0, 1].map(|way| found.clone().map(|least| least[way]).max().unwrap_or(0));
        self.direct = read < cells - cells / 8;
        if read / HOPELESS >= cells
            && let Some((at, rows)) = self.trial(shortest)
        {
            self.calls += rows * ROW - at;
        }
    }
}

impl PathTuner {
    /// Creates the measurements. Ranks that share cores always use cells, where they wait less for each other.
    pub fn new(oversubscribed: bool) -> Self {
        PathTuner { always: oversubscribed.then_some(false), measured: Default::default() }
    }

    /// Returns the measurements of a kind and length, and the length of the class's shortest blocks in bytes.
    fn of(&mut self, kind: Kind, bytes: usize) -> (&mut Measured, usize) {
        let length = ((bytes / MIN_BYTES).max(1).ilog2() as usize).min(LENGTHS - 1);
        (&mut self.measured[kind as usize][length], MIN_BYTES << length)
    }
}

impl ShmCollective {
    /// Moves blocks of `bytes` bytes, as many at all ranks, by the faster path. `act` receives the access to other
    /// ranks' buffers if the path is direct.
    #[inline(always)]
    pub(super) fn on_either_path(
        &mut self,
        kind: Kind,
        bytes: usize,
        act: impl FnOnce(&mut Self, Option<&Reach>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        match &self.reach {
            Some(reach) if bytes >= MIN_BYTES && self.ranks() > 1 => {
                let reach = reach.clone();
                self.on_faster_path(kind, bytes, &reach, act)
            }
            _ => act(self, None),
        }
    }

    fn on_faster_path(
        &mut self,
        kind: Kind,
        bytes: usize,
        reach: &Reach,
        act: impl FnOnce(&mut Self, Option<&Reach>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (direct, next) = match self.tuner.always {
            Some(direct) => (direct, Next::Settled),
            None => {
                let (measured, shortest) = self.tuner.of(kind, bytes);
                measured.next(shortest)
            }
        };
        let Next::Trial { begins } = next else { return act(self, direct.then_some(reach)) };
        if begins {
            // Meets first, so that waiting for a late rank is not measured.
            let met = self.lines.post(&[])?;
            self.lines.see_all(met)?;
        }
        let begun = Instant::now();
        act(self, direct.then_some(reach))?;
        let took = begun.elapsed().as_nanos() as u64;
        if !self.tuner.of(kind, bytes).0.record(direct, took) {
            return Ok(());
        }
        let mine = self.tuner.of(kind, bytes).0.least.map(u64::to_le_bytes);
        let mut all = vec![0; 16 * self.ranks()];
        self.gather_blocks(None, mine.as_flattened(), &mut all)?;
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let (measured, shortest) = self.tuner.of(kind, bytes);
        measured.settle(shortest, all.chunks_exact(16).map(|least| [word(&least[..8]), word(&least[8..])]));
        if measured.trial(shortest).is_none() {
            let Measured { direct, least: [cells, read], .. } = *measured;
            tracing::debug!(?kind, bytes, cells, read, direct, "path of long collectives chosen");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `rows` rows of calls, each of which takes `took[0]` ns through cells or `took[1]` ns directly. Returns `C`
    /// or `D` for each row.
    fn rows(tuner: &mut PathTuner, rows: u32, (kind, bytes): (Kind, usize), took: [u64; 2]) -> String {
        let one = |at| {
            let (measured, shortest) = tuner.of(kind, bytes);
            let (direct, next) = measured.next(shortest);
            if let Next::Trial { begins } = next {
                assert_eq!(begins, at % ROW == 0);
                if measured.record(direct, took[usize::from(direct)]) {
                    let least = measured.least;
                    // Another rank was faster.
                    measured.settle(shortest, [least, [1, 1]].into_iter());
                }
            }
            if direct { 'D' } else { 'C' }
        };
        let all: Vec<_> = (0..rows * ROW).map(one).collect();
        assert!(all.chunks(ROW as usize).all(|row| row.iter().all(|way| *way == row[0])), "{all:?}");
        all.iter().step_by(ROW as usize).collect()
    }

    #[test]
    fn paths_are_measured_per_kind_and_length() {
        let mut tuner = PathTuner::new(false);
        let (gather, broadcast) = ((Kind::AllGather, 64 << 10), (Kind::Broadcast, 64 << 10));
        assert_eq!(rows(&mut tuner, 12, gather, [50, 20]), "CCDDDDDDDDDD");
        assert_eq!(rows(&mut tuner, 12, broadcast, [20, 50]), "CCDDCCCCCCCC");
        assert_eq!(rows(&mut tuner, 12, (Kind::AllGather, 128 << 10), [50, 45]), "CCDDCCCCCCCC", "not worth it");
        // Lengths of one class share their measurements.
        assert_eq!(rows(&mut tuner, 3, (Kind::AllGather, (128 << 10) - 1), [90, 10]), "DDD");
        // 15 rows have run. 16 MiB are 64 rows, and 8 MiB are 32.
        assert_eq!(rows(&mut tuner, 49, gather, [50, 20]), "D".repeat(49));
        assert_eq!(rows(&mut tuner, 36, gather, [50, 20]), "C".repeat(32) + "DDDD");
        let rest = TRIAL_INTERVAL / ROW - 100;
        assert_eq!(rows(&mut tuner, rest, gather, [20, 50]), "D".repeat(rest as usize), "not so soon");
        assert_eq!(rows(&mut tuner, 12, gather, [20, 50]), "CCDDCCCCCCCC");
        for (bytes, way) in [(1, "C"), (2 << 20, "C"), (4 << 20, "C"), (usize::MAX, "C")] {
            assert_eq!(rows(&mut tuner, 1, (Kind::AllReduce, bytes), [1, 1]), way, "{bytes}");
        }
        // Four calls of 4 MiB are 16 MiB: the second trial begins as soon as the first is over, two rows of which are
        // done.
        let longest = (Kind::AllReduce, 9 << 20);
        assert_eq!(rows(&mut tuner, 8, longest, [2, 1]), "DDCCDDDD");
    }

    /// The first use of cells is slow. There are 128, and each call takes two.
    #[test]
    fn path_slow_only_at_first_is_selected_later() {
        let (mut tuner, mut cells) = (PathTuner::new(false), 0);
        let mut found = String::new();
        for _ in 0..400 {
            let took = if cells < 128 { 60 } else { 3 };
            let row = rows(&mut tuner, 1, (Kind::AllToAll, 64 << 10), [took, 7]);
            cells += if row == "C" { 2 * ROW } else { 0 };
            found += &row;
        }
        assert_eq!(found, "CC".to_owned() + &"D".repeat(62) + &"C".repeat(32) + "DD" + &"C".repeat(302));
    }

    #[test]
    fn single_disturbed_row_does_not_decide() {
        for disturbed in [[1000, 20], [20, 1000]] {
            let mut tuner = PathTuner::new(false);
            let kind = (Kind::AllToAll, 64 << 10);
            for cells in disturbed {
                assert_eq!(rows(&mut tuner, 1, kind, [cells, 50]), "C");
            }
            assert_eq!(rows(&mut tuner, 5, kind, [20, 50]), "DDCCC");
        }
    }

    #[test]
    fn hopeless_path_ends_its_trial() {
        let mut tuner = PathTuner::new(false);
        assert_eq!(rows(&mut tuner, 9, (Kind::Broadcast, 64 << 10), [10, 40]), "CCDCCCCCC");
        // Slow cells do not end a trial, since their pages may be new.
        assert_eq!(rows(&mut tuner, 9, (Kind::Broadcast, 128 << 10), [40, 10]), "CCDDDDDDD");
        let rest = TRIAL_INTERVAL / ROW - 10;
        let later = rows(&mut tuner, rest + 9, (Kind::Broadcast, 64 << 10), [10, 40]);
        // One row in the second trial, and one in the repeated trial.
        assert_eq!(later.match_indices('D').map(|(at, _)| at).collect::<Vec<_>>(), [86, rest as usize + 1]);
    }
}
