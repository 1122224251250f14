//! Ranks that die or leave: every call of other ranks that needs them fails within a second, and names them. Nothing
//! is left behind.

use crate::overlap;
use crate::ranks;
use overlap::Overlapping;
use ranks::Waiter;
use ranks::die;
use std::time::{Duration, Instant};
use transom::locks::Awaited;
use transom::messages;
use transom::shm_loopback::Loopback;
use transom::windows::OobExchange;
use transom::windows::Request;
use transom::{Error, FabricError, Flavor, Mode, Op, Requests, Status, Window, World};

const IN_TIME: Duration = Duration::from_secs(1);
const VICTIM: usize = 1;

/// The call fails in time and names the victim.
fn fails_in_time<T>(call: impl FnOnce() -> Result<T, transom::Error>) {
    let begun = Instant::now();
    let error = call().err().expect("a call that needs a dead rank fails");
    assert_eq!(error.lost_rank(), Some(VICTIM), "{error}");
    assert!(begun.elapsed() < ranks::within(IN_TIME), "it took {:?}", begun.elapsed());
}

/// Runs `body` on several numbers of ranks and checks that it left nothing behind.
fn with_a_death(name: &str, body: impl Fn(World)) {
    for size in [2, 3, 4, 8] {
        let Some(outcome) = ranks::outcome_of(size, name, &body) else { return };
        ranks::only_failed(&outcome, VICTIM, Status::Killed(9));
        assert!(shm().is_empty(), "left in /dev/shm: {:?}", shm());
    }
}

/// The state of each rank is known, and not only the first death.
#[test]
fn second_death_is_reported_with_its_rank() {
    let name = "second_death_is_reported_with_its_rank";
    let body = |world: World| {
        let me = world.rank();
        world.barrier().unwrap();
        if me == VICTIM {
            die();
        }
        let dies = |rank: usize| {
            let begun = Instant::now();
            loop {
                match world.provider().check_peers(Awaited::Rank(rank)) {
                    Err(FabricError::PeerDied { rank: told }) if told == rank => return,
                    Err(FabricError::PeerDied { rank: VICTIM }) | Ok(()) => std::thread::yield_now(),
                    other => panic!("check_peers of rank {rank} returned {other:?}"),
                }
                assert!(begun.elapsed() < ranks::within(5 * IN_TIME), "death of rank {rank} was not reported");
            }
        };
        dies(VICTIM);
        if me == 2 {
            die();
        }
        dies(2);
    };
    if let Some(outcome) = ranks::outcome_of(4, name, body) {
        let killed = |rank: &usize| matches!(outcome.statuses()[*rank], Status::Killed(9));
        assert_eq!((0..4).filter(killed).collect::<Vec<_>>(), [VICTIM, 2], "{outcome}");
        assert!([0, 3].iter().all(|&rank| outcome.statuses()[rank] == Status::Exited(0)), "{outcome}");
    }
}

/// Files of this library in /dev/shm: there should never be any.
fn shm() -> Vec<String> {
    let names = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("transom")).collect()
}

/// Notifies every rank, and waits for it: a fence that needs no dead rank.
struct Sign(Window<u64>);

impl Sign {
    fn new(world: &World) -> Self {
        Sign(world.allocate(1).unwrap())
    }

    fn give(&mut self) {
        for rank in 0..self.0.ranks() {
            self.0.lock_exclusive(rank).unwrap().put(0, &[1]).unwrap();
        }
    }

    fn await_it(&self) {
        while self.0.local().get(0).unwrap() == 0 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn death_of_lock_holder_fails_waiters() {
    with_a_death("death_of_lock_holder_fails_waiters", |world| {
        let mut sign = Sign::new(&world);
        let mut window: Window<u64> = world.allocate(1).unwrap();
        if world.rank() == VICTIM {
            let _epoch = window.lock_exclusive(0).unwrap();
            sign.give();
            die();
        }
        sign.await_it();
        if world.rank().is_multiple_of(2) {
            fails_in_time(|| window.lock_exclusive(0).map(drop));
        } else {
            fails_in_time(|| window.lock_shared(0).map(drop));
        }
        // Operations that need no dead rank go on. Where memory does not outlive its process, these are operations at
        // living ranks.
        let living = if ranks::over_network() { 2 % world.size() } else { VICTIM };
        if living != 0 {
            window.lock_exclusive(living).unwrap().put(0, &[5]).unwrap();
        }
    });
}

/// Calls that do not wait.
#[test]
fn death_of_lock_holder_fails_try_lock() {
    with_a_death("death_of_lock_holder_fails_try_lock", |world| {
        let mut sign = Sign::new(&world);
        let mut window: Window<u64> = world.allocate(1).unwrap();
        let value = world.mutex(0, 0_u64).unwrap();
        if world.rank() == VICTIM {
            let _epoch = window.lock_shared(0).unwrap();
            let _guard = value.lock().unwrap();
            sign.give();
            die();
        }
        sign.await_it();
        if world.rank().is_multiple_of(2) {
            fails_in_time(|| {
                loop {
                    if window.try_lock(0, Mode::Exclusive)?.is_some() {
                        return Ok(());
                    }
                }
            });
        } else {
            fails_in_time(|| {
                loop {
                    if value.try_lock()?.is_some() {
                        return Ok(());
                    }
                }
            });
        }
    });
}

/// A dead holder is an error, however much time is left. A request that was given up before is no obstacle.
#[test]
fn death_of_lock_holder_fails_timed_waits() {
    with_a_death("death_of_lock_holder_fails_timed_waits", |world| {
        let mut sign = Sign::new(&world);
        let mut window: Window<u64> = world.allocate(1).unwrap();
        let signals: Window<u64> = world.allocate_with_signals(1, 1).unwrap();
        let value = world.rw_lock(0, 0_u64).unwrap();
        let soon = Duration::from_millis(20);
        if world.rank() == VICTIM {
            let _epoch = window.lock_exclusive(0).unwrap();
            let _guard = value.write().unwrap();
            world.barrier().unwrap();
            world.barrier().unwrap();
            sign.give();
            die();
        }
        world.barrier().unwrap();
        for mode in [Mode::Exclusive, Mode::Shared] {
            assert!(window.try_lock_for(0, mode, soon).unwrap().is_none());
        }
        assert!(value.try_read_for(soon).unwrap().is_none());
        world.barrier().unwrap();
        sign.await_it();
        let mode = if world.rank().is_multiple_of(2) { Mode::Exclusive } else { Mode::Shared };
        fails_in_time(|| window.try_lock_for(0, mode, 60 * IN_TIME));
        fails_in_time(|| window.try_lock_all_for(60 * IN_TIME));
        fails_in_time(|| window.try_lock_ranks_for(&[(0, mode)], 60 * IN_TIME));
        fails_in_time(|| signals.signals().wait_until_for(0, 60 * IN_TIME, |value| value > 0));
        fails_in_time(|| {
            while signals.signals().wait_until_for(0, Duration::from_micros(100), |value| value > 0)?.is_none() {}
            Ok(())
        });
        fails_in_time(|| value.try_write_for(60 * IN_TIME));
    });
}

#[test]
fn death_of_lock_waiter_fails_other_waiters() {
    with_a_death("death_of_lock_waiter_fails_other_waiters", |world| {
        let mut sign = Sign::new(&world);
        let mut window: Window<u64> = world.allocate(1).unwrap();
        // Number of ranks that know of the death, at rank 0.
        let mut know: Window<u64> = world.allocate(1).unwrap();
        match world.rank() {
            0 => {
                let epoch = window.lock_exclusive(0).unwrap();
                sign.give();
                while know.local().get(0).unwrap() < world.size() as u64 - 2 {
                    std::thread::yield_now();
                }
                // The loop ends when this rank knows of the death: no other rank calls this barrier.
                while world.barrier().is_ok() {}
                let _ = epoch.unlock(); // hands over to the dead: the memory is there, so this may succeed
            }
            VICTIM => {
                sign.await_it();
                let waiter = Waiter::default();
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        waiter.until_it_waits();
                        die();
                    });
                    waiter.asks();
                    let _ = window.lock_exclusive(0);
                    unreachable!("the victim dies while it waits for the lock");
                })
            }
            _ => {
                sign.await_it();
                // Queued before or behind the victim: rank 0 holds the lock until the death is known.
                let error =
                    window.lock_exclusive(0).err().expect("a lock request should fail when another waiter dies");
                assert_eq!(error.lost_rank(), Some(VICTIM), "{error}");
                assert!(
                    window.lock_exclusive(0).is_err_and(|error| error.lost_rank() == Some(VICTIM)),
                    "repeated request did not report the death"
                );
                know.lock_shared(0).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
            }
        }
    });
}

#[test]
fn death_before_a_fence_fails_fence_and_barrier() {
    with_a_death("death_before_a_fence_fails_fence_and_barrier", |world| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        window.fence().unwrap();
        if world.rank() == VICTIM {
            die();
        }
        fails_in_time(|| window.fence().map(drop));
        assert!(world.barrier().is_err());
    });
}

#[test]
fn death_before_allocate_fails_allocate() {
    with_a_death("death_before_allocate_fails_allocate", |world| {
        if world.rank() == VICTIM {
            die();
        }
        fails_in_time(|| world.allocate::<u64>(1).map(drop));
    });
}

#[test]
fn dead_ranks_window_memory_stays_accessible() {
    if ranks::over_network() {
        return; // no network reaches the memory of the dead
    }
    with_a_death("dead_ranks_window_memory_stays_accessible", |world| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        window.local().set(0, 42 + world.rank() as u64).unwrap();
        window.fence().unwrap();
        if world.rank() == VICTIM {
            die();
        }
        assert_eq!(window.lock_shared(VICTIM).unwrap().get_one(0).unwrap(), 43);
    });
}

#[test]
fn dead_ranks_user_memory_is_inaccessible() {
    if ranks::over_network() {
        return; // no network reaches the memory of the dead
    }
    with_a_death("dead_ranks_user_memory_is_inaccessible", |world| {
        let mut window = world.window(Flavor::Create(vec![0u64; 5000]), 1).unwrap();
        let mut other: Window<u64> = world.allocate(1).unwrap();
        window.fence().unwrap();
        world.barrier().unwrap();
        if world.rank() == VICTIM {
            // The rank dies amid the puts of the others.
            while window.local().get(4999).unwrap() == 0 {}
            die();
        }
        let epoch = window.lock_shared(VICTIM).unwrap();
        let puts = || -> Result<(), transom::Error> {
            loop {
                epoch.put(0, &[1; 5000])?;
            }
        };
        fails_in_time(puts);
        // From then on every operation there fails, also one that was started before the death was known.
        fails_in_time(|| epoch.get_one(0));
        fails_in_time(|| epoch.put_signal(4999, &[1], 0, 1));
        fails_in_time(|| epoch.rput(0, vec![1]).map(drop));
        fails_in_time(|| epoch.rget(0, 2)?.wait());
        fails_in_time(|| Request::wait_all([epoch.rget(0, 1)?, epoch.rget(1, 1)?]));
        // On shared memory they fail when they are started.
        let mut two: Requests<'_, _> = [0, 1].into_iter().filter_map(|at| epoch.rget(at, 1).ok()).collect();
        for left in (0..two.len()).rev() {
            fails_in_time(|| two.wait_any().unwrap().1.map_err(Error::from));
            assert_eq!(two.len(), left, "failed request stayed in the set");
        }
        drop(two);
        assert!(matches!(epoch.put(4999, &[1; 2]), Err(transom::Error::OutOfBounds { .. })));
        epoch.unlock().unwrap();
        // Other operations go on: parts of the living, and the words of the dead.
        let last = world.size() - 1;
        let living = if last == VICTIM { 0 } else { last };
        window.lock_shared(living).unwrap().put(0, &[7]).unwrap();
        window.lock_exclusive(VICTIM).unwrap().unlock().unwrap();
        other.lock_exclusive(VICTIM).unwrap().put(0, &[7]).unwrap();
        // No rank gets its memory back: the dead rank may have been about to write there.
        fails_in_time(|| window.free());
    });
}

#[test]
fn dead_ranks_attached_memory_stays_accessible() {
    if ranks::over_network() {
        return; // no network reaches the memory of the dead
    }
    with_a_death("dead_ranks_attached_memory_stays_accessible", |world| {
        let (mut window, mut names): (Window<u64>, Window<transom::Address>) =
            (world.dynamic(1).unwrap(), world.allocate(1).unwrap());
        let mine = window.attach(3).unwrap();
        names.local().set(0, mine).unwrap();
        names.fence().unwrap();
        let theirs = names.lock_shared(VICTIM).unwrap().get_one(0).unwrap();
        let memory = window.reach(&theirs).unwrap();
        names.fence().unwrap();
        if world.rank() == VICTIM {
            die();
        }
        while world.barrier().is_ok() {}
        let epoch = window.lock_shared(VICTIM).unwrap();
        epoch.attached(&memory).unwrap().put(2, &[5]).unwrap();
        assert_eq!(epoch.attached(&memory).unwrap().get_one(2).unwrap(), 5);
        epoch.unlock().unwrap();
        // A rank that had not reached it before comes too late.
        assert!(window.reach(&theirs).is_err());
        window.detach(&mine).unwrap();
        fails_in_time(|| window.free());
    });
}

#[test]
fn departure_fails_fence_but_not_locks() {
    ranks::on(&[2, 3, 4, 8], "departure_fails_fence_but_not_locks", |world| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        let mut other: Window<u64> = world.allocate(1).unwrap();
        window.fence().unwrap();
        if world.rank() == VICTIM {
            return; // its windows and world are dropped: it has left
        }
        let begun = Instant::now();
        let error = window.fence().err().expect("a fence should fail after a rank has left");
        assert!(error.lost_rank().is_some_and(|lost| lost != world.rank()), "{error}");
        assert!(window.fence().is_err() && world.barrier().is_err() && world.allocate::<u64>(1).is_err());
        assert!(begun.elapsed() < 4 * ranks::within(IN_TIME), "it took {:?}", begun.elapsed());
        // Locks do not need the rank that left, not even its own lock. No rank leaves before all have had their
        // errors.
        other.lock_exclusive(VICTIM).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
        while other.lock_shared(VICTIM).unwrap().get_one(0).unwrap() < world.size() as u64 - 1 {
            std::thread::yield_now();
        }
    });
}

/// Otherwise an error would name a rank that lives, and not the one that died.
#[test]
fn failed_wait_for_a_dead_rank_is_no_death() {
    let [fabric, dies] = <[_; 2]>::try_from(Loopback::threads(2).unwrap()).unwrap_or_else(|_| unreachable!("two"));
    let fabric = Overlapping::counting(fabric);
    let counts = fabric.clone();
    let died = std::thread::spawn(move || {
        let dies = Overlapping::counting(dies);
        let mut window = transom::windows::Window::<u64, _>::allocate(&dies, 0, 1).unwrap();
        std::mem::forget(window.lock_exclusive(0).unwrap());
        dies.barrier().unwrap();
        dies.fail();
        window
    });
    let mut window = transom::windows::Window::<u64, _>::allocate(&fabric, 0, 1).unwrap();
    fabric.barrier().unwrap();
    let error = window.lock_exclusive(0).err().expect("a request for the lock of a dead holder should fail");
    assert_eq!(error.lost_rank(), Some(1), "{error}");
    drop(window);
    assert_eq!(counts.fails(), 0);
    drop(died.join().unwrap());
}

#[test]
fn leaked_lock_is_released_when_its_rank_leaves() {
    ranks::on(&[2, 3, 4, 8], "leaked_lock_is_released_when_its_rank_leaves", |world| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        if world.rank() == VICTIM {
            std::mem::forget(window.lock_exclusive(0).unwrap());
            window.fence().unwrap();
            return;
        }
        window.fence().unwrap();
        window.lock_exclusive(0).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
    });
}

#[test]
fn ended_rank_thread_has_left_despite_handles() {
    // The rank keeps its world, a team, or a window with a leaked lock. In the last case it counts as dead.
    for keeps in ["world", "team", "window"] {
        let kept = transom::threads(3, |world| {
            let team = world.split(Some(0), 0).unwrap().expect("a colour was named");
            let mut window: Window<u64> = team.allocate(1).unwrap();
            if world.rank() == VICTIM {
                return match keeps {
                    "world" => (Some(world), None, None),
                    "team" => (None, Some(team), None),
                    _ => {
                        std::mem::forget(window.lock_exclusive(0).unwrap());
                        (None, None, Some(window))
                    }
                };
            }
            for error in [world.barrier().unwrap_err(), team.barrier().unwrap_err()] {
                let lost = matches!(error, messages::Error::PeerLeft { .. } | messages::Error::TeamDropped { .. });
                assert!(lost || matches!(error, messages::Error::PeerDied { rank: VICTIM }), "{keeps}: {error}");
            }
            if keeps == "window" {
                assert_eq!(window.lock_exclusive(0).err().and_then(|error| error.lost_rank()), Some(VICTIM));
            }
            (None, None, None)
        });
        let kept = kept.unwrap().swap_remove(VICTIM);
        assert!(kept.0.is_some() || kept.1.is_some() || kept.2.is_some());
    }
}

/// Its abandoned request is still in a queue, behind a waiting one. It dies nevertheless, and no rank waits for it.
#[test]
fn panic_after_abandoned_lock_request_is_a_death() {
    let ran = std::panic::catch_unwind(|| {
        transom::threads(2, |world| {
            let mut window: Window<u64> = world.allocate(1).unwrap();
            let value = world.rw_lock(0, 7_u64).unwrap();
            if world.rank() == VICTIM {
                world.barrier().unwrap();
                let limit = Duration::from_millis(1);
                assert!(window.try_lock_for(0, transom::Mode::Shared, limit).unwrap().is_none());
                assert!(value.try_read_for(limit).unwrap().is_none());
                panic!("the victim");
            }
            let (epoch, guard) = (window.lock_exclusive(0).unwrap(), value.write().unwrap());
            world.barrier().unwrap();
            fails_in_time(|| Ok(world.barrier()?));
            drop((epoch, guard));
        })
    });
    let panic = ran.expect_err("the victim's panic should propagate");
    assert_eq!(panic.downcast_ref(), Some(&"the victim"));
}

#[test]
fn panicked_rank_thread_counts_as_dead() {
    let ran = std::panic::catch_unwind(|| {
        transom::threads(3, |world| {
            let mut window: Window<u64> = world.allocate(1).unwrap();
            window.fence().unwrap();
            if world.rank() == VICTIM {
                let _epoch = window.lock_exclusive(0).unwrap();
                panic!("the victim");
            }
            fails_in_time(|| window.fence().map(drop));
        })
    });
    let panic = ran.expect_err("the victim's panic should propagate");
    assert_eq!(panic.downcast_ref(), Some(&"the victim"));
}
