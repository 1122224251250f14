//! The shipped lock, access groups and barrier in loom: under the C11 memory model, with orderings no stronger than a
//! network guarantees. `cargo loom` runs this and the mutants.

use loom::cell::UnsafeCell;
use loom::sync::atomic::Ordering;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;
use transom_locks::model::failing::{Extent, Failing, Failure, How, Plan, Progress};
use transom_locks::model::loom::{Net, Orderings, RankNetwork, Setup, Waiting, explore};
use transom_locks::model::{Call, Mix};
use transom_locks::{At, Error, Field, LockLayout, LockWord, Mode, Network, PassiveLock, Rank, Run, UpdateGate, Wake};

/// Checks every multiset of `ranks` of these rows, and prints the number of schedules.
fn check_mixes(what: &str, setup: Setup, ranks: usize, rows: &[Vec<Call>]) {
    check_counts::<16>(what, setup, ranks, rows);
}

/// [`check_mixes`] with counts of `C` bits.
fn check_counts<const C: u32>(what: &str, setup: Setup, ranks: usize, rows: &[Vec<Call>]) {
    let (begun, mut schedules, mut mixes) = (Instant::now(), 0, 0);
    for number in 0..rows.len().pow(ranks as u32) {
        let kinds: Vec<usize> = (0..ranks as u32).map(|rank| number / rows.len().pow(rank) % rows.len()).collect();
        if kinds.is_sorted() {
            let mix: Vec<_> = kinds.iter().map(|&kind| rows[kind].clone()).collect();
            schedules += Mix::<C>::new(mix).loom_with(setup, |network| network);
            mixes += 1;
        }
    }
    let how = if setup.watches { ", watching" } else { "" };
    println!("{what}{how}: {mixes} mixes, {schedules} schedules, {:.1?}", begun.elapsed());
}

fn shared(target: Rank) -> Vec<Call> {
    Call::both(target, Mode::Shared).into()
}

fn exclusive(target: Rank) -> Vec<Call> {
    Call::both(target, Mode::Exclusive).into()
}

fn all() -> Vec<Call> {
    vec![Call::AcquireAll, Call::ReleaseAll]
}

fn singles() -> Vec<Vec<Call>> {
    vec![shared(0), exclusive(0)]
}

fn doubles() -> Vec<Vec<Call>> {
    singles().iter().flat_map(|first| singles().into_iter().map(|second| [first.clone(), second].concat())).collect()
}

fn attempts() -> Vec<Vec<Call>> {
    [Mode::Shared, Mode::Exclusive].map(|mode| Call::attempt(0, mode).into()).into()
}

/// The setup with ranks that watch each other's words.
fn watching(setup: Setup) -> Setup {
    Setup { watches: true, ..setup }
}

fn at_most(preemptions: usize) -> Setup {
    Setup { preemptions: Some(preemptions), ..Setup::default() }
}

#[test]
fn two_ranks_exclude_in_every_schedule() {
    check_mixes("2 ranks x 1, all schedules", Setup::default(), 2, &singles());
    check_mixes("2 ranks x 2, all schedules", Setup::default(), 2, &doubles());
    check_mixes("2 ranks x 2, 7 preemptions", watching(at_most(7)), 2, &doubles());
}

/// Only the verbs order memory here, and a wait may see old values.
#[test]
fn two_spinning_ranks_exclude_in_every_schedule() {
    let spinning = Setup { waiting: Waiting::Spins, ..Setup::default() };
    check_mixes("2 ranks x 1, spinning, all schedules", spinning, 2, &singles());
    let spinning = Setup { preemptions: Some(5), ..spinning };
    check_mixes("2 ranks x 2, spinning, 5 preemptions", spinning, 2, &doubles());
    check_mixes("2 ranks x 2, spinning, 5 preemptions", watching(spinning), 2, &doubles());
}

/// With narrow counts a request reaches the gate after one attempt, and makes the word urgent after another.
#[test]
fn ranks_at_the_gate_exclude_each_other() {
    let spinning = Setup { waiting: Waiting::Spins, preemptions: Some(5), ..Setup::default() };
    check_counts::<3>("2 ranks x 2, at the gate, spinning, 5 preemptions", spinning, 2, &doubles());
    check_counts::<3>("3 ranks x 1, at the gate, 4 preemptions", at_most(4), 3, &singles());
    check_counts::<3>("3 ranks x 2, at the gate, 2 preemptions", at_most(2), 3, &doubles());
}

/// The schedule decides the step at which a deadline passes.
#[test]
fn requests_with_deadlines_exclude_each_other() {
    let until = |mode| vec![Call::AcquireUntil(0, mode), Call::ReleaseHeld(0), Call::Settle(0)];
    let timed = [Mode::Shared, Mode::Exclusive].map(until).to_vec();
    check_mixes("2 ranks with deadlines, all schedules", Setup::default(), 2, &[singles(), timed.clone()].concat());
    let three = [singles(), timed].concat();
    check_mixes("3 ranks with deadlines, 2 preemptions", at_most(2), 3, &three);
    check_mixes("3 ranks with deadlines, 3 preemptions", watching(at_most(3)), 3, &three);
}

#[test]
fn attempts_and_requests_exclude_each_other() {
    let rows = [singles(), attempts()].concat();
    let spinning = Setup { waiting: Waiting::Spins, ..Setup::default() };
    check_mixes("2 ranks x 1, attempts too, spinning, all schedules", spinning, 2, &rows);
    check_mixes("3 ranks x 1, attempts too, 3 preemptions", at_most(3), 3, &rows);
}

#[test]
fn two_ranks_with_two_locks_never_deadlock() {
    let both = |order: [usize; 2], mode| -> Vec<Call> {
        let [first, second] = order;
        vec![Call::Acquire(first, mode), Call::Acquire(second, mode), Call::Release(first), Call::Release(second)]
    };
    let rows = [both([0, 1], Mode::Shared), both([0, 1], Mode::Exclusive)];
    check_mixes("2 ranks, one lock in the other, 5 preemptions", at_most(5), 2, &rows);
    // A call for all locks, against requests one after the other and against two in order, which could deadlock.
    let mut rows = vec![all(), [shared(0), exclusive(1)].concat(), [exclusive(1), exclusive(0)].concat()];
    rows.push(both([0, 1], Mode::Exclusive));
    check_mixes("2 ranks, all locks or several, 5 preemptions", at_most(5), 2, &rows);
    check_mixes("2 ranks, all locks or several, 4 preemptions", watching(at_most(4)), 2, &rows);
}

#[test]
fn three_ranks_exclude_each_other() {
    check_mixes("3 ranks x 1, 5 preemptions", at_most(5), 3, &singles());
    check_mixes("3 ranks x 2, 3 preemptions", at_most(3), 3, &doubles());
    check_mixes("3 ranks x 1, 5 preemptions", watching(at_most(5)), 3, &singles());
    check_mixes("3 ranks x 2, 2 preemptions", watching(at_most(2)), 3, &doubles());
    let rows = [all(), exclusive(0), exclusive(2)];
    check_mixes("3 ranks, all locks or one, 3 preemptions", at_most(3), 3, &rows);
}

#[test]
fn four_ranks_exclude_each_other() {
    check_mixes("4 ranks x 1, 2 preemptions", at_most(2), 4, &singles());
    check_mixes("4 ranks x 1, 3 preemptions", at_most(3), 4, &singles());
}

/// The chain of waiting readers is longer than one word can name, so the writer follows links.
#[test]
fn four_waiting_readers_are_granted_by_links() {
    let rows = [exclusive(0), shared(0), shared(0), shared(0), shared(0)];
    let begun = Instant::now();
    let schedules = <Mix>::new(rows).loom(Some(2));
    println!("5 ranks, a writer and four readers, 2 preemptions: {schedules} schedules, {:.1?}", begun.elapsed());
}

/// Takes the lock of rank 0 once, accesses the data, and releases it.
fn once<N: Network>(lock: &PassiveLock<N>, data: &UnsafeCell<()>, mode: Mode) -> Result<(), Error<N::Error>> {
    let (held, _) = lock.acquire(0, mode)?;
    assert!(matches!(lock.acquire(0, mode), Err(Error::AlreadyLocked { target: 0 })));
    match mode {
        Mode::Shared => data.with(drop),
        Mode::Exclusive => data.with_mut(drop),
    }
    held.release()
}

/// Asserts that the locks are idle and the nodes are as the next request must find them.
fn check_end(net: &Net, ranks: usize) {
    let layout = LockLayout::new(0, ranks);
    for (at, value) in net.nonzero() {
        match layout.field(at) {
            Some((_, Field::Word)) => assert!(LockWord::<16>(value).is_idle(), "{:?}", LockWord::<16>(value)),
            field => assert!(matches!(field, Some((_, Field::Link))), "at the end {field:?} holds {value:#x}"),
        }
    }
}

/// Threads that share the handle of a rank, beside a second rank: loom checks for lost requests and for races on the
/// data. They share the handle through loom's `Arc`, whose last drop loom orders after the other threads' work.
/// `threads.rs` has a separate model of the thread queue.
#[test]
fn threads_of_one_rank_exclude_each_other() {
    use Mode::{Exclusive, Shared};
    // Per rank: the modes of its threads.
    let ranks: [(&[&[Mode]], usize); 4] = [
        (&[&[Exclusive, Exclusive], &[Exclusive]], 3),
        (&[&[Exclusive, Shared], &[Exclusive]], 3),
        (&[&[Exclusive, Exclusive], &[Shared, Exclusive]], 2),
        (&[&[Exclusive, Shared, Exclusive]], 3),
    ];
    for (ranks, preemptions) in ranks {
        let begun = Instant::now();
        let schedules = explore(Some(preemptions), move || {
            let net = Net::for_locks(ranks.len(), &[0], Waiting::Parks, Orderings::default());
            let data = Rc::new(UnsafeCell::new(()));
            let mut threads = Vec::new();
            for (rank, modes) in ranks.iter().enumerate() {
                let lock = loom::sync::Arc::new(<PassiveLock<_>>::new(net.rank(rank), 0).unwrap());
                threads.extend(modes.iter().map(|&mode| {
                    let (lock, data) = (lock.clone(), data.clone());
                    move || once(&lock, &data, mode).unwrap()
                }));
            }
            in_threads(threads);
            check_end(&net, ranks.len());
        });
        println!("threads {ranks:?}, {preemptions} preemptions: {schedules} schedules, {:.1?}", begun.elapsed());
    }
}

/// Runs each body in a thread; the first in the calling thread.
fn in_threads(mut bodies: Vec<impl FnOnce() + 'static>) {
    let first = bodies.remove(0);
    let others: Vec<_> = bodies.into_iter().map(loom::thread::spawn).collect();
    first();
    others.into_iter().for_each(|other| other.join().unwrap());
}

/// One verb of a rank fails, at every possible place. One of the threads that share the handle gets the error, the
/// others find the lock broken or usable, and none waits for ever.
#[test]
fn network_failure_leaves_no_thread_waiting() {
    let begun = Instant::now();
    let (mut schedules, mut place) = (0, 0);
    loop {
        let failed = Arc::new(AtomicUsize::new(0));
        for (how, modes) in [How::Refused, How::Unheard].into_iter().flat_map(|how| MODES.map(|modes| (how, modes))) {
            let failed = failed.clone();
            schedules += explore(Some(3), move || {
                let net = Net::for_locks(1, &[0], Waiting::Parks, Orderings::default());
                let plan = Plan { nth: place, how, extent: Extent::Verb };
                let failing = Arc::new(Failing::new(net.rank(0), plan, Progress::default()));
                let lock = loom::sync::Arc::new(<PassiveLock<_>>::new(failing.clone(), 0).unwrap());
                let data = Rc::new(UnsafeCell::new(()));
                let told = Arc::new(AtomicUsize::new(0));
                in_threads(Vec::from(modes.map(|mode| {
                    let (lock, data, told) = (lock.clone(), data.clone(), told.clone());
                    move || match once(&lock, &data, mode) {
                        Ok(()) | Err(Error::Broken { target: 0 }) => {}
                        Err(Error::Network(Failure::Made)) => drop(told.fetch_add(1, Relaxed)),
                        Err(error) => panic!("{error:?}"),
                    }
                })));
                // A release that could not start was started again.
                let (happened, told) = (usize::from(failing.progress().failed.is_some()), told.load(Relaxed));
                assert!(told == happened || told == 0 && modes.contains(&Mode::Shared), "{told} of {happened}");
                failed.fetch_add(happened, Relaxed);
            });
        }
        if failed.load(Relaxed) == 0 {
            break;
        }
        place += 1;
    }
    println!(
        "threads whose network fails, {place} places, 3 preemptions: {schedules} schedules, {:.1?}",
        begun.elapsed()
    );
}

const MODES: [[Mode; 3]; 2] = [[Mode::Exclusive; 3], [Mode::Shared, Mode::Exclusive, Mode::Shared]];

/// Two ranks take two locks in different orders. Loom reports the deadlock, and the handles that hold locks run no verb
/// while the model is torn down, where one would abort the process.
#[test]
fn loom_reports_deadlock_of_held_locks() {
    let failed = std::panic::catch_unwind(|| {
        explore(None, || {
            let net = Net::for_locks(2, &[0, 1], Waiting::Parks, Orderings::default());
            in_threads(Vec::from([[0, 1], [1, 0]].map(|order| {
                let mut lock = <PassiveLock<_>>::new(net.rank(order[0]), 0).unwrap();
                move || {
                    order.into_iter().for_each(|target| {
                        lock.acquire_mut(target, Mode::Exclusive).unwrap();
                    })
                }
            })));
        })
    });
    let why = failed.expect_err("each rank holds the lock that the other waits for");
    assert!(why.downcast_ref::<String>().is_some_and(|why| why.starts_with("deadlock;")), "{why:?}");
}

/// A compare-and-swap that only releases orders no later access when it fails, as documented.
#[test]
fn failed_release_cas_does_not_acquire() {
    const WORD: At = At { rank: 1, word: 0 };
    let ordering = |cas| {
        std::panic::catch_unwind(|| {
            explore(None, move || {
                let net = Net::new(2, &[0], Waiting::Spins, Orderings { cas, ..Orderings::default() });
                let data = Rc::new(UnsafeCell::new(()));
                let (writer, network) = (Rc::clone(&data), net.rank(0));
                let other = loom::thread::spawn(move || {
                    writer.with_mut(drop);
                    network.notify(WORD, 7, Wake::Home).unwrap();
                });
                if net.rank(1).cas(WORD, 1, 2, Wake::Nobody).unwrap() == 7 {
                    data.with(drop);
                }
                other.join().unwrap();
            })
        })
    };
    assert!(ordering(Ordering::AcqRel).is_ok());
    assert!(ordering(Ordering::Release).is_err(), "loom reports a race");
}

/// Runs a mix that must have no violation, and prints the number of schedules.
fn check_text(text: &str, setup: Setup) {
    let begun = Instant::now();
    let schedules = <Mix>::parse(text).unwrap().loom_with(setup, |network| network);
    println!("{text}, {:?} preemptions: {schedules} schedules, {:.1?}", setup.preemptions, begun.elapsed());
}

/// Targets write their memory between exposures, origins within accesses.
#[test]
fn access_groups_order_accesses_to_memory() {
    check_text("post1 wait post1 wait | start0 complete start0 complete", Setup::default());
    let twice = "post1,2 wait post1,2 wait | start0 complete start0 complete | start0 complete start0 complete";
    check_text(twice, at_most(3));
    check_text("post1 start1 complete wait | post0 start0 complete wait", at_most(5));
}

/// Each rank writes its own part, and reads every part after the barrier.
#[test]
fn barrier_orders_writes_before_reads() {
    check_text("barrier barrier | barrier barrier", Setup::default());
    check_text("barrier barrier | barrier barrier | barrier barrier", at_most(2));
    check_text("barrier barrier | barrier barrier | barrier barrier | barrier barrier", at_most(1));
    check_text("W barrier R1 | R barrier W1", at_most(3));
}

/// A put that orders nothing lets a rank miss what the others wrote before the barrier, or before they posted.
#[test]
fn unordered_put_is_a_race_after_barrier_and_start() {
    let orderings = Orderings { notify: Ordering::Relaxed, ..Orderings::default() };
    let setup = Setup { waiting: Waiting::Spins, orderings, ..Setup::default() };
    for text in ["barrier | barrier", "post1 | start0", "post1 wait | start0 complete"] {
        let mix = <Mix>::parse(text).unwrap();
        let sound = mix.loom_with(Setup { orderings: Orderings::default(), ..setup }, |network| network);
        assert!(sound > 1, "{text}");
        let failed = std::panic::catch_unwind(|| mix.loom_with(setup, |network| network));
        assert!(failed.is_err(), "{text}: loom reports a race");
    }
}

/// Singles access the data concurrently; a run that is alone has it exclusively. The thread that stays admitted makes a
/// run of its own, and leaves.
#[test]
fn update_gate_admits_a_run_alone() {
    const GATE: UpdateGate = UpdateGate::new(At { rank: 0, word: 0 });
    fn run(network: &RankNetwork, data: &UnsafeCell<()>, admitted: bool) {
        let run = GATE.enter_run(network, admitted).unwrap();
        match run {
            Run::Alone => data.with_mut(drop),
            Run::Among => data.with(drop),
        }
        GATE.leave_run(network, run).unwrap();
    }
    for (waiting, preemptions) in [(Waiting::Parks, None), (Waiting::Spins, Some(3))] {
        let begun = Instant::now();
        let schedules = explore(preemptions, move || {
            let net = Net::new(2, &[0], waiting, Orderings::default());
            let data = Rc::new(UnsafeCell::new(()));
            in_threads(Vec::from([0, 1].map(|rank| {
                let (network, data) = (net.rank(rank), data.clone());
                move || {
                    if rank == 0 {
                        GATE.enter_single(&network).unwrap();
                        data.with(drop);
                        run(&network, &data, true);
                        GATE.leave_single(&network).unwrap();
                    } else {
                        run(&network, &data, false);
                    }
                }
            })));
        });
        println!("gate of updates, {waiting:?}: {schedules} schedules, {:.1?}", begun.elapsed());
    }
}

/// The environment variable by which this program, run as a child, gets the mix that fails.
const PLANTED: &str = "LOOM_TEST_PLANTED";

/// Mixes that fail, and the end of stderr then: of each rank at most the last 10 verbs, with the values that they found.
const REPORTS: [(&str, &str); 3] = [
    (
        "W0+W1 | W1+W0",
        "
    1  rank 0  cas lock word of rank 0: idle -> tail 0, head 0
    2  rank 1  cas lock word of rank 1: idle -> tail 1, head 1
    3  rank 1  cas FAILS lock word of rank 0: tail 0, head 0; expected idle
    4  rank 1  cas lock word of rank 0: tail 0, head 0 -> tail 1, head 0
    5  rank 1  put next of rank 0 at lock 0: rank 1, 0 readers
    6  rank 0  cas FAILS lock word of rank 1: tail 1, head 1; expected idle
    7  rank 0  cas lock word of rank 1: tail 1, head 1 -> tail 0, head 1
    8  rank 0  put next of rank 1 at lock 1: rank 0, 0 readers
",
    ),
    (
        "barrier | barrier",
        "
    1  rank 0  put barrier round 0 of rank 1: 1
    2  rank 1  put barrier round 0 of rank 0: 1
    3  rank 0  reads barrier round 0 of rank 0: 1
",
    ),
    (
        "R R R R R R W0+W1 | W1+W0",
        "
    7  rank 0  add lock word of rank 0: arrived 3, departed 3 -> arrived 4, departed 3
    8  rank 0  add lock word of rank 0: arrived 4, departed 3 -> arrived 4, departed 4
    9  rank 0  add lock word of rank 0: arrived 4, departed 4 -> arrived 5, departed 4
   10  rank 0  add lock word of rank 0: arrived 5, departed 4 -> arrived 5, departed 5
   11  rank 0  add lock word of rank 0: arrived 5, departed 5 -> arrived 6, departed 5
   12  rank 0  add lock word of rank 0: arrived 6, departed 5 -> arrived 6, departed 6
   13  rank 0  cas lock word of rank 0: arrived 6, departed 6 -> tail 0, head 0
   14  rank 1  cas lock word of rank 1: idle -> tail 1, head 1
   15  rank 1  cas FAILS lock word of rank 0: tail 0, head 0; expected idle
   16  rank 1  cas lock word of rank 0: tail 0, head 0 -> tail 1, head 0
   17  rank 1  put next of rank 0 at lock 0: rank 1, 0 readers
   18  rank 0  cas FAILS lock word of rank 1: tail 1, head 1; expected idle
   19  rank 0  cas lock word of rank 1: tail 1, head 1 -> tail 0, head 1
   20  rank 0  put next of rank 1 at lock 1: rank 0, 0 readers
",
    ),
];

/// A child process runs each mix. A race needs a notify that orders nothing, by ranks that spin.
#[test]
fn violation_prints_last_verbs_of_each_rank() {
    const TEST: &str = "violation_prints_last_verbs_of_each_rank";
    if let Ok(text) = std::env::var(PLANTED) {
        let orderings = Orderings { notify: Ordering::Relaxed, ..Orderings::default() };
        let races = Setup { waiting: Waiting::Spins, orderings, ..Setup::default() };
        let setup = if text == "barrier | barrier" { races } else { Setup::default() };
        <Mix>::parse(&text).unwrap().loom_with(setup, |network| network);
        unreachable!("the mix fails");
    }
    for (text, expected) in REPORTS {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", TEST, "--nocapture"]).env(PLANTED, text).env("RUST_BACKTRACE", "0");
        let output = child.output().unwrap();
        assert!(!output.status.success(), "{text}");
        let said = String::from_utf8(output.stderr).unwrap();
        let (_, report) = said.split_once("the last verbs of schedule ").unwrap_or_else(|| panic!("{text}: {said}"));
        // The number of the schedule is loom's.
        let verbs = report.split_once(":").map_or("", |(_, verbs)| verbs.trim_end_matches('\n'));
        assert_eq!(verbs, expected.trim_end_matches('\n'), "{text}: {said}");
    }
}
