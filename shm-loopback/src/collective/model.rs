//! Rounds under loom's memory model, as they ship, on few slots. What lies in lines is written and read without atomics, so that
//! loom reports whoever reads what is not there yet, or is written again. A wake-up that is lost leaves both ranks asleep, which
//! loom reports too. `tests/mutants` has the lines that this must notice.

use super::block::{Block, SLOTS};
use super::broken::Failure;
use super::lines::{Lines, Says};
use super::slate::{Slate, Word};
use crate::bell::{self, model::Modelled};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use transom_locks::{Awaited, Rank};
use transom_windows::{FabricError, Wait};

const RANKS: usize = 2;
/// Bytes of the model's memory: all lines of two ranks, and no cells.
const BYTES: usize = 64 + RANKS * 128 + SLOTS * 64 + RANKS * 128 + 128 + SLOTS * RANKS * 128;

/// Two ranks' memory: each word as one that is stamped, and as one that is carried.
struct Memory {
    stamps: Vec<[AtomicU64; 8]>,
    carried: Vec<UnsafeCell<u64>>,
    bell: Modelled,
}

/// One rank's way to it.
#[derive(Clone)]
struct Model(Arc<Memory>);

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

impl Slate for Model {
    type Word = AtomicU64;

    fn line(&self, at: usize) -> &[AtomicU64; 8] {
        &self.0.stamps[at / 64]
    }

    fn fence(&self, order: Ordering) {
        loom::sync::atomic::fence(order);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        if let Ok(bytes) = bytes.try_into() {
            // SAFETY: loom looks that nobody else uses it.
            self.0.carried[at / 8].with_mut(|word| unsafe { *word = u64::from_le_bytes(bytes) });
        }
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        // SAFETY: loom looks that nobody writes it.
        into.copy_from_slice(&self.0.carried[at / 8].with(|word| unsafe { *word }).to_le_bytes());
    }

    fn prefetch<const TO_WRITE: bool>(&self, _: usize) {}

    fn ring(&self) {
        bell::ring(&self.0.bell);
    }

    /// So they sleep at once.
    fn is_crowded(&self) -> bool {
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
            if let Some(found) = bell::nap(&self.0.bell, std::time::Duration::MAX, &mut look)? {
                return Ok(found);
            }
            check()?;
        }
    }
}

/// Every order of what two ranks do, of which each has changed to the other a few times against its will.
fn on_two_ranks(preemptions: usize, body: fn(Lines<Model>)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let memory = Model(Arc::new(Memory {
            stamps: (0..BYTES / 64).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect(),
            carried: (0..BYTES / 8).map(|_| UnsafeCell::new(0)).collect(),
            bell: Modelled::new(),
        }));
        let other = memory.clone();
        let other = loom::thread::spawn(move || body(Lines::new(1, Block::of(RANKS), other)));
        body(Lines::new(0, Block::of(RANKS), memory));
        other.join().unwrap();
    });
}

/// What a rank says in a round.
fn said(rank: Rank, round: u64) -> [u8; 8] {
    (100 * round + rank as u64).to_le_bytes()
}

fn read(lines: &mut Lines<Model>, rank: Rank, round: u64) {
    let mut bytes = [0; 8];
    lines.take(rank, round, (8, 0), &mut bytes).unwrap();
    assert_eq!(bytes, said(rank, round));
}

/// More than there are slots.
const ROUNDS: u64 = SLOTS as u64 + 2;

/// Each round both say something, and hear the other.
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
fn halves_of_a_line_of_both_are_whole() {
    on_two_ranks(2, |lines| both_hear_each_other(Says::All(8))(lines));
}

#[test]
fn what_two_ranks_exchange_is_whole() {
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
fn halves_of_lines_are_whole() {
    on_two_ranks(2, |lines| both_hear_each_other(Says::Some(8))(lines));
}

#[test]
fn lines_are_whole() {
    on_two_ranks(2, |lines| both_hear_each_other(Says::Some(17))(lines));
}

/// The root hears nobody, and must not write over what the other still reads.
#[test]
fn who_runs_ahead_waits_for_room() {
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

/// Nobody hears the other, but asks how far it is; that is not taken for another call.
#[test]
fn who_asks_how_far_another_is_may_look_late() {
    on_two_ranks(2, |mut lines| {
        for call in 1..=ROUNDS + 1 {
            lines.begin("nothing", call, Says::Some(0)).unwrap();
            lines.post(&[]).unwrap();
        }
    });
}

/// Both are told, wherever they look for the other.
#[test]
fn other_calls_are_told_to_both() {
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

/// Whoever waits when the other gives up is woken.
#[test]
fn who_gives_up_wakes_who_waits() {
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

/// Who breaks the board has posted what it posted before, and who waits for that finds it.
#[test]
fn what_was_posted_before_a_board_broke_is_found() {
    on_two_ranks(3, |mut lines| {
        // A call that begins later fails.
        let Ok(()) = lines.begin("barrier", 7, Says::All(0)) else { return };
        let round = lines.post(&[]).unwrap();
        match lines.me {
            0 => drop(lines.give_up(FabricError::GivenUp { rank: 0 })),
            _ => lines.see(0, round).unwrap(),
        }
    });
}
