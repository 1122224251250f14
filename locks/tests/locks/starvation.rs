//! Programs that run for ever: a fair cycle in which a rank never returns is found, and the shipped lock has none.

use transom_locks::model::Delivery::{self, Deferred, Immediate, Torn, Watched};
use transom_locks::model::{Failure, Mix, Program, Replay, Search, Sim, SimState, Stopped, Suspended, sim};
use transom_locks::{At, Awaited, Error, Network, Rank, Wake};

const WORD: At = At { rank: 0, word: 0 };
const TURN: At = At { rank: 0, word: 1 };

/// The most tickets at one time, a power of two.
const TICKETS: u64 = 4;

/// Locks that ranks take and release for ever: phase 0 acquires, phase 1 releases.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Planted {
    /// A compare-and-swap from 0 to 1, again and again.
    TestAndSet,
    /// First come, first served.
    Tickets,
    /// Rank 0 enters only while no other rank has a ticket, and the others do not wait for it.
    LowPriority,
}

impl Program for Planted {
    type Local = ();

    fn start(&self, _: Rank) {}

    fn phases(&self, _: Rank) -> usize {
        2
    }

    fn repeats(&self, _: Rank) -> bool {
        true
    }

    fn phase(&self, rank: Rank, phase: usize, _: &mut (), network: &Replay) -> Result<(), Error<Suspended>> {
        let found = match (self, phase) {
            (Planted::TestAndSet, 0) if network.cas(WORD, 0, 1, Wake::Nobody)? != 0 => {
                return Err(network.retry().into());
            }
            (Planted::TestAndSet, 0) => Ok(0),
            (Planted::TestAndSet, _) => network.notify(WORD, 0, Wake::Nobody).map(|()| 0),
            (Planted::LowPriority, 0) if rank == 0 => network.watch(WORD, Awaited::Anyone, |word| word == 0),
            (Planted::LowPriority, _) if rank == 0 => network.add(TURN, 0, Wake::Nobody),
            (Planted::LowPriority, 0) => network.add(WORD, 1, Wake::Home),
            (Planted::LowPriority, _) => network.add(WORD, 1u64.wrapping_neg(), Wake::Home),
            (Planted::Tickets, 0) => {
                let ticket = network.add(WORD, 1, Wake::Nobody)?;
                network.watch(TURN, Awaited::Anyone, |turn| turn % TICKETS == ticket % TICKETS)
            }
            (Planted::Tickets, _) => network.add(TURN, 1, Wake::Home),
        };
        Ok(found.map(drop)?)
    }

    /// Ticket numbers matter modulo a power of two.
    fn reduce(&self, state: &mut SimState<()>) {
        if *self == Planted::Tickets {
            [WORD, TURN].into_iter().for_each(|at| state.set(at, state.word(at) % TICKETS));
        }
    }
}

fn search<P: Program>(net: &Sim<P>) -> Result<usize, Stopped> {
    let search = Search { starvation: true, ..Search::default() };
    Ok(net.explore_with(&search, (), |(), _| Ok(()))?.states)
}

fn starvation<P: Program>(net: &Sim<P>) -> Failure {
    search(net).unwrap_err().violation().unwrap()
}

fn planted(ranks: usize, lock: Planted) -> Sim<Planted> {
    Sim::new(ranks, 2, lock).with_delivery(Watched)
}

#[test]
fn test_and_set_lock_starves_a_rank() {
    let net = planted(2, Planted::TestAndSet);
    let failure = starvation(&net);
    let what = "starvation: rank 0 never returns from phase 0; every rank that always can take a step takes one";
    assert_eq!(failure.what, what);
    // Rank 1 takes the lock, rank 0 fails, rank 1 releases it.
    assert_eq!(failure.cycle, Some(0), "{failure}");
    assert_eq!(failure.schedule(), "* 1 0 1", "{failure}");
    assert_eq!(net.replay(&failure.schedule()).unwrap_err(), failure);
    let printed = failure.to_string();
    let after = printed.split_once("from here on it repeats for ever:").unwrap().1;
    assert_eq!(after.matches("cas FAILS").count(), 1, "{printed}");
    assert!(failure.trace.svg().contains("from here on it repeats for ever"));
    assert!(failure.trace.dot().contains("s2 -> s0 [label=\"for ever\""), "{}", failure.trace.dot());
}

/// Rank 0 waits, and the two others overlap so that the word it waits for is never 0.
#[test]
fn waiting_rank_that_others_overtake_starves() {
    assert!(search(&planted(2, Planted::LowPriority)).is_err());
    let failure = starvation(&planted(3, Planted::LowPriority));
    assert!(failure.what.contains("rank 0 never returns from phase 0"), "{failure}");
}

#[test]
fn ticket_lock_starves_no_rank() {
    for ranks in 2..=4 {
        search(&planted(ranks, Planted::Tickets)).unwrap();
    }
}

/// Steps that could always be taken are: a cycle that leaves one out is no starvation.
#[test]
fn unfair_cycle_is_no_starvation() {
    let polls = |network: &Replay| match network.add(WORD, 0, Wake::Nobody)? {
        0 => Err(network.retry()),
        _ => Ok(()),
    };
    let tells = sim::once(move |rank, network: &Replay| match rank {
        1 => network.notify(WORD, 1, Wake::Nobody),
        _ => polls(network),
    });
    let net = Sim::new(3, 1, tells);
    // Rank 1 has told or not, rank 0 and rank 2 have seen it or not; one poll more or less is the same state.
    assert_eq!(search(&net).unwrap(), 5);
    // A message in flight arrives at some time.
    assert_eq!(search(&net.with_delivery(Deferred)).unwrap(), 6);
    let never = Sim::new(2, 1, sim::once(move |_, network: &Replay| polls(network)));
    let failure = starvation(&never);
    assert_eq!(failure.schedule(), "* 0 1", "{failure}");
    // A cycle in which rank 1 takes no step is not fair, and so no violation.
    assert!(never.replay("* 0").is_ok());
}

/// A phase that retries once its verb was executed, and then returns without another one, for ever.
struct ReturnsOnRetry;

impl Program for ReturnsOnRetry {
    type Local = bool;

    fn start(&self, _: Rank) -> bool {
        false
    }

    fn phases(&self, _: Rank) -> usize {
        1
    }

    fn repeats(&self, _: Rank) -> bool {
        true
    }

    fn phase(&self, _: Rank, _: usize, is_done: &mut bool, network: &Replay) -> Result<(), Error<Suspended>> {
        if !std::mem::take(is_done) {
            network.add(WORD, 0, Wake::Nobody)?;
            *is_done = true;
            return Err(network.retry().into());
        }
        Ok(())
    }
}

#[test]
fn phase_that_returns_on_retry_is_no_starvation() {
    search(&Sim::new(2, 1, ReturnsOnRetry)).unwrap();
}

#[test]
fn phase_that_retries_without_a_verb_is_refused() {
    let net = Sim::new(1, 1, sim::once(|_, network: &Replay| Err::<(), _>(network.retry())));
    assert_eq!(net.start().unwrap_err().what, "rank 0 retries for ever without a verb");
}

fn check(text: &str, deliveries: &[Delivery]) {
    for &delivery in deliveries {
        let net = Mix::<3>::parse(text).unwrap().sim().with_delivery(delivery);
        let states = search(&net).unwrap_or_else(|stopped| panic!("{text}, {delivery:?}: {stopped}"));
        println!("{text}, {delivery:?}: {states} states");
    }
}

/// Requests of two ranks that come and go for ever, with and without deadlines and attempts.
#[test]
fn shipped_lock_starves_no_rank() {
    for text in ["W * | R", "W | R *", "W * | W *", "R * | R *", "W R * | W *", "W * | TW *", "W * | DW"] {
        check(text, &[Immediate, Watched]);
    }
    check("W * | W *", &[Deferred, Torn]);
}

#[test]
#[ignore = "long: `tests/full` runs it"]
fn shipped_lock_starves_no_rank_at_length() {
    for text in ["W * | R *", "W * | DW *", "DR * | W *"] {
        check(text, &[Immediate, Deferred, Watched, Torn]);
    }
}
