//! Progress by a thread while the program computes; and the descriptor on which a program sleeps while it also waits
//! for other events.

use crate::ranks;
use ranks::{BY_MESSAGES, IN_TIME, VICTIM, die, on, on_with, outcome_with, over_network, within};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use std::future::Future;
use std::os::fd::BorrowedFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use transom::messages::{Error, Request, Source, Tag};
use transom::{Op, Status, Window, World};

const ONE: Tag<u64> = Tag::new(1);
const TWO: Tag<u64> = Tag::new(2);
const THREAD: (&str, &str) = ("TRANSOM_PROGRESS", "thread");

/// Makes no call that moves messages until `others` ranks have reported that they are done.
fn compute_until_told(window: &Window<u64>, others: usize) {
    let begun = Instant::now();
    while window.local().get(0).unwrap() < others as u64 {
        assert!(begun.elapsed() < within(Duration::from_secs(10)), "the other ranks wait for the computing rank");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn say_done(window: &mut Window<u64>) {
    window.lock_shared(0).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
}

#[test]
fn progress_thread_receives_while_a_rank_computes() {
    on_with(&[THREAD], &[2, 4], "progress_thread_receives_while_a_rank_computes", |world| {
        let mut window = world.allocate::<u64>(1).unwrap();
        let others = world.size() - 1;
        if world.rank() == 0 {
            let coming: Vec<_> = (0..others).map(|_| world.irecv(Source::Any, ONE)).collect();
            world.barrier().unwrap();
            compute_until_told(&window, others);
            for (n, got) in coming.into_iter().map(|coming| coming.wait_status().unwrap()).enumerate() {
                assert!(got.0 == vec![got.1.from as u64; 500_000], "message {n}");
            }
        } else {
            world.barrier().unwrap();
            world.isend(0, ONE, vec![world.rank() as u64; 500_000]).wait().unwrap();
            say_done(&mut window);
        }
    });
}

#[test]
fn progress_thread_drives_collectives_and_pipes() {
    let variables = [&[THREAD], BY_MESSAGES].concat();
    on_with(&variables, &[2, 4], "progress_thread_drives_collectives_and_pipes", |world| {
        let mut window = world.allocate::<u64>(1).unwrap();
        let (rank, others) = (world.rank(), world.size() - 1);
        let pipes: Vec<_> = match rank {
            0 => (1..=others).map(|to| world.pipe(to).unwrap()).collect(),
            _ => vec![world.pipe(0).unwrap()],
        };
        let sum = world.iall_reduce(vec![rank as u64; 100_000], Op::Sum);
        if rank == 0 {
            let puts: Vec<_> = pipes.iter().map(|pipe| pipe.start_put(vec![3; 1 << 20])).collect();
            compute_until_told(&window, others);
            puts.into_iter().for_each(|put| assert_eq!(put.wait().unwrap().len(), 1 << 20));
        } else {
            let mut got = 0;
            while got < 1 << 20 {
                got += pipes[0].start_get(vec![0; 1 << 20]).wait().unwrap().len();
            }
        }
        let expected = (others * (others + 1) / 2) as u64;
        if rank > 0 {
            assert!(sum.wait().unwrap() == vec![expected; 100_000]);
            say_done(&mut window);
        } else {
            assert!(sum.wait().unwrap() == vec![expected; 100_000]);
        }
    });
}

/// Each call names the reason, not only the first.
#[test]
fn failed_progress_thread_is_named_by_every_call() {
    let no_thread = ("RUST_MIN_STACK", "1152921504606846976");
    if over_network() {
        return; // adapters need threads of their own
    }
    let name = "failed_progress_thread_is_named_by_every_call";
    let ran = outcome_with(&[THREAD, no_thread], 2, name, |world| {
        for _ in 0..3 {
            let error = world.send(1 - world.rank(), ONE, &[1]).unwrap_err().to_string();
            assert!(error.contains("the progress thread cannot be started"), "{error}");
        }
    });
    if let Some(outcome) = ran {
        assert!(outcome.success(), "{outcome}");
    }
}

#[test]
fn idle_progress_thread_uses_no_cpu_time() {
    if ranks::over_network() {
        return; // it sleeps there, which may cost much where a processor is emulated
    }
    on_with(&[THREAD], &[2], "idle_progress_thread_uses_no_cpu_time", |world| {
        world.barrier().unwrap();
        let never = world.irecv(Source::Any, TWO);
        let computed = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap();
        let before = computed();
        std::thread::sleep(Duration::from_millis(500));
        let took = computed() - before;
        assert!(took < Duration::from_millis(100), "{took:?} of 500 ms");
        drop(never);
        world.barrier().unwrap();
    });
}

#[test]
fn progress_thread_ends_with_the_world() {
    let threads = || {
        let names = std::fs::read_dir("/proc/self/task").unwrap().filter_map(|task| {
            std::fs::read_to_string(task.unwrap().path().join("comm")).ok() // it may have ended meanwhile
        });
        names.filter(|name| "transom progress".starts_with(name.trim_end())).count()
    };
    let body = |world: World| {
        // The thread names itself after it has started.
        while threads() != 1 {
            std::thread::yield_now();
        }
        world.send(1 - world.rank(), ONE, &[1]).unwrap();
        let team = world.split(Some(0), 0).unwrap();
        drop(world);
        assert_eq!(threads(), 1);
        drop(team);
        assert_eq!(threads(), 0);
    };
    if let Some(outcome) = ranks::outcome_with(&[THREAD], 2, "progress_thread_ends_with_the_world", body) {
        let said = |rank| String::from_utf8_lossy(outcome.output(rank)).into_owned();
        assert!(outcome.success(), "{outcome}\n{}{}", said(0), said(1));
    }
}

/// Returns whether the descriptor was signalled in time.
fn told(messages: BorrowedFd<'_>) -> bool {
    let most = Timespec::try_from(within(Duration::from_secs(10))).unwrap();
    poll(&mut [PollFd::new(&messages, PollFlags::IN)], Some(&most)).unwrap() == 1
}

fn sleep_until_ended<B>(world: &World, request: &mut Request<'_, B>) {
    loop {
        world.arm().unwrap();
        if request.test() {
            return;
        }
        assert!(told(world.event_fd().unwrap()), "descriptor did not signal an event");
    }
}

#[test]
fn event_fd_signals_every_message_event() {
    on(&[2, 4], "event_fd_signals_every_message_event", |world| {
        let (rank, size) = (world.rank(), world.size());
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        // Without the signal, a round would wait for the thread's look, a tenth of a second later.
        for round in 0..ranks::rounds(1000) as u64 {
            let mut coming = world.irecv(before, ONE);
            let mut sent = world.isend(next, ONE, vec![round; if round % 10 == 0 { 20_000 } else { 3 }]);
            sleep_until_ended(&world, &mut coming);
            sleep_until_ended(&world, &mut sent);
            assert_eq!(coming.wait().unwrap()[2], round);
        }
        // A message without a receive is signalled, too.
        drop(world.isend(next, TWO, vec![7]));
        while world.peek(before, TWO).unwrap().is_none() {
            world.arm().unwrap();
            assert!(world.peek(before, TWO).unwrap().is_some() || told(world.event_fd().unwrap()));
        }
        assert_eq!(world.recv(before, TWO).unwrap().0, [7]);
        // Nothing is signalled twice, nor signalled for earlier messages.
        world.barrier().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        world.progress().unwrap();
        world.arm().unwrap();
        let fd = world.event_fd().unwrap();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)).unwrap(), 0);
    });
}

/// Bytes, free space, and the end of the stream, although neither a put nor a get is in flight.
#[test]
fn event_fd_signals_pipe_data_and_space() {
    on(&[2], "event_fd_signals_pipe_data_and_space", |world| {
        const LEN: usize = 1 << 20;
        let pipe = world.pipe(1 - world.rank()).unwrap();
        let fd = world.event_fd().unwrap();
        // The other rank sleeps by then.
        let pause = || std::thread::sleep(Duration::from_millis(30));
        let byte = |at: usize| (at / 1000 * 7 + at) as u8;
        if world.rank() == 0 {
            let bytes: Vec<u8> = (0..LEN).map(byte).collect();
            let mut put = 0;
            pause();
            while put < LEN {
                world.arm().unwrap();
                match pipe.put(&[&bytes[put..]]).unwrap() {
                    0 => assert!(told(fd), "descriptor did not signal space after {put} bytes"),
                    went => put += went,
                }
            }
            pause();
            pipe.end().unwrap();
        } else {
            let (mut got, mut into) = (0, [0; 3000]);
            loop {
                world.arm().unwrap();
                match pipe.get(&mut [&mut into[..]]).unwrap() {
                    None => break,
                    Some(0) => assert!(told(fd), "descriptor did not signal data after {got} bytes"),
                    Some(came) => {
                        assert!((0..came).all(|at| into[at] == byte(got + at)), "data differs from byte {got} on");
                        if got == 0 {
                            pause();
                        }
                        got += came;
                    }
                }
            }
            assert_eq!(got, LEN);
        }
    });
}

#[test]
fn event_fd_signals_a_death() {
    let body = |world: World| {
        let mut never = world.irecv(VICTIM, ONE);
        world.event_fd().unwrap();
        if world.rank() == VICTIM {
            for _ in 1..world.size() {
                world.recv(Source::Any, TWO).unwrap();
            }
            std::thread::sleep(Duration::from_millis(30));
            die();
        }
        world.send(VICTIM, TWO, &[0]).unwrap();
        let begun = Instant::now();
        sleep_until_ended(&world, &mut never);
        assert!(matches!(never.wait().unwrap_err().error, Error::PeerDied { rank: VICTIM }));
        assert!(begun.elapsed() < within(IN_TIME), "{:?}", begun.elapsed());
        // The progress thread goes on.
        if world.size() > 2 {
            let living: Vec<usize> = (0..world.size()).filter(|rank| *rank != VICTIM).collect();
            for to in &living {
                drop(world.isend(*to, TWO, vec![1; 20_000]));
            }
            for from in &living {
                let mut coming = world.irecv(*from, TWO);
                sleep_until_ended(&world, &mut coming);
                assert_eq!(coming.wait().unwrap().len(), 20_000);
            }
        }
    };
    for size in [2, 4] {
        let Some(outcome) = ranks::outcome_of(size, "event_fd_signals_a_death", body) else { return };
        ranks::only_failed(&outcome, VICTIM, Status::Killed(9));
    }
}

/// An executor that does not know the library, and sleeps until it is woken.
struct Parked(std::thread::Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The output of the future, and the number of polls.
fn run_by_another<F: Future>(future: F) -> (F::Output, usize) {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Parked(std::thread::current())));
    for polls in 1.. {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return (output, polls);
        }
        std::thread::park();
    }
    unreachable!("the future ends before")
}

#[test]
fn foreign_executor_sleeps_with_a_progress_thread() {
    on_with(&[THREAD], &[2], "foreign_executor_sleeps_with_a_progress_thread", |world| {
        let other = 1 - world.rank();
        for round in 0..ranks::rounds(20) as u64 {
            let coming = world.irecv(other, ONE);
            world.barrier().unwrap();
            if world.rank() == 0 {
                std::thread::sleep(Duration::from_millis(3));
            }
            drop(world.isend(other, ONE, vec![round; 30_000]));
            let (got, polls) = run_by_another(coming);
            assert_eq!(got.unwrap()[29_999], round);
            assert!(polls < 10, "{polls} polls");
        }
    });
}

#[test]
fn dropped_world_wakes_pending_futures() {
    on_with(&[THREAD], &[1, 2], "dropped_world_wakes_pending_futures", |world| {
        let never = world.irecv(world.rank(), TWO);
        let waiter = Arc::new(ranks::Waiter::default());
        let asks = waiter.clone();
        let sleeps = std::thread::spawn(move || {
            asks.asks();
            run_by_another(never).0.unwrap_err().error
        });
        waiter.until_it_waits();
        drop(world);
        assert!(matches!(sleeps.join().unwrap(), Error::Closed));
    });
}

/// Each side tests in a loop a request that ends only after the other side's synchronous send. A progress call of this
/// side ends that send.
#[test]
fn unsuccessful_tests_make_progress() {
    on(&[2], "unsuccessful_tests_make_progress", |world| {
        let (other, mut window) = (1 - world.rank(), world.allocate::<u64>(1).unwrap());
        let coming = world.irecv(other, ONE);
        world.barrier().unwrap();
        if world.rank() == 0 {
            window.post(&[1]).unwrap();
            while !window.test().unwrap() {}
        } else {
            let epoch = window.start(&[0]).unwrap();
            world.ssend(0, ONE, &[7]).unwrap();
            epoch.complete().unwrap();
        }
        world.isend(other, ONE, vec![8]).wait().unwrap();
        assert_eq!(coming.wait().unwrap().len(), 1);
        world.barrier().unwrap();
    });
}
