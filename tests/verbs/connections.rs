//! Connections of ranks whose adapters have few queue pairs, on a fake one: idle connections are given up and made anew.

use crate::adapter::*;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use transom::messages::Tag;
use transom::{Op, Window, World};

const TAG: Tag<u64> = Tag::new(1);
const OFF: (&str, &str) = ("TRANSOM_INTRANODE", "off");

/// An error with its sources.
fn whole(error: &(dyn Error + 'static)) -> String {
    error.source().map_or(error.to_string(), |source| format!("{error}: {}", whole(source)))
}

/// Adds 1 to the first word of a rank; returns the word's former value.
fn add(window: &mut Window<u64>, rank: usize) -> u64 {
    let epoch = window.lock_shared(rank).unwrap();
    let found = epoch.fetch_and_op(0, Op::Sum, 1).unwrap();
    epoch.unlock().unwrap();
    found
}

/// Waits until this rank has at most `most` connections.
fn until_few(world: &World, most: usize) {
    let began = Instant::now();
    while verbs(world).queue_pairs().now > most {
        assert!(began.elapsed() < DEADLINE / 2, "{:?}", verbs(world).queue_pairs());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// 5 ranks share an adapter that reports 32 queue pairs: each has 2 connections. (The fake one counts per process.)
#[test]
fn idle_connections_are_given_up_and_made_anew() {
    on_fake(None, 5, "idle_connections_are_given_up_and_made_anew", &[OFF, ("FAKE_PAIRS", "32")], |world| {
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u64> = world.allocate(1).unwrap();
        for round in 1..=3 {
            for rank in (0..n).filter(|rank| *rank != me) {
                add(&mut window, rank);
            }
            meet(&world).unwrap();
            assert_eq!(window.local().get(0).unwrap(), round * (n as u64 - 1));
            until_few(&world, 2);
            meet(&world).unwrap();
        }
        assert!(verbs(&world).queue_pairs().to_others > n - 1, "no connection was made anew");
    });
}

/// Operations begin at any moment of the exchange by which two ranks give up a connection.
#[test]
fn operations_execute_once_while_connections_are_given_up() {
    let name = "operations_execute_once_while_connections_are_given_up";
    on_fake(None, 3, name, &[OFF, ("TRANSOM_VERBS_CONNECTIONS", "1")], |world| {
        const ROUNDS: u64 = 16;
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u64> = world.allocate(1).unwrap();
        let (mut found, mut random) = (vec![Vec::new(); n], me as u64 + 1);
        for round in 0..ROUNDS {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            std::thread::sleep(Duration::from_millis(200 + (random >> 32) % 400));
            for rank in (0..n).filter(|rank| *rank != me) {
                found[rank].push(add(&mut window, rank));
            }
            let (to, from) = ((me + 1) % n, (me + n - 1) % n);
            let sent = world.isend(to, TAG, vec![round; 300]);
            assert_eq!(world.recv(from, TAG).unwrap().0, vec![round; 300]);
            sent.wait().unwrap();
        }
        meet(&world).unwrap();
        let total = ROUNDS * (n as u64 - 1);
        assert_eq!(window.local().get(0).unwrap(), total);
        for (rank, mine) in found.iter().enumerate() {
            let found = world.all_gather_v(mine).unwrap();
            let mut all: Vec<u64> = (0..n).flat_map(|rank| found[rank].to_vec()).collect();
            all.sort_unstable();
            assert_eq!(all, (0..total).collect::<Vec<_>>(), "values found at rank {rank}");
        }
        assert!(verbs(&world).queue_pairs().to_others > n - 1, "no connection was given up");
    });
}

/// A file by which the ranks of a test tell each other something without a call.
fn file(name: &str) -> PathBuf {
    Path::new(&std::env::var("FAKE_ADAPTER").unwrap()).join(name)
}

/// Waits for a file of another rank.
fn until_there(file: &Path) {
    let began = Instant::now();
    while !file.exists() {
        assert!(began.elapsed() < DEADLINE / 4, "{file:?} is missing");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Rank 1 has one connection too many, and uses only that to rank 2.
#[test]
fn message_on_idle_connection_needs_no_further_call() {
    let name = "message_on_idle_connection_needs_no_further_call";
    on_fake(None, 3, name, &[OFF, ("TRANSOM_VERBS_CONNECTIONS", "1")], |world| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        let received = file("received");
        meet(&world).unwrap();
        match world.rank() {
            0 => {
                world.send(1, TAG, &[5; 30]).unwrap();
                until_few(&world, 0);
                let sent = world.isend(1, TAG, vec![6; 30]);
                until_there(&received);
                sent.wait().unwrap();
            }
            1 => {
                for value in [5, 6] {
                    assert_eq!(world.recv(0, TAG).unwrap().0, vec![value; 30]);
                }
                std::fs::write(received, "").unwrap();
            }
            _ => {
                while !received.exists() {
                    add(&mut window, 1);
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
        meet(&world).unwrap();
    });
}

/// The adapter of rank 0 has 5 queue pairs. Rank 0 has sent messages to 7 ranks, and leaves before the first of them is
/// received.
#[test]
fn leaving_rank_does_not_connect_all_idle_peers() {
    let few = [OFF, ("FAKE_PAIRS_0", "5"), ("TRANSOM_VERBS_CONNECTIONS", "1")];
    on_fake(None, 8, "leaving_rank_does_not_connect_all_idle_peers", &few, |world| {
        let (long, last) = (vec![9; 1 << 17], world.size() - 1);
        let (leaving, received) = (file("leaving"), file("received"));
        match world.rank() {
            0 => {
                let sent = world.isend(last, TAG, long);
                for rank in 1..last {
                    world.send(rank, TAG, &[rank as u64]).unwrap();
                    until_few(&world, 1);
                }
                std::fs::write(leaving, "").unwrap();
                // The rank leaves once the message is delivered.
                drop(sent);
            }
            me if me == last => {
                until_there(&leaving);
                std::thread::sleep(Duration::from_secs(1));
                assert_eq!(world.recv(0, TAG).unwrap().0, long);
                std::fs::write(received, "").unwrap();
            }
            me => {
                assert_eq!(world.recv(0, TAG).unwrap().0, [me as u64]);
                until_there(&received);
            }
        }
    });
}

/// Rank 0 has two queue pairs, and needs three in turn.
#[test]
fn wanted_connection_waits_for_idle_ones_to_be_given_up() {
    let few = [OFF, ("FAKE_PAIRS_0", "2"), ("TRANSOM_VERBS_CONNECTIONS", "1")];
    on_fake(None, 4, "wanted_connection_waits_for_idle_ones_to_be_given_up", &few, |world| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        meet(&world).unwrap();
        if world.rank() == 0 {
            for rank in 1..4 {
                assert_eq!(add(&mut window, rank), 0);
                until_few(&world, 1);
            }
            for rank in [1, 2, 3, 1, 2, 3] {
                add(&mut window, rank);
            }
        }
        meet(&world).unwrap();
    });
}

#[test]
fn exhausted_adapter_is_named_with_a_way_out() {
    let few = [OFF, ("FAKE_PAIRS_0", "1"), ("TRANSOM_VERBS_CONNECTIONS", "9")];
    on_fake(None, 3, "exhausted_adapter_is_named_with_a_way_out", &few, |world| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        meet(&world).unwrap();
        let refused = |window: &mut Window<u64>, rank: usize, parts: &[&str]| {
            let error = whole(&window.lock_exclusive(rank).map(drop).unwrap_err());
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        };
        let todo = "set TRANSOM_MESSAGES=paths=ud, so that messages need no connections";
        if world.rank() == 0 {
            add(&mut window, 1);
            let mine = "rank 0 cannot connect to rank 2: fake0 of rank 0 refused";
            let count = "Rank 0 has 1 on fake0, which reports at most 1 for all processes";
            refused(&mut window, 2, &[mine, count, "lower TRANSOM_VERBS_CONNECTIONS (here 9)", todo]);
        }
        meet(&world).unwrap();
        if world.rank() == 2 {
            refused(&mut window, 0, &["rank 2 cannot connect to rank 0: the RDMA device of rank 0 refused", todo]);
        }
        meet(&world).unwrap();
    });
}

/// Exchanges short messages, until there would be a ring, and a long one.
fn exchange_with(world: &World, other: usize) {
    let me = world.rank() as u64;
    for length in [[1; 100].as_slice(), &[100_000]].concat() {
        let mut came = vec![0; length];
        world.sendrecv(other, TAG, &vec![me; length], other, TAG, &mut came).unwrap();
        assert!(came.iter().all(|element| *element == other as u64), "rank {me}: {length} elements of {other}");
    }
}

const TWO: [(&str, &str); 3] = [OFF, ("FAKE_DEVICES", "2"), ("TRANSOM_VERBS_DEVICE", "fake0,fake1")];

/// The first adapter of rank 0 has one queue pair, the second has many.
#[test]
fn messages_use_the_rail_whose_adapter_accepts_a_connection() {
    let few = [&TWO[..], &[("FAKE_PAIRS_0", "1,32"), ("TRANSOM_VERBS_CONNECTIONS", "9")]].concat();
    on_fake(None, 4, "messages_use_the_rail_whose_adapter_accepts_a_connection", &few, |world| {
        let me = world.rank();
        (0..4).filter(|other| (*other == 0) != (me == 0)).for_each(|other| exchange_with(&world, other));
        meet(&world).unwrap();
        // Pipes need the first rail, which one of the three got.
        if me == 0 {
            let open = |peer| world.pipe(peer).map_err(drop)?.write_all(b"ping").map_err(drop);
            let worked: Vec<bool> = (1..4).map(|peer| open(peer).is_ok()).collect();
            assert_eq!(worked.iter().filter(|worked| **worked).count(), 1, "{worked:?}");
            meet(&world).unwrap();
        } else {
            let _pipe = world.pipe(0);
            meet(&world).unwrap();
        }
    });
}

#[test]
fn messages_use_the_rail_whose_adapter_accepts_requests() {
    on_fake(None, 2, "messages_use_the_rail_whose_adapter_accepts_requests", &TWO, |world| {
        let other = 1 - world.rank();
        let mut window: Window<u64> = world.allocate(1).unwrap();
        exchange_with(&world, other);
        meet(&world).unwrap();
        // No request is in flight afterwards.
        add(&mut window, other);
        meet(&world).unwrap();
        std::fs::write(file("refuse.0"), "").unwrap();
        meet(&world).unwrap();
        exchange_with(&world, other);
        meet(&world).unwrap();
        if world.rank() == 0 {
            std::fs::remove_file(file("refuse.0")).unwrap();
        }
        meet(&world).unwrap();
        exchange_with(&world, other);
        meet(&world).unwrap();
    });
}

/// The adapters never complete the datagrams of the first second. Their queue pairs are reset.
#[test]
fn connection_is_made_although_its_datagrams_are_never_completed() {
    on_fake(None, 2, "connection_is_made_although_its_datagrams_are_never_completed", &[OFF], |world| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        meet(&world).unwrap();
        if world.rank() == 0 {
            std::fs::write(file("mute.0"), "").unwrap();
        }
        meet(&world).unwrap();
        let unmuted = (world.rank() == 0).then(|| {
            std::thread::spawn(|| {
                std::thread::sleep(Duration::from_secs(1));
                std::fs::remove_file(file("mute.0")).unwrap();
            })
        });
        let begun = Instant::now();
        add(&mut window, 1 - world.rank());
        assert!(begun.elapsed() > Duration::from_secs(4), "no queue pair was reset in {:?}", begun.elapsed());
        unmuted.into_iter().for_each(|unmuted| unmuted.join().unwrap());
        meet(&world).unwrap();
    });
}

/// The adapter of rank 0 takes as long as it likes to connect to rank 1.
#[test]
fn slow_connection_does_not_delay_another() {
    rank_1_is_slow("slow_connection_does_not_delay_another", "FAKE_HOLD_0");
}

/// The adapter of rank 0 takes as long as it likes to resolve the address of rank 1.
#[test]
fn slow_address_does_not_delay_another_connection() {
    rank_1_is_slow("slow_address_does_not_delay_another_connection", "FAKE_RESOLVE_0");
}

fn rank_1_is_slow(test: &str, what_blocks: &str) {
    let slow = [OFF, ("FAKE_LID_1", "5"), (what_blocks, "5"), ("TRANSOM_VERBS_GID", "0")];
    on_fake(None, 3, test, &slow, |world| {
        let [mut far, mut near]: [Window<u64>; 2] = [0, 1].map(|_| world.allocate(1).unwrap());
        meet(&world).unwrap();
        if world.rank() == 0 {
            std::fs::write(file("hold"), "").unwrap();
            std::thread::scope(|scope| {
                let slow = scope.spawn(|| add(&mut far, 1));
                while !file("held").exists() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert_eq!(add(&mut near, 2), 0);
                assert!(!slow.is_finished(), "connected while the adapter blocks");
                std::fs::remove_file(file("hold")).unwrap();
                assert_eq!(slow.join().unwrap(), 0);
            });
        }
        meet(&world).unwrap();
    });
}
