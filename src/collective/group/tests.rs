//! Receives that failed or idle teams leave.

use crate::Op;
use crate::messages::{Source, Tag};

/// Discarding receives for a failed team end once all ranks have left it, in any order.
#[test]
fn dropped_failed_teams_leave_no_receives() {
    const TAG: Tag<u8> = Tag::new(1);
    crate::threads(3, |world| {
        let (me, n) = (world.rank(), world.size());
        let progress_engine = &world.space().comm().unwrap().progress_engine;
        // These messages come from other contexts than the collectives.
        let meet = || {
            (0..n).for_each(|to| world.send(to, TAG, &[1]).unwrap());
            (0..n).for_each(|_| drop(world.recv(Source::Any, TAG).unwrap()));
        };
        let under_way = || progress_engine.with(|core| core.engine.under_way()).unwrap();
        let settles = |most: usize| {
            let begun = std::time::Instant::now();
            while under_way() > most && begun.elapsed().as_secs() < 5 {
                world.progress().unwrap();
            }
            under_way()
        };
        world.all_reduce_one(1, Op::Sum).unwrap();
        meet();
        let before = settles(1);
        for round in 0..6 {
            let team = world.split(Some(0), 0).unwrap().unwrap();
            // Rank 0 makes no collective in the last round.
            if round < 5 || me > 0 {
                let elements = if me == 2 { 2 } else { 1 };
                team.all_reduce(&mut vec![1; elements], Op::Sum).unwrap_err();
            }
            if round % 3 == me {
                // The other ranks have left before.
                meet();
                (0..20).for_each(|_| world.progress().unwrap());
                drop(team);
            } else {
                drop(team);
                world.progress().unwrap();
                meet();
            }
        }
        meet();
        assert_eq!(settles(before), before, "rank {me}");
        meet();
    })
    .unwrap();
}

/// One turn takes one step, that of the listener, regardless of the number of teams and waiting started
/// collectives. Starting a collective takes one more step per round.
#[test]
fn progress_steps_ignore_idle_teams_and_calls() {
    crate::threads(2, |world| {
        let progress_engine = &world.space().comm().unwrap().progress_engine;
        let steps = || progress_engine.with(|core| core.steps).unwrap();
        let teams: Vec<_> = (0..100).map(|_| world.split(Some(0), 0).unwrap().unwrap()).collect();
        teams.iter().for_each(|team| team.barrier().unwrap());
        let meet = || {
            let other = 1 - world.rank();
            world.sendrecv(other, TAG, &[0_u8], other, TAG, &mut [0_u8]).unwrap();
        };
        const TAG: Tag<u8> = Tag::new(7);
        let turns = |many: u64| (0..many).for_each(|_| world.progress().unwrap());
        meet();
        turns(10);
        let before = steps();
        turns(50);
        assert!(steps() - before <= 60, "{} steps in 50 turns beside 100 teams", steps() - before);
        // Rank 1 has not started these collectives.
        if world.rank() == 0 {
            let mut started: Vec<_> = (0..300).map(|_| world.iall_reduce(vec![1], Op::Sum)).collect();
            turns(10);
            let before = steps();
            started.extend((0..50).map(|_| world.iall_reduce(vec![1], Op::Sum)));
            // The periodic check of all started calls (every 100 ms) may fall in between.
            assert!(steps() - before <= 150 + 2 * 350, "{} steps to start 50 beside 300", steps() - before);
            meet();
            started.into_iter().for_each(|started| assert_eq!(started.wait().unwrap(), [2]));
        } else {
            meet();
            let started: Vec<_> = (0..350).map(|_| world.iall_reduce(vec![1], Op::Sum)).collect();
            started.into_iter().for_each(|started| assert_eq!(started.wait().unwrap(), [2]));
        }
    })
    .unwrap();
}
