//! Failures between adapters: links that go down and come back, stopped ranks, lost packets, broken connections, dead
//! ranks.
//!
//! Tests that need an RDMA device are skipped, with a message, on machines without one. `tests/soft-roce/verbs` runs
//! them in guests.

use crate::adapter;
use adapter::*;
use std::process::Command;
use std::time::{Duration, Instant};
use transom::messages::Tag;
use transom::{Op, Window, World};

#[test]
fn link_down_is_reported_in_time() {
    const LINK: &str = "rail0"; // of the guests of tests/soft-roce
    if skipped("a link") || !std::path::Path::new("/sys/class/net").join(LINK).exists() {
        return eprintln!("skipped: no link can be taken down");
    }
    let set = |to: &str| shell(&format!("ip link set {LINK} {to}"));
    for connected in ["after connecting", "before"] {
        let all = [("TRANSOM_FABRIC", "verbs"), ("TRANSOM_VERBS_TIMEOUT", "0.05"), ("TEST_CONNECTED", connected)];
        let run = run(2, "link_down_is_reported_in_time", &all, || {
            let connected = std::env::var("TEST_CONNECTED").unwrap() == "after connecting";
            let world = transom::init().expect("a rank can join its job");
            let other = 1 - world.rank();
            let mut window: Window<u64> = world.allocate(10).unwrap();
            if connected {
                window.fence().unwrap();
            }
            meet(&world).unwrap();
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
                put(&mut window).expect_err("an operation should fail while no packet arrives")
            } else {
                // The other rank reports that it cannot go on.
                meet(&world).expect_err("the barrier should fail without the other rank")
            };
            println!("<<{error}>>");
            let text = error.to_string();
            let told = text.contains("rank 1 cannot be reached") && text.contains("the link of this port is down");
            assert!(world.rank() == 1 || told, "{text}");
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
            // The rest of the world cannot be used.
            std::process::exit(0);
        });
        if let Some(outcome) = run {
            set("up");
            let text = outputs(&outcome);
            assert!(text.matches("<<").count() == 2, "{connected}: {outcome}\n{text}");
        }
    }
}

/// A link that is down for less than the time until peers are given up costs only time: lanes to other ranks, to the
/// rank itself, and datagrams.
#[test]
fn job_survives_a_brief_link_failure() {
    const LINK: &str = "rail0"; // of the guests of tests/soft-roce
    if skipped("a link") || !std::path::Path::new("/sys/class/net").join(LINK).exists() {
        return eprintln!("skipped: no link can be taken down");
    }
    let variables = [("TRANSOM_INTRANODE", "off"), ("TRANSOM_VERBS_TIMEOUT", "0.05"), ("TRANSOM_VERBS_RETRY", "2")];
    on_verbs(2, "job_survives_a_brief_link_failure", &variables, |world| {
        const DOWN: Duration = Duration::from_secs(2);
        let (me, other) = (world.rank(), 1 - world.rank());
        let mut window: Window<u64> = world.allocate(1001).unwrap();
        window.fence().unwrap();
        // Until a connection broke: packets to the same host may not notice the link.
        for round in 1..=10 {
            let epoch = window.lock_all().unwrap();
            meet(&world).unwrap();
            let begun = Instant::now();
            let up = (me == 0).then(|| {
                shell(&format!("ip link set {LINK} down"));
                let up = format!("sleep {}; ip link set {LINK} up", DOWN.as_secs());
                Command::new("sh").args(["-c", &up]).spawn().expect("a shell should start")
            });
            while {
                for rank in [me, other] {
                    epoch.target(rank).unwrap().put(1 + 500 * me, &[round; 500]).unwrap();
                    executed(epoch.target(rank).unwrap().fetch_and_op(0, Op::Sum, 0));
                }
                epoch.flush_all().unwrap();
                begun.elapsed() < 2 * DOWN
            } {}
            up.map(|mut up| up.wait().unwrap());
            println!("\n| link down for {DOWN:?} | took {:?} |", begun.elapsed());
            epoch.unlock().unwrap();
            window.fence().unwrap();
            assert_eq!(window.local().read(1, 1000).unwrap(), [round; 1000]);
            let broke = verbs(&world).queue_pairs().to_others > 1;
            let epoch = window.fence().unwrap();
            epoch.target(0).unwrap().fetch_and_op(0, Op::Sum, u64::from(broke)).unwrap();
            let epoch = window.fence().unwrap();
            if epoch.target(0).unwrap().get_one(0).unwrap() > 0 {
                window.fence().unwrap();
                return;
            }
        }
        panic!("no connection broke while the link was down");
    });
}

/// Time for which ranks are stopped, and packets lost: longer than any former time limit.
const SILENCE: Duration = Duration::from_secs(30);

/// Collective: returns how rank 0 stops rank 1 for a while. It connects no ranks.
fn who_is_to_be_stopped(world: &World) -> impl Fn() -> std::process::Child {
    // Ranks are children of one launcher.
    let parent = rustix::process::getppid().expect("a launcher should be the parent process").as_raw_nonzero();
    let file = std::env::temp_dir().join(format!("transom-stopped-{parent}"));
    if world.rank() == 1 {
        std::fs::write(&file, std::process::id().to_string()).unwrap();
    }
    meet(world).unwrap();
    let pid = std::fs::read_to_string(&file).unwrap();
    meet(world).unwrap();
    if world.rank() == 1 {
        std::fs::remove_file(&file).unwrap();
    }
    move || {
        shell(&format!("kill -STOP {pid}; until grep -q '^State:.T' /proc/{pid}/status; do sleep 0.01; done"));
        let wakes = format!("sleep {}; kill -CONT {pid}", SILENCE.as_secs());
        Command::new("sh").args(["-c", &wakes]).spawn().expect("a shell should start")
    }
}

/// A stopped peer is not dead. Before a connection exists, only its process can answer; afterwards its adapter works
/// without it.
#[test]
fn job_survives_a_stopped_rank() {
    if skipped("a rank that is stopped") {
        return;
    }
    on_verbs(2, "job_survives_a_stopped_rank", &[("TRANSOM_INTRANODE", "off")], |world| {
        let mut window: Window<u64> = world.allocate(10).unwrap();
        let stop = who_is_to_be_stopped(&world);
        if world.rank() == 0 {
            let mut shell = stop();
            let begun = Instant::now();
            let epoch = window.lock_exclusive(1).unwrap();
            epoch.put(0, &[7]).unwrap();
            epoch.unlock().unwrap();
            let took = begun.elapsed();
            assert!(
                took > SILENCE / 2 && took < SILENCE + Duration::from_secs(20),
                "put before connecting took {took:?}"
            );
            shell.wait().unwrap();
        }
        meet(&world).unwrap();
        assert!(world.rank() == 0 || window.local().get(0).unwrap() == 7);
        meet(&world).unwrap();
        if world.rank() == 0 {
            let mut shell = stop();
            let begun = Instant::now();
            let epoch = window.lock_exclusive(1).unwrap();
            epoch.put(0, &[8]).unwrap();
            assert_eq!(epoch.fetch_and_op(1, Op::Sum, 5).unwrap(), 0);
            epoch.unlock().unwrap();
            assert!(begun.elapsed() < SILENCE / 2, "operations over the connection took {:?}", begun.elapsed());
            meet(&world).unwrap();
            assert!(begun.elapsed() > SILENCE / 2, "barrier did not wait for the stopped rank: {:?}", begun.elapsed());
            shell.wait().unwrap();
        } else {
            meet(&world).unwrap();
        }
        assert!(world.rank() == 0 || window.local().read(0, 2).unwrap() == [8, 5]);
        window.fence().unwrap();
    });
}

/// Datagrams to a stopped rank are not lost either, whether they come as packets or into place.
#[test]
fn datagram_messages_wait_for_a_stopped_rank() {
    if skipped("messages to a rank that is stopped") {
        return;
    }
    let chosen = [("TRANSOM_INTRANODE", "off"), ("TRANSOM_MESSAGES", "ud")];
    on_verbs(2, "datagram_messages_wait_for_a_stopped_rank", &chosen, |world| {
        const BYTES: Tag<u8> = Tag::new(6);
        let message = |number: usize| vec![number as u8; if number % 20 == 19 { 300_000 } else { 700 }];
        let stop = who_is_to_be_stopped(&world);
        if world.rank() == 0 {
            // Makes sure that windows are open when the rank stops.
            let mut shell = None;
            let begun = Instant::now();
            let sent: Vec<_> = (0..200)
                .map(|number| {
                    if number == 100 {
                        shell = Some(stop());
                    }
                    world.isend(1, BYTES, message(number))
                })
                .collect();
            sent.into_iter().for_each(|sent| drop(sent.wait().unwrap()));
            assert!(
                begun.elapsed() > SILENCE / 2,
                "sends completed while their receiver was stopped: {:?}",
                begun.elapsed()
            );
            shell.unwrap().wait().unwrap();
        } else {
            (0..200).for_each(|number| assert!(world.recv(0, BYTES).unwrap().0 == message(number), "message {number}"));
        }
        meet(&world).unwrap();
    });
}

#[test]
fn threads_with_live_peers_pass_a_stopped_rank() {
    if skipped("a rank that is stopped") {
        return;
    }
    let name = "threads_with_live_peers_pass_a_stopped_rank";
    on_verbs(3, name, &[("TRANSOM_INTRANODE", "off")], |world| {
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
        meet(&world).unwrap();
        let [stopped, living] = windows.map(|window| window.local().get(0).unwrap());
        assert_eq!([stopped, living], [[0, 0], [1, 0], [0, 200]][world.rank()]);
        meet(&world).unwrap();
    });
}

/// On a rail of its own, so that the job knows that the peer lives: `tests/soft-roce/verbs` starts it on two hosts.
/// Before a connection exists, the loss costs time; after that it is an error in bounded time.
#[test]
fn rail_losing_all_packets_is_reported_in_time() {
    const LINK: &str = "rail1";
    if std::env::var_os(ROLE).is_none() || !std::path::Path::new("/sys/class/net").join(LINK).exists() {
        return eprintln!("skipped: needs two hosts with two rails, and `transom run`");
    }
    let loss = format!("tc qdisc replace dev {LINK} root netem loss 100%");
    // Ranks join by the hub, which is on the other rail: no rank connects before packets are lost.
    let mut healing = std::env::var("TRANSOM_RANK").is_ok_and(|rank| rank == "0").then(|| {
        shell(&loss);
        let heals = format!("sleep {}; tc qdisc del dev {LINK} root", SILENCE.as_secs());
        Command::new("sh").args(["-c", &heals]).spawn().expect("a shell should start")
    });
    let world = transom::init().expect("a rank can join its job");
    assert_eq!(world.size(), 2);
    let begun = Instant::now();
    let mut window: Window<u64> = world.allocate(10).unwrap();
    let took = begun.elapsed();
    assert!(took > SILENCE / 2 && took < 2 * SILENCE, "it took {took:?}");
    if world.rank() == 0 {
        let epoch = window.lock_exclusive(1).unwrap();
        epoch.put(0, &[7]).unwrap();
        epoch.flush().unwrap();
        healing.as_mut().expect("the shell should have been started").wait().unwrap();
        shell(&loss);
        let begun = Instant::now();
        epoch.put(0, &[8]).unwrap();
        let error = epoch.flush().expect_err("an operation should fail while no packet arrives");
        let text = error.to_string();
        println!("<<{text}>> after {:?}", begun.elapsed());
        assert!(text.contains("rank 1 cannot be reached"), "{text}");
        assert!(begun.elapsed() < Duration::from_secs(60), "it took {:?}", begun.elapsed());
        let _ = epoch.unlock();
    } else {
        let error = meet(&world).expect_err("the other rank's failure should be reported");
        println!("<<{error}>>");
        assert_eq!(window.local().get(0).unwrap(), 7);
    }
    // The rest of the world cannot be used.
    std::process::exit(0);
}

/// A rail of its own, whose guest loses all packets that it sends for a while, repeatedly, as long as this value
/// lives.
struct Flapping(std::process::Child);

impl Flapping {
    const LINK: &str = "rail1";

    /// Losses last a second each, with `between` seconds in between. A connection breaks after a tenth of a second.
    fn begin(first: f32, between: f32) -> Self {
        let loses = format!("tc qdisc replace dev {0} root netem loss 100%", Self::LINK);
        let heals = format!("tc qdisc del dev {} root", Self::LINK);
        let script = format!("sleep {first}; while {loses}; do sleep 1; {heals}; sleep {between}; done");
        Flapping(Command::new("sh").args(["-c", &script]).spawn().expect("a shell should start"))
    }
}

impl Drop for Flapping {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = Command::new("sh").args(["-c", &format!("tc qdisc del dev {} root 2>&1", Self::LINK)]).output();
        // The other rank's losses may last for a while.
        std::thread::sleep(Duration::from_secs(2));
    }
}

/// Checks the result of an atomic, and returns whether its value was lost with the connection.
fn executed<R>(what: Result<R, transom::Error>) -> bool {
    match what {
        Ok(_) => false,
        Err(error) => {
            let why = error.to_string();
            assert!(why.contains("was executed, but its result was lost"), "{why}");
            true
        }
    }
}

/// Connections that break during operations of both ranks, by losses of either: `tests/soft-roce/verbs` starts it on
/// two hosts, with a job that is on another rail. Nothing is done twice, nothing is lost.
#[test]
fn broken_connections_are_reestablished() {
    if std::env::var_os(ROLE).is_none() || !std::path::Path::new("/sys/class/net").join(Flapping::LINK).exists() {
        return eprintln!("skipped: needs two hosts with two rails, and `transom run`");
    }
    const LEN: usize = 3000;
    const TIME: Duration = Duration::from_secs(25);
    let world = transom::init().expect("a rank can join its job");
    let (me, other) = (world.rank(), 1 - world.rank());
    let mut counts: Window<u64> = world.allocate(2).unwrap();
    let mut data: Window<u64> = world.allocate(LEN + 1).unwrap();
    for window in [&mut counts, &mut data] {
        window.lock_shared(other).unwrap().get_one(0).unwrap();
    }
    meet(&world).unwrap();
    let pairs = || verbs(&world).queue_pairs().to_others;

    // Both ranks add at both. A lock is an atomic too, whose result might be lost: it is taken before the losses
    // begin.
    let epoch = counts.lock_all().unwrap();
    meet(&world).unwrap();
    let flapping = Flapping::begin(if me == 0 { 0.0 } else { 2.0 }, 3.0);
    let (begun, mut done, mut lost) = (Instant::now(), 0_u64, 0_u64);
    while begun.elapsed() < TIME {
        for rank in 0..2 {
            lost += u64::from(executed(epoch.target(rank).unwrap().fetch_and_op(me, Op::Sum, 1)));
        }
        done += 1;
    }
    drop(flapping);
    meet(&world).unwrap();
    let found: Vec<u64> = (0..2).map(|rank| epoch.target(rank).unwrap().get_one(me).unwrap()).collect();
    println!("| rank {me} | {done} additions at each | {lost} results lost | {} queue pairs |", pairs());
    assert_eq!(found, [done; 2], "atomics were not executed exactly once");
    assert!(pairs() > 3, "no connection broke: {} queue pairs", pairs());
    epoch.unlock().unwrap();
    meet(&world).unwrap();

    // Each value is overwritten once it was seen, and the new one stays. Operations of one lane are in order, and own
    // memory needs no order.
    let epoch = data.lock_all().unwrap();
    meet(&world).unwrap();
    let (begun, before, mut lost) = (Instant::now(), pairs(), 0_u64);
    let flapping = Flapping::begin(if me == 0 { 0.0 } else { 2.0 }, 3.0);
    let (mine, theirs) = (epoch.target(me).unwrap(), epoch.target(other).unwrap());
    let (mut rounds, mut last) = (0_u64, false);
    while !last {
        rounds += 1;
        let value = rounds << 1 | u64::from(begun.elapsed() > TIME);
        theirs.put(0, &[value; LEN]).unwrap();
        lost += u64::from(executed(theirs.fetch_and_op(LEN, Op::Sum, 1)));
        while mine.get_one(LEN).unwrap() < rounds {
            assert!(begun.elapsed() < 3 * TIME, "round {rounds} did not arrive");
            std::thread::sleep(Duration::from_micros(200));
        }
        let came = mine.get_one(0).unwrap();
        let all = || {
            let mut all = vec![0; LEN];
            mine.get(0, &mut all).unwrap();
            all
        };
        assert!(came >> 1 == rounds && all() == vec![came; LEN], "round {rounds}: {came}");
        mine.put(0, &[0; LEN]).unwrap();
        if rounds % 50 == 0 {
            // The time that the connection takes to break and come back.
            std::thread::sleep(Duration::from_millis(300));
        }
        meet(&world).unwrap();
        assert_eq!(all(), [0; LEN], "put of round {rounds} was overwritten");
        meet(&world).unwrap();
        last = (value | came) & 1 == 1;
    }
    drop(flapping);
    meet(&world).unwrap();
    println!("| rank {me} | {rounds} rounds | {lost} results lost | {} queue pairs more |", pairs() - before);
    assert!(pairs() > before, "no connection broke");
    epoch.unlock().unwrap();
    meet(&world).unwrap();

    // Neither rank is in a call when the connection breaks.
    if me == 0 {
        let epoch = data.lock_shared(1).unwrap();
        meet(&world).unwrap();
        let flapping = Flapping::begin(0.0, 1000.0);
        std::thread::sleep(Duration::from_millis(200));
        epoch.put(0, &[77; LEN]).unwrap();
        std::thread::sleep(Duration::from_secs(10));
        epoch.flush().unwrap();
        epoch.unlock().unwrap();
        drop(flapping);
    } else {
        meet(&world).unwrap();
        let begun = Instant::now();
        while data.local().get(LEN - 1).unwrap() != 77 {
            assert!(begun.elapsed() < Duration::from_secs(8), "no put arrived within 8 s");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    data.fence().unwrap();
}

/// Messages to a rank that makes no call find no buffer in the end. Operations behind them wait for at most a second.
#[test]
fn messages_to_a_computing_rank_block_no_others() {
    if skipped("messages to a rank that computes") {
        return;
    }
    const TAG: Tag<u64> = Tag::new(1);
    const COMPUTES: Duration = Duration::from_secs(20);
    // Each peer may send a few messages without credit; seven peers send more than a rank has buffers at first.
    on_verbs(8, "messages_to_a_computing_rank_block_no_others", &[("TRANSOM_INTRANODE", "off")], |world| {
        let me = world.rank();
        let mut window: Window<u64> = world.allocate(8).unwrap();
        let epoch = window.lock_all().unwrap();
        let target = epoch.target(0).unwrap();
        target.put(me, &[1]).unwrap();
        target.flush().unwrap();
        meet(&world).unwrap();
        if me == 0 {
            std::thread::sleep(COMPUTES);
            for from in 1..8 {
                (0..4).for_each(|i| assert_eq!(world.recv(from, TAG).unwrap().0, [i]));
            }
        } else {
            let begun = Instant::now();
            let sent: Vec<_> = (0..4).map(|i| world.isend(0, TAG, vec![i])).collect();
            for i in 0..5 {
                target.put(me, &[i]).unwrap();
                target.flush().unwrap();
            }
            let took = begun.elapsed();
            println!("\n| rank {me} waited | {took:?} |");
            assert!(took < COMPUTES / 2, "{took:?}");
            sent.into_iter().for_each(|sent| assert!(sent.wait().is_ok()));
        }
        epoch.unlock().unwrap();
        meet(&world).unwrap();
    });
}

#[test]
fn operations_on_a_dead_rank_fail_in_time() {
    if skipped("a death over the network") {
        return;
    }
    const VICTIM: usize = 1;
    let name = "operations_on_a_dead_rank_fail_in_time";
    let run = run(3, name, &[("TRANSOM_FABRIC", "verbs")], || {
        let world = transom::init().expect("a rank can join its job");
        let mut window: Window<u64> = world.allocate(5000).unwrap();
        window.fence().unwrap();
        if world.rank() == VICTIM {
            // The victim dies amid the puts of both others. Each puts a half, so no rank still has to lock when this
            // one dies.
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
        // The victim lives until the other rank has begun, too.
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
        let ended = epoch.unlock().expect_err("unlock at a dead rank should fail");
        assert_eq!(ended.lost_rank(), Some(VICTIM), "{ended}");
        // The living ranks go on.
        let living = 2 - world.rank();
        window.lock_shared(living).unwrap().put(world.rank(), &[7]).unwrap();
        assert_eq!(window.lock_shared(living).unwrap().get_one(world.rank()).unwrap(), 7);
        // No rank leaves before the other has seen the death.
        window.lock_shared(living).unwrap().put(2500 + world.rank(), &[8]).unwrap();
        let begun = Instant::now();
        while window.local().get(2500 + living).unwrap() != 8 {
            assert!(begun.elapsed() < Duration::from_secs(40), "rank {living} did not report its end");
            std::thread::yield_now();
        }
    });
    if let Some(outcome) = run {
        let died = |rank| outcome.statuses()[rank] != transom::Status::Exited(0);
        assert!((0..3).all(|rank| died(rank) == (rank == VICTIM)), "{outcome}\n{}", outputs(&outcome));
    }
}
