//! Teams of listed ranks, created only by these ranks: while other ranks do other work, and after some have died.

use crate::ranks;
use ranks::{IN_TIME, VICTIM, die, within};
use std::time::Instant;
use transom::messages::{Source, Tag};
use transom::{Op, Rank, Status, Window, World};

const OVER: Tag<u8> = Tag::new(1);
const RING: Tag<u64> = Tag::new(2);

/// Uses all calls of a world, and checks the view of each rank of the team.
fn is_a_world(team: &World, list: &[Rank], me: Rank) {
    let place = list.iter().position(|&rank| rank == me).expect("the list should contain this rank");
    assert_eq!((team.rank(), team.size()), (place, list.len()));
    assert_eq!(team.all_gather(&[me]).unwrap(), list);
    let next = (place + 1) % list.len();
    let mut window: Window<u64> = team.allocate(2).unwrap();
    window.lock_exclusive(next).unwrap().put(0, &[me as u64]).unwrap();
    (0..list.len()).for_each(|rank| {
        window.lock_shared(rank).unwrap().fetch_and_op(1, Op::Sum, 1 + me as u64).unwrap();
    });
    window.fence().unwrap();
    let before = list[(place + list.len() - 1) % list.len()] as u64;
    let sum: u64 = list.iter().map(|&rank| 1 + rank as u64).sum();
    assert_eq!([window.local().get(0).unwrap(), window.local().get(1).unwrap()], [before, sum]);
    window.fence().unwrap();
    let sent = team.isend(next, RING, vec![me as u64; 10]);
    assert_eq!(team.recv(Source::Any, RING).unwrap().0, [before; 10]);
    sent.wait().unwrap();
    assert_eq!(team.all_reduce_one(me as u64, Op::Max).unwrap(), *list.iter().max().unwrap() as u64);
    team.barrier().unwrap();
}

#[test]
fn listed_ranks_alone_make_a_team() {
    ranks::on_all_sizes("listed_ranks_alone_make_a_team", |world: World| {
        let (me, n) = (world.rank(), world.size());
        // Every third rank stays out: it waits for a message that comes at the end. The highest rank is the first of
        // the list.
        let list: Vec<Rank> = (0..n).rev().filter(|rank| rank % 3 != 1).collect();
        if !list.contains(&me) {
            assert_eq!(world.recv(list[0], OVER).unwrap().0, [7]);
            return;
        }
        let team = world.team(&list).unwrap();
        is_a_world(&team, &list, me);
        // Teams of teams, by both calls.
        let last = list.len() - 1;
        if [0, last].contains(&team.rank()) {
            let ends: Vec<Rank> = if last == 0 { vec![0] } else { vec![last, 0] };
            let listed: Vec<Rank> = ends.iter().map(|&place| list[place]).collect();
            is_a_world(&team.team(&ends).unwrap(), &listed, me);
        }
        let half = team.split(Some(team.rank() as u64 % 2), 0).unwrap().expect("a colour was named");
        let listed: Vec<Rank> = list.iter().copied().skip(team.rank() % 2).step_by(2).collect();
        is_a_world(&half, &listed, me);
        // Repeated, which leaves nothing behind.
        (0..ranks::rounds(20)).for_each(|_| world.team(&list).unwrap().barrier().unwrap());
        if team.rank() == 0 {
            (0..n).filter(|rank| rank % 3 == 1).for_each(|rank| world.send(rank, OVER, &[7]).unwrap());
        }
    });
}

#[test]
fn concurrent_teams_by_list_are_separate() {
    ranks::on(&[1, 2, 3, 4], "concurrent_teams_by_list_are_separate", |world: World| {
        let up: Vec<Rank> = (0..world.size()).collect();
        let lists = [up.clone(), up.iter().copied().rev().collect(), vec![world.rank()]];
        std::thread::scope(|threads| {
            for list in &lists {
                threads.spawn(|| {
                    for _ in 0..ranks::rounds(10) {
                        let team = world.team(list).unwrap();
                        assert_eq!(team.all_gather(&[world.rank()]).unwrap(), *list);
                    }
                });
            }
        });
    });
}

#[test]
fn invalid_lists_are_refused_locally() {
    ranks::on(&[3], "invalid_lists_are_refused_locally", |world: World| {
        let me = world.rank();
        let refused = |list: &[Rank]| world.team(list).err().expect("an invalid list should be refused").to_string();
        assert_eq!(refused(&[me, 3]), format!("team: of ranks [{me}, 3]: there is no rank 3: ranks are 0 to 2"));
        assert_eq!(refused(&[me, 0, 0, 1]), format!("team: of ranks [{me}, 0, 0, 1]: rank 0 is listed twice"));
        assert_eq!(
            refused(&[(me + 1) % 3]),
            format!("team: of ranks [{}]: rank {me} is not in the list", (me + 1) % 3)
        );
        assert_eq!(refused(&[]), format!("team: of ranks []: rank {me} is not in the list"));
        world.barrier().unwrap();
    });
}

/// Ranks with different lists learn of the death too, although the rank that they wait for lives, and has gone on.
#[test]
fn survivors_make_a_team_without_the_dead_rank() {
    for size in [2, 3, 4, 8] {
        let ended = ranks::outcome_of(size, "survivors_make_a_team_without_the_dead_rank", |world| {
            let (me, n) = (world.rank(), world.size());
            // Messages have been exchanged, and the world had a window.
            let mut window: Window<u64> = world.allocate(1).unwrap();
            window.fence().unwrap();
            if me == VICTIM {
                world.barrier().unwrap();
                die();
            }
            world.barrier().unwrap();
            // Rank 0 knows of the death already, the others list all ranks: the loop of docs/running.md.
            let mut living: Vec<Rank> = (0..n).filter(|&rank| me != 0 || rank != VICTIM).collect();
            let begun = Instant::now();
            let team = loop {
                match world.team(&living) {
                    Ok(team) => break team,
                    Err(error) => {
                        assert_eq!(error.lost_rank(), Some(VICTIM), "{error}");
                        living.retain(|&rank| rank != VICTIM);
                    }
                }
            };
            assert!(begun.elapsed() < within(IN_TIME), "it took {:?}", begun.elapsed());
            is_a_world(&team, &living, me);
            is_a_world(&team.split(Some(0), 0).unwrap().expect("a colour was named"), &living, me);
            // Calls of the world still fail.
            assert_eq!(
                world.split(Some(0), 0).err().expect("split with a dead rank should fail").lost_rank(),
                Some(VICTIM)
            );
            is_a_world(&team, &living, me);
        });
        let Some(outcome) = ended else { return };
        ranks::only_failed(&outcome, VICTIM, Status::Killed(9));
    }
}

/// The rank dies in the call, or has left before.
#[test]
fn absent_listed_rank_is_named() {
    for (size, leaves) in [(2, false), (3, false), (5, false), (3, true)] {
        let leaving: &[(&str, &str)] = if leaves { &[("TEAMS_TEST", "leaves")] } else { &[] };
        let name = "absent_listed_rank_is_named";
        let ended = ranks::outcome_with(leaving, size, name, |world| {
            let (me, leaves) = (world.rank(), std::env::var_os("TEAMS_TEST").is_some());
            if me == VICTIM {
                if leaves {
                    return;
                }
                (1..world.size()).for_each(|_| drop(world.recv(Source::Any, OVER).unwrap()));
                die();
            }
            if !leaves {
                world.send(VICTIM, OVER, &[7]).unwrap();
            }
            // The dead rank is the first of the list, or the last.
            let mut list: Vec<Rank> = (0..world.size()).collect();
            list.swap(0, VICTIM);
            for list in [list.clone(), list.into_iter().rev().collect()] {
                let error = world.team(&list).err().expect("a team with an absent rank should fail");
                assert_eq!(error.lost_rank(), Some(VICTIM), "{error}");
            }
            // A rank that goes on to another team is not missed by the others.
            let living: Vec<Rank> = (0..world.size()).filter(|&rank| rank != VICTIM).collect();
            world.team(&living).unwrap().barrier().unwrap();
        });
        let Some(outcome) = ended else { return };
        match leaves {
            true => assert!(outcome.success(), "{outcome}"),
            false => ranks::only_failed(&outcome, VICTIM, Status::Killed(9)),
        }
    }
}

/// Another thread might still call with the other list, so this is no error.
#[test]
fn lists_in_another_order_are_reported() {
    let test = "lists_in_another_order_are_reported";
    let ended = ranks::outcome_with(&[("TRANSOM_WAIT_REPORT", "0.1")], 2, test, |world| {
        std::thread::spawn(|| {
            std::thread::sleep(3 * IN_TIME);
            std::process::exit(0);
        });
        let _ = world.team(if world.rank() == 0 { &[0, 1] } else { &[1, 0] });
    });
    let Some(outcome) = ended else { return };
    for (rank, list, other) in [(0, "[0, 1]", 1), (1, "[1, 0]", 0)] {
        let said = String::from_utf8_lossy(outcome.output(rank)).into_owned();
        let place = format!("in team(&{list}), which all of these call with the same list, for rank {other}");
        assert!(said.contains(&place), "{said}");
    }
}
