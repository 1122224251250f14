//! The `Awaited` that a lock passes to the network's waits: the predecessor, where it is known.

use std::cell::RefCell;
use transom_locks::Mode::{self, Exclusive, Shared};
use transom_locks::model::{Call, Handles, Replay, Sim, Suspended, sim};
use transom_locks::{At, Awaited, Error, Field, LockLayout, Network, Rank, Wake};

/// Records each wait's field and `Awaited`.
struct Watched<'a> {
    network: &'a Replay,
    layout: LockLayout,
    waits: RefCell<Vec<(Field, Awaited)>>,
}

impl Network for Watched<'_> {
    type Error = Suspended;
    type Pending = <Replay as Network>::Pending;
    type Found = std::convert::Infallible;

    fn rank(&self) -> Rank {
        self.network.rank()
    }

    fn ranks(&self) -> usize {
        self.network.ranks()
    }

    fn cas(&self, at: At, expected: u64, new: u64, wake: Wake) -> Result<u64, Suspended> {
        self.network.cas(at, expected, new, wake)
    }

    fn start_add(&self, at: At, delta: u64, wake: Wake) -> Result<Self::Pending, Suspended> {
        self.network.start_add(at, delta, wake)
    }

    fn finish(&self, pending: Self::Pending) -> Result<u64, Suspended> {
        self.network.finish(pending)
    }

    fn notify(&self, at: At, value: u64, wake: Wake) -> Result<(), Suspended> {
        self.network.notify(at, value, wake)
    }

    fn wait(&self, word: usize, on: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, Suspended> {
        let field = self.layout.field(At { rank: self.rank(), word }).expect("a word of a lock").1;
        self.waits.borrow_mut().push((field, on));
        self.network.wait(word, on, until)
    }
}

/// Ranks take the lock of rank 0 in the given modes, each once its predecessor has its place, and then release it in
/// that order. Returns the waits of the last rank's acquire.
fn last_waits(modes: &'static [Mode]) -> Vec<(Field, Awaited)> {
    let ranks = modes.len();
    let layout = LockLayout::new(0, ranks);
    // The word behind the lock's words tells a rank to make its request.
    let flag = LockLayout::words(ranks);
    let found = std::rc::Rc::new(RefCell::new(Vec::new()));
    let kept = found.clone();
    let phase = move |rank: Rank, network: &Replay| -> Result<(), Error<Suspended>> {
        let watched = Watched { network, layout, waits: RefCell::default() };
        let mut handles = Handles::<16>::new(ranks, 0);
        if rank == 0 {
            Call::Acquire(0, modes[0]).run(&mut handles, network)?;
            for next in 1..ranks {
                // The next rank has its place once the lock word has changed; that change wakes no rank.
                let read = || network.add(At { rank: 0, word: 0 }, 0, Wake::Nobody);
                let before = read()?;
                network.notify(At { rank: next, word: flag }, 1, Wake::Home)?;
                while read()? == before {}
            }
        } else {
            network.wait(flag, Awaited::Anyone, |turn| turn == 1)?;
            Call::Acquire(0, modes[rank]).run(&mut handles, &watched)?;
        }
        if rank + 1 == ranks {
            *kept.borrow_mut() = watched.waits.take();
        }
        Call::Release(0).run(&mut handles, network)
    };
    Sim::new(ranks, LockLayout::words(ranks) + 1, sim::once(phase)).run_random(5).unwrap();
    found.take()
}

#[test]
fn wait_names_predecessor_when_known() {
    use Awaited::{Anyone, Behind};
    use Field::{Drained, Go, Grant};
    // No request is in the way.
    assert_eq!(last_waits(&[Shared, Shared]), []);
    assert_eq!(last_waits(&[Exclusive, Exclusive]), [(Go, Behind(0))]);
    assert_eq!(last_waits(&[Exclusive, Shared]), [(Grant, Behind(0))]);
    assert_eq!(last_waits(&[Exclusive, Exclusive, Exclusive]), [(Go, Behind(1))]);
    assert_eq!(last_waits(&[Exclusive, Exclusive, Shared]), [(Grant, Behind(1))]);
    assert_eq!(last_waits(&[Exclusive, Exclusive, Shared, Shared]), [(Grant, Behind(1))]);
    // Readers are counted, not named.
    assert_eq!(last_waits(&[Shared, Exclusive]), [(Drained, Anyone)]);
    assert_eq!(last_waits(&[Exclusive, Shared, Exclusive]), [(Go, Behind(0)), (Drained, Anyone)]);
}
