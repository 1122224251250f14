//! The gate of updates under every schedule: a run that is alone reads and writes back, and no update is lost.

use transom_locks::model::{Delivery, Replay, Sim, Suspended, sim};
use transom_locks::{At, Awaited, Error, Network, Run, UpdateGate, Wake};

/// Three words, all at rank 0: the gate, the element, and the count of ranks that are done.
const WORDS: usize = 3;

fn word(word: usize) -> At {
    At { rank: 0, word }
}

const GATE: UpdateGate = UpdateGate::new(At { rank: 0, word: 0 });

/// One action of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Act {
    /// A single of a thread that is admitted for it alone.
    Single,
    /// A single; the thread stays admitted for later actions.
    Stay,
    /// A run of one element, by a thread that is admitted for singles or not.
    Run,
    /// A run at memory without singles.
    Alone,
    /// Ends the admission for singles.
    Leave,
}

use Act::{Alone, Leave, Run as ARun, Single, Stay};

type Outcome<T> = Result<T, Error<Suspended>>;

/// Adds 1 to the element by a read and a write, so that an update in between is lost.
fn plainly(network: &Replay) -> Outcome<()> {
    let found = network.add(word(1), 0, Wake::Nobody)?;
    Ok(network.cas(word(1), found, found + 1, Wake::Nobody).map(drop)?)
}

fn atomically(network: &Replay) -> Outcome<()> {
    Ok(network.add(word(1), 1, Wake::Nobody).map(drop)?)
}

fn act(network: &Replay, acts: &[Act]) -> Outcome<u64> {
    let (mut admitted, mut updates) = (false, 0);
    for act in acts {
        match act {
            Single => {
                GATE.enter_single(network)?;
                atomically(network)?;
                GATE.leave_single(network)?;
            }
            Stay => {
                if !admitted {
                    GATE.enter_single(network)?;
                }
                admitted = true;
                atomically(network)?;
            }
            ARun | Alone => {
                let run = if *act == Alone { GATE.enter_alone(network)? } else { GATE.enter_run(network, admitted)? };
                match run {
                    Run::Alone => plainly(network)?,
                    Run::Among => atomically(network)?,
                }
                GATE.leave_run(network, run)?;
            }
            Leave => {
                GATE.leave_single(network)?;
                admitted = false;
                continue;
            }
        }
        updates += 1;
    }
    if admitted {
        GATE.leave_single(network)?;
    }
    Ok(updates)
}

/// Runs the actions of each rank. At the end all updates must be there, and the gate must be 0.
fn check(acts: &'static [&'static [Act]], delivery: Delivery) -> usize {
    let program = sim::once(move |rank, network| {
        act(network, acts[rank])?;
        network.add(word(2), 1, Wake::Home)?;
        if rank == 0 {
            network.wait(2, Awaited::Anyone, |done| done == acts.len() as u64)?;
            let updates = acts.iter().copied().flatten().filter(|act| **act != Leave).count() as u64;
            if network.add(word(1), 0, Wake::Nobody)? != updates {
                return Err(Error::Epoch("an update is lost"));
            }
            if network.add(word(0), 0, Wake::Nobody)? != 0 {
                return Err(Error::Epoch("the gate counts an update that has ended"));
            }
        }
        Ok(())
    });
    let net = Sim::new(acts.len(), WORDS, program).with_delivery(delivery);
    net.explore(20_000_000).unwrap_or_else(|failure| panic!("{acts:?}: {failure}"))
}

#[test]
fn update_beside_a_run_is_never_lost() {
    let mixes: &[&[&[Act]]] = &[
        &[&[ARun, ARun], &[Single, Single]],
        &[&[ARun, ARun], &[Stay, Stay, ARun]],
        &[&[Stay, ARun, Stay], &[Stay, ARun, Stay]],
        &[&[Stay, Leave, ARun], &[ARun, Stay, ARun]],
        &[&[ARun], &[ARun], &[Single]],
        &[&[ARun], &[Stay, ARun], &[Single]],
        &[&[Alone, Alone], &[Alone], &[Alone]],
    ];
    for delivery in [Delivery::Immediate, Delivery::Deferred, Delivery::Watched, Delivery::Torn] {
        for mix in mixes {
            let states = check(mix, delivery);
            println!("{mix:?}, {delivery:?}: {states} states");
        }
    }
}

#[test]
fn run_without_singles_is_alone() {
    let net = Sim::new(
        1,
        WORDS,
        sim::once(|_, network| {
            for admitted in [false, true] {
                if admitted {
                    GATE.enter_single(network)?;
                }
                let run = GATE.enter_run(network, admitted)?;
                if run != Run::Alone {
                    return Err(Error::Epoch("a run is among singles that are not there"));
                }
                GATE.leave_run(network, run)?;
            }
            Ok(())
        }),
    );
    net.explore(1_000).unwrap();
}
