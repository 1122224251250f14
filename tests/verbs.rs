//! What is special about the provider for several machines: connections on demand, atomics by the adapter alone, and what
//! goes wrong: no library, no device, bad variables, memory that may not be locked, wrong keys, a link that goes down.
//!
//! What needs an RDMA device says so and is skipped where there is none; `tests/soft-roce/verbs` runs it where there is.
#![cfg(feature = "verbs")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transom::shm_loopback::Loopback;
use transom::verbs::{Node, Verbs, VerbsError, WorkRequests, probe};
use transom::windows::{Assert, Fabric, Wake};
use transom::{FabricError, Flavor, Launch, Mode, Op, Outcome, StartError, Window, World, provider::Provider};

const ROLE: &str = "TEST_ROLE";
const DEADLINE: Duration = Duration::from_secs(100);

/// Runs `body` on ranks that are processes and use the adapter, with some variables set.
fn on_verbs(size: usize, name: &str, variables: &[(&str, &str)], body: impl Fn(World)) {
    let forced = [("TRANSOM_FABRIC", "verbs")].iter().chain(variables).copied().collect::<Vec<_>>();
    if let Some(outcome) = run(size, name, &forced, || body(transom::init().expect("a rank can join its job"))) {
        let output = outputs(&outcome);
        assert!(outcome.success(), "{outcome}\n{output}");
        // Figures, for `tests/soft-roce/figures`.
        output.lines().filter(|line| line.starts_with('|')).for_each(|line| println!("{line}"));
    }
}

/// Runs `body` in processes, as ranks that have not joined yet; what became of them, for the one that starts them.
fn run(size: usize, name: &str, variables: &[(&str, &str)], body: impl Fn()) -> Option<Outcome> {
    if std::env::var_os(ROLE).is_some() {
        body();
        return None;
    }
    let mut copies = Launch::new(std::env::current_exe().expect("this test program"), size)
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(ROLE, "rank")
        .env("RUST_BACKTRACE", "0")
        .grace(DEADLINE)
        .deadline(DEADLINE)
        .capture(true);
    for (name, value) in variables {
        copies = copies.env(name, value);
    }
    Some(copies.run().expect("copies of the test program start"))
}

fn outputs(outcome: &Outcome) -> String {
    let text = |rank| String::from_utf8_lossy(outcome.output(rank)).into_owned();
    (0..outcome.statuses().len()).map(|rank| format!("--- rank {rank}\n{}", text(rank))).collect()
}

/// Whether there is no device, said aloud; a failure where TEST_DEVICE says that there is one.
fn skipped(what: &str) -> bool {
    if std::env::var_os(ROLE).is_some() {
        // A copy does what the test started it for, also without a device.
        return false;
    }
    match probe() {
        Ok(_) => false,
        Err(why) => {
            assert!(std::env::var_os("TEST_DEVICE").is_none(), "{what} needs an RDMA device: {why}");
            eprintln!("skipped: {what} needs an RDMA device: {why}");
            true
        }
    }
}

fn verbs(world: &World) -> &Verbs {
    match world.provider() {
        Provider::Verbs(verbs) => verbs,
        _ => panic!("TRANSOM_FABRIC=verbs was not heeded"),
    }
}

/// A job of this process alone, over the adapter.
fn alone() -> (Loopback, Verbs) {
    let job = Loopback::alone().unwrap();
    (job.clone(), Verbs::new(Arc::new(job.clone()), Node::all(job)).unwrap())
}

#[test]
fn a_ring_makes_two_queue_pairs_each() {
    if skipped("counting queue pairs") {
        return;
    }
    on_verbs(5, "a_ring_makes_two_queue_pairs_each", &[], |world| {
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u64> = world.allocate(n).unwrap();
        assert_eq!((verbs(&world).queue_pairs().to_others, verbs(&world).queue_pairs().to_itself), (0, 0));
        world.barrier().unwrap(); // through the job's own exchange
        let epoch = window.lock_shared((me + 1) % n).unwrap();
        epoch.put(me, &[7 + me as u64]).unwrap();
        assert_eq!(epoch.fetch_and_op(me, Op::Sum, 1).unwrap(), 7 + me as u64);
        epoch.unlock().unwrap();
        world.barrier().unwrap();
        assert_eq!(verbs(&world).queue_pairs().to_others, 2, "one to the next, and one to the one before");
        let before = (me + n - 1) % n;
        assert_eq!(window.local().get(before).unwrap(), 8 + before as u64);
    });
}

#[test]
fn words_of_a_host_take_as_many_queue_pairs_as_ranks() {
    if skipped("atomics of neighbours") {
        return;
    }
    for hybrid in ["on", "off"] {
        on_verbs(3, "words_of_a_host_take_as_many_queue_pairs_as_ranks", &[("TRANSOM_HYBRID", hybrid)], |world| {
            // The copies do not run this loop's second turn: they are told which one they are.
            let hybrid = std::env::var("TRANSOM_HYBRID").unwrap() == "on";
            const EACH: u64 = 100;
            let (me, n) = (world.rank(), world.size());
            let mut window: Window<u64> = world.allocate(1 + 100 * n).unwrap();
            window.fence().unwrap();
            // All count on one word, whose home rank does too, and bring data along.
            let data = vec![me as u64 + 1; 100];
            for _ in 0..EACH {
                let epoch = window.lock_shared(0).unwrap();
                epoch.fetch_and_op(0, Op::Sum, 1).unwrap();
                epoch.put(1 + 100 * me, &data).unwrap();
                epoch.unlock().unwrap();
            }
            window.fence().unwrap();
            let epoch = window.lock_shared(0).unwrap();
            assert_eq!(epoch.get_one(0).unwrap(), EACH * n as u64, "no count was lost");
            let mut all = vec![0; 100 * n];
            epoch.get(1, &mut all).unwrap();
            assert!(all.iter().enumerate().all(|(at, &found)| found == at as u64 / 100 + 1));
            epoch.unlock().unwrap();
            let pairs = verbs(&world).queue_pairs();
            match hybrid {
                // Words by one's own; the count, an element, by the one to its rank.
                true => assert_eq!((pairs.to_itself, pairs.to_others), (1, if me == 0 { n - 1 } else { 1 })),
                false => assert!(pairs.to_others > 0),
            }
            assert_eq!(window.local().of((me + 1) % n).is_ok(), hybrid, "shared memory or not");
            window.fence().unwrap();
        });
        if std::env::var_os(ROLE).is_some() {
            return;
        }
    }
}

/// Work requests to others and to itself: writes, reads, compare-and-swaps, fetch-and-adds, markers.
type Work = [[u64; 5]; 2];

fn work(verbs: &Verbs, before: [WorkRequests; 2]) -> Work {
    let [others, itself] = before;
    [verbs.work_requests_to_others() - others, verbs.work_requests_to_itself() - itself]
        .map(|work| [work.writes, work.reads, work.compare_and_swaps, work.fetch_and_adds, work.markers])
}

/// What a call posts, which is to be so much; a row of a table.
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
fn locks_post_what_the_protocol_says() {
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
    let variables = [("TRANSOM_HYBRID", "off"), ("TRANSOM_VERBS_NOTIFY", "write")];
    on_verbs(3, "locks_post_what_the_protocol_says", &variables, |world| {
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
        world.barrier().unwrap();
        // Rank 0 lets go when rank 1 has waited for a while.
        for (mode, signal) in [(Mode::Exclusive, 0), (Mode::Shared, 1)] {
            let exclusive = mode == Mode::Exclusive;
            if me == 0 {
                let epoch = window.lock_exclusive(HOME).unwrap();
                world.barrier().unwrap();
                told.signals().wait_until(signal, |told| told == 1).unwrap();
                // The readers behind it: the first guess does not know of them.
                let (what, work) = match exclusive {
                    true => ("unlock exclusive, a writer waits", [[1, 0, 0, 0, 0], SWAP]),
                    false => ("unlock exclusive, a reader waits", [[1, 0, 2, 0, 0], SWAP]),
                };
                posts(&verbs, what, work, || epoch.unlock());
            }
            if me == 1 {
                world.barrier().unwrap();
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
                // Less what told rank 0: a lock, a put with a signal, an unlock.
                let rest = |all: [u64; 5], sooner: [u64; 5]| [0, 1, 2, 3, 4].map(|kind| all[kind] - sooner[kind]);
                let [others, itself] = work(&verbs, before);
                let after = [rest(rest(others, expected[0]), [1, 0, 0, 3, 0]), rest(itself, expected[1])];
                // A grant is taken away from one's own memory.
                let granted = if exclusive { NOTHING } else { SWAP };
                posted(&format!("{what}: after waiting"), after, [NOTHING, granted]);
                let (what, work) = match exclusive {
                    true => ("unlock exclusive after waiting", [SWAP, SWAP]),
                    false => ("unlock shared after waiting", [ADD, NOTHING]),
                };
                posts(&verbs, what, work, || epoch.unlock());
            }
            if me == HOME {
                world.barrier().unwrap();
            }
            world.barrier().unwrap();
        }
    });
}

/// What `n` ranks need each, in a ring or all with all: queue pairs to others, and one to itself if all.
fn queue_pairs(n: usize, all: bool) -> (usize, usize) {
    if all { (n - 1, 1) } else { (2.min(n - 1), 0) }
}

/// Bytes that each of `n` ranks registers for one window of `data` bytes, before and after they have got something larger
/// than a request carries.
fn registered(n: usize, data: usize, through_buffers: bool) -> usize {
    let datagrams = 128 * (256 + 64);
    let results = 8 * 512;
    let buffers = if through_buffers { 1 << 20 } else { 0 };
    // A lock's word and its nodes, a barrier's lines, two counts for each in post, start, complete, wait, one of leaving.
    let rounds = n.next_power_of_two().ilog2() as usize;
    let words = (64 * (n + 1) + 64 * rounds + 16 * n + 8).next_multiple_of(64);
    let counts = 8 * 512;
    datagrams + results + counts + buffers + words + data
}

#[test]
fn queue_pairs_and_memory_are_as_many_as_the_formula_says() {
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
        let name = "queue_pairs_and_memory_are_as_many_as_the_formula_says";
        on_verbs(n, name, &[("TRANSOM_HYBRID", "off")], |world| {
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
                world.barrier().unwrap();
                let pairs = verbs.queue_pairs();
                let (pairs, bytes) = ((pairs.to_others, pairs.to_itself), verbs.registered_bytes());
                assert_eq!((pairs, bytes), (queue_pairs(n, all), registered(n, DATA, all)), "{n} ranks, all: {all}");
                if me == 0 {
                    println!("\n{}", row(n, if all { "all" } else { "the next" }, pairs, bytes));
                }
                world.barrier().unwrap();
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

#[test]
fn a_processor_and_an_adapter_do_not_meet_on_a_word() {
    if !cfg!(debug_assertions) || skipped("an adapter's words") {
        return;
    }
    let (job, verbs) = alone();
    let (_region, key) = verbs.allocate(64).unwrap();
    let through_adapter = verbs.attach(0, &key, 64).unwrap();
    assert_eq!(
        verbs.start_add(&through_adapter, 8, 5, Wake::Home).and_then(|pending| verbs.finish(pending)).unwrap(),
        0
    );
    // The same memory by the other provider: that would be a lost update one day.
    let by_processor = job.attach(0, &key[..key.len() - 25], 64).unwrap();
    for met in [job.cas(&by_processor, 8, 5, 6, Wake::Home).map(drop), job.notify(&by_processor, 8, 1)] {
        assert!(matches!(met, Err(FabricError::Misuse { .. })), "{met:?}");
    }
    assert_eq!(verbs.cas(&through_adapter, 8, 5, 6, Wake::Home).unwrap(), 5);
}

#[test]
fn wrong_keys_and_places_are_refused() {
    if skipped("wrong keys") {
        return;
    }
    let (_job, verbs) = alone();
    let (region, key) = verbs.allocate(64).unwrap();
    let right = verbs.attach(0, &key, 64).unwrap();
    assert!(matches!(
        verbs.cas(&right, 60, 0, 1, Wake::Home),
        Err(FabricError::OutOfBounds { offset: 60, len: 8, size: 64 })
    ));
    assert!(matches!(verbs.cas(&right, 4, 0, 1, Wake::Home), Err(FabricError::Misaligned { offset: 4 })));
    assert_eq!(verbs.cas(&right, 56, 0, 9, Wake::Home).unwrap(), 0);
    assert_eq!(verbs.word(&region, 56).unwrap(), 9);
    for len in 0..13 {
        assert!(matches!(verbs.attach(0, &key[..len], 64), Err(FabricError::BadKey { rank: 0, .. })));
    }
    assert!(matches!(verbs.attach(7, &key, 64), Err(FabricError::BadKey { rank: 7, .. })));
    let mut wrong = key.clone();
    let last = wrong.len() - 1;
    wrong[last - 12] ^= 0x55; // the adapter's key
    let begun = Instant::now();
    let error = verbs.attach(0, &wrong, 64).and_then(|wrong| verbs.cas(&wrong, 0, 0, 1, Wake::Home)).unwrap_err();
    assert!(matches!(&error, FabricError::BadKey { rank: 0, why, .. } if why.contains("refuses")), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!(verbs.word(&region, 0).unwrap(), 0, "nothing was changed");
}

#[test]
fn large_and_many_at_once() {
    if skipped("large transfers") {
        return;
    }
    on_verbs(2, "large_and_many_at_once", &[("TRANSOM_VERBS_DEPTH", "4"), ("TRANSOM_VERBS_INLINE", "0")], |world| {
        const LEN: usize = 200_000; // more pieces than are kept, through a queue of four
        let other = 1 - world.rank();
        let mut window: Window<u64> = world.allocate(LEN).unwrap();
        let data: Vec<u64> = (0..LEN as u64).map(|at| at * 3 + other as u64).collect();
        let epoch = window.fence().unwrap();
        let target = epoch.target(other).unwrap();
        target.put(0, &data).unwrap();
        let mut back = vec![0; LEN];
        target.flush().unwrap();
        target.get(0, &mut back).unwrap();
        assert_eq!(back, data);
        // Reads under way that nobody waits for do no harm.
        let mut reads: Vec<_> = (0..20).map(|at| target.rget(at * 100, 5000).unwrap()).collect();
        std::mem::forget(reads.pop());
        drop(reads.pop());
        for (at, read) in transom::Request::wait_all(reads).unwrap().into_iter().enumerate() {
            assert_eq!(read, data[at * 100..][..5000]);
        }
        // Memory for long ones is registered once, and used again.
        let before = verbs(&world).registrations();
        for _ in 0..10 {
            assert_eq!(target.rget(0, LEN).unwrap().wait().unwrap(), data);
        }
        let after = verbs(&world).registrations();
        assert_eq!((after.made - before.made, after.reused - before.reused), (1, 9));
        for at in 0..50 {
            target.put(at, &[1]).unwrap();
        }
        window.fence().unwrap();
        assert_eq!(window.local().read(0, 50).unwrap(), [1; 50]);
    });
}

#[test]
fn words_are_put_by_writes_too() {
    if skipped("posts") {
        return;
    }
    on_verbs(3, "words_are_put_by_writes_too", &[("TRANSOM_VERBS_NOTIFY", "write")], |world| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        for round in 0..20 {
            window.lock_exclusive(round % world.size()).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
            window.fence().unwrap();
        }
        let all: u64 = (0..world.size()).map(|rank| window.lock_shared(rank).unwrap().get_one(0).unwrap()).sum();
        assert_eq!(all, 20 * world.size() as u64);
        window.fence().unwrap();
    });
}

#[test]
fn windows_come_and_go() {
    if skipped("windows") {
        return;
    }
    on_verbs(2, "windows_come_and_go", &[], |world| {
        for round in 0..20u64 {
            let mut window: Window<u64> = world.allocate(1000).unwrap();
            let epoch = window.lock_exclusive(1 - world.rank()).unwrap();
            epoch.put(999, &[round]).unwrap();
            epoch.unlock().unwrap();
            assert_eq!(window.lock_shared(1 - world.rank()).unwrap().get_one(999).unwrap(), round);
            // One is done sooner than the other.
        }
        let team = world.split(Some(0), 10 - world.rank() as u64).unwrap().expect("a colour was named");
        drop(world);
        let mut window: Window<u64> = team.allocate(1).unwrap();
        window.lock_exclusive(0).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
        window.fence().unwrap();
        assert_eq!(window.lock_shared(0).unwrap().get_one(0).unwrap(), 2);
        drop(team);
    });
}

/// What a rank has registered grows by its own window and the words of its neighbours', and not by their elements.
#[test]
fn neighbours_of_a_host_register_each_others_words_only() {
    if skipped("memory of neighbours") {
        return;
    }
    const DATA: usize = 1 << 20;
    for n in [2, 4, 8] {
        let name = "neighbours_of_a_host_register_each_others_words_only";
        on_verbs(n, name, &[("TRANSOM_HYBRID", "on")], |world| {
            let (n, verbs) = (world.size(), verbs(&world));
            let before = verbs.registered_bytes();
            let window: Window<u64> = world.allocate(DATA / 8).unwrap();
            let grown = verbs.registered_bytes() - before;
            // As in `registered`; the words, of which one's own part has more behind the data.
            let words = |n: usize| {
                (64 * (n + 1) + 64 * n.next_power_of_two().ilog2() as usize + 16 * n + 8).next_multiple_of(64)
            };
            // The first window brings the page of the words on which others count themselves.
            assert_eq!(grown, DATA + n * words(n) + 4096, "{n} ranks");
            if world.rank() == 0 {
                println!("\n| {n} ranks, 1 MiB each | {grown} bytes more registered |");
            }
            world.barrier().unwrap();
            drop(window);
        });
        if std::env::var_os(ROLE).is_some() {
            return;
        }
    }
}

/// Dropping is not collective: memory stays registered until all have let go, and not longer.
#[test]
fn what_nobody_reaches_any_more_is_not_registered() {
    if skipped("memory that is let go of") {
        return;
    }
    let name = "what_nobody_reaches_any_more_is_not_registered";
    on_verbs(3, name, &[("TRANSOM_HYBRID", "off")], |world| {
        let (me, verbs) = (world.rank(), verbs(&world).clone());
        let mut names: Window<transom::Address> = world.allocate(1).unwrap();
        let mut window: Window<u64> = world.dynamic(2).unwrap();
        names.fence().unwrap();
        let lanes = |window: &mut Window<u64>| (0..3).for_each(|to| drop(window.lock_shared(to).unwrap()));
        lanes(&mut window);
        world.barrier().unwrap();
        let before = verbs.registered_bytes();

        // A window: kept by those who have dropped it while another has not.
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
        world.barrier().unwrap();
        assert_eq!(verbs.registered_bytes(), with, "rank 0 has not let go");
        drop(kept);
        world.barrier().unwrap();
        assert_eq!(verbs.registered_bytes(), before, "all have");

        // What a team had.
        let team = world.split(Some(0), 0).unwrap().unwrap();
        drop(team.allocate::<u64>(100_000).unwrap());
        assert!(verbs.registered_bytes() > before + 799_999);
        drop(team);
        world.barrier().unwrap();
        assert_eq!(verbs.registered_bytes(), before, "nobody is of the team any more");

        // Memory that rank 0 attaches, and rank 1 reaches: nothing collective is needed.
        if me == 0 {
            let address = window.attach(100_000).unwrap();
            names.local().set(0, address).unwrap();
            names.fence().unwrap();
            names.fence().unwrap(); // rank 1 has reached it
            window.detach(&address).unwrap();
            assert!(verbs.registered_bytes() > before + 799_999, "rank 1 reaches it");
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

/// A thread whose peer is far does not make another's wait, whose peer is near: on two hosts, started by
/// `tests/soft-roce/verbs`. Each cycle ends with an order: what was put comes before the lock is let go of.
#[test]
fn threads_with_two_peers_do_not_wait_for_each_other() {
    const LINK: &str = "rail0";
    const DELAY: Duration = Duration::from_millis(400);
    if std::env::var_os(ROLE).is_none() || std::env::var_os("TEST_HOSTS_ARE_SEVERAL").is_none() {
        return eprintln!("skipped: needs two hosts, and `transom run`");
    }
    let world = transom::init().expect("a rank can join its job");
    assert_eq!(world.size(), 3);
    let mut windows: [Window<u64>; 2] = [0, 1].map(|_| world.allocate(1000).unwrap());
    for window in &mut windows {
        (0..3).for_each(|rank| assert_eq!(window.lock_shared(rank).unwrap().get_one(0).unwrap(), 0));
    }
    world.barrier().unwrap();
    if world.rank() == 0 {
        shell(&format!("tc qdisc replace dev {LINK} root netem delay {}ms", DELAY.as_millis()));
        let cycle = |window: &mut Window<u64>, rank| {
            let begun = Instant::now();
            let epoch = window.lock_exclusive(rank).unwrap();
            epoch.put(0, &[1; 500]).unwrap();
            epoch.unlock().unwrap();
            window.lock_shared(0).unwrap().unlock().unwrap(); // after what was put at the other
            begun.elapsed()
        };
        let [far_window, near_window] = &mut windows;
        let far = [1, 2].into_iter().max_by_key(|&rank| cycle(far_window, rank)).unwrap();
        let (far_took, near_took) = std::thread::scope(|scope| {
            let far_away = scope.spawn(|| (0..5).map(|_| cycle(far_window, far)).min().unwrap());
            let mut near = Vec::new();
            while !far_away.is_finished() {
                near.push(cycle(near_window, 3 - far));
            }
            near.sort();
            (far_away.join().unwrap(), near)
        });
        let median = near_took[near_took.len() / 2];
        println!("\n| far {far_took:?} | near {median:?}, of {} |", near_took.len());
        assert!(far_took > DELAY && median < DELAY / 4, "far {far_took:?}, near {median:?}");
        shell(&format!("tc qdisc del dev {LINK} root"));
    }
    world.barrier().unwrap();
}

/// A small read of which nobody waits goes as a get does: nothing is registered for it.
#[test]
fn small_reads_need_no_registration() {
    if skipped("reads") {
        return;
    }
    on_verbs(2, "small_reads_need_no_registration", &[("TRANSOM_HYBRID", "off")], |world| {
        let mut window: Window<u64> = world.allocate(100).unwrap();
        let epoch = window.lock_shared(1 - world.rank()).unwrap();
        assert_eq!(epoch.get_one(7).unwrap(), 0);
        let registered = verbs(&world).registered_bytes();
        let target = epoch.rget(0, 1).unwrap();
        assert_eq!(verbs(&world).registered_bytes(), registered);
        assert_eq!(target.wait().unwrap(), [0]);
        // By turns, and the best of each, since others use the machine.
        if world.rank() == 0 {
            let time = |call: &dyn Fn() -> u64| {
                let begun = Instant::now();
                (0..50).for_each(|_| assert_eq!(call(), 0));
                begun.elapsed().as_secs_f64() * 1e6 / 50.0
            };
            let [mut get, mut rget] = [f64::MAX; 2];
            for _ in 0..20 {
                get = get.min(time(&|| epoch.get_one(0).unwrap()));
                rget = rget.min(time(&|| epoch.rget(0, 1).unwrap().wait().unwrap()[0]));
            }
            println!("\n| 8-byte get {get:.1} us | rget {rget:.1} us | {:.2} |", rget / get);
            assert!(rget < 1.5 * get, "rget {rget} us, get {get} us");
        }
        drop(epoch);
        world.barrier().unwrap();
    });
}

/// The error of a rank that cannot join.
fn cannot_join(name: &str, variables: &[(&str, &str)], wanted: &[&str]) {
    let forced = [("TRANSOM_FABRIC", "verbs")].iter().chain(variables).copied().collect::<Vec<_>>();
    let run = run(1, name, &forced, || {
        let error = transom::init().map(drop).expect_err("something is wrong");
        assert!(matches!(error, StartError::Provider(_)), "{error:?}");
        println!("<<{error}>>");
    });
    if let Some(outcome) = run {
        let output = outputs(&outcome);
        assert!(outcome.success(), "{output}");
        for wanted in wanted {
            assert!(output.contains(wanted), "{variables:?}: {wanted:?} is not in\n{output}");
        }
    } else {
        // A copy has done its part.
        std::process::exit(0);
    }
}

#[test]
fn bad_variables_are_told() {
    let name = "bad_variables_are_told";
    for (variable, value, wanted) in [
        ("TRANSOM_FABRIC", "infiniband", "expected `auto`"),
        ("TRANSOM_HYBRID", "perhaps", "expected `auto`"),
        ("TRANSOM_VERBS_PORT", "0", "from 1 to 254"),
        ("TRANSOM_VERBS_GID", "256", "from 0 to 255"),
        ("TRANSOM_VERBS_MTU", "1500", "expected 256"),
        ("TRANSOM_VERBS_SL", "16", "from 0 to 15"),
        ("TRANSOM_VERBS_DEPTH", "3", "from 4 to 32768"),
        ("TRANSOM_VERBS_INLINE", "many", "from 0 to 4096"),
        ("TRANSOM_VERBS_TIMEOUT", "-1", "expected seconds above 0"),
        ("TRANSOM_VERBS_TIMEOUT", "0", "expected seconds above 0"),
        ("TRANSOM_VERBS_TRAFFIC_CLASS", "256", "from 0 to 255"),
        ("TRANSOM_VERBS_PKEY", "0x8000", "from 1 to 65535"),
        ("TRANSOM_VERBS_NOTIFY", "send", "expected `auto`"),
    ] {
        cannot_join(name, &[(variable, value)], &[&format!("{variable}=\"{value}\""), wanted]);
    }
}

#[test]
fn what_the_device_does_not_have_is_told() {
    if skipped("asking for what a device does not have") {
        return;
    }
    let name = "what_the_device_does_not_have_is_told";
    cannot_join(name, &[("TRANSOM_VERBS_DEVICE", "mlx5_77")], &["TRANSOM_VERBS_DEVICE=mlx5_77", "there is "]);
    cannot_join(name, &[("TRANSOM_VERBS_PORT", "200")], &["TRANSOM_VERBS_PORT=200", "port(s)"]);
    cannot_join(name, &[("TRANSOM_VERBS_GID", "200")], &["TRANSOM_VERBS_GID=200", "no such address; it has 0"]);
}

/// A directory with a libibverbs that is none.
fn no_library() -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("no-libibverbs-{}", std::process::id()));
    let directory = match std::fs::create_dir_all(&directory) {
        Ok(()) => directory,
        // Where the build cannot be written to.
        Err(_) => std::env::temp_dir().join(format!("no-libibverbs-{}", std::process::id())),
    };
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("libibverbs.so.1"), "nothing").unwrap();
    directory
}

#[test]
fn without_libibverbs_programs_run_and_say_what_is_missing() {
    let name = "without_libibverbs_programs_run_and_say_what_is_missing";
    if std::env::var_os(ROLE).is_some() {
        return cannot_join(name, &[], &[]);
    }
    let directory = no_library();
    let path = directory.to_str().unwrap();
    let info = Command::new(env!("CARGO_BIN_EXE_transom")).arg("info").env("LD_LIBRARY_PATH", path).output().unwrap();
    let text = String::from_utf8_lossy(&info.stdout);
    let verbs = text.lines().find(|line| line.trim_start().starts_with("verbs")).unwrap_or_default();
    assert!(info.status.success() && verbs.contains("libibverbs cannot be loaded"), "{text}");
    assert!(text.contains("shm-loopback  available"), "{text}");
    cannot_join(name, &[("LD_LIBRARY_PATH", path)], &["libibverbs cannot be loaded", "install it"]);
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn memory_that_cannot_be_locked_is_told() {
    use rustix::process::{Resource, getrlimit};
    let limit = getrlimit(Resource::Memlock).current;
    if skipped("locking memory") || limit.is_none_or(|limit| limit > 16 << 20) {
        return eprintln!("skipped: the limit of locked memory is {limit:?}; 4 MiB would do");
    }
    on_verbs(2, "memory_that_cannot_be_locked_is_told", &[], |world| {
        let begun = Instant::now();
        let error = world.allocate::<u64>(4 << 20).map(drop).unwrap_err().to_string();
        assert!(error.contains("ulimit -l") || world.rank() == 1 && error.contains("rank 0"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(20));
        let mut small: Window<u64> = world.allocate(10).unwrap(); // what can be, is
        small.fence().unwrap();
    });
}

/// Runs a command that must succeed.
fn shell(command: &str) {
    let ran = Command::new("sh").args(["-c", command]).status();
    assert!(ran.as_ref().is_ok_and(|status| status.success()), "{command}: {ran:?}");
}

#[test]
fn a_link_that_goes_down_is_told_in_time() {
    const LINK: &str = "rail0"; // of the guests of tests/soft-roce
    if skipped("a link") || !std::path::Path::new("/sys/class/net").join(LINK).exists() {
        return eprintln!("skipped: there is no link to take down");
    }
    let set = |to: &str| shell(&format!("ip link set {LINK} {to}"));
    for connected in ["after connecting", "before"] {
        let all = [("TRANSOM_FABRIC", "verbs"), ("TRANSOM_VERBS_TIMEOUT", "0.05"), ("TEST_CONNECTED", connected)];
        let run = run(2, "a_link_that_goes_down_is_told_in_time", &all, || {
            let connected = std::env::var("TEST_CONNECTED").unwrap() == "after connecting";
            let world = transom::init().expect("a rank can join its job");
            let other = 1 - world.rank();
            let mut window: Window<u64> = world.allocate(10).unwrap();
            if connected {
                window.fence().unwrap();
            }
            world.barrier().unwrap();
            let begun = Instant::now();
            let error = if world.rank() == 0 {
                let put = |window: &mut Window<u64>| {
                    let epoch = window.lock_exclusive(other)?;
                    if connected {
                        set("down");
                    }
                    epoch.put(0, &[1; 10])?;
                    epoch.flush()
                };
                if !connected {
                    set("down");
                }
                put(&mut window).expect_err("nothing arrives")
            } else {
                // Told by the other that it cannot go on.
                world.barrier().expect_err("the other does not come")
            };
            println!("<<{error}>>");
            let text = error.to_string();
            let told = text.contains("rank 1 cannot be reached") && text.contains("the link of this port is down");
            assert!(world.rank() == 1 || told, "{text}");
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
            // What is left of the world cannot be used.
            std::process::exit(0);
        });
        if let Some(outcome) = run {
            set("up");
            let text = outputs(&outcome);
            assert!(text.matches("<<").count() == 2, "{connected}: {outcome}\n{text}");
        }
    }
}

/// For how long ranks are stopped, and packets lost: longer than any patience that once ended.
const SILENCE: Duration = Duration::from_secs(25);

/// Collective: how rank 0 stops rank 1 for a while. Nobody is connected by it.
fn who_is_to_be_stopped(world: &World) -> impl Fn() -> std::process::Child {
    // Ranks are children of one launcher.
    let parent = rustix::process::getppid().expect("a launcher").as_raw_nonzero();
    let file = std::env::temp_dir().join(format!("transom-stopped-{parent}"));
    if world.rank() == 1 {
        std::fs::write(&file, std::process::id().to_string()).unwrap();
    }
    world.barrier().unwrap();
    let pid = std::fs::read_to_string(&file).unwrap();
    world.barrier().unwrap();
    if world.rank() == 1 {
        std::fs::remove_file(&file).unwrap();
    }
    move || {
        shell(&format!("kill -STOP {pid}; until grep -q '^State:.T' /proc/{pid}/status; do sleep 0.01; done"));
        let wakes = format!("sleep {}; kill -CONT {pid}", SILENCE.as_secs());
        Command::new("sh").args(["-c", &wakes]).spawn().expect("a shell")
    }
}

/// A peer that is stopped is not dead. Before a connection there is only its process to answer; after that, its adapter does
/// without.
#[test]
fn a_stopped_rank_costs_time_and_not_the_job() {
    if skipped("a rank that is stopped") {
        return;
    }
    on_verbs(2, "a_stopped_rank_costs_time_and_not_the_job", &[("TRANSOM_HYBRID", "off")], |world| {
        let mut window: Window<u64> = world.allocate(10).unwrap();
        let stop = who_is_to_be_stopped(&world);
        if world.rank() == 0 {
            let mut shell = stop();
            let begun = Instant::now();
            let epoch = window.lock_exclusive(1).unwrap();
            epoch.put(0, &[7]).unwrap();
            epoch.unlock().unwrap();
            let took = begun.elapsed();
            assert!(took > SILENCE / 2 && took < SILENCE + Duration::from_secs(20), "before connecting: {took:?}");
            shell.wait().unwrap();
        }
        world.barrier().unwrap();
        assert!(world.rank() == 0 || window.local().get(0).unwrap() == 7);
        world.barrier().unwrap();
        if world.rank() == 0 {
            let mut shell = stop();
            let begun = Instant::now();
            let epoch = window.lock_exclusive(1).unwrap();
            epoch.put(0, &[8]).unwrap();
            assert_eq!(epoch.fetch_and_op(1, Op::Sum, 5).unwrap(), 0);
            epoch.unlock().unwrap();
            assert!(begun.elapsed() < SILENCE / 2, "connected: {:?}", begun.elapsed());
            world.barrier().unwrap();
            assert!(begun.elapsed() > SILENCE / 2, "the barrier waits for the stopped: {:?}", begun.elapsed());
            shell.wait().unwrap();
        } else {
            world.barrier().unwrap();
        }
        assert!(world.rank() == 0 || window.local().read(0, 2).unwrap() == [8, 5]);
        window.fence().unwrap();
    });
}

#[test]
fn threads_with_other_peers_do_not_wait_for_a_stopped_one() {
    if skipped("a rank that is stopped") {
        return;
    }
    let name = "threads_with_other_peers_do_not_wait_for_a_stopped_one";
    on_verbs(3, name, &[("TRANSOM_HYBRID", "off")], |world| {
        let mut windows = [(); 2].map(|()| world.allocate::<u64>(1).unwrap());
        let stop = who_is_to_be_stopped(&world);
        if world.rank() == 0 {
            let mut shell = stop();
            let begun = Instant::now();
            let count = |window: &mut Window<u64>, peer, times| {
                for _ in 0..times {
                    window.lock_exclusive(peer).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
                }
                begun.elapsed()
            };
            let [stopped, living] = &mut windows;
            let (stopped, living) = std::thread::scope(|scope| {
                let stopped = scope.spawn(|| count(stopped, 1, 1));
                let living = scope.spawn(|| count(living, 2, 200));
                (stopped.join().unwrap(), living.join().unwrap())
            });
            assert!(stopped > SILENCE / 2 && living < SILENCE / 2, "stopped: {stopped:?}, living: {living:?}");
            shell.wait().unwrap();
        }
        world.barrier().unwrap();
        let [stopped, living] = windows.map(|window| window.local().get(0).unwrap());
        assert_eq!([stopped, living], [[0, 0], [1, 0], [0, 200]][world.rank()]);
        world.barrier().unwrap();
    });
}

/// On a rail of its own, so that the job knows that the peer lives: `tests/soft-roce/verbs` starts it on two hosts. Before
/// connecting that costs time; after it, it is an error in bounded time.
#[test]
fn a_rail_that_loses_everything_is_told_in_time() {
    const LINK: &str = "rail1";
    if std::env::var_os(ROLE).is_none() || !std::path::Path::new("/sys/class/net").join(LINK).exists() {
        return eprintln!("skipped: needs two hosts with two rails, and `transom run`");
    }
    let loss = format!("tc qdisc replace dev {LINK} root netem loss 100%");
    let world = transom::init().expect("a rank can join its job");
    assert_eq!(world.size(), 2);
    let mut healing = (world.rank() == 0).then(|| {
        shell(&loss);
        let heals = format!("sleep {}; tc qdisc del dev {LINK} root", SILENCE.as_secs());
        Command::new("sh").args(["-c", &heals]).spawn().expect("a shell")
    });
    // By the hub, which is on the other rail: nobody connects before packets are lost.
    let _team = world.split(Some(0), 0).unwrap();
    let begun = Instant::now();
    let mut window: Window<u64> = world.allocate(10).unwrap();
    let took = begun.elapsed();
    assert!(took > SILENCE / 2 && took < 2 * SILENCE, "it took {took:?}");
    if world.rank() == 0 {
        let epoch = window.lock_exclusive(1).unwrap();
        epoch.put(0, &[7]).unwrap();
        epoch.flush().unwrap();
        healing.as_mut().expect("started").wait().unwrap();
        shell(&loss);
        let begun = Instant::now();
        epoch.put(0, &[8]).unwrap();
        let error = epoch.flush().expect_err("nothing arrives");
        let text = error.to_string();
        println!("<<{text}>> after {:?}", begun.elapsed());
        assert!(text.contains("rank 1 cannot be reached"), "{text}");
        assert!(begun.elapsed() < Duration::from_secs(60), "it took {:?}", begun.elapsed());
        let _ = epoch.unlock();
    } else {
        let error = world.barrier().expect_err("told by the other that it cannot go on");
        println!("<<{error}>>");
        assert_eq!(window.local().get(0).unwrap(), 7);
    }
    // What is left of the world cannot be used.
    std::process::exit(0);
}

#[test]
fn errors_have_a_source() {
    use std::error::Error;
    let source = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
    assert!(VerbsError::NoDevice { source: Some(source) }.source().is_some());
}

#[test]
fn the_memory_of_the_dead_is_gone_and_that_is_told() {
    if skipped("a death over the network") {
        return;
    }
    const VICTIM: usize = 1;
    let name = "the_memory_of_the_dead_is_gone_and_that_is_told";
    let run = run(3, name, &[("TRANSOM_FABRIC", "verbs")], || {
        let world = transom::init().expect("a rank can join its job");
        let mut window: Window<u64> = world.allocate(5000).unwrap();
        window.fence().unwrap();
        if world.rank() == VICTIM {
            // Amid the puts of both others: each puts a half, so none has still to lock when this one dies.
            let half_came = |last| window.local().get(last).unwrap() != 0;
            while !half_came(2499) || !half_came(4999) {
                std::thread::yield_now();
            }
            std::process::abort();
        }
        let fails_within = |seconds, call: &dyn Fn() -> Result<(), transom::Error>| {
            let begun = Instant::now();
            let error = call().expect_err("a call that needs a dead rank fails");
            assert_eq!(error.lost_rank(), Some(VICTIM), "{error}");
            assert!(begun.elapsed() < Duration::from_secs(seconds), "it took {:?}", begun.elapsed());
        };
        let fails_in_time = |call: &dyn Fn() -> Result<(), transom::Error>| fails_within(5, call);
        let epoch = window.lock_shared(VICTIM).unwrap();
        let half = world.rank() / 2 * 2500;
        // The victim lives until the other has begun, too.
        fails_within(40, &|| {
            loop {
                epoch.put(half, &[1; 2500])?;
            }
        });
        fails_in_time(&|| epoch.get_one(0).map(drop));
        fails_in_time(&|| epoch.put(0, &[1]));
        fails_in_time(&|| epoch.fetch_and_op(0, Op::Sum, 1).map(drop));
        fails_in_time(&|| epoch.rget(0, 2)?.wait().map(drop));
        fails_in_time(&|| epoch.flush());
        let ended = epoch.unlock().expect_err("so does its end");
        assert_eq!(ended.lost_rank(), Some(VICTIM), "{ended}");
        // The living go on.
        let living = 2 - world.rank();
        window.lock_shared(living).unwrap().put(world.rank(), &[7]).unwrap();
        assert_eq!(window.lock_shared(living).unwrap().get_one(world.rank()).unwrap(), 7);
        // Nor do they leave before the other has seen it.
        window.lock_shared(living).unwrap().put(2500 + world.rank(), &[8]).unwrap();
        let begun = Instant::now();
        while window.local().get(2500 + living).unwrap() != 8 {
            assert!(begun.elapsed() < Duration::from_secs(40), "rank {living} does not say that it is done");
            std::thread::yield_now();
        }
    });
    if let Some(outcome) = run {
        let died = |rank| outcome.statuses()[rank] != transom::Status::Exited(0);
        assert!((0..3).all(|rank| died(rank) == (rank == VICTIM)), "{outcome}\n{}", outputs(&outcome));
    }
}

/// Lent memory of a rank on the same host is reached by the queue pair to that rank, its words by that to oneself: what is
/// put there must not be overtaken by the news of it.
#[test]
fn lent_memory_of_neighbours_is_in_order_with_their_words() {
    if skipped("lent memory of the same host") {
        return;
    }
    let name = "lent_memory_of_neighbours_is_in_order_with_their_words";
    on_verbs(2, name, &[("TRANSOM_HYBRID", "on")], |world| {
        const LEN: usize = 12_000;
        const ROUNDS: u64 = 15;
        let other = 1 - world.rank();
        let mut window: Window<u64> = world.window(Flavor::Create(vec![0; LEN + 1]), 1).unwrap();
        for round in 1..=ROUNDS {
            window.lock_all().unwrap().target(other).unwrap().put_signal(0, &[round; LEN], 0, 1).unwrap();
            window.signals().wait_until(0, |signals| signals == round).unwrap();
            assert_eq!(window.local().read(0, LEN).unwrap(), [round; LEN], "by a signal");
            window.fence().unwrap();
            let epoch = window.fence().unwrap();
            epoch.target(other).unwrap().put(0, &[100 + round; LEN]).unwrap();
            window.fence().unwrap();
            assert_eq!(window.local().read(0, LEN).unwrap(), [100 + round; LEN], "by a fence");
            world.barrier().unwrap(); // the next round's puts come after it was read
            let epoch = window.lock_exclusive(0).unwrap();
            let so_far = epoch.get_one(LEN).unwrap();
            epoch.put(LEN, &[so_far + 1]).unwrap();
            epoch.unlock().unwrap();
        }
        window.bulk_accumulates().unwrap();
        for _ in 0..ROUNDS {
            window.lock_all().unwrap().target(0).unwrap().accumulate(LEN, Op::Sum, &[1]).unwrap();
        }
        let mine = window.free().unwrap();
        assert!(world.rank() > 0 || mine[LEN] == 4 * ROUNDS, "{} of {} additions", mine[LEN], 4 * ROUNDS);
    });
}

/// What a job does on whatever hosts its ranks are: `tests/soft-roce/verbs` starts it on two.
#[test]
fn ranks_of_several_hosts_are_one_job() {
    if skipped("a job on several hosts") {
        return;
    }
    on_verbs(4, "ranks_of_several_hosts_are_one_job", &[("TRANSOM_HYBRID", "on")], |world| {
        let (me, n) = (world.rank(), world.size());
        const EACH: u64 = 50;
        let mut window: Window<u64> = world.allocate_with_signals(1000 * n + 1, 1).unwrap();
        window.fence().unwrap();
        let data = |from: usize, to: usize| (from as u64) << 32 | to as u64;
        for to in 0..n {
            let epoch = window.lock_shared(to).unwrap();
            epoch.put_signal(1000 * me, &[data(me, to); 1000], 0, 1).unwrap();
            epoch.unlock().unwrap();
        }
        window.signals().wait_until(0, |arrived| arrived == n as u64).unwrap();
        for from in 0..n {
            assert_eq!(window.local().read(1000 * from, 1000).unwrap(), [data(from, me); 1000], "from {from}");
        }
        // One word, from all hosts at once, its own too; and a lock that passes between them.
        let word = 1000 * n;
        for _ in 0..EACH {
            window.lock_shared(n - 1).unwrap().fetch_and_op(word, Op::Sum, 1).unwrap();
            let epoch = window.lock_exclusive(0).unwrap();
            let value = epoch.get_one(word).unwrap();
            epoch.put(word, &[value + 1]).unwrap();
            epoch.unlock().unwrap();
        }
        window.fence().unwrap();
        for rank in [0, n - 1] {
            assert_eq!(window.lock_shared(rank).unwrap().get_one(word).unwrap(), EACH * n as u64, "at {rank}");
        }
        // Between hosts ranks meet by their lanes: one says it to another in each of ceil(log2 n) steps.
        let meets = n.next_power_of_two().ilog2() as u64;
        if std::env::var_os("TEST_HOSTS_ARE_SEVERAL").is_some() {
            world.barrier().unwrap();
            let before = verbs(&world).work_requests_to_others();
            world.barrier().unwrap();
            let posted = verbs(&world).work_requests_to_others() - before;
            assert_eq!((posted.writes + posted.compare_and_swaps, posted.reads), (meets, 0), "{posted:?}");
        }
        let team = world.split(Some(me as u64 % 2), 0).unwrap().expect("a colour was named");
        let mut of_team: Window<u64> = team.allocate(1).unwrap();
        of_team.lock_exclusive(0).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
        of_team.fence().unwrap();
        assert_eq!(of_team.lock_shared(0).unwrap().get_one(0).unwrap(), team.size() as u64);
        let shared = (0..n).filter(|&rank| window.local().of(rank).is_ok()).count();
        let pairs = verbs(&world).queue_pairs();
        assert!(pairs.to_others < n && pairs.to_itself == 1, "{pairs:?}: one to each at most");
        println!("rank {me}: {shared} ranks here, {} queue pairs to others", pairs.to_others);
        window.fence().unwrap();
    });
}
