//! Remote operations of each call, as docs/cost.md states them: the window counts them, while no other rank contends.

use crate::overlap;
use crate::ranks;
use overlap::Overlapping;
use transom::shm_loopback::Loopback;
use transom::windows::Assert;
use transom::{Counters, Flavor, Mode, Op, Section, Window};

const NONE: Counters = Counters {
    puts: 0,
    gets: 0,
    atomics: 0,
    accumulates: 0,
    signals: 0,
    locks: 0,
    flushes: 0,
    fences: 0,
    word_cas: 0,
    word_adds: 0,
    notifications: 0,
};

fn cost(window: &mut Window<u64>, call: impl FnOnce(&mut Window<u64>) -> Result<(), transom::Error>) -> Counters {
    let before = window.counters();
    call(window).unwrap();
    window.counters() - before
}

#[test]
fn window_call_counters_match_the_docs() {
    ranks::on_all_sizes("window_call_counters_match_the_docs", |world| {
        let (me, n) = (world.rank(), world.size() as u64);
        let mut window: Window<u64> = world.allocate_with_signals(4, 1).unwrap();
        window.fence().unwrap();
        for rank in 0..world.size() {
            if rank == me {
                // All others are in the fence below and do not contend.
                let target = world.size() - 1 - me;
                // The first guess of a word that readers have changed since fails, and updates the guess.
                let first = cost(&mut window, |w| w.lock_exclusive(target)?.unlock());
                assert!(first == Counters { locks: 1, word_cas: first.word_cas, ..NONE } && first.word_cas <= 3);
                let exclusive = cost(&mut window, |w| w.lock_exclusive(target)?.unlock());
                assert_eq!(exclusive, Counters { locks: 1, word_cas: 2, ..NONE });
                let shared = cost(&mut window, |w| w.lock_shared(target)?.unlock());
                assert_eq!(shared, Counters { locks: 1, word_adds: 2, ..NONE });
                // A word left by readers is known from then on: the first compare-and-swap succeeds.
                let after_readers = cost(&mut window, |w| w.lock_exclusive(target)?.unlock());
                assert_eq!(after_readers, Counters { locks: 1, word_cas: 2, ..NONE });
                let all = cost(&mut window, |w| w.lock_all()?.unlock());
                assert_eq!(all, Counters { locks: n, word_adds: 2 * n, ..NONE });
                // In shared memory 16 short accumulates are admitted one by one; then the thread stays admitted.
                let admitted = cost(&mut window, |w| {
                    let epoch = w.lock_shared(target)?;
                    (0..20).try_for_each(|_| epoch.fetch_and_op(0, Op::NoOp, 0).map(drop))?;
                    epoch.unlock()
                });
                let admissions = if window.local().of(target).is_ok() { 2 * 16 + 1 } else { 1 };
                assert_eq!(admitted, Counters { locks: 1, atomics: 20, word_adds: 2 + admissions, ..NONE });
                let operations = cost(&mut window, |w| {
                    let epoch = w.lock_shared(target)?;
                    epoch.put(0, &[1, 2])?;
                    epoch.get_one(0)?;
                    epoch.fetch_and_op(0, Op::Sum, 1)?;
                    epoch.compare_and_swap(0, 1, 1)?;
                    epoch.flush()?;
                    epoch.unlock()
                });
                let epoch = Counters { locks: 1, word_adds: 2, ..NONE };
                let expected = Counters { puts: 1, gets: 1, atomics: 2, flushes: 1, ..epoch };
                assert_eq!(operations, expected);
                let sections = cost(&mut window, |w| {
                    let (epoch, ends) = (w.lock_shared(target)?, Section::Indexed { offsets: &[0, 3], block: 1 });
                    epoch.put_section(&ends, &[1, 2])?;
                    epoch.get_section(&ends, &mut [0; 2])?;
                    epoch.get_section(&Section::Strided { offset: 0, count: 2, block: 2, stride: 2 }, &mut [0; 4])?;
                    epoch.unlock()
                });
                assert_eq!(sections, Counters { puts: 2, gets: 3, ..epoch });
                let requests = cost(&mut window, |w| {
                    let epoch = w.lock_shared(target)?;
                    epoch.rput(0, vec![1, 2])?.wait()?;
                    let mut get = epoch.rget(0, 2)?;
                    get.test();
                    get.wait()?;
                    epoch.raccumulate(0, Op::Sum, vec![1, 2])?.wait()?;
                    epoch.rget_accumulate(0, Op::Sum, vec![1, 2])?.wait()?;
                    epoch.unlock()
                });
                assert_eq!(
                    requests,
                    Counters { puts: 1, gets: 1, accumulates: 2, ..epoch },
                    "requests cost other operations than blocking calls"
                );
                let signal = cost(&mut window, |w| {
                    let epoch = w.lock_shared(target)?;
                    epoch.put_signal(0, &[1, 2], 0, 1)?;
                    epoch.unlock()
                });
                assert_eq!(signal, Counters { puts: 1, signals: 1, ..epoch });
                let flush_all = cost(&mut window, |w| {
                    let all = w.lock_all()?;
                    all.flush_all()?;
                    all.flush_local_all()?;
                    all.unlock()
                });
                assert_eq!(flush_all, Counters { locks: n, word_adds: 2 * n, flushes: n, ..NONE });
                let near = cost(&mut window, |w| {
                    w.local().set(0, 1)?;
                    let near = if ranks::share_memory(&world) { target } else { me };
                    w.local().of(near)?.set(0, 1)?;
                    w.local().of(near)?.get(0)?;
                    w.signals().set(0, 0)?;
                    w.signals().wait_until(0, |value| value == 0)?;
                    w.sync();
                    Ok(())
                });
                assert_eq!(near, NONE, "local loads or stores were counted");
                let local = cost(&mut window, |w| {
                    let epoch = w.lock_shared(target)?;
                    epoch.flush_local()?;
                    epoch.unlock()
                });
                assert_eq!(local, epoch, "flush_local issued operations");
                let unlocked = cost(&mut window, |w| {
                    w.lock_with(target, Mode::Shared, Assert::NOCHECK)?.unlock()?;
                    w.lock_all_with(Assert::NOCHECK)?.unlock()
                });
                // Debug builds check whether the locks are free.
                let looked = Counters { locks: 1 + n, word_adds: 2 + 2 * n, ..NONE };
                let flushed = Counters { flushes: 1 + n, ..NONE };
                assert_eq!(unlocked, if cfg!(debug_assertions) { looked } else { flushed });
            }
            let fence = cost(&mut window, |w| w.fence().map(drop));
            let rounds = u64::from(world.size().next_power_of_two().ilog2());
            assert_eq!(fence, Counters { fences: 1, notifications: rounds, ..NONE });
            let mut others: Vec<usize> = (0..world.size()).collect();
            others.rotate_left(me);
            let active = cost(&mut window, |w| {
                w.post(&others)?;
                w.start(&others)?.complete()?;
                w.wait()
            });
            assert_eq!(
                active,
                Counters { notifications: 2 * (n - 1), ..NONE },
                "notification of the rank itself was counted"
            );
        }
    });
}

/// Operations that windows do not count, counted by a fabric. The job has one rank, so the target is its own memory.
#[test]
fn uncounted_operations_match_the_docs() {
    let fabric = Overlapping::counting(Loopback::alone().unwrap());
    // Puts, gets, compare-and-swaps, fetch-and-adds, posts, flushes.
    const NO_VERBS: [usize; 6] = [0; 6];
    let new = |flavor| transom::windows::Window::<u64, _>::new(&fabric, 0, flavor, 1).unwrap();
    let mut window = new(Flavor::Dynamic { slots: 1 });
    let mut address = None;
    // Operations on the rank itself: no remote operations.
    assert_eq!(fabric.all_verbs(|| address = Some(window.attach(10).unwrap())), [1, 0, 0, 0, 0, 1]);
    let (address, mut memory) = (address.unwrap(), None);
    assert_eq!(fabric.all_verbs(|| memory = Some(window.reach(&address).unwrap())), [0, 1, 0, 0, 0, 0]);
    let memory = memory.unwrap();
    let epoch = window.lock_shared(0).unwrap();
    assert_eq!(fabric.all_verbs(|| _ = epoch.attached(&memory).unwrap()), [0, 1, 0, 0, 0, 0]);
    let target = epoch.attached(&memory).unwrap();
    assert_eq!(fabric.all_verbs(|| target.put(9, &[1]).unwrap()), [1, 0, 0, 0, 0, 0]);
    assert_eq!(fabric.all_verbs(|| _ = target.rget(9, 1).unwrap().wait().unwrap()), [0, 1, 0, 0, 0, 0]);
    assert_eq!(
        fabric.all_verbs(|| _ = target.fetch_and_op(9, Op::Sum, 1).unwrap()),
        [0, 0, 0, 3, 0, 0],
        "first accumulate, with admission"
    );
    (0..16).for_each(|_| _ = target.fetch_and_op(9, Op::NoOp, 0).unwrap());
    assert_eq!(fabric.all_verbs(|| _ = target.fetch_and_op(9, Op::Sum, 1).unwrap()), [0, 0, 0, 1, 0, 0]);
    assert_eq!(fabric.all_verbs(|| target.put_signal(9, &[1], 0, 1).unwrap()), [1, 0, 0, 1, 0, 0]);
    assert_eq!(fabric.all_verbs(|| target.flush().unwrap()), [0, 0, 0, 0, 0, 1]);
    assert_eq!(fabric.all_verbs(|| target.flush_local().unwrap()), NO_VERBS);
    epoch.unlock().unwrap();
    assert_eq!(fabric.all_verbs(|| window.local().attached(&address).unwrap().set(9, 2).unwrap()), NO_VERBS);
    assert_eq!(fabric.all_verbs(|| window.local().of(0).map(drop).unwrap()), NO_VERBS);
    assert_eq!(fabric.all_verbs(|| window.sync()), NO_VERBS);
    assert_eq!(fabric.all_verbs(|| window.detach(&address).unwrap()), [1, 0, 0, 0, 0, 1]);
    let leaves = [0, 0, 0, 1, 0, 0];
    assert_eq!(fabric.all_verbs(|| _ = window.free().unwrap()), leaves, "free fences and leaves the accumulate gate");
    // User memory is returned after all ranks were notified.
    let lent = new(Flavor::Create(vec![0; 10]));
    assert_eq!(fabric.all_verbs(|| _ = lent.free().unwrap()), [0, 0, 0, 1, 0, 0]);
}

/// The number of elements does not matter if they are read or changed in one piece.
#[test]
fn exclusive_accumulate_costs_one_read_and_write() {
    let fabric = Overlapping::counting(Loopback::alone().unwrap());
    let mut window = transom::windows::Window::<u64, _>::allocate(&fabric, 0, 2000).unwrap();
    let epoch = window.lock_exclusive(0).unwrap();
    let verbs = |operands: usize, op, fetched: bool| {
        let (operands, mut results) = (vec![1; operands], vec![0; operands]);
        fabric.all_verbs(|| match fetched {
            true => epoch.get_accumulate(0, op, &operands, &mut results).unwrap(),
            false => epoch.accumulate(0, op, &operands).unwrap(),
        })
    };
    // Puts, gets, compare-and-swaps, fetch-and-adds, posts, flushes.
    assert_eq!(verbs(2, Op::Sum, false), [1, 1, 0, 0, 0, 0]);
    assert_eq!(verbs(2, Op::Max, true), [1, 1, 0, 0, 0, 0]);
    assert_eq!(verbs(512, Op::Xor, false), [1, 1, 0, 0, 0, 0], "expected one piece of 4 KiB");
    assert_eq!(verbs(513, Op::Xor, true), [2, 2, 0, 0, 0, 0], "expected two pieces");
    assert_eq!(verbs(2, Op::NoOp, true), [0, 1, 0, 0, 0, 0]);
    assert_eq!(verbs(2000, Op::NoOp, true), [0, 1, 0, 0, 0, 0], "expected one get");
    assert_eq!(verbs(2000, Op::NoOp, false), [0; 6]);
    assert_eq!(fabric.all_verbs(|| _ = epoch.fetch_and_op(0, Op::NoOp, 0).unwrap()), [0, 1, 0, 0, 0, 0]);
    epoch.unlock().unwrap();
    let epoch = window.lock_shared(0).unwrap();
    assert_eq!(fabric.all_verbs(|| epoch.accumulate(0, Op::Sum, &[1; 9]).unwrap()), [0, 0, 0, 2 + 9, 0, 0]);
    (0..16).for_each(|_| _ = epoch.fetch_and_op(0, Op::NoOp, 0).unwrap());
    assert_eq!(fabric.all_verbs(|| epoch.accumulate(0, Op::Sum, &[1; 9]).unwrap()), [0, 0, 0, 9, 0, 0]);
    let read = || epoch.get_accumulate(0, Op::NoOp, &[0; 9], &mut [0; 9]).unwrap();
    assert_eq!(fabric.all_verbs(read), [0, 9, 0, 0, 0, 0]);
    assert_eq!(
        fabric.all_verbs(|| epoch.accumulate(0, Op::Sum, &[1; 513]).unwrap()),
        [2, 2, 1, 1, 0, 0],
        "expected two pieces and one admission"
    );
    epoch.unlock().unwrap();
}
