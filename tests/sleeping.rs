//! What a rank that sleeps is woken for: counted by the times that its thread gave its core away to sleep.

mod ranks;
use std::time::{Duration, Instant};
use transom::Window;

/// How often this thread has gone to sleep. A yield does not count.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("the state of this thread");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.expect("a count of switches").trim().parse().expect("a number")
}

/// Most sleeps of a wait that only its own end wakes, or a look each 100 ms at who is still there.
fn allowed(since: Instant) -> u64 {
    10 + since.elapsed().as_millis() as u64 / 50
}

#[test]
fn locks_do_not_wake_the_rank_they_are_at() {
    if ranks::over_network() {
        return; // nothing sleeps there until it is woken
    }
    ranks::on(&[2], "locks_do_not_wake_the_rank_they_are_at", |world| {
        let mut window: Window<u64> = world.allocate_with_signals(1, 1).unwrap();
        world.barrier().unwrap();
        if world.rank() == 0 {
            let (begun, before) = (Instant::now(), sleeps());
            window.signals().wait_until(0, |value| value == 1).unwrap();
            let slept = sleeps() - before;
            assert!(slept <= allowed(begun), "slept {slept} times in {:?}", begun.elapsed());
        } else {
            std::thread::sleep(Duration::from_millis(50));
            for turn in 0..10_000 {
                let epoch = match turn % 2 {
                    0 => window.lock_exclusive(0).unwrap(),
                    _ => window.lock_shared(0).unwrap(),
                };
                epoch.put(0, &[turn]).unwrap();
                epoch.unlock().unwrap();
                window.lock_all().unwrap().unlock().unwrap();
                drop(window.try_lock(0, transom::Mode::Exclusive).unwrap());
            }
            window.lock_all().unwrap().target(0).unwrap().put_signal(0, &[1], 0, 1).unwrap();
        }
        window.fence().unwrap();
    });
}
