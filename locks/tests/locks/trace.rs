//! The trace of a violation: the shortest schedule, each step in words, a picture, and a string that repeats it.

use crate::mutants::{Mutant, MutantMix};
use transom_locks::Field;
use transom_locks::LockLayout;
use transom_locks::Mode::{Exclusive, Shared};
use transom_locks::model::{Call, Delivery, Failure, Mix, Sim};

fn sim(mutant: Mutant, delivery: Delivery, rows: &[Vec<Call>]) -> Sim<MutantMix<16>> {
    let mix = MutantMix { mutant: Some(mutant), end: false, ..MutantMix::new(rows.to_vec()) };
    Sim::new(rows.len(), LockLayout::words(rows.len()), mix).with_delivery(delivery)
}

/// Planted bugs, the number of steps of the shortest schedule, and what the last lines of its trace say.
fn bugs() -> Vec<(Sim<MutantMix<16>>, usize, [&'static str; 2])> {
    let [writes, reads] = [Exclusive, Shared].map(|mode| Call::both(0, mode).to_vec());
    let timed = vec![Call::AcquireUntil(0, Exclusive), Call::ReleaseHeld(0), Call::Settle(0)];
    let (immediate, deferred) = (Delivery::Immediate, Delivery::Deferred);
    vec![
        (
            sim(Mutant::NoSignalToHead, immediate, &[reads.clone(), writes.clone()]),
            4,
            [
                "4     0  release 0            add        lock word of rank 0",
                "1  waits for drained of rank 1 (0), which no step changed",
            ],
        ),
        (
            sim(Mutant::GroupNotClosed, immediate, &[reads.clone(), writes.clone(), writes.clone()]),
            9,
            ["1  waits for waiters of rank 1 (none)", "2  waits for drained of rank 2 (0)"],
        ),
        (
            sim(Mutant::Uncleared(Field::Drained), deferred, &[reads.repeat(2), writes.repeat(2)]),
            15,
            [
                "1  acquire 0 exclusive  read         drained of rank 1    1, left by step 6",
                "before rank 0 (Shared), which came first",
            ],
        ),
        (
            sim(Mutant::NotForwarded, immediate, &[writes.clone(), timed, writes.clone()]),
            15,
            [
                "0  waits for next of rank 0 (rank 1 leaves, STAY), left by step 9",
                "2  waits for go of rank 2 (0), which no step changed",
            ],
        ),
        (
            sim(Mutant::Unwatched, Delivery::Watched, &[writes.clone(), writes]),
            5,
            [
                "put        next of rank 0       rank 1, 0 readers, watches -> 0",
                "before rank 0 (Exclusive), which came first",
            ],
        ),
    ]
}

fn found(net: &Sim<MutantMix<16>>) -> Failure {
    net.explore(100_000).unwrap_err().violation().unwrap()
}

#[test]
fn trace_shows_shortest_schedule_in_words() {
    for (net, steps, lines) in bugs() {
        let failure = found(&net);
        let printed = failure.to_string();
        assert_eq!(failure.steps.len(), steps, "{printed}");
        for line in lines {
            assert!(printed.contains(line), "{line}: {printed}");
        }
    }
}

#[test]
fn schedule_string_repeats_the_violation() {
    for (net, ..) in bugs() {
        let failure = found(&net);
        assert_eq!(net.replay(&failure.schedule()).unwrap_err(), failure);
    }
}

/// A step for each circle, a label for the word that each waits for, and nothing that a viewer would refuse.
#[test]
fn picture_has_a_dot_for_each_step() {
    for (net, steps, _) in bugs() {
        let failure = found(&net);
        let picture = failure.trace.svg();
        assert_eq!(picture.matches("<circle").count(), steps);
        assert!(picture.starts_with("<svg ") && picture.ends_with("</g></svg>\n"));
        assert_eq!(picture.matches("<text").count(), picture.matches("</text>").count());
        assert!(!picture.contains("->"), "an arrow in a label is escaped");
        let graph = failure.trace.dot();
        assert_eq!(graph.matches(" [label=\"").count(), steps, "{graph}");
        assert_eq!(graph.matches('{').count(), graph.matches('}').count());
    }
}

/// A deadlock before any step.
#[test]
fn trace_without_steps_shows_the_waits() {
    let mix = <Mix>::parse("start1 complete post1 wait | start0 complete post0 wait").unwrap();
    let failure = mix.sim().start().unwrap_err();
    let printed = failure.to_string();
    let waits = "      1  waits for exposures by rank 0 at rank 1 (0), which no step changed\n      deadlock\n";
    assert!(printed.contains(waits), "{printed}");
    assert!(failure.trace.svg().contains(">exposures by rank 0 at rank 1 (0), which</text>"));
}

#[test]
fn step_that_is_not_possible_is_refused() {
    let (net, ..) = bugs().remove(0);
    for (schedule, why) in [
        ("0 7", "step 2, 7, is not possible"),
        ("0>1", "step 1, 0>1, is not possible"),
        ("0 x3", "\"x3\" is no step; write 0, 0x3 or 0>1"),
        ("0x2000", "step 3, 0, is not possible"),
    ] {
        assert_eq!(net.replay(schedule).unwrap_err().what, why);
    }
}
