//! Leaving: however others come behind and leave again, a release, or a request that gives up, is done after a bounded number of verbs.
#![cfg(not(feature = "loom"))]

mod mutants;

use mutants::{Mutant, MutantMix};
use transom_locks::Mode::{self, Exclusive, Shared};
use transom_locks::model::{Call, Program, Sim, State, Step};
use transom_locks::{At, LockLayout, LockWord, Rank};

/// The lock word, and `next` of rank 0.
const WORD: At = At { rank: 0, word: 0 };
const NEXT: At = At { rank: 0, word: 8 };

/// What tells a timed request in `next`.
const TIMED: u64 = 1 << 63;

/// Who leaves: rank 0, and what comes before that.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    /// It has the lock, and releases it.
    Holder,
    /// It gives up behind rank 1, which has the lock in this mode, and does nothing.
    Behind(Mode),
}

impl Leaves {
    /// The calls of those that are there before the crowd.
    fn rows(self) -> Vec<Vec<Call>> {
        match self {
            Leaves::Holder => vec![Call::both(0, Exclusive).to_vec()],
            Leaves::Behind(mode) => vec![timed(Exclusive), Call::both(0, mode).to_vec()],
        }
    }
}

fn timed(mode: Mode) -> Vec<Call> {
    vec![Call::AcquireUntil(0, mode), Call::ReleaseHeld(0), Call::Settle(0)]
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 11) as usize % n
    }
}

/// How many verbs rank 0 takes to leave, if before each of them `crowd` goes on, as long as it can, until that verb sees something
/// new, and nobody it could pass its turn on to.
fn kept(leaves: Leaves, crowd: &[Vec<Call>], mutant: Option<Mutant>, seed: u64) -> Result<usize, String> {
    let before = leaves.rows();
    let others: Vec<Rank> = (before.len()..before.len() + crowd.len()).collect();
    let rows = [before.clone(), crowd.to_vec()].concat();
    let net = Sim::new(rows.len(), LockLayout::words(rows.len()), MutantMix::<16> { mutant, ..MutantMix::new(rows) });
    let mut state = net.start().map_err(|failure| failure.what)?;
    let can = |state: &State<_>, rank| net.steps(state).any(|step| step == Step::Rank(rank));
    // Who has the lock, and then, behind another, rank 0.
    while state.phase(before.len() - 1) == 0 {
        state = net.step(&state, Step::Rank(before.len() - 1))?;
    }
    while LockWord::<16>(state.word(WORD)).tail() != Some(0) {
        state = net.step(&state, Step::Rank(0))?;
    }
    let (mut random, mut verbs, left) = (Random(seed), 0, state.phase(0) + 1);
    while state.phase(0) < left {
        let seen = [WORD, NEXT].map(|at| state.word(at));
        for _ in 0..1000 {
            let now = [WORD, NEXT].map(|at| state.word(at));
            if now != seen && now[1] & TIMED == 0 && can(&state, 0) {
                break;
            }
            let ready: Vec<Rank> = others.iter().copied().filter(|&rank| can(&state, rank)).collect();
            if ready.is_empty() {
                break;
            }
            state = net.step(&state, Step::Rank(ready[random.below(ready.len())]))?;
        }
        if can(&state, 0) {
            state = net.step(&state, Step::Rank(0))?;
            verbs += 1;
        } else if !others.iter().any(|&rank| can(&state, rank)) {
            return Err("nobody can go on".into());
        }
        if others.iter().all(|&rank| state.phase(rank) == net.program().phases(rank)) {
            return Err(format!("not left after {verbs} verbs, and others have done all they had to"));
        }
    }
    Ok(verbs)
}

/// What others do, again and again.
fn crowds() -> Vec<(&'static str, Vec<Vec<Call>>)> {
    const ROUNDS: usize = 1000;
    let (writers, readers) = (timed(Exclusive).repeat(ROUNDS), timed(Shared).repeat(ROUNDS));
    let tries = [Call::attempt(0, Exclusive), Call::attempt(0, Shared)].concat().repeat(ROUNDS);
    vec![
        ("1 writer with deadlines", vec![writers.clone()]),
        ("2 writers with deadlines", vec![writers.clone(); 2]),
        ("4 writers with deadlines", vec![writers.clone(); 4]),
        ("8 writers with deadlines", vec![writers.clone(); 8]),
        ("and readers", [vec![writers.clone(); 3], vec![readers.clone(); 3]].concat()),
        ("and who tries", [vec![writers.clone(); 2], vec![readers; 1], vec![tries]].concat()),
        ("and a reader that waits", vec![writers.clone(), writers.clone(), Call::both(0, Shared).to_vec()]),
    ]
}

const LEAVES: [Leaves; 3] = [Leaves::Holder, Leaves::Behind(Exclusive), Leaves::Behind(Shared)];

#[test]
fn nobody_keeps_back_who_leaves() {
    for leaves in LEAVES {
        for (what, crowd) in crowds() {
            let verbs = |seed| {
                kept(leaves, &crowd, None, seed)
                    .unwrap_or_else(|wrong| panic!("{leaves:?}, {what}, seed {seed}: {wrong}"))
            };
            let most = (0..60).map(verbs).max().unwrap();
            println!("{leaves:?}, {what}: {most} verbs");
            assert!(most <= 20 + 6 * crowd.len(), "{leaves:?}, {what}: {most} verbs");
        }
    }
}

/// A mutant that errs nowhere, and has no bound.
#[test]
fn where_who_comes_may_leave_again_who_leaves_is_kept_back() {
    let tries = LEAVES.into_iter().flat_map(|leaves| crowds().into_iter().map(move |(_, crowd)| (leaves, crowd)));
    let forgotten = Some(Mutant::StayForgotten);
    let mut kept = tries.flat_map(|(leaves, crowd)| (0..8).map(move |seed| kept(leaves, &crowd, forgotten, seed)));
    let wrong = kept.find_map(Result::err).expect("it is caught");
    assert!(wrong.contains("does not leave the queue by"), "{wrong}");
}
