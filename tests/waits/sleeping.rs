//! Wake-ups and yields of waiting ranks, counted by context switches and by polls.

use crate::ranks;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::time::{Duration, Instant};
use transom::messages::Tag;
use transom::{Mode, Window};

/// Number of times this thread has gone to sleep. A yield does not count.
fn sleeps() -> u64 {
    let status =
        std::fs::read_to_string("/proc/thread-self/status").expect("the status file of this thread should be readable");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.expect("the status file should count context switches").trim().parse().expect("the count should be a number")
}

/// Most sleeps of a wait that only its own end wakes, or a look each 100 ms at who is still there.
fn allowed(since: Instant) -> u64 {
    10 + since.elapsed().as_millis() as u64 / 50
}

#[test]
fn lock_traffic_does_not_wake_its_home_rank() {
    if ranks::over_network() {
        return; // nothing sleeps there until it is woken
    }
    ranks::on(&[2], "lock_traffic_does_not_wake_its_home_rank", |world| {
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
                drop(window.try_lock(0, Mode::Exclusive).unwrap());
            }
            window.lock_all().unwrap().target(0).unwrap().put_signal(0, &[1], 0, 1).unwrap();
        }
        window.fence().unwrap();
    });
}

/// A thread that waits with a deadline sleeps until that, or until it is woken.
#[test]
fn waits_with_deadlines_do_not_poll() {
    if ranks::over_network() {
        return;
    }
    ranks::on(&[2], "waits_with_deadlines_do_not_poll", |world| {
        const LIMIT: Duration = Duration::from_millis(150);
        let mut window: Window<u64> = world.allocate_with_signals(1, 1).unwrap();
        let (mut locked, mutex): (Window<u64>, _) = (world.allocate(1).unwrap(), world.mutex(0, 0_u64).unwrap());
        let held = (world.rank() == 0).then(|| (locked.lock_exclusive(0).unwrap(), mutex.lock().unwrap()));
        world.barrier().unwrap();
        if world.rank() == 1 {
            drop(held);
            let sleeps_in = |what: &str, wait: &mut dyn FnMut()| {
                let (begun, before) = (Instant::now(), sleeps());
                wait();
                let (slept, time) = (sleeps() - before, begun.elapsed());
                assert!(time >= LIMIT, "{what} waited {time:?}");
                assert!(slept <= allowed(begun), "{what} slept {slept} times in {time:?}");
            };
            let tag = Tag::<u64>::new(1);
            sleeps_in("a signal", &mut || {
                assert_eq!(window.signals().wait_until_for(0, LIMIT, |value| value > 0).unwrap(), None);
            });
            sleeps_in("a lock", &mut || {
                assert!(locked.try_lock_for(0, Mode::Exclusive, LIMIT).unwrap().is_none());
            });
            sleeps_in("a mutex", &mut || assert!(mutex.try_lock_for(LIMIT).unwrap().is_none()));
            sleeps_in("a probe", &mut || assert!(world.probe_for(0, tag, LIMIT).unwrap().is_none()));
            sleeps_in("a request", &mut || assert!(world.irecv(0, tag).wait_for(LIMIT).is_err()));
            world.barrier().unwrap();
        } else {
            world.barrier().unwrap();
            drop(held);
        }
        window.fence().unwrap();
    });
}

/// Binds this thread to the first or last core that it may use.
fn move_to_one_core(last: bool) {
    let may_use = sched_getaffinity(None).unwrap();
    let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| may_use.is_set(core));
    let mut one = CpuSet::new();
    one.set(if last { cores.next_back() } else { cores.next() }.unwrap());
    sched_setaffinity(None, &one).unwrap();
}

/// The scheduler may put two ranks on one core, though there are as many cores as ranks. The awaited rank cannot run
/// while the other spins.
#[test]
fn ranks_sharing_a_core_stop_spinning() {
    if ranks::over_network() {
        return;
    }
    ranks::on(&[2], "ranks_sharing_a_core_stop_spinning", |world| {
        const ROUNDS: u64 = 1000;
        let (other, looks) = (1 - world.rank(), Cell::new(0));
        let mut window: Window<u64> = world.allocate_with_signals(1, 1).unwrap();
        window.fence().unwrap();
        move_to_one_core(true);
        let tries = (0..3).map(|before| {
            looks.set(0);
            for round in 1..=ROUNDS {
                let epoch = window.lock_all().unwrap();
                epoch.target(other).unwrap().signal(0, 1).unwrap();
                let has_come = |signals| {
                    looks.set(looks.get() + 1);
                    signals >= before * ROUNDS + round
                };
                epoch.signals().wait_until(0, has_come).unwrap();
            }
            looks.get()
        });
        // A spin takes more than 100 looks. Ranks that a process on this core disturbs spin at times.
        let fewest = tries.min().unwrap();
        assert!(fewest < ROUNDS * 15, "{fewest} polls of a signal in {ROUNDS} rounds");
        window.fence().unwrap();
    });
}

/// Polling ranks yield a core that they share. The test counts looks without success.
#[test]
fn polling_loops_yield_a_shared_core() {
    if ranks::over_network() {
        return;
    }
    let name = "polling_loops_yield_a_shared_core";
    let before = sched_getaffinity(None).unwrap();
    move_to_one_core(false);
    ranks::on(&[4], name, |world| {
        const ROUNDS: u64 = 20;
        let (me, ranks) = (world.rank(), world.size());
        let (next, before) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
        let (tag, mut window) = (Tag::<u64>::new(1), world.allocate::<u64>(1).unwrap());
        let step = |what: &str, looks: u64| {
            // Each of the other ranks has the core for a moment between two looks.
            assert!(looks < ROUNDS * 400, "{what}: {looks} unsuccessful polls in {ROUNDS} rounds");
        };
        world.barrier().unwrap();
        let mut looks = 0;
        for turn in 0..ROUNDS {
            let mut take = || {
                while world.try_probe(before, tag).unwrap().map(|message| message.recv().unwrap()).is_none() {
                    looks += 1;
                }
            };
            if me > 0 {
                take();
            }
            world.send(next, tag, &[turn]).unwrap();
            if me == 0 {
                take();
            }
        }
        step("try_probe", looks);
        let mut looks = 0;
        for _ in 0..ROUNDS {
            let mut sum = world.iall_reduce(vec![1_u64], transom::Op::Sum);
            while !sum.test() {
                looks += 1;
            }
            assert_eq!(sum.wait().unwrap(), [ranks as u64]);
        }
        step("iall_reduce", looks);
        let mut looks = 0;
        for _ in 0..ROUNDS {
            window.post(&[before]).unwrap();
            window.start(&[next]).unwrap().complete().unwrap();
            while !window.test().unwrap() {
                looks += 1;
            }
        }
        step("Window::test", looks);
        let (mutex, mut looks) = (world.mutex(0, 0_u64).unwrap(), 0);
        for _ in 0..ROUNDS {
            loop {
                if let Some(mut value) = mutex.try_lock().unwrap() {
                    *value += 1;
                    break;
                }
                looks += 1;
            }
        }
        step("try_lock", looks);
    });
    sched_setaffinity(None, &before).unwrap();
}

/// A wait for messages and collectives of different types polls nothing: it sleeps. One with an operation in flight
/// polls.
#[test]
fn mixed_wait_sleeps_if_nothing_is_polled() {
    if ranks::over_network() {
        return;
    }
    ranks::on(&[2], "mixed_wait_sleeps_if_nothing_is_polled", |world| {
        const LIMIT: Duration = Duration::from_millis(600);
        let (mut coming, mut other) = (world.irecv(0, Tag::<u64>::new(1)), world.irecv(1, Tag::<f64>::new(2)));
        let before = computed();
        assert_eq!(transom::wait_any_for(&mut [&mut coming, &mut other], LIMIT), None);
        let took = computed() - before;
        assert!(took < LIMIT / 4, "computed for {took:?} of {LIMIT:?}");
        world.barrier().unwrap();
    });
}

/// Time for which this thread has had a core.
fn computed() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap()
}
