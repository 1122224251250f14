//! Teams: colours, keys, windows of their own, and members that die or leave.

use crate::ranks;
use ranks::{IN_TIME, VICTIM, die, within};
use std::time::Instant;
use transom::messages::{Source, Tag};
use transom::windows::OobExchange;
use transom::{Op, Status, Window, World, messages};

const TOLD: Tag<u8> = Tag::new(1);

#[test]
fn ranks_of_one_colour_are_numbered_by_key_then_rank() {
    ranks::on_all_sizes("ranks_of_one_colour_are_numbered_by_key_then_rank", |world: World| {
        let (me, n) = (world.rank(), world.size());
        // Colours 0 and 1; in the first the highest rank comes first, in the second all have one key.
        let colour = me % 2;
        let key = if colour == 0 { n - me } else { 5 };
        let team = world.split(Some(colour as u64), key as u64).unwrap().expect("a colour was named");
        let members: Vec<_> = (0..n).filter(|rank| rank % 2 == colour).collect();
        let mut expected = members.clone();
        if colour == 0 {
            expected.reverse();
        }
        assert_eq!((team.size(), expected[team.rank()]), (members.len(), me));
        // The team's windows reach its members alone, by their numbers in the team.
        let mut window: Window<u64> = team.allocate(2).unwrap();
        window.fence().unwrap();
        for rank in 0..team.size() {
            window.lock_exclusive(rank).unwrap().fetch_and_op(0, Op::Sum, 1 + me as u64).unwrap();
        }
        assert!(window.lock_shared(team.size()).is_err());
        window.fence().unwrap();
        let sum: u64 = members.iter().map(|&rank| 1 + rank as u64).sum();
        assert_eq!(window.local().get(0).unwrap(), sum);
        // Both at once: the world's windows still work.
        let mut all: Window<u64> = world.allocate(1).unwrap();
        all.lock_shared(0).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
        all.fence().unwrap();
        assert_eq!(all.lock_shared(0).unwrap().get_one(0).unwrap(), n as u64);
        all.fence().unwrap();
    });
}

/// Each rank watches the others by a descriptor each, once for all its teams. The usual limit of descriptors does not
/// refuse many ranks.
#[test]
fn teams_take_no_descriptors() {
    let name = "teams_take_no_descriptors";
    if ranks::over_network() {
        return;
    }
    if std::env::var_os("TEAMS_TEST").is_some() {
        let world = transom::init().unwrap();
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        let teams: Vec<_> = (0..10).map(|_| world.split(Some(1), 0).unwrap().expect("a colour was named")).collect();
        teams.iter().for_each(|team| team.barrier().unwrap());
        assert!(open() < before + 10, "{before} descriptors before, {} with ten teams", open());
        return;
    }
    let full = ranks::full_name(name);
    for (ranks, limit) in [(6, 64), (40, 32)] {
        let limited = format!("ulimit -Sn {limit}; exec \"$0\" \"$@\"");
        let program = std::env::current_exe().unwrap().display().to_string();
        let outcome = transom::Launch::new("sh", ranks)
            .args(["-c", &limited, &program, "--exact", &full, "--nocapture", "--test-threads=1"])
            .env("TEAMS_TEST", "1")
            .capture(true)
            .run()
            .unwrap();
        let said = || (0..ranks).map(|rank| String::from_utf8_lossy(outcome.output(rank)).into_owned());
        ranks::has_run(&full, &outcome);
        assert!(outcome.success(), "{outcome} {}", said().collect::<String>());
    }
}

#[test]
fn rank_without_a_colour_is_in_no_team() {
    ranks::on_all_sizes("rank_without_a_colour_is_in_no_team", |world| {
        let (me, n) = (world.rank(), world.size());
        let team = world.split((me > 0).then_some(u64::MAX), 0).unwrap();
        assert_eq!(team.as_ref().map(|team| (team.rank(), team.size())), (me > 0).then(|| (me - 1, n - 1)));
        if let Some(team) = team {
            let alone = team.split(Some(team.rank() as u64), 0).unwrap().expect("a colour was named");
            assert_eq!((alone.rank(), alone.size()), (0, 1));
            alone.barrier().unwrap();
            for _ in 0..100 {
                team.barrier().unwrap();
            }
        }
        world.barrier().unwrap();
    });
}

#[test]
fn departure_from_a_team_fails_that_team_alone() {
    ranks::on(&[2, 3, 4, 8], "departure_from_a_team_fails_that_team_alone", |world| {
        let (me, n) = (world.rank(), world.size());
        // Ranks 0 and 1 are one team, all others another; rank 1 leaves its team, but not the world.
        let team = world.split(Some(u64::from(me > 1)), 0).unwrap().expect("a colour was named");
        match me {
            0 => {
                let error = team.barrier().unwrap_err();
                assert!(matches!(error, messages::Error::TeamDropped { rank: 1 }), "{error}");
                assert!(error.to_string().starts_with("rank 1 dropped its `World` of this team before"), "{error}");
                assert_eq!(error.lost_rank(), Some(1));
            }
            1 => drop(team),
            _ => team.barrier().unwrap(),
        }
        world.barrier().unwrap();
        assert!(n >= 2);
    });
}

/// The error comes whatever the others call, and whether or not they have called a collective in this team before.
#[test]
fn departure_from_a_team_fails_every_collective() {
    for variables in ranks::each(&[&[][..], ranks::BY_MESSAGES]) {
        ranks::on_with(variables, &[2, 3, 5], "departure_from_a_team_fails_every_collective", |world| {
            for called in [false, true] {
                let team = world.split(Some(0), 0).unwrap().expect("a colour was named");
                if called {
                    team.barrier().unwrap();
                }
                if world.rank() == 1 {
                    drop(team);
                    // The rank has called no collective in any other team.
                    (1..world.size()).for_each(|_| drop(world.recv(Source::Any, TOLD).unwrap()));
                } else {
                    // A rank whose call waits for no other gets the error from the next call.
                    let error = team.broadcast_one(1, 5).and_then(|_| team.all_gather(&[1])).unwrap_err();
                    assert!(matches!(error, messages::Error::TeamDropped { rank: 1 }), "{error}");
                    world.send(1, TOLD, &[]).unwrap();
                }
            }
        });
    }
}

/// Its ranks are numbered there as in the job.
#[test]
fn provider_of_a_team_is_the_provider_of_its_job() {
    ranks::on(&[1, 2, 3], "provider_of_a_team_is_the_provider_of_its_job", |world| {
        let (me, n) = (world.rank(), world.size());
        let team = world.split(Some(me as u64), 0).unwrap().expect("a colour was named");
        team.barrier().unwrap();
        team.allocate::<u64>(1).unwrap();
        assert_eq!([team.rank(), team.size()], [0, 1]);
        assert_eq!([team.provider().rank(), team.provider().size()], [me, n]);
        world.barrier().unwrap();
    });
}

/// Windows come before collectives, or collectives before windows; and the other teams make neither.
#[test]
fn team_resources_are_made_at_first_use() {
    ranks::on(&[1, 2, 3, 4, 8], "team_resources_are_made_at_first_use", |world| {
        let (me, n) = (world.rank(), world.size());
        for window_first in [true, false] {
            let team = world.split(Some(me as u64 % 2), (n - me) as u64).unwrap().expect("a colour was named");
            let inner = team.split(Some(0), 0).unwrap().expect("a colour was named");
            let next = (inner.rank() + 1) % inner.size();
            if !window_first {
                assert_eq!(inner.all_reduce_one(1, Op::Sum).unwrap(), inner.size());
            }
            if me % 2 == 0 || window_first {
                let mut window: Window<u64> = inner.allocate(1).unwrap();
                window.lock_exclusive(next).unwrap().put(0, &[7 + inner.rank() as u64]).unwrap();
                window.fence().unwrap();
                let before = (inner.rank() + inner.size() - 1) % inner.size();
                assert_eq!(window.local().get(0).unwrap(), 7 + before as u64);
                window.fence().unwrap();
            }
            inner.barrier().unwrap();
        }
        world.barrier().unwrap();
    });
}

#[test]
fn death_during_a_split_names_the_rank() {
    for size in [2, 3, 5] {
        let ended = ranks::outcome_of(size, "death_during_a_split_names_the_rank", |world| {
            if world.rank() == VICTIM {
                // The other ranks are in the call by then, or nearly.
                (0..world.size()).filter(|&rank| rank != VICTIM).for_each(|rank| drop(world.recv(rank, TOLD).unwrap()));
                std::thread::sleep(std::time::Duration::from_millis(50));
                die();
            }
            world.send(VICTIM, TOLD, &[]).unwrap();
            let begun = Instant::now();
            let error = world.split(Some(0), 0).err().expect("split with a dead rank should fail");
            assert_eq!(error.lost_rank(), Some(VICTIM), "{error}");
            assert!(begun.elapsed() < within(IN_TIME), "it took {:?}", begun.elapsed());
        });
        let Some(outcome) = ended else { return };
        ranks::only_failed(&outcome, VICTIM, Status::Killed(9));
    }
}
