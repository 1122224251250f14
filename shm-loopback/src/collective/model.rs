//! Model-checks the rounds that ship, on few slots, under loom's memory model. Data in lines is accessed without
//! atomics, so that loom reports a read before the data is written, or while it is overwritten. A lost wake-up leaves
//! both ranks asleep, which loom reports too. `tests/mutants` lists the lines that these tests guard.

use super::block::{Block, SLOTS};
use super::broken::Failure;
use super::lines::{Lines, Says};
use super::shared_lines::{SharedLines, Word};
use crate::event_count::{self, model::Modelled};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use transom_locks::{Awaited, Rank};
use transom_windows::{FabricError, Wait};

const RANKS: usize = 2;
/// Bytes of the model's memory: all lines of two ranks, and no cells.
const BYTES: usize = 64 + RANKS * 128 + SLOTS * 64 + RANKS * 128 + 128 + SLOTS * RANKS * 128;

/// Memory of two ranks. Each word exists twice: as a word of stamps, and as a word of data.
struct ModelMemory {
    stamps: Vec<[AtomicU64; 8]>,
    carried: Vec<UnsafeCell<u64>>,
    event: Modelled,
}

/// Access of one rank to the memory.
#[derive(Clone)]
struct Model(Arc<ModelMemory>);

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    fn claim(&self, value: u64) {
        let _ = self.compare_exchange(0, value, Ordering::SeqCst, Ordering::SeqCst);
    }
}

impl SharedLines for Model {
    type Word = AtomicU64;

    fn line(&self, at: usize) -> &[AtomicU64; 8] {
        &self.0.stamps[at / 64]
    }

    fn fence(&self, order: Ordering) {
        loom::sync::atomic::fence(order);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        if let Ok(bytes) = bytes.try_into() {
            // SAFETY: loom checks that no other thread accesses the word.
            self.0.carried[at / 8].with_mut(|word| unsafe { *word = u64::from_le_bytes(bytes) });
        }
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        // SAFETY: loom checks that no other thread writes the word.
        into.copy_from_slice(&self.0.carried[at / 8].with(|word| unsafe { *word }).to_le_bytes());
    }

    fn prefetch<const TO_WRITE: bool>(&self, _: usize) {}

    fn notify(&self) {
        event_count::notify(&self.0.event);
    }

    /// Makes waiting ranks sleep at once.
    fn is_oversubscribed(&self) -> bool {
        true
    }

    fn check_peers(&self, _: Rank, _: Awaited) -> Result<(), FabricError> {
        Ok(())
    }

    fn wait<R>(
        &self,
        _: Wait<'_>,
        mut look: impl FnMut() -> Result<Option<R>, FabricError>,
        mut check: impl FnMut() -> Result<(), FabricError>,
    ) -> Result<R, FabricError> {
        loop {
            if let Some(found) = event_count::park(&self.0.event, std::time::Duration::MAX, &mut look)? {
                return Ok(found);
            }
            check()?;
        }
    }
}

/// Runs every interleaving of two ranks with at most `preemptions` preemptions.
fn on_two_ranks(preemptions: usize, body: fn(Lines<Model>)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let memory = Model(Arc::new(ModelMemory {
            stamps: (0..BYTES / 64).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect(),
            carried: (0..BYTES / 8).map(|_| UnsafeCell::new(0)).collect(),
            event: Modelled::new(),
        }));
        let other = memory.clone();
        let other = loom::thread::spawn(move || body(Lines::new(1, Block::of(RANKS), other)));
        body(Lines::new(0, Block::of(RANKS), memory));
        other.join().unwrap();
    });
}

/// Returns the data of a rank in a round.
fn said(rank: Rank, round: u64) -> [u8; 8] {
    (100 * round + rank as u64).to_le_bytes()
}

fn read(lines: &mut Lines<Model>, rank: Rank, round: u64) {
    let mut bytes = [0; 8];
    lines.take(rank, round, (8, 0), &mut bytes).unwrap();
    assert_eq!(bytes, said(rank, round));
}

/// Rounds of a run: more than there are slots.
const ROUNDS: u64 = SLOTS as u64 + 2;

/// Returns a body in which both ranks post data and read the other's, in every round.
fn both_hear_each_other(says: Says) -> impl Fn(Lines<Model>) {
    move |mut lines| {
        lines.begin("all_gather", 7, says).unwrap();
        for round in 1..=ROUNDS {
            let other = 1 - lines.me;
            lines.post(&said(lines.me, round)).unwrap();
            read(&mut lines, other, round);
        }
    }
}

#[test]
fn shared_line_halves_are_never_torn() {
    on_two_ranks(2, |lines| both_hear_each_other(Says::All(8))(lines));
}

#[test]
fn exchanged_line_is_never_torn() {
    on_two_ranks(2, |mut lines| {
        lines.begin("all_reduce", 7, Says::All(8)).unwrap();
        for round in 1..=ROUNDS {
            let mut theirs = [0; 8];
            lines.exchange(&said(lines.me, round), &mut theirs).unwrap();
            assert_eq!(theirs, said(1 - lines.me, round));
        }
    });
}

#[test]
fn half_lines_are_never_torn() {
    on_two_ranks(2, |lines| both_hear_each_other(Says::Some(8))(lines));
}

#[test]
fn lines_are_never_torn() {
    on_two_ranks(2, |lines| both_hear_each_other(Says::Some(17))(lines));
}

/// The root reads nothing, and must not overwrite data that the other rank still reads.
#[test]
fn root_ahead_waits_for_free_lines() {
    on_two_ranks(2, |mut lines| {
        lines.begin("broadcast", 7, Says::Some(8)).unwrap();
        for round in 1..=ROUNDS {
            match lines.me {
                0 => drop(lines.post(&said(0, round)).unwrap()),
                _ => {
                    lines.post(&[]).unwrap();
                    read(&mut lines, 0, round);
                }
            }
        }
    });
}

/// Neither rank reads data, but each polls the other's progress. A poll must not report another call.
#[test]
fn late_progress_poll_reports_no_mismatch() {
    on_two_ranks(2, |mut lines| {
        for call in 1..=ROUNDS + 1 {
            lines.begin("nothing", call, Says::Some(0)).unwrap();
            lines.post(&[]).unwrap();
        }
    });
}

/// Both ranks find the difference, wherever they look for the other's line.
#[test]
fn different_calls_fail_at_both_ranks() {
    on_two_ranks(3, |mut lines| {
        lines.begin("scan", 7 + lines.me as u64, Says::Some(8)).unwrap();
        told(&mut lines);
    });
    on_two_ranks(3, |mut lines| {
        let says = [Says::All(8), Says::Some(8)][lines.me];
        lines.begin("all_gather", 7 + lines.me as u64, says).unwrap();
        told(&mut lines);
    });

    fn told(lines: &mut Lines<Model>) {
        let round = lines.post(&said(lines.me, 1)).unwrap();
        let (me, other) = (lines.me, 1 - lines.me);
        let failure = lines.see(other, round).unwrap_err();
        assert!(
            matches!(failure, Failure::Mismatch { rank, theirs } if rank == other && theirs == 8 - me as u64),
            "{failure}"
        );
    }
}

/// A rank that waits when the other aborts is woken.
#[test]
fn abort_wakes_the_waiting_rank() {
    on_two_ranks(3, |mut lines| {
        if lines.me == 0 {
            lines.give_up(FabricError::GivenUp { rank: 0 });
            return;
        }
        let begun = lines.begin("barrier", 7, Says::All(0)).and_then(|()| lines.post(&[]));
        let failure = begun.and_then(|round| lines.see(0, round)).unwrap_err();
        assert!(matches!(failure, Failure::Fabric(FabricError::GivenUp { rank: 0 })), "{failure}");
    });
}

/// A rank that breaks the board has posted its round before, and a rank that waits for that round finds it.
#[test]
fn round_posted_before_abort_is_found() {
    on_two_ranks(3, |mut lines| {
        // A call that begins after the abort fails.
        let Ok(()) = lines.begin("barrier", 7, Says::All(0)) else { return };
        let round = lines.post(&[]).unwrap();
        match lines.me {
            0 => drop(lines.give_up(FabricError::GivenUp { rank: 0 })),
            _ => lines.see(0, round).unwrap(),
        }
    });
}
