//! Rails that are cut, restored or flapping, or that deliver packets after their operations were repeated: the other
//! rails continue.
//! Ranks are on two hosts with two rails, which `tests/soft-roce/verbs` starts; elsewhere these tests are skipped,
//! with a message.

use crate::adapter;
use adapter::*;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use transom::messages::Tag;
use transom::{Op, Window, World};

/// A rail loses all packets for a while, under load. Puts, gets, signals, locks and barriers go on by the other rail
/// within a second or so. Nothing is lost nor done twice, and the rail is used again after its return. The test cuts
/// the rail as `tests/soft-roce/verbs` does. TRANSOM_VERBS_DEVICE names the rail, and the hub is on the other one.
#[test]
fn failed_rail_is_bypassed_until_it_recovers() {
    const LINK: &str = "rail1";
    if std::env::var_os(ROLE).is_none() || !std::path::Path::new("/sys/class/net").join(LINK).exists() {
        return eprintln!("skipped: needs two hosts with two rails, and `transom run`");
    }
    const LEN: usize = 1 << 20;
    const CUT: Duration = Duration::from_secs(30);
    let is_first = std::env::var("TRANSOM_VERBS_DEVICE").is_ok_and(|devices| devices.starts_with("rxe1"));
    let rail = usize::from(!is_first);
    let world = transom::init().expect("a rank can join its job");
    let (me, other, verbs) = (world.rank(), 1 - world.rank(), verbs(&world));
    let mut window: Window<u64> = world.allocate_with_signals(LEN / 8, 2).unwrap();
    let mut counts: Window<u64> = world.allocate(2).unwrap();
    let epoch = window.lock_all().unwrap();
    let (theirs, signals) = (epoch.target(other).unwrap(), epoch.signals());
    let (mut round, mut counted) = (0, 0);
    // The longest round, and the bytes of divided operations on the rail. The result of an atomic that is executed as
    // the rail is cut may be lost, so `with_locks` is for other times.
    let mut rounds = |time: Duration, with_locks: bool| {
        let (begun, mut longest, before) = (Instant::now(), Duration::ZERO, verbs.divided_bytes()[rail]);
        loop {
            let began = Instant::now();
            round += 1;
            let value = |rank: usize| vec![round * 10 + rank as u64; LEN / 8];
            let last = u64::from(begun.elapsed() > time);
            drop(theirs.rput(0, value(me)).unwrap());
            theirs.put_signal(0, &[], 0, 1 + (last << 32)).unwrap();
            let told = signals.wait_until(0, |told| told & 0xffff_ffff >= round).unwrap();
            assert!(epoch.local().read(0, LEN / 8).unwrap() == value(other), "round {round}");
            assert!(theirs.rget(0, LEN / 8).unwrap().wait().unwrap() == value(me), "a get of round {round}");
            longest = longest.max(began.elapsed());
            if with_locks {
                // Both ranks add at both, in two ways.
                for rank in 0..2 {
                    let target = counts.lock_exclusive(rank).unwrap();
                    let now = target.get_one(0).unwrap();
                    target.put(0, &[now + 1]).unwrap();
                    target.fetch_and_op(1, Op::Sum, 1).unwrap();
                    target.unlock().unwrap();
                }
                counted += 1;
            }
            meet(&world).unwrap();
            if told >> 32 > 0 || last > 0 {
                meet(&world).unwrap();
                signals.set(0, round).unwrap();
                meet(&world).unwrap();
                let counts = counts.local().read(0, 2).unwrap();
                assert_eq!(
                    counts,
                    [2 * counted; 2],
                    "increments under a lock and by atomics were not counted exactly once"
                );
                meet(&world).unwrap();
                return (longest, verbs.divided_bytes()[rail] - before);
            }
        }
    };
    rounds(Duration::from_secs(3), true);
    let quiet = rounds(Duration::from_secs(5), false);
    assert!(quiet.1 > 0, "a rail carries no bytes before the cut");
    if me == 0 {
        shell(&format!("tc qdisc replace dev {LINK} root netem loss 100%"));
    }
    let cut = rounds(Duration::from_secs(5), false);
    rounds(CUT - Duration::from_secs(5), true);
    // All the time except the time that it took to notice the cut.
    let without = rounds(Duration::from_secs(5), true);
    if me == 0 {
        shell(&format!("tc qdisc del dev {LINK} root"));
    }
    let back = Instant::now();
    rounds(Duration::from_secs(5), true);
    let again = rounds(Duration::from_secs(5), true);
    println!(
        "| rank {me} | longest round, bytes by the rail | {quiet:?} | cut {cut:?} | {without:?} | back {again:?} |"
    );
    assert!(cut.0 < quiet.0 + Duration::from_secs(5), "longest round with the cut is {cut:?}, without {quiet:?}");
    assert_eq!(without.1, 0, "bytes were sent by a failed rail");
    assert!(again.1 > 0, "rail is not used {:?} after its recovery", back.elapsed());
    drop(epoch);
    meet(&world).unwrap();
}

/// A rail delays packets of a divided put until the first rail has repeated the put, and another value was put there.
/// The late packets must not change memory. The rail is cut as above; the second rail is on the link.
#[test]
fn late_rail_packets_do_not_overwrite_newer_data() {
    const LINK: &str = "rail1";
    const LEN: usize = 4 << 20;
    if std::env::var_os(ROLE).is_none() || !std::path::Path::new("/sys/class/net").join(LINK).exists() {
        return eprintln!("skipped: needs two hosts with two rails, and `transom run`");
    }
    let world = transom::init().expect("a rank can join its job");
    let (me, verbs) = (world.rank(), verbs(&world));
    let mut window: Window<u8> = world.allocate(LEN).unwrap();
    let epoch = window.lock_all().unwrap();
    meet(&world).unwrap();
    if me == 0 {
        let other = epoch.target(1).unwrap();
        // Fewer rails are used until all are connected.
        while verbs.divided_bytes()[1] < LEN as u64 {
            other.put(0, &vec![1; LEN]).unwrap();
            other.flush().unwrap();
        }
        let (late, began) = (Duration::from_secs(5), Instant::now());
        let shaped = Shaped::begin(LINK, &format!("delay {}ms limit 100000", late.as_millis()));
        let before = verbs.divided_bytes()[1];
        other.put(0, &vec![2; LEN]).unwrap();
        other.flush().unwrap();
        other.put(0, &vec![3; LEN]).unwrap();
        other.flush().unwrap();
        let (by_it, took) = (verbs.divided_bytes()[1] - before, began.elapsed());
        println!("| two puts of {LEN} bytes, {by_it} of them by a rail with a delay of {late:?}, took {took:?} |");
        assert!(by_it > LEN as u64 / 4, "the first put was not striped");
        assert!(took < late, "puts waited for the delayed rail: {took:?}");
        std::thread::sleep(late + Duration::from_secs(2));
        drop(shaped);
    }
    meet(&world).unwrap();
    let wrong = epoch.local().read(0, LEN).unwrap().iter().filter(|byte| **byte != 3).count();
    assert!(me == 0 || wrong == 0, "{wrong} of {LEN} bytes were overwritten by late packets");
    drop(epoch);
    meet(&world).unwrap();
}

const LOSES_ALL: &str = "loss 100%";

/// A link of the guests with changed behaviour for packets that its own guest sends.
struct Shaped<'a>(&'a str);

impl<'a> Shaped<'a> {
    fn begin(link: &'a str, how: &str) -> Self {
        shell(&format!("tc qdisc replace dev {link} root netem {how}"));
        Shaped(link)
    }
}

impl Drop for Shaped<'_> {
    fn drop(&mut self) {
        shell(&format!("tc qdisc del dev {} root", self.0));
    }
}

/// Windows of ranks that have not met by the first rail: no state of a peer is known there, not even its address. The
/// rail is cut as above; the first rail is on the link.
#[test]
fn ranks_connect_while_the_first_rail_is_cut() {
    const LINK: &str = "rail1";
    const TIMES: u64 = 5;
    if std::env::var_os(ROLE).is_none() || !std::path::Path::new("/sys/class/net").join(LINK).exists() {
        return eprintln!("skipped: needs two hosts with two rails, and `transom run`");
    }
    let lossy = std::env::var("TRANSOM_RANK").is_ok_and(|rank| rank == "0").then(|| Shaped::begin(LINK, LOSES_ALL));
    let begun = Instant::now();
    let world = transom::init().expect("a rank can join its job");
    let mut window: Window<u64> = world.allocate(2000).unwrap();
    for _ in 0..TIMES {
        for rank in 0..2 {
            let target = window.lock_exclusive(rank).unwrap();
            let now = target.get_one(0).unwrap();
            target.put(0, &[now + 1; 1500]).unwrap();
            target.fetch_and_op(1999, Op::Sum, 1).unwrap();
            target.unlock().unwrap();
        }
    }
    window.fence().unwrap();
    let took = begun.elapsed();
    println!("| rank {} | {TIMES} times at both, and what comes before: {took:?} |", world.rank());
    assert_eq!((window.local().get(1499).unwrap(), window.local().get(1999).unwrap()), (2 * TIMES, 2 * TIMES));
    assert!(took < Duration::from_secs(40), "{took:?}");
    meet(&world).unwrap();
    drop(lossy);
}

/// The links of all rails except the hub's.
fn links() -> Vec<String> {
    let all = (1..).map(|rail| format!("rail{rail}"));
    all.take_while(|link| std::path::Path::new("/sys/class/net").join(link).exists()).collect()
}

/// Results of rounds of messages: the longest time without a message, the longest round, their number, and the bytes
/// that the first rail and the other rails moved.
#[derive(Debug)]
struct Rounds {
    pause: Duration,
    longest: Duration,
    count: u64,
    first: u64,
    others: u64,
}

impl std::fmt::Display for Rounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Rounds { pause, longest, count, first, others } = self;
        write!(
            f,
            "{count} rounds, the longest {longest:.2?}, {pause:.2?} without a message, {first} bytes by the first rail, {others} by the other"
        )
    }
}

/// Ten messages of many lengths in each direction at once. Each arrives once, complete, and in order. Returns whether
/// rank 0 says that it is `enough`.
fn exchange_round(world: &World, rng: &mut fastrand::Rng, number: &mut u64, enough: bool) -> (bool, Duration) {
    const WORDS: [usize; 8] = [3, 8, 100, 900, 6000, 13_000, 40_000, 140_000];
    const TAG: Tag<u64> = Tag::new(7);
    let (me, other) = (world.rank() as u64, 1 - world.rank());
    // Both ranks know the words that follow the first ones.
    let body = |from: u64, number: u64, at: usize| number << 8 ^ (at as u64).wrapping_mul(0x9e37_79b9) ^ from;
    let lengths: Vec<usize> = (0..10).map(|_| WORDS[rng.usize(..WORDS.len())] + rng.usize(..4)).collect();
    let send = |(number, length): (u64, &usize)| {
        let mut words: Vec<u64> = (0..*length).map(|at| body(me, number, at)).collect();
        words[..3].copy_from_slice(&[number, *length as u64, u64::from(enough)]);
        world.isend(other, TAG, words)
    };
    let sends: Vec<_> = (*number..).zip(&lengths).map(send).collect();
    let (mut ends, mut pause) = (me == 0 && enough, Duration::ZERO);
    for expected in *number..*number + 10 {
        let began = Instant::now();
        let (came, status) = world.recv(other, TAG).unwrap();
        pause = pause.max(began.elapsed());
        assert_eq!(
            (came[0], came[1], status.len),
            (expected, came.len() as u64, came.len()),
            "message out of order or of another length"
        );
        assert!((3..came.len()).all(|at| came[at] == body(other as u64, expected, at)), "message {expected}");
        ends |= me == 1 && came[2] > 0;
    }
    sends.into_iter().for_each(|send| drop(send.wait().unwrap()));
    *number += 10;
    (ends, pause)
}

/// Rounds of messages until rank 0 says that it is enough.
fn exchange_for(world: &World, rng: &mut fastrand::Rng, number: &mut u64, time: Duration) -> Rounds {
    let (begun, before) = (Instant::now(), moved(world));
    let (mut longest, mut pause, mut count) = (Duration::ZERO, Duration::ZERO, 0);
    loop {
        let round = Instant::now();
        let (ends, paused) = exchange_round(world, rng, number, begun.elapsed() > time);
        (count, longest, pause) = (count + 1, longest.max(round.elapsed()), pause.max(paused));
        if ends {
            let (all, others) = (moved(world).0 - before.0, moved(world).1 - before.1);
            return Rounds { pause, longest, count, first: all - others, others };
        }
    }
}

/// One rail, or all but one, lose all packets for half a minute, under load. Messages go on by the others, and by all
/// rails after their return. The test cuts rails as `tests/soft-roce/verbs` does. TRANSOM_VERBS_DEVICE names them, and
/// the hub is on the other rail.
#[test]
fn messages_continue_without_failed_rails() {
    let links = links();
    if std::env::var_os(ROLE).is_none() || links.is_empty() {
        return eprintln!("skipped: needs two hosts with two rails, and `transom run`");
    }
    let is_first = std::env::var("TRANSOM_VERBS_DEVICE").is_ok_and(|devices| devices.starts_with("rxe1"));
    let world = transom::init().expect("a rank can join its job");
    let (mut rng, mut number) = (fastrand::Rng::with_seed(world.rank() as u64), 0);
    let mut rounds = |seconds: u64| exchange_for(&world, &mut rng, &mut number, Duration::from_secs(seconds));
    rounds(4);
    let quiet = rounds(6);
    assert!(quiet.first > 0 && quiet.others > 0, "a rail carries no bytes before the cut: {quiet:?}");
    let cut_here = if world.rank() == 0 { &links[..] } else { &[] };
    let lossy: Vec<_> = cut_here.iter().map(|link| Shaped::begin(link, LOSES_ALL)).collect();
    let cut = rounds(5);
    let without = rounds(25);
    drop(lossy);
    rounds(5);
    let again = rounds(6);
    println!("| rank {} | {quiet} | cut {cut} | {without} | back {again} |", world.rank());
    assert!(cut.pause < quiet.pause + Duration::from_secs(2), "pause with the cut: {cut:?}, without: {quiet:?}");
    assert_eq!(if is_first { without.first } else { without.others }, 0, "bytes were sent by a failed rail");
    assert!(again.first > 0 && again.others > 0, "a rail carries no bytes after its recovery: {again:?}");
    meet(&world).unwrap();
}

/// A rail of datagrams loses all packets of this host for a while, under load, and later its link is down. Messages go on
/// by the other rail, and by both after each return. The rail is cut as above.
#[test]
fn datagrams_continue_without_a_failed_rail() {
    const LINK: &str = "rail1";
    if std::env::var_os(ROLE).is_none() || links().is_empty() {
        return eprintln!("skipped: needs two hosts with two rails, and `transom run`");
    }
    let world = transom::init().expect("a rank can join its job");
    let (mut rng, mut number) = (fastrand::Rng::with_seed(55 + world.rank() as u64), 0);
    let sent = || -> u64 {
        let bytes = std::fs::read_to_string(format!("/sys/class/net/{LINK}/statistics/tx_bytes")).unwrap();
        bytes.trim().parse().unwrap()
    };
    // Rounds, and the bytes per second that this host sends on the link. Dropped packets do not count.
    let mut rounds = |seconds: u64| {
        let (before, began) = (sent(), Instant::now());
        let rounds = exchange_for(&world, &mut rng, &mut number, Duration::from_secs(seconds));
        (rounds, ((sent() - before) as f64 / began.elapsed().as_secs_f64()) as u64)
    };
    let cut_here = |command: &str| {
        if world.rank() == 0 {
            shell(command);
        }
    };
    rounds(4);
    let quiet = rounds(6);
    println!("| rank {} | {}, {} bytes/s on {LINK} |", world.rank(), quiet.0, quiet.1);
    for (fails, returns) in [
        ("tc qdisc replace dev rail1 root netem loss 100%", "tc qdisc del dev rail1 root"),
        ("ip link set rail1 down", "ip link set rail1 up"),
    ] {
        cut_here(fails);
        rounds(5);
        let without = rounds(10);
        cut_here(returns);
        rounds(5);
        let again = rounds(6);
        println!("| rank {} | {fails}: {}, {} | {}, {} |", world.rank(), without.0, without.1, again.0, again.1);
        assert!(without.1 < quiet.1 / 2, "{} bytes/s by a failed rail, {} before", without.1, quiet.1);
        assert!(again.1 > quiet.1 / 4, "{} bytes/s after the return, {} before", again.1, quiet.1);
    }
    assert_eq!(verbs(&world).queue_pairs().to_others, 0);
    meet(&world).unwrap();
}

/// Makes rails lose this host's packets for a second, repeatedly, each at its own times, while `act` runs.
fn while_they_flap<R>(links: &[String], world: &World, act: impl FnOnce() -> R) -> R {
    let (ends, rank) = (&AtomicBool::new(false), world.rank() as u64);
    std::thread::scope(|scope| {
        for (link, nth) in links.iter().zip(0..) {
            scope.spawn(move || {
                for turn in 0.. {
                    std::thread::sleep(Duration::from_millis(700 + 400 * rank + 270 * nth + 130 * (turn % (5 + nth))));
                    if ends.load(Relaxed) {
                        break;
                    }
                    let lossy = Shaped::begin(link, LOSES_ALL);
                    std::thread::sleep(Duration::from_secs(1));
                    drop(lossy);
                }
            });
        }
        let acted = act();
        ends.store(true, Relaxed);
        acted
    })
}

/// Messages under load while one rail, or all but one, flap. Rails are cut as above.
#[test]
fn messages_survive_flapping_rails() {
    let links = links();
    if std::env::var_os(ROLE).is_none() || links.is_empty() {
        return eprintln!("skipped: needs two hosts with two rails, and `transom run`");
    }
    let world = transom::init().expect("a rank can join its job");
    let (mut rng, mut number) = (fastrand::Rng::with_seed(77 + world.rank() as u64), 0);
    let mut rounds = |seconds: u64| exchange_for(&world, &mut rng, &mut number, Duration::from_secs(seconds));
    rounds(4);
    let flapped = while_they_flap(&links, &world, || rounds(40));
    let made = verbs(&world).queue_pairs().to_others;
    rounds(5);
    let quiet = rounds(5);
    println!("| rank {} | flapping: {flapped}, {made} queue pairs | {quiet} |", world.rank());
    assert!(made > 4, "no connection broke: {made} queue pairs");
    assert!(quiet.first > 0 && quiet.others > 0, "a rail carries no bytes after its recovery: {quiet:?}");
    meet(&world).unwrap();
}

/// Rails so slow that answers of a peer come seconds late, behind messages in the other direction. No connection is
/// broken off repeatedly for that, because each new one would make it worse. Rails are changed as above, with a rate.
#[test]
fn slow_rails_are_not_taken_for_failed() {
    const LEN: usize = 4 << 20;
    if std::env::var_os(ROLE).is_none() || links().is_empty() {
        return eprintln!("skipped: needs two hosts with two rails, and `transom run`");
    }
    let world = transom::init().expect("a rank can join its job");
    let other = 1 - world.rank();
    for round in 0..4 {
        let began = Instant::now();
        let mut came = vec![0_u8; LEN];
        world
            .sendrecv(other, Tag::new(1), &vec![round * 2 + world.rank() as u8; LEN], other, Tag::new(1), &mut came)
            .unwrap();
        let took = began.elapsed();
        println!("| rank {} | 4 MiB each way by a slow rail: {took:.2?} |", world.rank());
        assert!(came.iter().all(|byte| *byte == round * 2 + other as u8), "round {round}");
        assert!(took < Duration::from_secs(30), "round {round}: {took:?}");
    }
    let made = verbs(&world).queue_pairs().to_others;
    assert!(made < 30, "{made} queue pairs");
    meet(&world).unwrap();
}

/// A pipe stays on the first rail, which flaps, and so do messages that use that rail with it: both wait. The rail is
/// cut as above.
#[test]
fn pipe_waits_for_a_flapping_rail() {
    const LEN: usize = 30_000;
    let links = links();
    if std::env::var_os(ROLE).is_none() || links.is_empty() {
        return eprintln!("skipped: needs two hosts with two rails, and `transom run`");
    }
    let world = transom::init().expect("a rank can join its job");
    let other = 1 - world.rank();
    let (mut rng, mut number) = (fastrand::Rng::with_seed(99 + world.rank() as u64), 0);
    let pipe = world.pipe(other).unwrap();
    let begun = Instant::now();
    let rounds = while_they_flap(&links, &world, || {
        for round in 0_u64.. {
            let bytes = |rank: usize| -> Vec<u8> { (0..LEN).map(|at| (at * 7 + rank) as u8 ^ round as u8).collect() };
            (&mut &pipe).write_all(&bytes(world.rank())).unwrap();
            let mut came = vec![0; LEN];
            (&mut &pipe).read_exact(&mut came).unwrap();
            assert!(came == bytes(other), "round {round} of the pipe");
            let enough = begun.elapsed() > Duration::from_secs(30);
            if exchange_round(&world, &mut rng, &mut number, enough).0 {
                return round;
            }
        }
        unreachable!("the loop of rounds has no end")
    });
    println!(
        "| rank {} | {rounds} rounds of a pipe | {} queue pairs |",
        world.rank(),
        verbs(&world).queue_pairs().to_others
    );
    meet(&world).unwrap();
    drop(pipe);
    std::thread::sleep(Duration::from_secs(2));
    // The rail may be cut then.
    let again =
        while_they_flap(&links, &world, || exchange_for(&world, &mut rng, &mut number, Duration::from_secs(15)));
    println!("| rank {} | without the pipe {again} |", world.rank());
    meet(&world).unwrap();
}
