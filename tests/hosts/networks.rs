//! A link between two hosts that goes down: for a while, and for good. `tests/namespaces` runs these tests, as root: the
//! hosts are network namespaces, and rank 0 takes its end of the link down.

use crate::ranks;
use ranks::{on, outcome_of};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use transom::messages::{Error, Tag};
use transom::{Op, Status, World};

const TAG: Tag<u64> = Tag::new(1);
/// Shorter than the silence after which a host counts as vanished.
const DOWN: Duration = Duration::from_secs(3);
/// Time within which the survivors must learn that a host has vanished.
const NOTICED: Duration = Duration::from_secs(30);

/// Sets rank 0's end of the link `up` or `down`.
fn link(state: &str) {
    let set = Command::new("ip").args(["link", "set", "near", state]).status().unwrap();
    assert!(set.success(), "ip link set near {state}: {set}");
}

#[test]
#[ignore = "needs network namespaces: tests/namespaces"]
fn link_that_is_down_for_a_while_loses_nothing() {
    on(&[2], "link_that_is_down_for_a_while_loses_nothing", |world: World| {
        let mut window = world.allocate::<u64>(1).unwrap();
        let epoch = window.lock_all().unwrap();
        let target = epoch.target(1).unwrap();
        if world.rank() == 0 {
            world.send(1, TAG, &[1]).unwrap();
            target.put(0, &[40]).unwrap();
            target.flush().unwrap();
            let is_up = AtomicBool::new(false);
            link("down");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(DOWN);
                    is_up.store(true, SeqCst);
                    link("up");
                });
                let sent = world.isend(1, TAG, vec![2]);
                assert_eq!(target.fetch_and_op(0, Op::Sum, 2).unwrap(), 40);
                assert!(is_up.load(SeqCst), "the other host answered, so the link was not down");
                sent.wait().unwrap();
            });
        } else {
            assert_eq!([world.recv(0, TAG).unwrap().0[0], world.recv(0, TAG).unwrap().0[0]], [1, 2]);
        }
        world.barrier().unwrap();
        assert_eq!(target.get_one(0).unwrap(), 42);
        epoch.unlock().unwrap();
        window.free().unwrap();
    });
}

/// The launcher and rank 0 are on the host that remains.
#[test]
#[ignore = "needs network namespaces: tests/namespaces"]
fn host_that_vanishes_is_a_death_at_the_others() {
    let outcome = outcome_of(2, "host_that_vanishes_is_a_death_at_the_others", |world| {
        let other = 1 - world.rank();
        world.send(other, TAG, &[1]).unwrap();
        world.recv(other, TAG).unwrap();
        if world.rank() == 0 {
            link("down");
        }
        let begun = Instant::now();
        let error = world.recv(other, TAG).unwrap_err();
        assert!(begun.elapsed() < NOTICED, "{:?}: {error}", begun.elapsed());
        assert!(world.rank() == 1 || matches!(error, Error::PeerDied { rank: 1 }), "{error:?}");
    });
    let Some(outcome) = outcome else { return };
    link("up");
    assert!(!outcome.success());
    assert_eq!(outcome.statuses()[0], Status::Exited(0), "{}", String::from_utf8_lossy(outcome.output(0)));
}
