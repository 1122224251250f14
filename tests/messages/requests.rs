//! Requests in flight: all forms of waiting, cancellation, lent buffers, futures, and repeated starts.

use crate::ranks;
use ranks::{on, pattern};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};
use transom::collective::Reduction;
use transom::messages::{Active, Cancelled, Error, Failed, Persistent, Request, Requests, Source, Status, Tag};
use transom::{Pending, World};

const ONE: Tag<u64> = Tag::new(1);
const TWO: Tag<u64> = Tag::new(2);
const BYTES: Tag<u8> = Tag::new(9);

#[test]
fn probe_returns_none_at_its_deadline() {
    on(&[2], "probe_returns_none_at_its_deadline", |world| {
        let (other, soon) = (1 - world.rank(), Duration::from_millis(60));
        for limit in [soon, Duration::ZERO] {
            let begun = Instant::now();
            assert!(world.probe_for(other, ONE, limit).unwrap().is_none());
            let took = begun.elapsed();
            assert!(limit <= took && took < ranks::within(Duration::from_secs(5)), "{limit:?} took {took:?}");
        }
        world.barrier().unwrap();
        world.send(other, ONE, &[7]).unwrap();
        // The receives that gave up left no receive behind that would take the message.
        assert_eq!(world.recv(other, ONE).unwrap().0, [7]);
        for limit in [Duration::from_secs(3600), Duration::MAX] {
            world.send(other, ONE, &[8, 9]).unwrap();
            let message =
                world.probe_for(Source::Any, ONE, limit).unwrap().expect("a message should arrive before the deadline");
            assert_eq!((message.status().from, message.recv().unwrap()), (other, vec![8, 9]));
        }
        // Messages arrive while the deadline passes, and none is lost.
        for i in 0..ranks::rounds(300) as u64 {
            world.send(other, ONE, &[i]).unwrap();
            let found = loop {
                if let Some(message) = world.probe_for(other, ONE, Duration::from_micros(i % 7)).unwrap() {
                    break message;
                }
            };
            assert_eq!(found.recv().unwrap(), [i]);
        }
    });
}

#[test]
fn cancelled_receive_withdraws_or_has_its_message() {
    on(&[2], "cancelled_receive_withdraws_or_has_its_message", |world| {
        let other = 1 - world.rank();
        let mut withdrawn = 0;
        for round in 0..ranks::rounds(200) as u64 {
            let coming = world.irecv_into(other, ONE, vec![0; 4]);
            world.send(other, ONE, &[round]).unwrap();
            if round % 3 == 0 {
                std::thread::yield_now();
                world.progress().unwrap();
            }
            match coming.cancel() {
                Cancelled::Withdrawn(buffer) => {
                    withdrawn += 1;
                    assert_eq!(buffer, Some(vec![0; 4]));
                    assert_eq!(world.recv(other, ONE).unwrap().0, [round], "withdrawn receive consumed its message");
                }
                Cancelled::TooLate(request) => assert_eq!(request.wait().unwrap(), [round]),
            }
        }
        let never = world.irecv(other, TWO);
        assert!(matches!(never.cancel(), Cancelled::Withdrawn(None)));
        // A dropped receive is withdrawn: the next message goes to another receive.
        drop(world.irecv(other, TWO));
        world.barrier().unwrap();
        world.send(other, TWO, &[8]).unwrap();
        assert_eq!(world.recv(other, TWO).unwrap().0, [8]);
        let _ = withdrawn;
    });
}

#[test]
fn requests_complete_in_every_kind_of_wait() {
    on(&[2, 3], "requests_complete_in_every_kind_of_wait", |world| {
        let (rank, size) = (world.rank(), world.size());
        let mut coming: Requests<_> =
            (0..size).flat_map(|from| (0..5).map(move |_| from)).map(|from| world.irecv(from, ONE)).collect();
        assert!(coming.test_any().is_none());
        let begun = Instant::now();
        let late = world.irecv(rank, TWO).wait_for(Duration::from_millis(30)).unwrap_err();
        assert!(begun.elapsed() >= Duration::from_millis(30) && begun.elapsed() < Duration::from_secs(5));
        drop(late);
        world.barrier().unwrap();
        for i in 0..5 {
            for to in 0..size {
                world.send(to, ONE, &[10 * rank as u64 + i]).unwrap();
            }
        }
        let mut seen = vec![false; 5 * size];
        while let Some((number, got)) = coming.wait_any() {
            assert_eq!(got.unwrap(), [10 * (number as u64 / 5) + number as u64 % 5]);
            assert!(!std::mem::replace(&mut seen[number], true));
        }
        assert!(seen.into_iter().all(|seen| seen));
        // The source of each message, and a wait with a limit.
        let mut coming: Requests<_> = (0..=size).map(|_| world.irecv(Source::Any, ONE)).collect();
        let sent = world.all_gather(&[rank]).unwrap().into_iter().map(|to| world.isend(to, ONE, vec![rank as u64]));
        let mut sent: Requests<_> = sent.collect();
        let mut from: Vec<_> = (0..size)
            .map(|_| {
                let (got, status) = coming.take_any_for(Duration::from_secs(60)).unwrap().1.wait_status().unwrap();
                assert_eq!(got, [status.from as u64]);
                status.from
            })
            .collect();
        from.sort_unstable();
        assert_eq!(from, (0..size).collect::<Vec<_>>());
        let begun = Instant::now();
        assert!(coming.take_any_for(Duration::from_millis(30)).is_none() && coming.len() == 1);
        assert!(begun.elapsed() >= Duration::from_millis(30) && begun.elapsed() < Duration::from_secs(5));
        while let Some((to, ended)) = sent.take_any_for(Duration::from_secs(60)) {
            assert_eq!(ended.wait_status().unwrap().1.from, to);
        }
        drop(coming);
        let mut all = Requests::new();
        for to in 0..size {
            all.push(world.irecv(to, TWO));
            drop(world.isend(to, TWO, vec![to as u64]));
        }
        let ended = all.wait_all().unwrap();
        assert!(ended.into_iter().enumerate().all(|(i, (number, got))| i == number && got == [rank as u64]));
        assert!(matches!(world.irecv(rank, ONE).cancel(), Cancelled::Withdrawn(None)));
    });
}

/// A process may have several ranks; any thread may wait for their requests.
#[test]
fn set_waits_for_requests_of_several_ranks() {
    let (give, take) = std::sync::mpsc::channel();
    let take = Mutex::new(take);
    let soon = Duration::from_millis(20);
    let outcomes = transom::threads(2, |world| {
        let other = 1 - world.rank();
        if world.rank() == 1 {
            give.send(world.irecv(other, ONE)).unwrap();
            world.barrier().unwrap();
            return world.send(other, TWO, &[8]).unwrap();
        }
        let mut all: Requests<_> =
            [world.irecv(other, TWO), take.lock().unwrap().recv().unwrap()].into_iter().collect();
        assert!(all.test_any().is_none() && all.take_any_for(soon).is_none());
        let (number, got) = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(soon);
                world.send(other, ONE, &[7]).unwrap();
            });
            all.wait_any().expect("two requests should be left")
        });
        assert_eq!((number, got.unwrap()), (1, vec![7]), "expected the request of the other rank first");
        assert!(all.take_any_for(soon).is_none());
        world.barrier().unwrap();
        let (number, got) = all.wait_any().expect("one request should be left");
        assert_eq!((number, got.unwrap()), (0, vec![8]));
        assert!(all.wait_any().is_none());
    });
    outcomes.unwrap();
}

#[test]
fn wait_all_starts_every_request_before_waiting() {
    on(&[1, 2], "wait_all_starts_every_request_before_waiting", |world| {
        // The first waits for what the second starts.
        let (me, other) = (world.rank() as u64, world.size() - 1 - world.rank());
        let requests = (0..2).map(|i| if i == 0 { world.irecv(other, ONE) } else { world.isend(other, ONE, vec![me]) });
        assert_eq!(Request::wait_all(requests).unwrap(), [[other as u64], [me]]);
    });
}

#[test]
fn requests_to_self_complete_as_they_start() {
    on(&[1, 2], "requests_to_self_complete_as_they_start", |world| {
        let me = world.rank();
        // Until there is a ring.
        for i in 0..100 {
            world.send(me, ONE, &[i]).unwrap();
            assert_eq!(world.recv(me, ONE).unwrap().0, [i]);
        }
        let mut sent = world.isend(me, ONE, vec![1, 2, 3]);
        assert!(sent.test());
        assert_eq!(sent.status(), Some(Status { from: me, tag: ONE.number(), len: 3 }));
        let mut came = world.irecv_into(me, Tag::<u64>::any(), vec![9; 5]);
        assert!(came.test());
        assert_eq!(came.status(), Some(Status { from: me, tag: ONE.number(), len: 3 }));
        assert_eq!((sent.wait().unwrap(), came.wait().unwrap()), (vec![1, 2, 3], vec![1, 2, 3]));

        world.send(me, ONE, &[4, 5, 6]).unwrap();
        let Failed { error, buffer } = world.irecv_into(me, ONE, vec![9; 2]).wait().unwrap_err();
        assert!(matches!(error, Error::Truncated { status: Status { len: 3, .. }, room: 2 }), "{error:?}");
        assert_eq!(buffer.map(|buffer| buffer.len()), Some(2));

        // A message of another tag was sent before it, and another receive was posted before.
        world.send(me, TWO, &[7]).unwrap();
        world.send(me, ONE, &[8]).unwrap();
        assert_eq!(world.irecv_into(me, ONE, vec![0]).wait().unwrap(), [8]);
        assert_eq!(world.irecv_into(me, TWO, vec![0]).wait().unwrap(), [7]);
        let first = world.irecv_into(Source::Any, ONE, vec![0]);
        drop(world.isend(me, ONE, vec![10]));
        drop(world.isend(me, ONE, vec![11]));
        let second = world.irecv_into(me, ONE, vec![0]);
        assert_eq!((second.wait().unwrap(), first.wait().unwrap()), (vec![11], vec![10]));
        // A receive from any source fails when all others have left.
        world.barrier().unwrap();
    });
}

/// The adapter may access the same memory for several messages. The end of one message does not end the access for the
/// others.
#[test]
fn one_buffer_is_sent_to_all_ranks_at_once() {
    on(&[2, 4], "one_buffer_is_sent_to_all_ranks_at_once", |world| {
        const LENGTHS: [usize; 3] = [100_000, 1_500_000, 100_000];
        let mine = pattern(5, 1_500_000);
        for receives_first in [true, false] {
            if world.rank() == 0 {
                let sent = world.scope(|scope| {
                    if receives_first {
                        world.barrier().unwrap();
                    }
                    let all = (1..world.size()).flat_map(|to| LENGTHS.map(|len| scope.isend(to, BYTES, &mine[..len])));
                    let all: Vec<_> = all.collect();
                    if !receives_first {
                        world.barrier().unwrap();
                    }
                    all.into_iter().for_each(|sent| assert!(sent.wait().is_ok()));
                    Ok::<(), Error>(())
                });
                sent.unwrap();
            } else {
                if !receives_first {
                    world.barrier().unwrap();
                }
                let all = LENGTHS.map(|len| world.irecv_into(0, BYTES, vec![0; len]));
                if receives_first {
                    world.barrier().unwrap();
                }
                for (got, len) in all.into_iter().zip(LENGTHS) {
                    assert!(got.wait().unwrap() == mine[..len], "{len}, receives first: {receives_first}");
                }
            }
        }
    });
}

#[test]
fn block_on_runs_futures_without_a_runtime() {
    on(&[2], "block_on_runs_futures_without_a_runtime", |world| {
        let other = 1 - world.rank();
        let rounds = ranks::rounds(200) as u64;
        async fn pong(world: &World, other: usize, rounds: u64) -> Result<u64, transom::Error> {
            let mut sum = 0;
            for i in 0..rounds {
                let sent = world.isend(other, ONE, vec![i; 1 + 3000 * (i as usize % 4)]);
                sum += world.irecv(other, ONE).await?[0];
                sent.await?;
            }
            Ok(sum)
        }
        assert_eq!(world.block_on(pong(&world, other, rounds)).unwrap().unwrap(), (rounds - 1) * rounds / 2);
    });
}

/// Only this call makes progress for the messages of that rank.
#[test]
fn block_on_completes_a_request_of_another_rank() {
    let (requests, of_another) = std::sync::mpsc::channel();
    let of_another = Mutex::new(of_another);
    let (ended, told) = std::sync::mpsc::channel();
    let told = Mutex::new(told);
    let ranks = transom::threads(2, |world| {
        if world.rank() == 1 {
            world.barrier().unwrap();
            requests.send(world.irecv(0, ONE)).unwrap();
            return told
                .lock()
                .unwrap()
                .recv_timeout(Duration::from_secs(20))
                .expect("the request should end within 20 s");
        }
        let ended = ended.clone();
        world.barrier().unwrap();
        let request = of_another.lock().unwrap().recv().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                world.send(1, ONE, &[7]).unwrap();
            });
            assert_eq!(world.block_on(request).unwrap().unwrap(), [7]);
        });
        ended.send(()).unwrap();
    });
    ranks.unwrap();
}

/// A task that has a request, and whose last waker another request holds.
struct Task(#[allow(dead_code, reason = "held only until it is dropped")] Mutex<Request<'static, Vec<u64>>>);

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn waker_may_own_a_request() {
    on(&[1, 2], "waker_may_own_a_request", |world| {
        let me = world.rank();
        let mut asked = world.irecv(me, ONE);
        let waker = || Waker::from(Arc::new(Task(Mutex::new(world.irecv(me, TWO)))));
        for again in [false, true] {
            assert!(Pin::new(&mut asked).poll(&mut Context::from_waker(&waker())).is_pending(), "{again}");
        }
        assert!(matches!(asked.cancel(), Cancelled::Withdrawn(None)));
        // The receives of the tasks are withdrawn.
        world.send(me, TWO, &[5]).unwrap();
        assert_eq!(world.recv(me, TWO).unwrap().0, [5]);
    });
}

/// A waker that was given to a dropped collective is dropped when the collective ends, in whichever call that is.
#[test]
fn waker_of_dropped_collective_may_own_a_request() {
    on(&[2], "waker_of_dropped_collective_may_own_a_request", |world| {
        let me = world.rank();
        if me == 0 {
            let mut there = world.ibarrier();
            let waker = Waker::from(Arc::new(Task(Mutex::new(world.irecv(me, TWO)))));
            assert!(Pin::new(&mut there).poll(&mut Context::from_waker(&waker)).is_pending());
            drop((there, waker));
            world.send(1, ONE, &[0]).unwrap();
        } else {
            world.recv(0, ONE).unwrap();
            world.ibarrier().wait().unwrap();
        }
        world.barrier().unwrap();
        // The receive of the task is withdrawn.
        world.send(me, TWO, &[5]).unwrap();
        assert_eq!(world.recv(me, TWO).unwrap().0, [5]);
    });
}

/// A reduction that has a request, and may panic with it.
struct Sum(Mutex<Option<Request<'static, Vec<u64>>>>, bool);

impl Reduction<u64> for Sum {
    const COMMUTES: bool = true;

    fn apply(&self, left: u64, right: u64) -> u64 {
        if self.1 {
            std::panic::panic_any(self.0.lock().unwrap().take());
        }
        left + right
    }
}

#[test]
fn operator_may_own_a_request() {
    on(&[1, 2, 3], "operator_may_own_a_request", |world| {
        let me = world.rank();
        let sum = |panics| Sum(Mutex::new(Some(world.irecv(me, TWO))), panics);
        assert_eq!(world.iall_reduce(vec![1], sum(false)).wait().unwrap(), [world.size() as u64]);
        world.barrier().unwrap();
        // The next collective fails, and with it any that a rank is still in: all must have passed the barrier.
        let others = || (0..world.size()).filter(|&rank| rank != me);
        others().for_each(|rank| world.send(rank, ONE, &[0]).unwrap());
        others().for_each(|rank| _ = world.recv(rank, ONE).unwrap());
        let panicked = world.iall_reduce(vec![1], sum(true)).wait();
        assert_eq!(panicked.is_err(), world.size() > 1);
        world.send(me, TWO, &[5]).unwrap();
        assert_eq!(world.recv(me, TWO).unwrap().0, [5]);
    });
}

/// A waker that counts its wakes and drops, and panics in them if the test says so.
struct Panics(Arc<(AtomicBool, AtomicUsize)>);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        if self.0.0.load(SeqCst) {
            panic!("intended panic of a waker");
        }
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        self.0.1.fetch_add(1, SeqCst);
        if self.0.0.load(SeqCst) && !std::thread::panicking() {
            panic!("intended panic in the drop of a waker");
        }
    }
}

/// The call that runs a waker may have lent a buffer, and must not be unwound.
#[test]
fn panicking_waker_does_not_unwind_the_caller() {
    on(&[1, 2], "panicking_waker_does_not_unwind_the_caller", |world| {
        let other = world.size() - 1 - world.rank();
        let state = Arc::new((AtomicBool::new(false), AtomicUsize::new(0)));
        let asked: Vec<_> = (0..4)
            .map(|i| {
                let mut asked = world.irecv(other, Tag::<u64>::new(10 + i / 2));
                let waker = Waker::from(Arc::new(Panics(state.clone())));
                assert!(Pin::new(&mut asked).poll(&mut Context::from_waker(&waker)).is_pending());
                asked
            })
            .collect();
        world.barrier().unwrap();
        state.0.store(true, SeqCst);
        let sent: Vec<_> = (0..2_u64).map(|i| world.isend(other, Tag::new(10), vec![i])).collect();
        let long = world.isend(other, ONE, vec![7; 100_000]);
        // Two wakers were called when this returns, most often inside it.
        let mut into = vec![0; 100_000];
        assert_eq!(world.recv_into(other, ONE, &mut into).unwrap().len, 100_000);
        assert!(into.iter().all(|got| *got == 7));
        assert_eq!(state.1.load(SeqCst), 2);
        for (i, asked) in asked.into_iter().enumerate() {
            match i {
                0 | 1 => assert_eq!(asked.wait().unwrap(), [i as u64]),
                _ => assert!(matches!(asked.cancel(), Cancelled::Withdrawn(None))),
            }
        }
        assert_eq!(state.1.load(SeqCst), 4);
        sent.into_iter().for_each(|sent| assert!(sent.wait().is_ok()));
        long.wait().unwrap();
        // A peer that leaves early would end the receives that this rank cancels.
        world.barrier().unwrap();
    });
}

#[test]
fn restarted_persistent_messages_arrive() {
    on(&[1, 2, 4], "restarted_persistent_messages_arrive", |world| {
        let (rank, size) = (world.rank(), world.size());
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        for len in [10, 5000, 100_000] {
            let mut sending = world.send_init(next, ONE, vec![0; len]).unwrap();
            let mut coming = world.recv_init(before, ONE, vec![0; len + 1]).unwrap();
            for step in 1..ranks::rounds(20) as u64 {
                let incoming = coming.start().unwrap();
                sending.buffer().unwrap().fill(step);
                if step % 3 == 0 {
                    let _ = sending.start().unwrap(); // waited for by the next call
                    assert_eq!(incoming.wait().unwrap().len, len);
                } else {
                    let outgoing = sending.start().unwrap();
                    assert_eq!(incoming.wait().unwrap(), Status { from: before, tag: 1, len });
                    outgoing.wait().unwrap();
                }
                let got = coming.buffer().unwrap();
                assert!(got[..len].iter().all(|got| *got == step) && got[len] == 0);
            }
        }
        let mut nobody = world.send_init(None, ONE, vec![1]).unwrap();
        assert_eq!(nobody.start().unwrap().wait().unwrap().from, Status::NOBODY);
    });
}

/// Four requests, of which the second and the last name a rank that does not exist.
fn four(world: &World) -> [Request<'static, Vec<u64>>; 4] {
    let (me, size) = (world.rank(), world.size());
    [world.isend(me, TWO, vec![1]), world.isend(size, TWO, vec![2]), world.irecv(me, TWO), world.irecv(size + 1, TWO)]
}

#[test]
fn failed_wait_all_names_the_first_failure() {
    on(&[1, 2], "failed_wait_all_names_the_first_failure", |world| {
        let size = world.size();
        let is_second = |error: &Error| match error {
            Error::Request { index: 1, source } => matches!(**source, Error::NoSuchRank { rank, .. } if rank == size),
            _ => false,
        };
        let message = format!("request 1 (from 0) of those waited for failed: there is no rank {size}: ranks are 0 to");
        // The requests keep their results.
        let [mut sent, mut no_send, mut coming, mut no_receive] = four(&world);
        let all: &mut [&mut dyn Pending] = &mut [&mut sent, &mut no_send, &mut coming, &mut no_receive];
        let error = transom::wait_all(all).unwrap_err();
        assert!(is_second(&error) && error.to_string().starts_with(&message), "{error}");
        assert!(is_second(&transom::test_all(all).unwrap_err()) && is_second(&transom::wait_all(all).unwrap_err()));
        assert_eq!((sent.wait().unwrap(), coming.wait().unwrap()), (vec![1], vec![1]));
        let failed = no_send.wait().unwrap_err();
        assert!(matches!(failed.error, Error::NoSuchRank { .. }) && failed.buffer == Some(vec![2]), "{failed}");
        assert!(matches!(no_receive.wait().unwrap_err().error, Error::NoSuchRank { .. }));

        let failed = Request::wait_all(four(&world)).unwrap_err();
        assert!(is_second(&failed.error) && failed.buffer == Some(vec![2]), "{failed}");
        let failed = Requests::from_iter(four(&world)).wait_all().unwrap_err();
        assert!(is_second(&failed.error) && failed.buffer == Some(vec![2]), "{failed}");
        // `?` keeps the index and the line of the program.
        let error = transom::Error::from(failed);
        assert!(matches!(error, transom::Error::Request { index: 1, .. }));
        assert!(error.to_string().starts_with(&message) && format!("{error:?}").contains("requests.rs:"), "{error:?}");
        assert!(matches!(error.downcast_ref(), Some(Error::NoSuchRank { .. })), "{error}");
    });
}

#[test]
fn persistent_messages_complete_in_one_wait_all() {
    on(&[1, 2, 4], "persistent_messages_complete_in_one_wait_all", |world| {
        let (rank, size) = (world.rank(), world.size());
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        // The first request ends only because of the later ones.
        let mut coming: Vec<_> = (1..4).map(|len| world.recv_init(before, ONE, vec![0; len]).unwrap()).collect();
        let mut going: Vec<_> = (1..4).map(|len| world.send_init(next, ONE, vec![7; len]).unwrap()).collect();
        for _ in 0..3 {
            let all = coming.iter_mut().chain(&mut going).map(|message| message.start().unwrap());
            let lens: Vec<_> = Active::wait_all(all).unwrap()[..3].iter().map(|came| came.len).collect();
            assert_eq!(lens, [1, 2, 3]);
        }
        // One error, and all have ended.
        let longer = world.isend(next, TWO, vec![1, 2, 3]);
        let mut short = world.recv_init(before, TWO, vec![0]).unwrap();
        let all = std::iter::once(&mut short).chain(&mut coming).chain(&mut going);
        let error = Active::wait_all(all.map(|message: &mut Persistent<u64>| message.start().unwrap())).unwrap_err();
        let Error::Request { index: 0, source } = error else { panic!("{error}") };
        assert!(matches!(*source, Error::Truncated { .. }), "{source}");
        assert_eq!(coming[2].buffer().unwrap(), [7; 3]);
        longer.wait().unwrap();
    });
}
