//! Messages, collectives and operations on windows that are waited for together.

use crate::overlap::Overlapping;
use crate::ranks;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use transom::messages::{self, Failed, Status, Tag};
use transom::shm_loopback::Loopback;
use transom::{
    Error, FabricError, Op, Pending, Request, Requests, Window, World, test_all, test_any, test_some, wait_all,
    wait_any, wait_any_for, wait_some, windows,
};

const EDGE: Tag<f64> = Tag::new(1);
const WORD: Tag<u64> = Tag::new(2);
const NEVER: Tag<u64> = Tag::new(3);
/// A short message, and one that is longer than the eager limit.
const LENGTHS: [usize; 2] = [1, 50_000];

/// Each rank's part has the rank's number in each element, then zeros that others put to.
fn numbered(world: &World) -> Window<u64> {
    let mut window: Window<u64> = world.allocate(2 * LENGTHS[1]).unwrap();
    window.local().write(0, &vec![world.rank() as u64; LENGTHS[1]]).unwrap();
    window.fence().unwrap();
    window
}

fn around(world: &World) -> (usize, usize) {
    let (me, n) = (world.rank(), world.size());
    ((me + 1) % n, (me + n - 1) % n)
}

/// Takes the indices of requests that have ended, until none is left.
type Take = fn(&mut [&mut dyn Pending]) -> Vec<usize>;

const TAKES: [(&str, Take); 6] = [
    ("wait_any", |left| wait_any(left).into_iter().collect()),
    ("wait_any_for", |left| wait_any_for(left, Duration::from_secs(60)).into_iter().collect()),
    ("wait_some", |left| wait_some(left)),
    ("wait_all", |left| {
        wait_all(left).unwrap();
        (0..left.len()).collect()
    }),
    ("test_any", |left| test_any(left).into_iter().collect()),
    ("test_some", |left| test_some(left)),
];

#[test]
fn requests_of_three_types_end_in_one_wait() {
    ranks::on_all_sizes("requests_of_three_types_end_in_one_wait", |world| {
        let (me, (next, before)) = (world.rank(), around(&world));
        let mut window = numbered(&world);
        let epoch = window.lock_all().unwrap();
        let target = epoch.target(next).unwrap();
        for ((what, take), len) in TAKES.into_iter().flat_map(|take| LENGTHS.map(|len| (take, len))) {
            let (mut sent, mut edge) = (world.isend(next, EDGE, vec![me as f64; len]), world.irecv(before, EDGE));
            let mut get = target.rget(LENGTHS[1] - len, len).unwrap();
            let mut put = target.rput(LENGTHS[1], vec![7; len]).unwrap();
            let mut sum = world.iall_reduce(vec![me as i32 + 1; 3], Op::Sum);
            let mut left: Vec<&mut dyn Pending> = vec![&mut sent, &mut edge, &mut get, &mut put, &mut sum];
            let (mut numbers, mut ended) = (vec![0, 1, 2, 3, 4], vec![]);
            while !left.is_empty() {
                for index in take(&mut left).into_iter().rev() {
                    left.swap_remove(index);
                    ended.push(numbers.swap_remove(index));
                }
            }
            ended.sort_unstable();
            assert_eq!(ended, [0, 1, 2, 3, 4], "{what} of {len}");
            assert!(wait_any(&mut []).is_none() && wait_some(&mut []).is_empty() && test_all(&mut []).unwrap());
            assert!(
                test_all(&mut [&mut sent, &mut edge, &mut get, &mut put, &mut sum]).unwrap(),
                "completed request became incomplete"
            );
            assert_eq!(edge.wait().unwrap(), vec![before as f64; len]);
            assert_eq!(get.wait().unwrap(), vec![next as u64; len]);
            assert_eq!(sum.wait().unwrap(), [(1..=world.size() as i32).sum::<i32>(); 3]);
            assert_eq!((sent.wait().unwrap(), put.wait().unwrap()), (vec![me as f64; len], vec![7; len]));
        }
        epoch.unlock().unwrap();
        window.fence().unwrap();
        assert_eq!(window.local().get(2 * LENGTHS[1] - 1).unwrap(), 7);
        window.fence().unwrap();
    });
}

#[test]
fn mixed_set_returns_messages_and_operations() {
    ranks::on_all_sizes("mixed_set_returns_messages_and_operations", |world| {
        let (me, (next, before)) = (world.rank() as u64, around(&world));
        let mut window = numbered(&world);
        let epoch = window.lock_all().unwrap();
        let target = epoch.target(next).unwrap();
        for (turn, len) in LENGTHS.into_iter().cycle().take(6).enumerate() {
            let mut all = Requests::new();
            assert_eq!(all.push(world.irecv(before, WORD)), 0);
            assert_eq!(all.push(target.rget(0, len).unwrap()), 1);
            assert_eq!(all.push(world.iall_reduce(vec![me; 2], Op::Max)), 2);
            assert_eq!(all.push(target.rput(LENGTHS[1], vec![8; len]).unwrap()), 3);
            assert_eq!(all.push(world.isend(next, WORD, vec![100 + me; len])), 4);
            let mut got: [Option<Vec<u64>>; 5] = Default::default();
            match turn / 2 {
                0 => {
                    while let Some((number, ended)) = all.wait_any() {
                        assert!(got[number].replace(ended.unwrap()).is_none(), "request {number} was returned twice");
                    }
                }
                1 => {
                    while !all.is_empty() {
                        let Some((number, request)) = all.take_any_for(Duration::from_secs(60)) else { continue };
                        let (buffer, status) = request.wait_status().unwrap();
                        // An operation on a window has no sender.
                        assert_eq!(status.from == Status::NOBODY, [1, 3].contains(&number), "{number}");
                        got[number] = Some(buffer);
                    }
                }
                _ => all.wait_all().unwrap().into_iter().for_each(|(number, buffer)| got[number] = Some(buffer)),
            }
            let expected = [
                vec![100 + before as u64; len],
                vec![next as u64; len],
                vec![world.size() as u64 - 1; 2],
                vec![8; len],
            ];
            assert!(got.iter().flatten().eq(expected.iter().chain([&vec![100 + me; len]])), "turn {turn}");
        }
        // Many requests of both kinds, all of one type.
        let words = (0..40).map(|_| Request::from(target.rget(0, 1).unwrap()));
        let messages = (0..40).map(|_| world.irecv(before, WORD));
        let all: Vec<Request<'_, _>> = words.chain(messages).collect();
        (0..40).for_each(|_| world.send(next, WORD, &[me]).unwrap());
        let got = Request::wait_all(all).unwrap().concat();
        assert_eq!(got, [[next as u64; 40], [before as u64; 40]].concat());
        epoch.unlock().unwrap();
        window.fence().unwrap();
    });
}

#[test]
fn scope_lends_to_messages_and_operations() {
    ranks::on_all_sizes("scope_lends_to_messages_and_operations", |world| {
        let (me, (next, before)) = (world.rank() as u64, around(&world));
        let mut window = numbered(&world);
        let epoch = window.lock_all().unwrap();
        let target = epoch.target(next).unwrap();
        for len in LENGTHS {
            let (own, mut came, mut fetched, mut sum) = (vec![me; len], vec![77; len], vec![77; len], [me, 1]);
            let first = world.scope(|scope| {
                drop(scope.isend(next, WORD, &own));
                scope.put(&target, LENGTHS[1], &own)?;
                let mut coming = scope.irecv(before, WORD, &mut came);
                let mut sum = scope.iall_reduce(&mut sum, Op::Sum);
                let mut fetch = scope.get(&target, 0, &mut fetched)?;
                let first = wait_any(&mut [&mut coming, &mut fetch, &mut sum]);
                if first == Some(1) {
                    assert_eq!(fetch.wait()?, vec![next as u64; len]);
                }
                Ok::<_, Error>(first)
            });
            assert!(matches!(first.unwrap(), Some(0..=2)));
            assert_eq!((came, fetched), (vec![before as u64; len], vec![next as u64; len]));
            assert_eq!(sum, [(0..world.size() as u64).sum(), world.size() as u64]);
            // Two threads wait, each for memory that is lent to its request.
            let (mut one, mut two) = (vec![0; len], vec![0; len]);
            let got = world.scope(|scope| {
                let (one, two) = (&mut one[..], &mut two[..]);
                std::thread::scope(|threads| {
                    let fetch = scope.get(&target, 0, one)?;
                    let fetch = threads.spawn(move || Ok::<_, Error>(fetch.wait()?[0]));
                    let mut all: Requests<'_, &mut [u64]> = [scope.irecv(before, WORD, two)].into_iter().collect();
                    world.send(next, WORD, &own)?;
                    let (0, came) = all.wait_any().unwrap() else { panic!("the set should return its only request") };
                    Ok::<_, Error>((fetch.join().unwrap()?, came?[0]))
                })
            });
            assert_eq!(got.unwrap(), (next as u64, before as u64));
        }
        epoch.unlock().unwrap();
        window.fence().unwrap();
        assert_eq!(window.local().get(LENGTHS[1]).unwrap(), before as u64);
        window.fence().unwrap();
    });
}

/// A get of a scope has ended when the scope has, however its body ends.
#[test]
fn scope_ends_operations_after_error_and_panic() {
    ranks::on(&[1], "scope_ends_operations_after_error_and_panic", |world| {
        let held = Arc::new(AtomicBool::new(true));
        let mut window = held_window(&held);
        let epoch = window.lock_shared(0).unwrap();
        let mut into = [9; 4];
        // The scope of windows alone, since the held window is of another provider than the world.
        let mut get = |end: fn(&World) -> Result<(), Error>| {
            held.store(true, SeqCst);
            into = [9; 4];
            let ended = std::thread::scope(|threads| {
                threads.spawn(|| release(&held));
                catch_unwind(AssertUnwindSafe(|| {
                    windows::scope(|scope| {
                        assert!(!scope.get(&epoch, 0, &mut into)?.test(), "get completed while the provider holds it");
                        end(&world)
                    })
                }))
            });
            (ended, into)
        };
        assert!(matches!(get(|_| Ok(())), (Ok(Ok(())), [40, 41, 42, 43])));
        let (ended, into) = get(|_| Err(Error::other("on purpose")));
        assert!(ended.unwrap().is_err() && into == [40, 41, 42, 43]);
        let (ended, into) = get(|_| panic!("on purpose"));
        assert!(ended.is_err() && into == [40, 41, 42, 43]);
        drop(epoch);
    });
}

#[test]
fn dropped_and_forgotten_requests_do_no_harm() {
    ranks::on_all_sizes("dropped_and_forgotten_requests_do_no_harm", |world| {
        let (next, before) = around(&world);
        let mut window = numbered(&world);
        let epoch = window.lock_all().unwrap();
        let target = epoch.target(next).unwrap();
        let words = || [target.rget(0, 1).unwrap(), target.rput(LENGTHS[1], vec![5]).unwrap()].map(Request::from);
        drop(words());
        words().into_iter().for_each(std::mem::forget);
        let set = || words().into_iter().chain([world.irecv(before, NEVER)]).collect::<Requests<'_, _>>();
        drop(set());
        let mut looked_at = set();
        assert!(looked_at.take_any_for(Duration::ZERO).is_none_or(|(number, _)| number < 2));
        drop(looked_at);
        // A forgotten receive still takes one message.
        std::mem::forget(world.irecv(before, WORD));
        (0..2).for_each(|word| world.send(next, WORD, &[word]).unwrap());
        assert_eq!(world.recv(before, WORD).unwrap().0, [1]);
        epoch.unlock().unwrap();
        window.fence().unwrap();
        assert_eq!(window.local().get(LENGTHS[1]).unwrap(), 5);
        window.fence().unwrap();
    });
}

/// A window of one rank, whose operations are in flight as long as `held` says so.
fn held_window(held: &Arc<AtomicBool>) -> Window40 {
    let fabric = Overlapping::holding(Loopback::alone().unwrap(), held);
    let window = windows::Window::allocate(&fabric, 0, 4).unwrap();
    window.local().write(0, &[40, 41, 42, 43]).unwrap();
    window
}

type Window40 = windows::Window<u64, Overlapping>;

/// No wait is woken for it.
fn release(held: &AtomicBool) {
    std::thread::sleep(Duration::from_millis(60));
    held.store(false, SeqCst);
}

#[test]
fn message_ends_wait_beside_held_operation() {
    ranks::on(&[2], "message_ends_wait_beside_held_operation", |world| {
        let (other, held) = (1 - world.rank(), Arc::new(AtomicBool::new(true)));
        let mut window = held_window(&held);
        let epoch = window.lock_shared(0).unwrap();
        for len in LENGTHS {
            held.store(true, SeqCst);
            let (mut word, mut coming) = (epoch.rget(1, 2).unwrap(), world.irecv(other, WORD));
            assert_eq!(test_any(&mut [&mut word, &mut coming]).filter(|first| *first == 0), None);
            let mut sent = world.isend(other, WORD, vec![3; len]);
            assert_eq!(wait_any(&mut [&mut word, &mut coming]), Some(1));
            assert!(
                !test_all(&mut [&mut word, &mut coming]).unwrap() && test_some(&mut [&mut word, &mut coming]) == [1]
            );
            assert_eq!(coming.wait().unwrap(), vec![3; len]);
            wait_all(&mut [&mut sent]).unwrap();
            // The same from a set.
            let mut set = Requests::new();
            set.push(word);
            set.push(world.irecv(other, WORD));
            drop(world.isend(other, WORD, vec![4; len]));
            let (number, got) = set.wait_any().unwrap();
            assert_eq!((number, got.unwrap()), (1, vec![4; len]));
            assert!(set.take_any_for(Duration::from_millis(1)).is_none() && set.test_any().is_none());
            held.store(false, SeqCst);
            let (number, got) = set.wait_any().unwrap();
            assert_eq!((number, got.unwrap()), (0, vec![41, 42]));
        }
        drop(epoch);
        world.barrier().unwrap();
    });
}

#[test]
fn operation_ends_wait_beside_silent_message() {
    ranks::on(&[1], "operation_ends_wait_beside_silent_message", |world| {
        let held = Arc::new(AtomicBool::new(true));
        let mut window = held_window(&held);
        let epoch = window.lock_shared(0).unwrap();
        let late = |wait: &dyn Fn(windows::Request<'_, Vec<u64>>)| {
            held.store(true, SeqCst);
            std::thread::scope(|threads| {
                threads.spawn(|| release(&held));
                wait(epoch.rget(1, 2).unwrap());
            });
        };
        let never = || world.irecv(0, NEVER);
        late(&|mut word| assert_eq!(wait_any(&mut [&mut never(), &mut word]), Some(1)));
        late(&|mut word| assert_eq!(wait_some(&mut [&mut word, &mut never()]), [0]));
        late(&|mut word| {
            let mut never = never();
            let both: &mut [&mut dyn Pending] = &mut [&mut never, &mut word];
            assert_eq!(wait_any_for(both, Duration::from_millis(1)), None);
            assert_eq!(wait_any_for(both, Duration::from_secs(60)), Some(1));
        });
        late(&|mut word| wait_all(&mut [&mut word]).unwrap());
        late(&|word| {
            let mut set: Requests<'_, _> = [Request::from(word), never()].into_iter().collect();
            assert_eq!(set.wait_any().unwrap().1.unwrap(), [41, 42]);
            assert_eq!(set.len(), 1);
        });
        // Without a message, and each alone.
        late(&|word| assert_eq!(Requests::from_iter([word]).wait_any().unwrap().1.unwrap(), [41, 42]));
        late(&|word| assert_eq!(Request::from(word).wait().unwrap(), [41, 42]));
        late(&|word| {
            let word = Request::from(word).wait_for(Duration::from_millis(1)).unwrap_err();
            let word = word.wait_status_for(Duration::from_secs(60)).unwrap().unwrap();
            assert_eq!((word.0, word.1.from), (vec![41, 42], Status::NOBODY));
        });
        late(&|word| {
            let word = word.wait_for(Duration::from_millis(1)).unwrap_err();
            assert_eq!(word.wait_for(Duration::MAX).unwrap().unwrap(), [41, 42]);
        });
        late(&|word| assert_eq!(world.block_on(word).unwrap().unwrap(), [41, 42]));
        late(&|word| assert_eq!(world.block_on(Request::from(word)).unwrap().unwrap(), [41, 42]));
        late(&|word| {
            let mut word = Request::from(word);
            assert!(word.status().is_none() && !word.test());
            let messages::Cancelled::TooLate(mut word) = word.cancel() else {
                panic!("cancel withdrew an operation of a window")
            };
            while !word.test() {}
            assert_eq!(word.status().map(|status| (status.from, status.len)), Some((Status::NOBODY, 0)));
        });
        drop(epoch);
    });
}

/// A message has ended before each look, and the operation once.
#[test]
fn messages_hide_no_operation_of_their_set() {
    ranks::on(&[1], "messages_hide_no_operation_of_their_set", |world| {
        let held = Arc::new(AtomicBool::new(true));
        let mut window = held_window(&held);
        let epoch = window.lock_shared(0).unwrap();
        let mut set = Requests::new();
        set.push(epoch.rget(0, 1).unwrap());
        set.extend((0..9).map(|_| world.irecv(0, WORD)));
        assert!(set.test_any().is_none());
        held.store(false, SeqCst);
        (0..9).for_each(|word| world.send(0, WORD, &[word]).unwrap());
        (0..20).for_each(|_| world.progress().unwrap()); // all have ended
        let numbers = [(); 2].map(|()| set.wait_any().unwrap().0);
        assert!(numbers.contains(&0), "{numbers:?}");
        drop(set);
        drop(epoch);
    });
}

/// A sleeping wait would look ten times a second.
#[test]
fn mixed_wait_polls_operations_without_sleep() {
    ranks::on(&[1], "mixed_wait_polls_operations_without_sleep", |world| {
        let held = Arc::new(AtomicBool::new(true));
        let fabric = Overlapping::holding(Loopback::alone().unwrap(), &held);
        let (asked, mut window) = (fabric.asked(), windows::Window::<u64, _>::allocate(&fabric, 0, 4).unwrap());
        let epoch = window.lock_shared(0).unwrap();
        let (mut never, mut word) = (world.irecv(0, NEVER), epoch.rget(0, 1).unwrap());
        std::thread::scope(|threads| {
            let counted = threads.spawn(|| {
                // A wait that may sleep is asleep by then.
                std::thread::sleep(Duration::from_millis(100));
                let (before, begun) = (asked.load(SeqCst), Instant::now());
                while asked.load(SeqCst) < before + 5000 && begun.elapsed() < Duration::from_secs(10) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                held.store(false, SeqCst);
                asked.load(SeqCst) - before
            });
            assert_eq!(wait_any(&mut [&mut never, &mut word]), Some(1));
            let counted = counted.join().unwrap();
            assert!(counted >= 5000, "the operation was polled {counted} times in 10 s, expected 5000");
        });
        drop(word);
        drop(epoch);
    });
}

/// An error of an operation is the same in each kind of wait.
#[test]
fn failed_operation_keeps_its_error_in_a_request() {
    let window_error = || Error::Fabric { window: 3, rank: 2, source: FabricError::PeerDied { rank: 2 } };
    let error = messages::Error::Window(Arc::new(window_error()));
    assert_eq!((error.to_string(), error.lost_rank()), ("window 3, rank 2: rank 2 died".into(), Some(2)));
    let failed = Failed::<Vec<u8>> { error: error.clone(), buffer: None };
    // The clone is in use as well.
    let shared = Error::from(failed);
    assert_eq!((shared.to_string(), shared.lost_rank()), ("window 3, rank 2: rank 2 died".into(), Some(2)));
    drop(shared);
    assert!(matches!(Error::from(error), Error::Fabric { window: 3, rank: 2, .. }));
}
