//! A release, or a request that gives up, ends after a bounded number of verbs, however others queue behind it and
//! leave again.

use crate::crowd::{Net, Now, WORD, among, can};
use crate::mutants::{Mutant, MutantMix};
use transom_locks::Mode::{self, Exclusive, Shared};
use transom_locks::model::{Call, Step};
use transom_locks::{At, LockLayout, LockWord, Rank};

/// `next` of rank 0.
const NEXT: At = At { rank: 0, word: 8 };

/// Flag of a timed request in `next`.
const TIMED: u64 = 1 << 63;

/// The way rank 0 leaves the queue.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    /// Rank 0 holds the lock, and releases it.
    Holder,
    /// Rank 0 gives up behind rank 1, which holds the lock in this mode and takes no step.
    Behind(Mode),
}

impl Leaves {
    /// The rows of calls of the ranks that come before the crowd.
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

/// The number of verbs that rank 0 needs to leave. Before each of them the `crowd` runs, as long as it can, until that
/// verb sees a change but no request to which rank 0 could hand over.
fn kept(leaves: Leaves, crowd: &[Vec<Call>], mutant: Option<Mutant>, seed: u64) -> Result<usize, String> {
    let before = leaves.rows();
    let others: Vec<Rank> = (before.len()..before.len() + crowd.len()).collect();
    let rows = [before.clone(), crowd.to_vec()].concat();
    let net = Net::new(rows.len(), LockLayout::words(rows.len()), MutantMix { mutant, ..MutantMix::new(rows) });
    let mut state = net.start().map_err(|failure| failure.what)?;
    // First the holder enters, then rank 0 behind it.
    while state.phase(before.len() - 1) == 0 {
        state = net.step(&state, Step::Rank(before.len() - 1))?;
    }
    while LockWord::<16>(state.word(WORD)).tail() != Some(0) {
        state = net.step(&state, Step::Rank(0))?;
    }
    let (mut random, leaves) = (fastrand::Rng::with_seed(seed), state.phase(0));
    let is_new = |before: &Now, now: &Now| [WORD, NEXT].iter().any(|&at| before.word(at) != now.word(at));
    let (verbs, _) = among(
        &net,
        state,
        &others,
        |_, ready| random.choice(ready).unwrap(),
        |before, now| is_new(before, now) && now.word(NEXT) & TIMED == 0 && can(&net, now, 0),
        |now| now.phase(0) == leaves,
    )?;
    Ok(verbs)
}

/// The calls that the others repeat.
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
fn leaving_takes_bounded_verbs_in_any_crowd() {
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

/// This mutant violates no property, but its verbs have no bound.
#[test]
fn mutant_without_stay_delays_leaving_unboundedly() {
    let tries = LEAVES.into_iter().flat_map(|leaves| crowds().into_iter().map(move |(_, crowd)| (leaves, crowd)));
    let forgotten = Some(Mutant::StayForgotten);
    let mut kept = tries.flat_map(|(leaves, crowd)| (0..8).map(move |seed| kept(leaves, &crowd, forgotten, seed)));
    let wrong = kept.find_map(Result::err).expect("it is caught");
    assert!(wrong.contains("does not leave the queue by"), "{wrong}");
}
