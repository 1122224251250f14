//! Choice between the two paths of long calls: through cells (two copies by processors), or directly from the sender's
//! buffer (one copy, often by the kernel). The faster path depends on the machine, the call, its length, and the number
//! of concurrent readers: two copies may take a fifth of the time of one, or twice as much. The first calls of each
//! kind and length therefore measure both, and all ranks agree on a path by the times of all. Later calls measure
//! again. Calls before the first trial warm the cells.

use super::board::ShmCollective;
use super::broken::Failure;
use super::lines::Lines;
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
const READS: u32 = 3;
const COPIES: u32 = 3;
/// Calls of a trial.
const TRIAL_CALLS: u32 = (COPIES + READS) * ROW;
/// Bytes of calls through cells before the first trial: programs with few long calls use few cells, whose memory takes
/// the kernel a microsecond or more a page.
const WARM_UP: usize = 2 << 20;
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
    Scan,
}

/// Times that calls took, and the path chosen for each kind and length. Equal at all ranks, except for times of the
/// current trial.
pub(super) struct PathTuner {
    /// Fixed path of all calls, if paths are not measured: true means direct.
    pub always: Option<bool>,
    measured: [[Measured; LENGTHS]; Kind::Scan as usize + 1],
    /// Bytes of the calls before the first trial, at least [`WARM_UP`] from then on.
    warmed: usize,
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
    /// Trials begin after this call.
    Warm,
    /// The call is part of a trial, and may begin a row.
    Trial {
        begins: bool,
    },
    Settled,
}

impl Measured {
    /// Returns the index of the next call in its trial, or `None` outside trials.
    fn trial(&self) -> Option<u32> {
        Some(self.calls % TRIAL_INTERVAL).filter(|at| *at < TRIAL_CALLS)
    }

    /// Counts the next call. Returns true if it is direct, and its place in a trial.
    fn next(&mut self) -> (bool, Next) {
        let trial = self.trial();
        self.calls = self.calls.wrapping_add(1);
        let Some(at) = trial else { return (self.direct, Next::Settled) };
        if at == 0 {
            self.least = [u64::MAX; 2];
        }
        (at / ROW >= COPIES, Next::Trial { begins: at.is_multiple_of(ROW) })
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
    /// must gain an eighth.
    fn settle(&mut self, found: impl Iterator<Item = [u64; 2]> + Clone) {
        let [cells, read] = [0, 1].map(|way| found.clone().map(|least| least[way]).max().unwrap_or(0));
        self.direct = read < cells - cells / 8;
    }
}

impl PathTuner {
    /// Creates the measurements. Ranks that share cores always use cells, where they wait less for each other.
    pub fn new(oversubscribed: bool) -> Self {
        PathTuner { always: oversubscribed.then_some(false), measured: Default::default(), warmed: 0 }
    }

    /// Returns whether the next call, of `bytes` bytes, is direct, and its place in a trial.
    fn next(&mut self, kind: Kind, bytes: usize) -> (bool, Next) {
        if let Some(direct) = self.always {
            return (direct, Next::Settled);
        }
        if self.warmed >= WARM_UP {
            return self.of(kind, bytes).next();
        }
        self.warmed = self.warmed.saturating_add(bytes);
        (false, if self.warmed < WARM_UP { Next::Settled } else { Next::Warm })
    }

    /// Returns the measurements of a kind and length.
    fn of(&mut self, kind: Kind, bytes: usize) -> &mut Measured {
        let length = ((bytes / MIN_BYTES).max(1).ilog2() as usize).min(LENGTHS - 1);
        &mut self.measured[kind as usize][length]
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
        let (direct, next) = self.tuner.next(kind, bytes);
        let begins = match next {
            Next::Trial { begins } => begins,
            Next::Settled => return act(self, direct.then_some(reach)),
            Next::Warm => {
                self.map_cells()?;
                return act(self, None);
            }
        };
        if begins {
            // Meets first, so that waiting for a late rank is not measured.
            self.meet_all()?;
        }
        let begun = Instant::now();
        act(self, direct.then_some(reach))?;
        let took = begun.elapsed().as_nanos() as u64;
        if !self.tuner.of(kind, bytes).record(direct, took) {
            return Ok(());
        }
        let mine = self.tuner.of(kind, bytes).least.map(u64::to_le_bytes);
        let mut all = vec![0; 16 * self.ranks()];
        self.gather_blocks(None, mine.as_flattened(), &mut all)?;
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let measured = self.tuner.of(kind, bytes);
        measured.settle(all.chunks_exact(16).map(|least| [word(&least[..8]), word(&least[8..])]));
        if measured.trial().is_none() {
            let Measured { direct, least: [cells, read], .. } = *measured;
            tracing::debug!(?kind, bytes, cells, read, direct, "path of long collectives chosen");
        }
        Ok(())
    }

    /// Maps the pages of all ranks' cells that have not been used: a trial would measure the time that the kernel takes for
    /// each page. A rank makes its own pages before others map them. Before Linux 5.14 nothing is mapped.
    #[cold]
    fn map_cells(&mut self) -> Result<(), Failure> {
        let (me, ranks) = (self.lines.me, self.ranks());
        let map = |lines: &Lines, rank| lines.shared.view.populate(lines.block.long_cells_of(rank));
        map(&self.lines, me);
        self.meet_all()?;
        (0..ranks).filter(|rank| *rank != me).for_each(|rank| map(&self.lines, rank));
        Ok(())
    }

    fn meet_all(&mut self) -> Result<(), Failure> {
        let met = self.lines.post(&[])?;
        self.lines.see_all(met)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tuner whose cells are warm.
    fn warm() -> PathTuner {
        PathTuner { warmed: WARM_UP, ..PathTuner::new(false) }
    }

    /// Runs `rows` rows of calls, each of which takes `took[0]` ns through cells or `took[1]` ns directly. Returns `C`
    /// or `D` for each row.
    fn rows(tuner: &mut PathTuner, rows: u32, (kind, bytes): (Kind, usize), took: [u64; 2]) -> String {
        let one = |at| {
            let (direct, next) = tuner.next(kind, bytes);
            let measured = tuner.of(kind, bytes);
            if let Next::Trial { begins } = next {
                assert_eq!(begins, at % ROW == 0);
                if measured.record(direct, took[usize::from(direct)]) {
                    let least = measured.least;
                    // Another rank was faster.
                    measured.settle([least, [1, 1]].into_iter());
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
        let mut tuner = warm();
        let (gather, broadcast) = ((Kind::AllGather, 64 << 10), (Kind::Broadcast, 64 << 10));
        assert_eq!(rows(&mut tuner, 12, gather, [50, 20]), "CCCDDDDDDDDD");
        assert_eq!(rows(&mut tuner, 12, broadcast, [20, 50]), "CCCDDDCCCCCC");
        assert_eq!(rows(&mut tuner, 12, (Kind::AllGather, 128 << 10), [50, 45]), "CCCDDDCCCCCC", "not worth it");
        // Lengths of one class share their measurements.
        assert_eq!(rows(&mut tuner, 3, (Kind::AllGather, (128 << 10) - 1), [90, 10]), "DDD");
        // 15 rows have run.
        let rest = TRIAL_INTERVAL / ROW - 15;
        assert_eq!(rows(&mut tuner, rest, gather, [20, 50]), "D".repeat(rest as usize), "not so soon");
        assert_eq!(rows(&mut tuner, 12, gather, [20, 50]), "CCCDDDCCCCCC");
        for (bytes, way) in [(1, "C"), (2 << 20, "C"), (4 << 20, "C"), (usize::MAX, "C")] {
            assert_eq!(rows(&mut tuner, 1, (Kind::AllReduce, bytes), [1, 1]), way, "{bytes}");
        }
        // Two rows of the longest class are done.
        assert_eq!(rows(&mut tuner, 4, (Kind::AllReduce, 9 << 20), [2, 1]), "CDDD");
    }

    #[test]
    fn cold_cells_are_not_measured() {
        let mut tuner = PathTuner::new(false);
        // 1 MiB, then 768 KiB of another kind.
        let mut next = |calls, kind, bytes| (0..calls).map(|_| tuner.next(kind, bytes)).collect::<Vec<_>>();
        assert!(next(16, Kind::Scan, 64 << 10).iter().all(|next| *next == (false, Next::Settled)));
        assert!(next(1, Kind::Reduce, 768 << 10) == [(false, Next::Settled)]);
        let then = [(false, Next::Warm), (false, Next::Trial { begins: true }), (false, Next::Trial { begins: false })];
        assert!(next(3, Kind::Reduce, 256 << 10) == then);
    }

    #[test]
    fn single_disturbed_row_does_not_decide() {
        for disturbed in [[1000, 20], [20, 1000]] {
            let mut tuner = warm();
            let kind = (Kind::AllToAll, 64 << 10);
            for cells in disturbed {
                assert_eq!(rows(&mut tuner, 1, kind, [cells, 50]), "C");
            }
            assert_eq!(rows(&mut tuner, 5, kind, [20, 50]), "CDDDC");
        }
    }
}
