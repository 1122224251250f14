//! Mixes of locks with the barrier and access groups: the shipped code under every schedule, the mistakes of programs
//! that a mix finds, and the violations that its oracle reports.

use transom_locks::model::{Call, Delivery, FifoOracle, Group, Mix, Search, Verb};
use transom_locks::{At, LockLayout};

/// Mixes without a mistake.
const RIGHT: [&str; 9] = [
    "barrier barrier barrier | barrier barrier barrier",
    "barrier barrier | barrier barrier | barrier barrier",
    "barrier | barrier | barrier | barrier",
    "W barrier R1 | R barrier W1",
    "post1 wait post1 wait post1 wait | start0 complete start0 complete start0 complete",
    "post1,2 wait post1,2 wait | start0 complete start0 complete | start0 complete start0 complete",
    "post1 start1 complete wait | post0 start0 complete wait",
    "post1,2 wait | start0,2 complete | post1 start0 complete wait",
    "post1 wait barrier W | start0+W complete barrier",
];

#[test]
fn barriers_and_epochs_hold_in_every_schedule() {
    for text in RIGHT {
        for delivery in [Delivery::Immediate, Delivery::Deferred, Delivery::Watched, Delivery::Torn] {
            let net = <Mix>::parse(text).unwrap().sim().with_delivery(delivery);
            let states = net.explore(1_000_000).unwrap_or_else(|stopped| panic!("{text}, {delivery:?}: {stopped}"));
            println!("{text}, {delivery:?}: {states} states");
        }
    }
}

#[test]
fn mistake_of_a_program_is_found() {
    for (text, what) in [
        ("barrier | barrier barrier", "deadlock: rank 1 waits for barrier round 0 of rank 1 (1);"),
        (
            "W+barrier | W barrier",
            "deadlock: rank 0 waits for barrier round 0 of rank 0 (0); rank 1 waits for go of rank 1 at lock 0 (0);",
        ),
        (
            "start1 complete post1 wait | start0 complete post0 wait",
            "deadlock: rank 0 waits for exposures by rank 1 at rank 0 (0); rank 1 waits for exposures by rank 0 at rank 1 (0);",
        ),
        ("post1 wait | start0", "deadlock: rank 0 waits for accesses by rank 1 at rank 0 (0);"),
        ("complete |", "phase 0 of rank 0: complete: no access epoch; start opens one"),
        (
            "post1 post1 | start0 complete",
            "phase 1 of rank 0: an exposure epoch is open; end it with wait or test first",
        ),
    ] {
        let failure = <Mix>::parse(text).unwrap().sim().explore(10_000).unwrap_err().violation().unwrap();
        assert_eq!(failure.what, what, "{text}: {failure}");
    }
}

/// Calls that return although another rank has not come that far.
#[test]
fn oracle_reports_calls_that_return_early() {
    let to = |rank| Verb::Notify { at: At { rank, word: 99 }, value: 1 };
    let oracle = |calls: &[(usize, Call, bool)]| {
        let mut oracle = FifoOracle::new(LockLayout::new(0, 3), 3);
        for &(rank, call, notifies) in calls {
            oracle.begins(rank, call).unwrap();
            if notifies {
                oracle.saw(rank, to((rank + 1) % 3), 0).unwrap();
            }
            oracle.returned(rank)?;
        }
        Ok(())
    };
    let [zero, one] = [Group::of(&[0]), Group::of(&[1])];
    let wrong = |why: &str| Err(why.to_string());
    assert_eq!(oracle(&[(0, Call::Barrier, true)]), wrong("rank 0 left barrier 1 before rank 1 entered it"));
    let (post, start) = ((0, Call::Post(one), true), (1, Call::Start(zero), false));
    let (complete, wait) = ((1, Call::Complete, true), (0, Call::Wait, false));
    assert_eq!(oracle(&[start]), wrong("rank 1 started access 1 before rank 0 posted exposure 1"));
    assert_eq!(oracle(&[post, wait]), wrong("rank 0 ended exposure 1 before rank 1 completed access 1"));
    assert_eq!(oracle(&[post, start, complete, wait]), Ok(()));
    let twice = [post, start, complete, start];
    assert_eq!(oracle(&twice), wrong("rank 1 started access 2 before rank 0 posted exposure 2"));
    // A post to another rank is no exposure to this one.
    let other = (0, Call::Post(Group::of(&[2])), true);
    assert_eq!(oracle(&[other, start]), wrong("rank 1 started access 1 before rank 0 posted exposure 1"));
}

#[test]
fn word_that_makes_no_sense_is_explained() {
    for (text, why) in [
        ("W | X", "X is no request; write W, R, TW, TR, DW, DR, A, barrier, post, start, complete or wait"),
        ("W | w", "w is no request"),
        ("W | TT", "TT is no request"),
        (" | ", "the mix has no requests; write rows such as W | R"),
        ("W2 | R", "W2 names a rank that does not exist; there are 2 rows"),
        ("W99999999999999999999", "W99999999999999999999 names a rank that does not exist"),
        ("W0,1 | R", "W0,1 names 2 ranks; W takes at most 1"),
        ("A1 | R", "A1 names 1 ranks; A takes at most 0"),
        ("barrier0 | barrier", "barrier0 names 1 ranks; barrier takes at most 0"),
        ("post | start0", "post names no rank; write post0 or post0,1"),
        ("post1,1 | start0", "post1,1 names rank 1 twice"),
        ("post1,x | start0", "post1,x names a rank that does not exist"),
        ("post-1 | start0", "post-1 is no request"),
        ("W+A | R", "W+A nests an attempt, a request with a deadline or A"),
        ("W+ | R", " is no request"),
        ("* | R", "row 0 repeats no request; write a request before *"),
        ("W barrier * | R", "row 0 repeats barrier for ever, which makes endless states"),
        ("W * W | R", "* is no request"),
        ("post64 |".repeat(70).as_str(), "post64 names rank 64; epochs of a mix name ranks below 64"),
    ] {
        let said = <Mix>::parse(text).unwrap_err();
        assert!(said.contains(why), "{text}: {said}");
    }
}

/// A request is overtaken at its own lock only, and has its place there whatever it holds elsewhere.
#[test]
fn bounds_are_those_of_each_lock() {
    let bounds = |text| {
        let (_, bounds) = <Mix>::parse(text).unwrap().sim().bounds(&Search::default()).unwrap();
        let rows = bounds.into_iter().map(|bound| (bound.call, bound.until_placed, bound.overtaken));
        rows.filter(|(call, ..)| call.starts_with("acquire")).collect::<Vec<_>>()
    };
    let exclusive = |target, verbs, overtaken| (format!("acquire {target} exclusive"), Some(verbs), overtaken);
    assert_eq!(bounds("W | W | W1 W1"), [exclusive(0, 3, 0), exclusive(1, 1, 0)]);
    assert_eq!(bounds("W0+W1 |"), [exclusive(0, 1, 0), exclusive(1, 1, 0)]);
}
