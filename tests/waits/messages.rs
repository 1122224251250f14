//! Sends that would block, probes awaited by tasks, and a buffer in a send and a receive at the same time.

use crate::ranks;
use ranks::{VICTIM, die, fails_in_time, pattern};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use transom::messages::{Error, Requests, Source, Tag};
use transom::{Status, Window, World};

const WORK: Tag<u8> = Tag::new(1);
const OVER: Tag<u64> = Tag::new(2);

#[test]
fn try_isend_that_would_block_returns_its_buffer() {
    ranks::on(&[2, 3], "try_isend_that_would_block_returns_its_buffer", |world: World| {
        // A short message, one in pieces, and one by rendezvous.
        for len in [1, 3_000, 12_000, 200_000] {
            let most = 2_000;
            let mut told: Window<u64> = world.allocate(1).unwrap();
            told.fence().unwrap();
            match world.rank() {
                0 => {
                    let mut going = Requests::new();
                    // Rank 1 serves no messages until it gets their number.
                    let refused = (0..most).find(|&number| match world.try_isend(1, WORK, pattern(number, len)) {
                        Ok(request) => {
                            going.push(request);
                            false
                        }
                        Err(buffer) => {
                            assert_eq!(buffer, pattern(number, len), "refused send changed its buffer");
                            true
                        }
                    });
                    let sent = going.len();
                    assert_eq!(refused, Some(sent), "none of {most} sends of {len} bytes was refused");
                    assert!(sent > 0 || ranks::over_network(), "the first send was refused");
                    told.lock_shared(1).unwrap().put(0, &[1 + sent as u64]).unwrap();
                    going
                        .wait_all()
                        .unwrap()
                        .into_iter()
                        .for_each(|(number, buffer)| assert_eq!(buffer, pattern(number, len)));
                    // The refused message was not sent, and the next one is this.
                    world.send(1, WORK, &pattern(7, len)).unwrap();
                }
                1 => {
                    while told.local().get(0).unwrap() == 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    let sent = told.local().get(0).unwrap() as usize - 1;
                    for number in 0..sent {
                        assert_eq!(world.recv(0, WORK).unwrap().0, pattern(number, len), "{number} of {sent}");
                    }
                    assert_eq!(world.recv(0, WORK).unwrap().0, pattern(7, len));
                }
                _ => {}
            }
            told.fence().unwrap();
        }
        assert!(world.try_isend(None, WORK, vec![1]).expect("a send to `None` should be accepted").wait().is_ok());
        let beyond = world
            .try_isend(world.size(), WORK, vec![1])
            .expect("a send to a missing rank should return a failing request")
            .wait();
        assert!(matches!(beyond.unwrap_err().error, Error::NoSuchRank { .. }));
    });
}

#[test]
fn sendrecv_replace_exchanges_the_buffer() {
    ranks::on_all_sizes("sendrecv_replace_exchanges_the_buffer", |world: World| {
        let (me, n) = (world.rank(), world.size());
        for len in [0, 1, 100, 100_000] {
            let mut block = pattern(me, len);
            let status = world.sendrecv_replace((me + 1) % n, (me + n - 1) % n, WORK, &mut block).unwrap();
            assert_eq!((status.from, status.len), ((me + n - 1) % n, len));
            assert_eq!(block, pattern((me + n - 1) % n, len));
        }
        // A rank at an edge may have no rank on either side.
        let mut block = [me as u8];
        let (left, right) = (me.checked_sub(1), Some(me + 1).filter(|&rank| rank < n));
        world.sendrecv_replace(right, left, WORK, &mut block).unwrap();
        assert_eq!(block, [left.unwrap_or(0) as u8]);
    });
}

/// A scope waits for dropped requests, as `std::thread::scope` joins threads that were not joined.
#[test]
fn scope_waits_for_its_dropped_requests() {
    ranks::on(&[1, 2, 4], "scope_waits_for_its_dropped_requests", |world: World| {
        let (me, n) = (world.rank(), world.size());
        let (next, before) = ((me + 1) % n, (me + n - 1) % n);
        for len in [4, 100_000] {
            let (mine, mut got) = (pattern(me, len), vec![0; len]);
            let ended = world.scope(|scope| {
                drop(scope.irecv(before, WORK, &mut got));
                drop(scope.isend(next, WORK, &mine));
                Ok::<(), Error>(())
            });
            ended.unwrap();
            assert!(got == pattern(before, len), "{len} bytes");
        }
        // An error is not lost, whether the request was dropped or forgotten.
        for forgotten in [false, true] {
            let mut short = [0; 2];
            let ended = world.scope(|scope| {
                let coming = scope.irecv(before, WORK, &mut short);
                if forgotten {
                    std::mem::forget(coming)
                } else {
                    drop(coming)
                }
                world.send(next, WORK, &[1, 2, 3])
            });
            let error = ended.unwrap_err();
            assert!(matches!(error, Error::Truncated { status, room: 2 } if status.len == 3), "{error}");
            assert_eq!(short, [1, 2]);
        }
        // An error of the body is returned unchanged, and receives without a sender are withdrawn.
        let mut never = [0];
        let ended = world.scope(|scope| {
            let _coming = scope.irecv(before, WORK, &mut never);
            world.send(n, WORK, &[1])
        });
        assert!(matches!(ended, Err(Error::NoSuchRank { .. })));
        world.barrier().unwrap();
        let sent = world.isend(next, WORK, vec![5]);
        assert_eq!(world.recv(before, WORK).unwrap().0, [5]);
        sent.wait().unwrap();
        assert_eq!(never, [0]);
    });
}

#[test]
fn probed_message_is_received_by_its_tag() {
    const NUMBERS: Tag<u64> = Tag::new(3);
    ranks::on(&[1, 2, 4], "probed_message_is_received_by_its_tag", |world: World| {
        let (me, n) = (world.rank(), world.size());
        let (mut numbers, mut bytes) = (Requests::new(), Requests::new());
        for to in 0..n {
            match (me + to) % 2 {
                0 => drop(numbers.push(world.isend(to, NUMBERS, vec![me as u64; 5_000]))),
                _ => drop(bytes.push(world.isend(to, WORK, pattern(me, 3)))),
            }
        }
        let mut heard = vec![0; n];
        for _ in 0..n {
            let message = world.probe(Source::Any, Tag::<u8>::any()).unwrap();
            let from = message.status().from;
            heard[from] += 1;
            match message.of(NUMBERS) {
                Ok(numbers) => {
                    assert_eq!((numbers.status().len, (me + from) % 2), (5_000, 0));
                    assert!(numbers.recv().unwrap() == [from as u64; 5_000]);
                }
                // The message stays the same after `of` with a wrong type, whether the tag was right or not.
                Err(message) => {
                    let message = message.of(Tag::<u16>::new(1)).err().expect("three bytes should not convert to u16");
                    assert_eq!((message.status().tag, message.recv().unwrap()), (1, pattern(from, 3)));
                }
            }
        }
        assert_eq!(heard, vec![1; n]);
        numbers.wait_all().unwrap();
        bytes.wait_all().unwrap();
    });
}

/// Counts its wakes.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn dropped_probe_leaves_the_message() {
    ranks::on(&[2, 4], "dropped_probe_leaves_the_message", |world: World| {
        let others = 1..world.size();
        if world.rank() > 0 {
            world.recv(0, OVER).unwrap();
            return (0..3).for_each(|number| world.send(0, WORK, &[world.rank() as u8, number]).unwrap());
        }
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        for from in others {
            let mut probing = pin!(world.probe_async(from, WORK));
            let mut any = pin!(world.probe_async(Source::Any, WORK));
            assert!(probing.as_mut().poll(&mut context).is_pending());
            assert!(any.as_mut().poll(&mut context).is_pending());
            woken.0.store(0, SeqCst);
            world.send(from, OVER, &[1]).unwrap();
            // All messages have arrived, and the probes are not polled any more.
            world.probe(from, WORK).unwrap().recv().map(|first| assert_eq!(first, [from as u8, 0])).unwrap();
            assert!(woken.0.load(SeqCst) > 0, "arrived message did not wake the dropped probe's task");
            for number in [1, 2] {
                assert_eq!(world.recv(Source::Any, WORK).unwrap().0, [from as u8, number]);
            }
        }
    });
}

/// The awaiting thread moves the messages, or, with an executor of the program, the library's thread.
#[test]
fn awaited_probe_sleeps_until_a_message_arrives() {
    for thread in ranks::each(&[false, true]) {
        let variables: &[(&str, &str)] = if *thread { &[("TRANSOM_PROGRESS", "thread")] } else { &[] };
        ranks::on_with(variables, &[2], "awaited_probe_sleeps_until_a_message_arrives", |world: World| {
            if world.rank() == 1 {
                for number in 0..5 {
                    std::thread::sleep(Duration::from_millis(30));
                    world.send(0, WORK, &[number]).unwrap();
                }
                return;
            }
            let polls = AtomicUsize::new(0);
            let serve = async {
                for number in 0..5 {
                    let mut probing = pin!(world.probe_async(Source::Any, WORK));
                    let counted = std::future::poll_fn(|context| {
                        polls.fetch_add(1, SeqCst);
                        probing.as_mut().poll(context)
                    });
                    let message = counted.await.unwrap();
                    assert_eq!((message.status().from, message.recv().unwrap()), (1, vec![number]));
                }
            };
            if std::env::var_os("TRANSOM_PROGRESS").is_some() {
                parked(serve);
            } else {
                world.block_on(serve).unwrap();
            }
            // Two for each message, and a few for other events.
            assert!(polls.load(SeqCst) < 100, "{polls:?} polls");
        });
    }
}

/// An executor that does not know the library: the thread sleeps until it is woken.
fn parked(future: impl Future) {
    struct Thread(std::thread::Thread);
    impl Wake for Thread {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Thread(std::thread::current())));
    let mut future = pin!(future);
    while future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        std::thread::park();
    }
}

#[test]
fn awaited_probe_reports_a_death() {
    for size in [2, 3] {
        let ended = ranks::outcome_of(size, "awaited_probe_reports_a_death", |world| {
            if world.rank() == VICTIM {
                (1..world.size()).for_each(|_| drop(world.recv(Source::Any, OVER).unwrap()));
                std::thread::sleep(Duration::from_millis(30));
                die();
            }
            world.send(VICTIM, OVER, &[1]).unwrap();
            let from = if world.rank() == 0 { Source::Rank(VICTIM) } else { Source::Any };
            fails_in_time("probe_async", || world.block_on(world.probe_async(from, WORK)).unwrap().map(drop));
        });
        let Some(outcome) = ended else { return };
        ranks::only_failed(&outcome, VICTIM, Status::Killed(9));
    }
}
