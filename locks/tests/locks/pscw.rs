//! Access groups at one rank: which ranks are targets at what time. A target that cannot be notified does not prevent
//! the notifications of other targets.

use transom_locks::model::failing::{Extent, Failing, Failure, How, Plan, Progress};
use transom_locks::model::{Delivery, Replay, Sim, Suspended, sim};
use transom_locks::{At, Error, Network, Pscw, Rank, Wake};

/// The ranks for which `is_target` holds, and the result of `targets`.
fn targets(group: &Pscw, ranks: usize) -> (Vec<Rank>, Option<&[Rank]>) {
    ((0..ranks + 2).filter(|&rank| group.is_target(rank)).collect(), group.targets())
}

#[test]
fn target_is_reported_only_while_epoch_is_open() {
    for ranks in [1, 2, 3, 4, 8] {
        let all: Vec<Rank> = (0..ranks).collect();
        let phase = move |_: Rank, network: &Replay| -> Result<(), Error<Suspended>> {
            let mut group = Pscw::new(ranks, 0);
            let last = [ranks - 1];
            assert_eq!(targets(&group, ranks), (vec![], None));
            group.post(network, &all)?;
            // An exposure does not make its origins targets.
            assert_eq!(targets(&group, ranks), (vec![], None));
            group.start(network, &last)?;
            assert_eq!(targets(&group, ranks), (vec![ranks - 1], Some(&last[..])));
            // A refused start does not change the targets.
            assert!(matches!(group.start(network, &[0]), Err(Error::Epoch(_))));
            assert_eq!(targets(&group, ranks), (vec![ranks - 1], Some(&last[..])));
            group.complete(network)?;
            assert_eq!(targets(&group, ranks), (vec![], None));
            assert!(matches!(group.start(network, &[0, 0]), Err(Error::Epoch(_))));
            assert_eq!(targets(&group, ranks), (vec![], None));
            group.start_unseen::<Suspended>(&all)?;
            assert_eq!(targets(&group, ranks), (all.clone(), Some(&all[..])));
            group.complete(network)?;
            assert_eq!(targets(&group, ranks), (vec![], None));
            group.start_unseen::<Suspended>(&[])?;
            assert_eq!(targets(&group, ranks), (vec![], Some(&[][..])));
            group.complete(network)
        };
        Sim::new(ranks, Pscw::words(ranks), sim::once(phase)).run_random(1).unwrap();
    }
}

/// The second access epoch waits for the second exposure, and the second exposure for the second completion.
#[test]
fn each_epoch_matches_its_own_counterpart() {
    /// Word of rank 0 in which its exposures count the accesses.
    const DATA: usize = Pscw::words(3);
    let phase = |rank: Rank, network: &Replay| -> Result<(), Error<Suspended>> {
        let mut group = Pscw::new(3, 0);
        for nth in 1..=2 {
            let data = At { rank: 0, word: DATA };
            if rank > 0 {
                group.start(network, &[0])?;
                network.add(data, 1, Wake::Home)?;
                group.complete(network)?;
                continue;
            }
            assert_eq!(network.add(data, 0, Wake::Home)?, 2 * (nth - 1), "accesses before exposure {nth}");
            group.post(network, &[1, 2])?;
            group.wait(network)?;
            assert_eq!(network.add(data, 0, Wake::Home)?, 2 * nth, "accesses after exposure {nth}");
        }
        Ok(())
    };
    for delivery in [Delivery::Immediate, Delivery::Deferred] {
        Sim::new(3, DATA + 1, sim::once(phase)).with_delivery(delivery).explore(100_000).unwrap();
    }
}

/// Two ranks write different words at a third, all within `Pscw::words`.
#[test]
fn each_origin_writes_its_own_two_words() {
    let ranks = 5;
    for writer in 0..ranks {
        let alone = move |rank: Rank, network: &Replay| -> Result<(), Error<Suspended>> {
            if rank == writer {
                let mut group = Pscw::new(ranks, 3);
                let others = Vec::from_iter((0..ranks).filter(|&rank| rank != writer));
                group.post(network, &others)?;
                group.start_unseen::<Suspended>(&others)?;
                group.complete(network)?;
            }
            Ok(())
        };
        let state = Sim::new(ranks, 3 + Pscw::words(ranks), sim::once(alone)).run_random(1).unwrap();
        for (at, value) in state.nonzero() {
            assert!(at.rank != writer && (at.word - 3) / 2 == writer && value == 1, "{at:?} holds {value}");
        }
        assert_eq!(state.nonzero().count(), 2 * (ranks - 1));
    }
}

/// The connection to one target is lost: all others are notified, whatever their place in the group.
#[test]
fn unreachable_target_does_not_stop_notifications() {
    for ranks in [2, 3, 4, 8] {
        for lost in 1..ranks {
            let phase = move |rank: Rank, network: &Replay| -> Result<(), Error<Suspended>> {
                let mut group = Pscw::new(ranks, 0);
                if rank > 0 {
                    group.post(network, &[0])?;
                    return if rank == lost { Ok(()) } else { group.wait(network) };
                }
                let others = Vec::from_iter(1..ranks);
                group.start(network, &others)?;
                let plan = Plan { nth: lost - 1, how: How::Lost, extent: Extent::Rank };
                let failing = Failing::new(network, plan, Progress::default());
                match group.complete(&failing) {
                    Err(Error::Network(Failure::Network(suspended))) => return Err(suspended.into()),
                    outcome => assert_eq!(outcome, Err(Error::Network(Failure::Made))),
                }
                assert_eq!(targets(&group, ranks), (vec![], None));
                Ok(())
            };
            let state = Sim::new(ranks, Pscw::words(ranks), sim::once(phase)).run_random(lost as u64).unwrap();
            for rank in 1..ranks {
                assert_eq!(state.word(At { rank, word: 1 }), u64::from(rank != lost));
            }
        }
    }
}
