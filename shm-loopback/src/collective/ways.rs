//! By which of two ways long calls move: through cells, by two copies of processors, or read where they are, by one of the kernel's.
//! Which takes less time is the machine's, and differs with the call, its length and how many ranks read each other at once: two copies
//! may take a fifth of the time of one, or twice as much. So the first calls of each kind and length try both, and all ranks agree on
//! what those took; they try again after many more.

use super::board::Board;
use super::broken::Failure;
use crate::reach::Reach;
use std::time::Instant;

/// Bytes from which on a read of a block may take less time than two copies of it through cells, where the kernel does it.
const FROM: usize = 32 << 10;

/// Calls of a row, measured together: a root goes on before the others have a broadcast through cells, and waits in a later one.
const ROW: u32 = 4;
/// Rows of a trial by reads, and through cells before them: one that something disturbs decides nothing. Not by turns, as what the one
/// leaves in caches makes the other slow.
const READS: u32 = 2;
const COPIES: u32 = 2;
/// Calls of the first trial, and of later ones.
const FIRST: u32 = (COPIES + READS) * ROW;
/// Bytes, of the shortest blocks of a length, after which they are tried a second time, and which then go through cells: memory of cells
/// is new to each process the first time, and slow.
const SOON: usize = 16 << 20;
const LAP: usize = 8 << 20;
/// How many times as long as copies reads take where further trials are not worth their time.
const HOPELESS: u64 = 4;
/// After so many calls they are tried again: the slower way may take ten times as long.
const AGAIN: u32 = 1 << 15;
/// Lengths differ by powers of two, up to those of 4 MiB and more.
const LENGTHS: usize = 8;

/// A call that may move by either way.
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

/// What calls took. The same at all ranks, but for the times before they have agreed.
pub(super) struct Ways {
    /// The way of all calls, if it is not to be found out: whether it is the direct one.
    pub always: Option<bool>,
    tried: [[Tried; LENGTHS]; Kind::AllReduce as usize + 1],
}

#[derive(Clone, Copy, Default)]
struct Tried {
    calls: u32,
    /// Nanoseconds in the calls of this trial.
    row: u64,
    /// The least of a trial of late, through cells and directly.
    least: [u64; 2],
    direct: bool,
}

/// The next call.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    /// Begins a trial, or goes on with it.
    Trial {
        begins: bool,
    },
    Settled,
}

impl Tried {
    /// Where the next call of blocks of so many bytes at least is in a trial, if it is in one; and of how many rows that is.
    fn trial(&self, shortest: usize) -> Option<(u32, u32)> {
        let second = (SOON / shortest).max(FIRST as usize) as u32;
        let long = COPIES.max((LAP / shortest) as u32 / ROW) + READS;
        let trial = match self.calls.checked_sub(second) {
            Some(at) if at < long * ROW => (at, long),
            _ => (self.calls % AGAIN, FIRST / ROW),
        };
        Some(trial).filter(|(at, rows)| *at < rows * ROW)
    }

    /// Whether the next call is direct.
    fn next(&mut self, shortest: usize) -> (bool, Next) {
        let trial = self.trial(shortest);
        self.calls = self.calls.wrapping_add(1);
        let Some((at, rows)) = trial else { return (self.direct, Next::Settled) };
        if at == 0 {
            self.least = [u64::MAX; 2];
        }
        (at / ROW >= rows - READS, Next::Trial { begins: at.is_multiple_of(ROW) })
    }

    /// What a call of a trial took. Whether it was the last of a row by reads, on which all ranks agree.
    fn took(&mut self, direct: bool, nanoseconds: u64) -> bool {
        self.row = self.row.saturating_add(nanoseconds);
        let ends = self.calls.is_multiple_of(ROW);
        if ends {
            let least = &mut self.least[usize::from(direct)];
            *least = std::mem::take(&mut self.row).min(*least);
        }
        ends && direct
    }

    /// Chooses by what all ranks found: the one that needed longest is what others wait for. What is gained must be worth it; and where
    /// reads take many times as long they are not tried any more.
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

impl Ways {
    /// Of ranks that share cores, if so: they do not wait for each other longer than they must.
    pub fn new(crowded: bool) -> Self {
        Ways { always: crowded.then_some(false), tried: Default::default() }
    }

    /// What is known of blocks of about so many bytes, and how many the shortest of these are.
    fn of(&mut self, kind: Kind, bytes: usize) -> (&mut Tried, usize) {
        let length = ((bytes / FROM).max(1).ilog2() as usize).min(LENGTHS - 1);
        (&mut self.tried[kind as usize][length], FROM << length)
    }
}

impl Board {
    /// Moves blocks of so many bytes, as many at all ranks, by the way that takes less time; how others' buffers are reached is given
    /// where it is the direct one.
    #[inline(always)]
    pub(super) fn either_way(
        &mut self,
        kind: Kind,
        bytes: usize,
        act: impl FnOnce(&mut Self, Option<&Reach>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        match &self.reach {
            Some(reach) if bytes >= FROM && self.ranks() > 1 => {
                let reach = reach.clone();
                self.faster_way(kind, bytes, &reach, act)
            }
            _ => act(self, None),
        }
    }

    fn faster_way(
        &mut self,
        kind: Kind,
        bytes: usize,
        reach: &Reach,
        act: impl FnOnce(&mut Self, Option<&Reach>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (direct, next) = match self.ways.always {
            Some(direct) => (direct, Next::Settled),
            None => {
                let (tried, shortest) = self.ways.of(kind, bytes);
                tried.next(shortest)
            }
        };
        let Next::Trial { begins } = next else { return act(self, direct.then_some(reach)) };
        if begins {
            // Who comes late is not counted.
            let met = self.lines.post(&[])?;
            self.lines.see_all(met)?;
        }
        let begun = Instant::now();
        act(self, direct.then_some(reach))?;
        let took = begun.elapsed().as_nanos() as u64;
        if !self.ways.of(kind, bytes).0.took(direct, took) {
            return Ok(());
        }
        let mine = self.ways.of(kind, bytes).0.least.map(u64::to_le_bytes);
        let mut all = vec![0; 16 * self.ranks()];
        self.gather_blocks(None, mine.as_flattened(), &mut all)?;
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let (tried, shortest) = self.ways.of(kind, bytes);
        tried.settle(shortest, all.chunks_exact(16).map(|least| [word(&least[..8]), word(&least[8..])]));
        if tried.trial(shortest).is_none() {
            let Tried { direct, least: [cells, read], .. } = *tried;
            tracing::debug!(?kind, bytes, cells, read, direct, "how long collectives move");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ways of so many rows, of which a call through cells takes so long, and a direct one: `C` and `D`.
    fn ways(ways: &mut Ways, rows: u32, (kind, bytes): (Kind, usize), took: [u64; 2]) -> String {
        let one = |at| {
            let (tried, shortest) = ways.of(kind, bytes);
            let (direct, next) = tried.next(shortest);
            if let Next::Trial { begins } = next {
                assert_eq!(begins, at % ROW == 0);
                if tried.took(direct, took[usize::from(direct)]) {
                    let least = tried.least;
                    // Another rank was faster.
                    tried.settle(shortest, [least, [1, 1]].into_iter());
                }
            }
            if direct { 'D' } else { 'C' }
        };
        let all: Vec<_> = (0..rows * ROW).map(one).collect();
        assert!(all.chunks(ROW as usize).all(|row| row.iter().all(|way| *way == row[0])), "{all:?}");
        all.iter().step_by(ROW as usize).collect()
    }

    #[test]
    fn both_ways_are_tried_of_each_kind_and_length_and_again() {
        let mut board = Ways::new(false);
        let (gather, broadcast) = ((Kind::AllGather, 64 << 10), (Kind::Broadcast, 64 << 10));
        assert_eq!(ways(&mut board, 12, gather, [50, 20]), "CCDDDDDDDDDD");
        assert_eq!(ways(&mut board, 12, broadcast, [20, 50]), "CCDDCCCCCCCC");
        assert_eq!(ways(&mut board, 12, (Kind::AllGather, 128 << 10), [50, 45]), "CCDDCCCCCCCC", "not worth it");
        // As long, to a power of two.
        assert_eq!(ways(&mut board, 3, (Kind::AllGather, (128 << 10) - 1), [90, 10]), "DDD");
        // 15 rows were; 16 MiB are 64, and 8 MiB are 32.
        assert_eq!(ways(&mut board, 49, gather, [50, 20]), "D".repeat(49));
        assert_eq!(ways(&mut board, 36, gather, [50, 20]), "C".repeat(32) + "DDDD");
        let rest = AGAIN / ROW - 100;
        assert_eq!(ways(&mut board, rest, gather, [20, 50]), "D".repeat(rest as usize), "not so soon");
        assert_eq!(ways(&mut board, 12, gather, [20, 50]), "CCDDCCCCCCCC");
        for (bytes, way) in [(1, "C"), (2 << 20, "C"), (4 << 20, "C"), (usize::MAX, "C")] {
            assert_eq!(ways(&mut board, 1, (Kind::AllReduce, bytes), [1, 1]), way, "{bytes}");
        }
        // Of 4 MiB four calls are 16 MiB: once the first trial is over, of which two rows were, there is another.
        let longest = (Kind::AllReduce, 9 << 20);
        assert_eq!(ways(&mut board, 8, longest, [2, 1]), "DDCCDDDD");
    }

    /// Cells that are used for the first time: 128, of which a call takes two.
    #[test]
    fn a_way_that_is_slow_at_first_is_found_in_the_end() {
        let (mut board, mut cells) = (Ways::new(false), 0);
        let mut found = String::new();
        for _ in 0..400 {
            let took = if cells < 128 { 60 } else { 3 };
            let row = ways(&mut board, 1, (Kind::AllToAll, 64 << 10), [took, 7]);
            cells += if row == "C" { 2 * ROW } else { 0 };
            found += &row;
        }
        assert_eq!(found, "CC".to_owned() + &"D".repeat(62) + &"C".repeat(32) + "DD" + &"C".repeat(302));
    }

    #[test]
    fn a_trial_that_was_disturbed_decides_nothing() {
        for disturbed in [[1000, 20], [20, 1000]] {
            let mut board = Ways::new(false);
            let kind = (Kind::AllToAll, 64 << 10);
            for cells in disturbed {
                assert_eq!(ways(&mut board, 1, kind, [cells, 50]), "C");
            }
            assert_eq!(ways(&mut board, 5, kind, [20, 50]), "DDCCC");
        }
    }

    #[test]
    fn what_takes_many_times_as_long_is_not_tried_any_more() {
        let mut board = Ways::new(false);
        assert_eq!(ways(&mut board, 9, (Kind::Broadcast, 64 << 10), [10, 40]), "CCDCCCCCC");
        // The other one may be slow for what it finds first.
        assert_eq!(ways(&mut board, 9, (Kind::Broadcast, 128 << 10), [40, 10]), "CCDDDDDDD");
        let rest = AGAIN / ROW - 10;
        let later = ways(&mut board, rest + 9, (Kind::Broadcast, 64 << 10), [10, 40]);
        // In the second trial, and in that after so many.
        assert_eq!(later.match_indices('D').map(|(at, _)| at).collect::<Vec<_>>(), [86, rest as usize + 1]);
    }
}
