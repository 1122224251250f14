//! Queue pairs, work requests and registered bytes of windows and locks on the provider for several machines.
//! docs/results/rdma.md has the tables. `costs_messages.rs` counts those of messages.
//!
//! Tests that need an RDMA device are skipped, with a message, on machines without one. `tests/soft-roce/verbs` runs
//! them in guests.

use crate::adapter;
use adapter::*;
use std::time::{Duration, Instant};
use transom::verbs::{Verbs, WorkRequests};
use transom::windows::Assert;
use transom::{Mode, Op, Window};

#[test]
fn ring_communication_makes_two_queue_pairs() {
    if skipped("counting queue pairs") {
        return;
    }
    on_verbs(5, "ring_communication_makes_two_queue_pairs", &[], |world| {
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u64> = world.allocate(n).unwrap();
        assert_eq!((verbs(&world).queue_pairs().to_others, verbs(&world).queue_pairs().to_itself), (0, 0));
        meet(&world).unwrap(); // through the job's own exchange
        let epoch = window.lock_shared((me + 1) % n).unwrap();
        epoch.put(me, &[7 + me as u64]).unwrap();
        assert_eq!(epoch.fetch_and_op(me, Op::Sum, 1).unwrap(), 7 + me as u64);
        epoch.unlock().unwrap();
        meet(&world).unwrap();
        assert_eq!(verbs(&world).queue_pairs().to_others, 2, "expected one queue pair to each neighbour of the ring");
        let before = (me + n - 1) % n;
        assert_eq!(window.local().get(before).unwrap(), 8 + before as u64);
    });
}

#[test]
fn host_words_make_one_queue_pair_per_peer() {
    if skipped("atomics of neighbours") {
        return;
    }
    for hybrid in ["on", "off"] {
        on_verbs(3, "host_words_make_one_queue_pair_per_peer", &[("TRANSOM_INTRANODE", hybrid)], |world| {
            // Copies do not run the second iteration of this loop: a variable says which iteration they are.
            let hybrid = std::env::var("TRANSOM_INTRANODE").unwrap() == "on";
            const EACH: u64 = 100;
            let (me, n) = (world.rank(), world.size());
            let mut window: Window<u64> = world.allocate(1 + 100 * n).unwrap();
            window.fence().unwrap();
            // All ranks add to one word, as does its home rank, and put data too.
            let data = vec![me as u64 + 1; 100];
            for _ in 0..EACH {
                let epoch = window.lock_shared(0).unwrap();
                epoch.fetch_and_op(0, Op::Sum, 1).unwrap();
                epoch.put(1 + 100 * me, &data).unwrap();
                epoch.unlock().unwrap();
            }
            window.fence().unwrap();
            let epoch = window.lock_shared(0).unwrap();
            assert_eq!(epoch.get_one(0).unwrap(), EACH * n as u64, "concurrent atomics lost a count");
            let mut all = vec![0; 100 * n];
            epoch.get(1, &mut all).unwrap();
            assert!(all.iter().enumerate().all(|(at, &found)| found == at as u64 / 100 + 1));
            epoch.unlock().unwrap();
            let pairs = verbs(&world).queue_pairs();
            match hybrid {
                // Words of the rank itself by its own queue pair; the count, which is an element, by the one to its
                // rank.
                true => assert_eq!((pairs.to_itself, pairs.to_others), (1, if me == 0 { n - 1 } else { 1 })),
                false => assert!(pairs.to_others > 0),
            }
            assert_eq!(
                window.local().of((me + 1) % n).is_ok(),
                hybrid,
                "shared memory of host peers differs from TRANSOM_INTRANODE"
            );
            window.fence().unwrap();
        });
        if std::env::var_os(ROLE).is_some() {
            return;
        }
    }
}

/// Work requests to other ranks and to itself: writes, reads, compare-and-swaps, fetch-and-adds, markers.
type Work = [[u64; 5]; 2];

fn work(verbs: &Verbs, before: [WorkRequests; 2]) -> Work {
    let [others, itself] = before;
    [verbs.work_requests_to_others() - others, verbs.work_requests_to_itself() - itself]
        .map(|work| [work.writes, work.reads, work.compare_and_swaps, work.fetch_and_adds, work.markers])
}

/// Checks the work requests that a call posts: a row of a table.
fn posts<R>(verbs: &Verbs, what: &str, expected: Work, call: impl FnOnce() -> Result<R, transom::Error>) -> R {
    let before = [verbs.work_requests_to_others(), verbs.work_requests_to_itself()];
    let returned = call().unwrap();
    posted(what, work(verbs, before), expected);
    returned
}

fn posted(what: &str, found: Work, expected: Work) {
    assert_eq!(found, expected, "{what}");
    let [[writes, reads, swaps, adds, markers], itself] = found;
    let itself: u64 = itself.iter().sum();
    println!("\n| {what} | {writes} | {reads} | {swaps} | {adds} | {markers} | {itself} |");
}

/// The table of lock-protocol, at the queue pairs. Rank 2 is the home of the lock, and takes no part.
#[test]
fn lock_calls_post_documented_work_requests() {
    if skipped("counting work requests") {
        return;
    }
    const HOME: usize = 2;
    const NOTHING: [u64; 5] = [0; 5];
    const SWAP: [u64; 5] = [0, 0, 1, 0, 0];
    const ADD: [u64; 5] = [0, 0, 0, 1, 0];
    if std::env::var_os(ROLE).is_none() {
        println!(
            "\n| | writes | reads | compare-and-swaps | fetch-and-adds | markers | to itself |\n|---|---|---|---|---|---|---|"
        );
    }
    // A word is put by a write, as by other adapters than Soft-RoCE.
    let variables = [("TRANSOM_INTRANODE", "off"), ("TRANSOM_VERBS_WORD_WRITE", "write")];
    on_verbs(3, "lock_calls_post_documented_work_requests", &variables, |world| {
        let (me, verbs) = (world.rank(), verbs(&world).clone());
        let mut window: Window<u64> = world.allocate(1).unwrap();
        let mut told: Window<u64> = world.allocate_with_signals(1, 2).unwrap();
        if me == 0 {
            let epoch = posts(&verbs, "lock exclusive, free", [SWAP, NOTHING], || window.lock_exclusive(HOME));
            posts(&verbs, "put of 8 bytes", [[1, 0, 0, 0, 0], NOTHING], || epoch.put(0, &[1]));
            posts(&verbs, "flush of it", [NOTHING, NOTHING], || epoch.flush());
            posts(&verbs, "get of 8 bytes", [[0, 1, 0, 0, 0], NOTHING], || epoch.get_one(0));
            posts(&verbs, "unlock exclusive, nobody waits", [SWAP, NOTHING], || epoch.unlock());
            let epoch = posts(&verbs, "lock shared, free", [ADD, NOTHING], || window.lock_shared(HOME));
            posts(&verbs, "unlock shared, nobody waits", [ADD, NOTHING], || epoch.unlock());
            let all = [[0, 0, 0, 2, 0], ADD];
            let epoch = posts(&verbs, "lock_all of 3 ranks, free", all, || window.lock_all());
            posts(&verbs, "unlock of all 3", all, || epoch.unlock());
        }
        meet(&world).unwrap();
        // Rank 0 releases the lock when rank 1 has waited for a while.
        for (mode, signal) in [(Mode::Exclusive, 0), (Mode::Shared, 1)] {
            let exclusive = mode == Mode::Exclusive;
            if me == 0 {
                let epoch = window.lock_exclusive(HOME).unwrap();
                meet(&world).unwrap();
                told.signals().wait_until(signal, |told| told == 1).unwrap();
                // Readers queued behind it: the first guess does not know of them.
                let (what, work) = match exclusive {
                    true => ("unlock exclusive, a writer waits", [[1, 0, 0, 0, 0], SWAP]),
                    false => ("unlock exclusive, a reader waits", [[1, 0, 2, 0, 0], SWAP]),
                };
                posts(&verbs, what, work, || epoch.unlock());
            }
            if me == 1 {
                meet(&world).unwrap();
                let (what, expected) = match exclusive {
                    // The first guess is that it is free.
                    true => ("lock exclusive, taken", [[1, 0, 2, 0, 0], NOTHING]),
                    false => ("lock shared, taken", [[0, 0, 1, 1, 0], SWAP]),
                };
                let before = [verbs.work_requests_to_others(), verbs.work_requests_to_itself()];
                let now = || [verbs.work_requests_to_others(), verbs.work_requests_to_itself()];
                let epoch = std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let begun = Instant::now();
                        while work(&verbs, before) != expected && begun.elapsed() < Duration::from_secs(20) {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        posted(what, work(&verbs, before), expected);
                        let waiting = now();
                        std::thread::sleep(Duration::from_millis(300));
                        posted(&format!("{what}: while it waits"), work(&verbs, waiting), [NOTHING; 2]);
                        told.lock_shared(0).unwrap().put_signal(0, &[1], signal, 1).unwrap();
                    });
                    window.lock_with(HOME, mode, Assert::empty()).unwrap()
                });
                // Without the requests that notified rank 0: a lock, a put with a signal, an unlock.
                let rest = |all: [u64; 5], sooner: [u64; 5]| [0, 1, 2, 3, 4].map(|kind| all[kind] - sooner[kind]);
                let [others, itself] = work(&verbs, before);
                let after = [rest(rest(others, expected[0]), [1, 0, 0, 3, 0]), rest(itself, expected[1])];
                // A grant is consumed in the rank's own memory.
                let granted = if exclusive { NOTHING } else { SWAP };
                posted(&format!("{what}: after waiting"), after, [NOTHING, granted]);
                let (what, work) = match exclusive {
                    true => ("unlock exclusive after waiting", [SWAP, SWAP]),
                    false => ("unlock shared after waiting", [ADD, NOTHING]),
                };
                posts(&verbs, what, work, || epoch.unlock());
            }
            if me == HOME {
                meet(&world).unwrap();
            }
            meet(&world).unwrap();
        }
    });
}

/// Queue pairs that each of `n` ranks needs, in a ring or all with all: to other ranks, and one to itself if all.
fn queue_pairs(n: usize, all: bool) -> (usize, usize) {
    if all { (n - 1, 1) } else { (2.min(n - 1), 0) }
}

/// Bytes that each of `n` ranks registers for one window of `data` bytes, before and after a get that is larger than a
/// request carries.
fn registered(n: usize, data: usize, through_buffers: bool) -> usize {
    let datagrams = 128 * (256 + 64);
    let results = 8 * 512;
    let buffers = if through_buffers { 1 << 20 } else { 0 };
    // A lock's word and its nodes, a barrier's lines, two counts for each of post, start, complete and wait, and one
    // for leaving.
    let rounds = n.next_power_of_two().ilog2() as usize;
    let words = (64 * (n + 1) + 64 * rounds + 16 * n + 8).next_multiple_of(64) + 64;
    let counts = 8 * 512;
    // With the first queue pair: 16 of 8 KiB and a header, in whole pages.
    let messages = 135_168;
    datagrams + results + counts + buffers + messages + words + data
}

#[test]
fn queue_pairs_and_memory_match_the_formula() {
    if skipped("counting queue pairs and memory") {
        return;
    }
    const DATA: usize = 8 << 10;
    let row = |n, who, (others, itself), bytes| format!("| {n} | {who} | {others} | {itself} | {bytes} |");
    let copy = std::env::var_os(ROLE).is_some();
    if !copy {
        println!(
            "\n| ranks | each reaches | queue pairs to others | to itself | registered bytes |\n|---|---|---|---|---|"
        );
    }
    for n in [2, 4, 8, 16] {
        let name = "queue_pairs_and_memory_match_the_formula";
        on_verbs(n, name, &[("TRANSOM_INTRANODE", "off")], |world| {
            let (me, n, verbs) = (world.rank(), world.size(), verbs(&world));
            let mut window: Window<u64> = world.allocate(DATA / 8).unwrap();
            for all in [false, true] {
                for at in 0..if all { n } else { 1 } {
                    let epoch = window.lock_shared((me + 1 + at) % n).unwrap();
                    epoch.put(me, &[1]).unwrap();
                    epoch.fetch_and_op(n, Op::Sum, 1).unwrap();
                    if all {
                        epoch.get_one(0).unwrap();
                    }
                }
                meet(&world).unwrap();
                let pairs = verbs.queue_pairs();
                let (pairs, bytes) = ((pairs.to_others, pairs.to_itself), verbs.registered_bytes());
                assert_eq!((pairs, bytes), (queue_pairs(n, all), registered(n, DATA, all)), "{n} ranks, all: {all}");
                if me == 0 {
                    println!("\n{}", row(n, if all { "all" } else { "the next" }, pairs, bytes));
                }
                meet(&world).unwrap();
            }
        });
        if copy {
            return;
        }
    }
    for all in [false, true] {
        let who = if all { "all, by the formula" } else { "the next, by the formula" };
        println!("{}", row(10_000, who, queue_pairs(10_000, all), registered(10_000, DATA, all)));
    }
}

/// Dropping is not collective: memory stays registered until all ranks have dropped the window, and not longer.
#[test]
fn unreachable_memory_is_deregistered() {
    if skipped("deregistered memory") {
        return;
    }
    let name = "unreachable_memory_is_deregistered";
    on_verbs(3, name, &[("TRANSOM_INTRANODE", "off")], |world| {
        let (me, verbs) = (world.rank(), verbs(&world).clone());
        let mut names: Window<transom::Address> = world.allocate(1).unwrap();
        let mut window: Window<u64> = world.dynamic(2).unwrap();
        names.fence().unwrap();
        let lanes = |window: &mut Window<u64>| (0..3).for_each(|to| drop(window.lock_shared(to).unwrap()));
        lanes(&mut window);
        meet(&world).unwrap();
        let before = verbs.registered_bytes();

        // A window stays registered at ranks that have dropped it while another rank has not.
        let mut another: Window<u64> = world.allocate(100_000).unwrap();
        lanes(&mut another);
        let with = verbs.registered_bytes();
        assert!(with > before + 799_999);
        let kept = match me {
            0 => Some(another),
            _ => {
                drop(another);
                None
            }
        };
        meet(&world).unwrap();
        assert_eq!(verbs.registered_bytes(), with, "window deregistered before rank 0 dropped it");
        drop(kept);
        meet(&world).unwrap();
        assert_eq!(verbs.registered_bytes(), before, "window still registered after all ranks dropped it");

        // Memory of the team.
        let team = world.split(Some(0), 0).unwrap().unwrap();
        drop(team.allocate::<u64>(100_000).unwrap());
        assert!(verbs.registered_bytes() > before + 799_999);
        drop(team);
        meet(&world).unwrap();
        assert_eq!(verbs.registered_bytes(), before, "memory of a dropped team is still registered");

        // Memory that rank 0 attaches and rank 1 reaches: no collective call is needed.
        if me == 0 {
            let address = window.attach(100_000).unwrap();
            names.local().set(0, address).unwrap();
            names.fence().unwrap();
            names.fence().unwrap(); // rank 1 has reached it
            window.detach(&address).unwrap();
            assert!(verbs.registered_bytes() > before + 799_999, "memory that rank 1 reaches was deregistered");
            names.fence().unwrap();
            names.fence().unwrap(); // rank 1 has dropped it
            let other = window.attach(1).unwrap();
            window.detach(&other).unwrap();
            assert_eq!(verbs.registered_bytes(), before);
        } else {
            names.fence().unwrap();
            let address = names.lock_shared(0).unwrap().get_one(0).unwrap();
            let reached = (me == 1).then(|| window.reach(&address).unwrap());
            names.fence().unwrap();
            names.fence().unwrap();
            drop(reached);
            names.fence().unwrap();
        }
    });
}
