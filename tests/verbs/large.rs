//! Large puts and gets over the provider for several machines: what is copied, what is registered, and for how long.
//!
//! Tests that need an RDMA device are skipped, with a message, on machines without one. `tests/soft-roce/verbs` runs
//! them in guests.

use crate::adapter;
use adapter::*;
use std::io::{Read, Write};
use std::time::{Duration, Instant};
use transom::messages::Tag;
use transom::pipe::{Config, Step};
use transom::verbs::Verbs;
use transom::{Flavor, Window, scope};

#[test]
fn many_large_transfers_fit_a_short_queue() {
    if skipped("large transfers") {
        return;
    }
    on_verbs(
        2,
        "many_large_transfers_fit_a_short_queue",
        &[("TRANSOM_VERBS_DEPTH", "4"), ("TRANSOM_VERBS_INLINE", "0")],
        |world| {
            const LEN: usize = 200_000; // more pieces than are kept, through a queue of four
            let other = 1 - world.rank();
            let mut window: Window<u64> = world.allocate(LEN).unwrap();
            let data: Vec<u64> = (0..LEN as u64).map(|at| at * 3 + other as u64).collect();
            let epoch = window.fence().unwrap();
            let target = epoch.target(other).unwrap();
            target.put(0, &data).unwrap();
            let mut back = vec![0; LEN];
            target.flush().unwrap();
            target.get(0, &mut back).unwrap();
            assert_eq!(back, data);
            // Reads in flight that are dropped or leaked do no harm.
            let mut reads: Vec<_> = (0..20).map(|at| target.rget(at * 100, 5000).unwrap()).collect();
            std::mem::forget(reads.pop());
            drop(reads.pop());
            for (at, read) in transom::windows::Request::wait_all(reads).unwrap().into_iter().enumerate() {
                assert_eq!(read, data[at * 100..][..5000]);
            }
            // Memory for middle lengths is registered once, and used again.
            let before = verbs(&world).registrations();
            for _ in 0..10 {
                assert_eq!(target.rget(1, 10_000).unwrap().wait().unwrap(), data[1..10_001]);
            }
            let after = verbs(&world).registrations();
            assert_eq!((after.made - before.made, after.reused - before.reused), (1, 9));
            for at in 0..50 {
                target.put(at, &[1]).unwrap();
            }
            window.fence().unwrap();
            assert_eq!(window.local().read(0, 50).unwrap(), [1; 50]);
        },
    );
}

/// Checks the counts of an operation at this rank: bytes copied, and registrations found, temporary, refused, reused,
/// made.
fn costs<R>(verbs: &Verbs, what: &str, expected: [u64; 6], call: impl FnOnce() -> Result<R, transom::Error>) -> R {
    let count = || {
        let all = verbs.registrations();
        [verbs.copied_bytes(), all.found, all.passing, all.refused, all.reused, all.made]
    };
    let (before, registered) = (count(), verbs.registered_bytes());
    let returned = call().unwrap();
    let after = count();
    assert_eq!(std::array::from_fn(|at| after[at] - before[at]), expected, "{what}");
    assert!(expected[5] > 0 || verbs.registered_bytes() == registered, "{what} left memory registered");
    returned
}

const NOTHING: [u64; 6] = [0; 6];
const FOUND: [u64; 6] = [0, 1, 0, 0, 0, 0];
const PASSING: [u64; 6] = [0, 0, 1, 0, 0, 0];

#[test]
fn large_transfers_are_not_copied() {
    if skipped("large transfers") {
        return;
    }
    on_verbs(2, "large_transfers_are_not_copied", &[("TRANSOM_INTRANODE", "off")], |world| {
        const LEN: usize = 1 << 17; // 1 MiB
        let verbs = verbs(&world);
        let mut window: Window<u64> = world.allocate(LEN).unwrap();
        let epoch = window.lock_all().unwrap();
        let target = epoch.target(1 - world.rank()).unwrap();
        assert_eq!(target.get_one(0).unwrap(), 0); // slots are registered
        let data = |seed: u64| (0..LEN as u64).map(|at| at * seed).collect::<Vec<_>>();
        let mut back = vec![0; LEN];
        costs(verbs, "put", PASSING, || target.put(0, &data(3)));
        costs(verbs, "get", PASSING, || target.get(0, &mut back));
        assert_eq!(back, data(3));
        let source = data(5);
        let start = source.as_ptr();
        let source = costs(verbs, "rput", PASSING, || target.rput(0, source)?.wait());
        assert_eq!((source.as_ptr(), &source), (start, &data(5)), "rput did not return its own buffer");
        back = costs(verbs, "rget", PASSING, || target.rget(0, LEN)?.wait());
        assert_eq!(back, data(5));
        let mut buffer = costs(verbs, "a buffer", [0, 0, 0, 0, 0, 1], || world.buffer::<u64>(LEN));
        buffer.copy_from_slice(&data(7));
        costs(verbs, "put of a buffer", FOUND, || target.put(0, &buffer));
        buffer.fill(0);
        costs(verbs, "get to a buffer", FOUND, || target.get(0, &mut buffer));
        assert_eq!(buffer[..], data(7));
        costs(verbs, "put of a part", FOUND, || target.put(9, &buffer[1..10_001]));
        costs(verbs, "get to a part", FOUND, || target.get(9, &mut buffer[50_000..60_000]));
        assert_eq!(buffer[50_000..60_000], data(7)[1..10_001]);
        drop(buffer);
        let mut again = costs(verbs, "a buffer again", [0, 0, 0, 0, 1, 0], || world.buffer::<u64>(LEN));
        assert_eq!(again[..], vec![0; LEN], "reused buffer is not zeroed");
        again[0] = 1;
        // Operations on one element: it is put in its request, and read to a slot.
        costs(verbs, "put of 8 bytes", NOTHING, || target.put(0, &again[..1]));
        costs(verbs, "rput of 8 bytes", NOTHING, || target.rput(1, vec![2])?.wait());
        assert_eq!(costs(verbs, "rget of 8 bytes", [8, 0, 0, 0, 0, 0], || target.rget(0, 1)?.wait()), [1]);
        let middle = 100_000;
        let copied = [middle as u64, 0, 0, 0, 0, 0];
        costs(verbs, "put of middle length", copied, || target.put(0, &back[..middle / 8]));
        costs(verbs, "get of middle length", copied, || target.get(0, &mut back[..middle / 8]));
        epoch.unlock().unwrap();
        window.fence().unwrap();
    });
}

/// The memory of windows stays registered while they have it, and not when the program may use it otherwise.
#[test]
fn window_memory_is_registered_while_the_window_lives() {
    if skipped("large transfers") {
        return;
    }
    on_verbs(2, "window_memory_is_registered_while_the_window_lives", &[("TRANSOM_INTRANODE", "off")], |world| {
        const LEN: usize = 200_000;
        let (verbs, other) = (verbs(&world).clone(), 1 - world.rank());
        let mut there: Window<u64> = world.allocate(LEN).unwrap();
        assert_eq!(there.lock_shared(other).unwrap().get_one(0).unwrap(), 0);
        let lent: Window<u64> = world.window(Flavor::Create((0..LEN as u64).collect()), 0).unwrap();
        let made: Window<u64> = world.allocate(LEN).unwrap();
        for window in [&lent, &made] {
            let epoch = there.lock_shared(other).unwrap();
            let local = window.local();
            // SAFETY: nobody puts to these windows.
            let mine = unsafe { local.as_slice(3, 100_000) }.unwrap();
            costs(&verbs, "put of a window's part", FOUND, || epoch.put(5, mine));
            costs(&verbs, "flush", NOTHING, || epoch.flush());
            assert_eq!(epoch.get_one(5 + 99_999).unwrap(), mine[99_999]);
        }
        let memory = lent.free().unwrap();
        let epoch = there.lock_shared(other).unwrap();
        costs(&verbs, "put of returned user memory", PASSING, || epoch.put(0, &memory));
        epoch.flush().unwrap();
        assert_eq!(epoch.get_one(LEN - 1).unwrap(), LEN as u64 - 1);
        drop(epoch);
        there.fence().unwrap();
    });
}

/// From and to any offset, also of the rank itself, by each call, against a copy. Some pieces are not whole.
#[test]
fn transfers_of_any_length_and_offset_match_a_model() {
    if skipped("large transfers") {
        return;
    }
    const REGISTER: usize = 100_000;
    let variables = [("TRANSOM_INTRANODE", "off"), ("TRANSOM_VERBS_ZCOPY_MIN", "100000"), ("TRANSOM_VERBS_DEPTH", "8")];
    on_verbs(2, "transfers_of_any_length_and_offset_match_a_model", &variables, |world| {
        const LEN: usize = (3 << 20) + 77;
        let me = world.rank();
        // User memory goes through the adapter at the rank itself, too.
        let mut window: Window<u8> = world.window(Flavor::Create(vec![0; LEN]), 0).unwrap();
        let lengths = [0, 1, 7, 129, 32_767, 32_768, 32_769, REGISTER - 1, REGISTER, REGISTER + 1];
        let longer = [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, (2 << 20) + 13];
        let places = [0, 1, 63, 4093, 12_289];
        for to in [1 - me, me] {
            let epoch = window.fence().unwrap();
            let target = epoch.target(to).unwrap();
            let mut model = vec![0; LEN];
            target.get(0, &mut model).unwrap();
            let mut buffer = world.buffer::<u8>(LEN).unwrap();
            for (turn, &len) in lengths.iter().chain(&longer).enumerate() {
                let place = places[turn % places.len()];
                let new: Vec<u8> = (0..len + place).map(|at| (at * 7 + turn * 13 + me) as u8).collect();
                let mut put = |at: usize, call: &mut dyn FnMut(usize, &[u8])| {
                    model[at..at + len].copy_from_slice(&new[place..]);
                    call(at, &new[place..]);
                    target.flush().unwrap(); // puts have no order among themselves
                };
                put(place, &mut |at, new| target.put(at, new).unwrap());
                put(place + 1000, &mut |at, new| {
                    let buffer = &mut buffer[at + 3..][..len];
                    buffer.copy_from_slice(new);
                    target.put(at, buffer).unwrap();
                });
                put(place + 5000, &mut |at, new| drop(target.rput(at, new.to_vec()).unwrap()));
                let rest = len.min(2000) + place + 5000;
                let mut back = vec![0; rest + len];
                let from = places[(turn + 2) % places.len()];
                target.get(from, &mut back[9..9 + len]).unwrap();
                assert_eq!(back[9..9 + len], model[from..from + len], "get of {len} from {from} at {to}");
                target.get(from, &mut buffer[rest..rest + len]).unwrap();
                assert_eq!(buffer[rest..rest + len], model[from..from + len], "{len} from {from} at {to}, to a buffer");
                let read = target.rget(from + 5000, len).unwrap().wait().unwrap();
                assert_eq!(read, model[from + 5000..from + 5000 + len], "rget of {len} from {from} at {to}");
            }
            window.fence().unwrap();
        }
        window.free().unwrap();
    });
}

/// Large requests in any order, some of them never waited for. Also memory that the adapter cannot write to, or that
/// the system may refuse to pin.
#[test]
fn large_requests_complete_in_any_order() {
    if skipped("large transfers") {
        return;
    }
    let name = "large_requests_complete_in_any_order";
    on_verbs(2, name, &[("TRANSOM_INTRANODE", "off"), ("TRANSOM_VERBS_DEPTH", "8")], |world| {
        const EACH: usize = 50_000;
        const N: usize = 12;
        static CONSTANT: [u64; EACH] = [77; EACH];
        let verbs = verbs(&world);
        let mut window: Window<u64> = world.allocate(N * EACH).unwrap();
        let epoch = window.lock_all().unwrap();
        let target = epoch.target(1 - world.rank()).unwrap();
        target.put(0, &CONSTANT).unwrap();
        assert_eq!(target.rget(0, EACH).unwrap().wait().unwrap(), CONSTANT);
        let registered = verbs.registered_bytes();
        let data = |part: usize| vec![part as u64 + 1; EACH];
        let mut puts: Vec<_> = (0..N).map(|part| Some(target.rput(part * EACH, data(part)).unwrap())).collect();
        drop(puts[3].take());
        std::mem::forget(puts[4].take());
        for part in (0..N).rev() {
            if let Some(mut put) = puts[part].take() {
                while part % 2 == 0 && !put.test() {}
                assert_eq!(put.wait().unwrap(), data(part));
            }
        }
        target.flush().unwrap();
        let leaked = verbs.registered_bytes() - registered;
        assert_eq!(leaked, EACH * 8, "registered bytes differ from those of the leaked request");
        let mut gets: Vec<_> = (0..N).map(|part| Some(target.rget(part * EACH, EACH).unwrap())).collect();
        drop(gets[5].take());
        std::mem::forget(gets[6].take());
        for part in [1, 0, 11, 2, 10, 3, 9, 4, 8, 7] {
            assert_eq!(gets[part].take().unwrap().wait().unwrap(), data(part), "part {part}");
        }
        // Operations at the target run in the order of the calls.
        for round in 0..5u64 {
            let put = target.rput(0, vec![round; EACH]).unwrap();
            let get = target.rget(0, EACH).unwrap();
            let second = target.rput(0, vec![round + 100; EACH]).unwrap();
            assert_eq!(get.wait().unwrap(), [round; EACH], "get is not ordered between the puts before and after it");
            drop(put);
            second.wait().unwrap();
        }
        target.flush().unwrap();
        assert_eq!(verbs.registered_bytes() - registered, 2 * leaked);
        // Requests borrow the epoch until they are dropped.
        drop((puts, gets));
        epoch.unlock().unwrap();
        window.fence().unwrap();
    });
}

/// A small read that is never waited for goes as a get does: nothing is registered for it.
#[test]
fn small_reads_need_no_registration() {
    if skipped("reads") {
        return;
    }
    on_verbs(2, "small_reads_need_no_registration", &[("TRANSOM_INTRANODE", "off")], |world| {
        let mut window: Window<u64> = world.allocate(100).unwrap();
        let epoch = window.lock_shared(1 - world.rank()).unwrap();
        assert_eq!(epoch.get_one(7).unwrap(), 0);
        let registered = verbs(&world).registered_bytes();
        let target = epoch.rget(0, 1).unwrap();
        assert_eq!(verbs(&world).registered_bytes(), registered);
        assert_eq!(target.wait().unwrap(), [0]);
        // The two are timed in turn, and the best times count, because other programs use the machine.
        if world.rank() == 0 {
            let time = |call: &dyn Fn() -> u64| {
                let begun = Instant::now();
                (0..50).for_each(|_| assert_eq!(call(), 0));
                begun.elapsed().as_secs_f64() * 1e6 / 50.0
            };
            let [mut get, mut rget] = [f64::MAX; 2];
            for _ in 0..20 {
                get = get.min(time(&|| epoch.get_one(0).unwrap()));
                rget = rget.min(time(&|| epoch.rget(0, 1).unwrap().wait().unwrap()[0]));
            }
            println!("\n| 8-byte get {get:.1} us | rget {rget:.1} us | {:.2} |", rget / get);
            let most = if cfg!(debug_assertions) { 1.6 } else { 1.2 };
            assert!(rget < most * get, "rget {rget} us, get {get} us");
        }
        drop(epoch);
        meet(&world).unwrap();
    });
}

/// An operation of a scope needs a registration only if it is long, and only until the scope ends, even if it was
/// waited for before.
#[test]
fn scope_memory_is_registered_until_the_scope_ends() {
    if skipped("scopes") {
        return;
    }
    on_verbs(2, "scope_memory_is_registered_until_the_scope_ends", &[("TRANSOM_INTRANODE", "off")], |world| {
        const LEN: usize = 1 << 17; // 1 MiB
        let verbs = verbs(&world);
        let mut window: Window<u64> = world.allocate(LEN).unwrap();
        let epoch = window.lock_shared(1 - world.rank()).unwrap();
        assert_eq!(epoch.get_one(0).unwrap(), 0); // slots are registered
        let data: Vec<u64> = (0..LEN as u64).collect();
        let (mut words, mut back) = ([7; 10], vec![7; LEN]);
        costs(verbs, "puts of 8 bytes", NOTHING, || {
            scope(|scope| (0..10).try_for_each(|at| scope.put(&epoch, at, &data[at..=at])))
        });
        costs(verbs, "gets of 8 bytes", [80, 0, 0, 0, 0, 0], || {
            scope(|scope| {
                let mut words = words.chunks_mut(1).enumerate();
                words.try_for_each(|(at, word)| scope.get(&epoch, at, word).map(drop))
            })
        });
        assert_eq!(words, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        costs(verbs, "a long put", PASSING, || scope(|scope| scope.put(&epoch, 0, &data)));
        costs(verbs, "a long get", PASSING, || scope(|scope| scope.get(&epoch, 0, &mut back).map(drop)));
        assert!(back == data);
        drop(epoch);
        meet(&world).unwrap();
    });
}

#[test]
fn unregistrable_memory_is_copied() {
    use rustix::process::{Resource, getrlimit};
    let limit = getrlimit(Resource::Memlock).current;
    if skipped("locking memory") || limit.is_none_or(|limit| limit > 4 << 20) {
        return eprintln!("skipped: the limit of locked memory is {limit:?}; 4 MiB would do");
    }
    on_verbs(2, "unregistrable_memory_is_copied", &[("TRANSOM_INTRANODE", "off")], |world| {
        const BYTES: usize = 7 << 18;
        let verbs = verbs(&world);
        let mut window: Window<u8> = world.allocate(BYTES).unwrap();
        let epoch = window.lock_all().unwrap();
        let target = epoch.target(1 - world.rank()).unwrap();
        let _slots = target.get_one(0).unwrap();
        let (data, mut back) = (vec![9; BYTES], vec![0; BYTES]);
        let refused = [BYTES as u64, 0, 0, 1, 0, 0];
        costs(verbs, "put", refused, || target.put(0, &data));
        costs(verbs, "get", refused, || target.get(0, &mut back));
        assert_eq!(back, data);
        back.fill(8);
        back = costs(verbs, "rput", refused, || target.rput(0, back)?.wait());
        assert_eq!(costs(verbs, "rget", refused, || target.rget(0, BYTES)?.wait()), back);
        let error = world.buffer::<u8>(BYTES).map(drop).unwrap_err().to_string();
        assert!(error.contains("buffer") && error.contains("ulimit -l"), "{error}");
        epoch.unlock().unwrap();
        window.fence().unwrap();
    });
}

/// A large operation whose target dies during it is an error in time, and the memory is the program's again.
#[test]
fn death_amid_a_large_transfer_releases_its_memory() {
    if skipped("a death over the network") {
        return;
    }
    let name = "death_amid_a_large_transfer_releases_its_memory";
    let one = one_rail();
    let one = one.iter().map(|(name, value)| (*name, &**value));
    let variables: Vec<_> = one.chain([("TRANSOM_FABRIC", "verbs"), ("TRANSOM_INTRANODE", "off")]).collect();
    let run = run(3, name, &variables, || {
        const LEN: usize = 4 << 20;
        const VICTIM: usize = 2;
        let world = transom::init().expect("a rank can join its job");
        let me = world.rank();
        let mut window: Window<u8> = world.allocate(LEN).unwrap();
        window.fence().unwrap();
        if me == VICTIM {
            // The victim dies amid the operations of both others.
            while window.local().get(0).unwrap() == 0 || window.local().get(LEN - 1).unwrap() == 0 {
                std::thread::yield_now();
            }
            std::process::abort();
        }
        let epoch = window.lock_shared(VICTIM).unwrap();
        let (mut source, mut into) = (vec![1; LEN], vec![2; LEN]);
        // Further rails are connected when they are first needed, and the first connection of each adds receive
        // buffers.
        let begun = Instant::now();
        while verbs(&world).divided_bytes().last() == Some(&0) && verbs(&world).divided_bytes().len() > 1 {
            epoch.put(0, &vec![0; LEN]).unwrap();
            assert!(begun.elapsed() < Duration::from_secs(60), "a rail is not used within 60 s");
        }
        let registered = verbs(&world).registered_bytes();
        let begun = Instant::now();
        let error = loop {
            // Written from both ends: the last byte arrives with the last piece.
            let outcome = match me {
                0 => epoch.put(0, &source[..LEN / 2]),
                _ => epoch.rput(LEN / 2, source[LEN / 2..].to_vec()).and_then(|put| put.wait()).map(drop),
            };
            let outcome = outcome.and_then(|()| epoch.get(0, &mut into));
            if let Err(error) = outcome {
                break error;
            }
            assert!(begun.elapsed() < Duration::from_secs(60));
        };
        assert_eq!(error.lost_rank(), Some(VICTIM), "{error}");
        let failed = Instant::now();
        assert!(epoch.get(0, &mut into).is_err() && epoch.put(0, &source).is_err());
        assert!(epoch.rput(0, vec![3; LEN]).and_then(|put| put.wait()).is_err());
        assert!(epoch.rget(0, LEN).and_then(|get| get.wait()).is_err());
        assert!(failed.elapsed() < Duration::from_secs(5), "{:?}", failed.elapsed());
        assert_eq!(verbs(&world).registered_bytes(), registered, "memory of failed operations is still registered");
        source.fill(5);
        into.fill(6);
        assert!(epoch.unlock().is_err());
        std::thread::sleep(Duration::from_millis(200));
        assert!(into.iter().all(|&byte| byte == 6), "failed get wrote to its buffer later");
        // The living ranks go on.
        let epoch = window.lock_shared(1 - me).unwrap();
        epoch.put(0, &source).unwrap();
        epoch.get(0, &mut into).unwrap();
        assert_eq!(into, source);
        // No rank leaves before the other has done the same.
        epoch.put(7, &[9]).unwrap();
        epoch.unlock().unwrap();
        let begun = Instant::now();
        while window.local().get(7).unwrap() != 9 {
            assert!(begun.elapsed() < Duration::from_secs(40), "the other rank did not report its end");
            std::thread::yield_now();
        }
    });
    if let Some(outcome) = run {
        let died = |rank| outcome.statuses()[rank] != transom::Status::Exited(0);
        assert!((0..3).all(|rank| died(rank) == (rank == 2)), "{outcome}\n{}", outputs(&outcome));
    }
}

/// A buffer that is sent repeatedly stays registered, within the limit. New memory at its address is other memory.
#[test]
fn persistent_send_buffer_is_registered_once() {
    if skipped("buffers of persistent sends") {
        return;
    }
    const LEN: usize = 1 << 15; // 256 KiB
    let variables = [("TRANSOM_INTRANODE", "off"), ("TRANSOM_VERBS_REGCACHE_BYTES", "1500000")];
    on_verbs(2, "persistent_send_buffer_is_registered_once", &variables, |world| {
        const TAG: Tag<u64> = Tag::new(1);
        if world.rank() == 1 {
            let expect = |len: usize, value: u64| {
                let got = world.recv(0, TAG).unwrap().0;
                assert!(got.len() == len && got.iter().all(|got| *got == value), "{len} of {value}");
            };
            (0..5).for_each(|step| expect(LEN, step));
            (0..5).for_each(|step| expect(LEN, 100 + step));
            (0..3).for_each(|_| expect(6 * LEN, 7));
            [2 * LEN, LEN, 2 * LEN].into_iter().for_each(|len| expect(len, 8));
            let mut coming = world.precv_init(0, TAG, vec![0; 4 * LEN], 2).unwrap();
            for step in 0..3 {
                coming.start().unwrap().wait().unwrap();
                assert!(coming.buffer().unwrap().iter().all(|got| *got == step));
            }
            return;
        }
        let count = || {
            let (all, counters) = (verbs(&world).registrations(), world.counters().unwrap());
            assert_eq!([counters.found_registered, counters.registered], [all.found, all.passing]);
            [all.found, all.passing]
        };
        let registered = || world.counters().unwrap().registered_bytes;
        let costs = |what: &str, expected: [u64; 2], act: &mut dyn FnMut()| {
            let before = count();
            act();
            let after = count();
            assert_eq!([0, 1].map(|at| after[at] - before[at]), expected, "{what}: found, passing");
        };
        let mut sending = world.send_init(1, TAG, vec![0; LEN]).unwrap();
        costs("one buffer", [4, 1], &mut || {
            for step in 0..5 {
                sending.buffer().unwrap().fill(step);
                sending.start().unwrap().wait().unwrap();
            }
        });
        assert_eq!(registered(), 8 * LEN as u64);
        drop(sending);
        assert_eq!(registered(), 0);
        costs("a buffer each", [0, 5], &mut || {
            for step in 0..5 {
                let mut sending = world.send_init(1, TAG, vec![100 + step; LEN]).unwrap();
                sending.start().unwrap().wait().unwrap();
            }
        });
        let mut sending = world.send_init(1, TAG, vec![7; 6 * LEN]).unwrap();
        costs("buffers beyond the cache limit", [0, 3], &mut || {
            for _ in 0..3 {
                sending.start().unwrap().wait().unwrap();
            }
        });
        let mut buffer = world.buffer::<u64>(2 * LEN).unwrap();
        buffer.fill(8);
        costs("a buffer of the library and a part of it", [3, 0], &mut || {
            world.send(1, TAG, &buffer).unwrap();
            world.send(1, TAG, &buffer[LEN / 2..][..LEN]).unwrap();
            world.send(1, TAG, &buffer).unwrap();
        });
        drop(buffer);
        let mut sending = world.psend_init(1, TAG, vec![0; 4 * LEN], 4).unwrap();
        costs("parts", [11, 1], &mut || {
            for step in 0..3 {
                let mut parts = sending.start().unwrap();
                for mut part in parts.parts() {
                    part.fill(step);
                    part.ready();
                }
                parts.wait().unwrap();
            }
        });
    });
}

/// The messages have one registration, and end in any order, also in another order than they began.
fn from_one_place_at_once(name: &str, paths: &str) {
    const MIB: usize = 1 << 20;
    const DATA: Tag<u8> = Tag::new(5);
    on_verbs(3, name, &[("TRANSOM_INTRANODE", "off"), ("TRANSOM_MESSAGES", paths)], |world| {
        let mut buffer = world.buffer::<u8>(2 * MIB).unwrap();
        buffer.fill(7);
        for long in [1, 2] {
            let lengths = [1, 2].map(|to| if to == long { 2 * MIB } else { MIB });
            if world.rank() == 0 {
                meet(&world).unwrap();
                let sent = world.scope(|scope| {
                    let [first, second] = [1, 2].map(|to| scope.isend(to, DATA, &buffer[..lengths[to - 1]]));
                    second.wait()?;
                    first.wait()?;
                    Ok::<_, transom::Error>(())
                });
                sent.unwrap();
            } else {
                // The receive is posted before the RTS arrives, so the data is written.
                let coming = world.irecv_into(0, DATA, vec![0; lengths[world.rank() - 1]]);
                meet(&world).unwrap();
                if world.rank() == 1 {
                    std::thread::sleep(Duration::from_millis(1500));
                }
                assert!(coming.wait().unwrap().iter().all(|byte| *byte == 7));
            }
            meet(&world).unwrap();
        }
    });
}

#[test]
fn messages_from_one_buffer_arrive_whole() {
    if !skipped("messages of many lengths from one place") {
        from_one_place_at_once("messages_from_one_buffer_arrive_whole", "paths=rc");
    }
}

#[test]
fn datagrams_from_one_buffer_arrive_whole() {
    if !skipped("messages of many lengths from one place") {
        from_one_place_at_once("datagrams_from_one_buffer_arrive_whole", "paths=ud");
    }
}

/// A chunk is one request: pieces would exceed the queues of these lanes, and each attempt would begin with the first.
#[test]
fn pipe_chunks_pass_short_queues() {
    if skipped("pipes with long chunks") {
        return;
    }
    let variables = [("TRANSOM_INTRANODE", "off"), ("TRANSOM_VERBS_DEPTH", "4"), ("TRANSOM_VERBS_INLINE", "0")];
    on_verbs(2, "pipe_chunks_pass_short_queues", &variables, |world| {
        let me = world.rank();
        let bytes = |from: usize| -> Vec<u8> { (0..1_000_000).map(|at| (at * 7 + at / 251 + from) as u8).collect() };
        for step in [Step::Basic, Step::Piggyback, Step::Pipeline] {
            for (chunk, chunks) in [(65_536, 4), (32_768, 2), (8448, 8)] {
                let pipe = world.pipe_with(1 - me, Config { step, chunk, chunks, ..Config::default() }).unwrap();
                std::thread::scope(|scope| {
                    scope.spawn(|| (&mut &pipe).write_all(&bytes(me)).unwrap());
                    let mut came = vec![0; 1_000_000];
                    (&mut &pipe).read_exact(&mut came).unwrap();
                    assert!(came == bytes(1 - me), "{step:?}, {chunks} chunks of {chunk}");
                });
                world.barrier().unwrap();
            }
        }
    });
}
