//! Messages, collectives, teams, requests of every form, scopes and futures, made and dropped 1,000 to 10,000 times,
//! leave heap, mappings and descriptors unchanged.

mod ranks;
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use transom::messages::{Error, Requests, Source, Tag};
use transom::{Op, Section, World};

const ONE: Tag<u64> = Tag::new(1);
const GO: Tag<u8> = Tag::new(3);
/// No message has this tag.
const NEVER: Tag<u64> = Tag::new(2);

/// Counts the bytes that this process has on its heap.
struct Counting;

static BYTES: AtomicIsize = AtomicIsize::new(0);

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as isize, Relaxed);
        // SAFETY: caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as isize, Relaxed);
        // SAFETY: caller's contract.
        unsafe { System.dealloc(memory, layout) };
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Tables of the library may have one size more or less. It is less than 4 bytes for each round.
const SLACK: isize = 32 << 10;

/// A waker that no other future shares.
struct Own;

impl Wake for Own {
    fn wake(self: Arc<Self>) {}
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

/// Bytes, mappings and descriptors once all ranks are done and their messages have arrived.
fn used(world: &World) -> (isize, usize, usize) {
    // On a busy machine a rank may handle its messages late.
    for _ in 0..20 {
        let before = BYTES.load(Relaxed);
        world.barrier().unwrap();
        for _ in 0..30 {
            world.progress().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        let changes = u32::from((BYTES.load(Relaxed) - before).abs() > 100);
        if world.all_reduce_one(changes, Op::Max).unwrap() == 0 {
            break;
        }
    }
    (BYTES.load(Relaxed), mappings(), descriptors())
}

/// Makes what `make` makes 10,000 times, of which 0 to 4 are alive at once.
fn stays_the_same<'w, M>(world: &'w World, make: impl Fn(&'w World, usize) -> M) {
    stays_the_same_after(world, 1000, 10_000, make);
}

/// Does the check of `stays_the_same`, with `first` calls before the first measurement and `many` calls between the
/// two.
fn stays_the_same_after<'w, M>(world: &'w World, first: usize, many: usize, make: impl Fn(&'w World, usize) -> M) {
    let rounds = |many| {
        let mut alive = VecDeque::new();
        for round in 0..many {
            alive.push_back(make(world, round));
            while alive.len() > round % 5 {
                alive.pop_front();
            }
        }
    };
    rounds(first);
    let before = used(world);
    rounds(many);
    let after = used(world);
    // Threads of one process are counted together, and their counts are taken at different moments.
    if ranks::are_processes() {
        assert!((after.0 - before.0).abs() <= SLACK, "heap: {} bytes, then {}", before.0, after.0);
        // The heap itself may have one more mapping.
        assert!(after.1.abs_diff(before.1) <= 2, "{} mappings, then {}", before.1, after.1);
        assert_eq!(after.2, before.2, "descriptors");
    }
}

fn other(world: &World) -> usize {
    world.size() - 1 - world.rank()
}

#[test]
fn messages_leave_no_memory() {
    ranks::on(&[1, 2], "messages_leave_no_memory", |world| {
        stays_the_same(&world, |world, round| {
            let (other, len) = (other(world), [1, 40, 2000, 20_000][round % 4]);
            let sent = world.isend(other, ONE, vec![round as u64; len]);
            if round % 3 == 0 {
                let found = world.probe(other, ONE).unwrap();
                assert_eq!(found.recv().unwrap().len(), len);
            } else {
                assert_eq!(world.recv(other, ONE).unwrap().0.len(), len);
            }
            sent.wait().unwrap()
        });
    });
}

/// Started and persistent collectives.
#[test]
fn collectives_leave_no_memory() {
    ranks::on(&[1, 2], "collectives_leave_no_memory", |world| {
        let all: Vec<_> =
            (0..world.size()).map(|rank| Section::Strided { offset: rank, count: 20, block: 1, stride: 2 }).collect();
        stays_the_same_after(&world, 1000, 4000, |world, round| {
            let sum = world.iall_reduce(vec![round as u64; 40], Op::Sum);
            drop(world.ibarrier());
            let mut most = world.all_reduce_init(vec![round; [1, 4000][round % 2]], Op::Max).unwrap();
            most.start().unwrap().wait().unwrap();
            let sections = world.iall_to_all_sections(vec![1; 40], &all, vec![0; 40], &all);
            assert_eq!(sum.wait().unwrap()[39], (round * world.size()) as u64);
            (most, sections.wait().unwrap())
        });
    });
}

/// A rank remembers the last 1024 teams that it left, so the first measurement comes after more.
#[test]
fn teams_leave_no_memory() {
    ranks::on(&[1, 2], "teams_leave_no_memory", |world| {
        stays_the_same_after(&world, 1100, 1100, |world, round| {
            let team = world.split(Some(0), 0).unwrap().unwrap();
            assert_eq!(team.all_reduce_one(1, Op::Sum).unwrap(), team.size());
            let other = other(&team);
            drop(team.isend(other, ONE, vec![round as u64; 20]));
            if round % 2 == 0 {
                assert_eq!(team.recv(other, ONE).unwrap().0[19], round as u64);
            }
            team
        });
    });
}

#[test]
fn persistent_requests_leave_no_memory() {
    ranks::on(&[1, 2], "persistent_requests_leave_no_memory", |world| {
        stays_the_same(&world, |world, round| {
            let other = other(world);
            let mut coming = world.recv_init(other, ONE, vec![0; 40]).unwrap();
            let mut never = world.recv_init(Source::Any, NEVER, vec![0; 40]).unwrap();
            let mut sending = world.send_init(other, ONE, vec![round as u64; 40]).unwrap();
            drop(never.start().unwrap());
            if round % 2 == 0 {
                let arriving = coming.start().unwrap();
                sending.start().unwrap().wait().unwrap();
                arriving.wait().unwrap();
            }
            (coming, never, sending)
        });
    });
}

#[test]
fn partitioned_requests_leave_no_memory() {
    ranks::on(&[1, 2], "partitioned_requests_leave_no_memory", |world| {
        stays_the_same(&world, |world, round| {
            let other = other(world);
            let mut coming = world.precv_init(other, ONE, vec![0; 40], 2).unwrap();
            if round % 3 == 0 {
                drop(coming.start().unwrap());
            }
            let coming = (round % 2 == 0).then_some(coming);
            let mut sending = world.psend_init(other, ONE, vec![round as u64; 40], 4).unwrap();
            if round % 3 < 2 {
                let mut parts = sending.start().unwrap();
                parts.parts().skip(round % 4).for_each(|part| part.ready());
            }
            // Messages sent before have come then. Tables keep the size that they once needed.
            if round % 4 == 0 {
                world.sendrecv(other, GO, &[0], other, GO, &mut [1]).unwrap();
            }
            (coming, sending)
        });
    });
}

/// Receives without senders: they take their place in the order, and use no memory.
#[test]
fn unmatched_partitioned_receives_leave_no_memory() {
    ranks::on(&[1, 2], "unmatched_partitioned_receives_leave_no_memory", |world| {
        let first = world.precv_init(other(&world), NEVER, vec![0; 40], 2).unwrap();
        stays_the_same(&world, |world, _| world.precv_init(other(world), NEVER, vec![0; 40], 2).unwrap());
        drop(first);
    });
}

#[test]
fn scopes_leave_no_memory() {
    ranks::on(&[1, 2], "scopes_leave_no_memory", |world| {
        stays_the_same(&world, |world, round| {
            let (other, data, mut into, mut never) = (other(world), [round as u64; 40], [0; 40], [0; 40]);
            let sum = world.scope(|scope| {
                let coming = scope.irecv(other, ONE, &mut into);
                drop(scope.isend(other, ONE, &data));
                drop(scope.irecv(Source::Any, NEVER, &mut never).cancel());
                Ok::<_, Error>(coming.wait()?[0])
            });
            sum.unwrap()
        });
    });
}

#[test]
fn futures_and_sets_leave_no_memory() {
    ranks::on(&[1, 2], "futures_and_sets_leave_no_memory", |world| {
        stays_the_same(&world, |world, round| {
            let other = other(world);
            let waker = Waker::from(Arc::new(Own));
            let mut context = Context::from_waker(&waker);
            let mut coming = world.irecv(Source::Any, NEVER);
            let mut probing = world.probe_async(Source::Any, NEVER);
            assert!(Pin::new(&mut coming).poll(&mut context).is_pending());
            assert!(Pin::new(&mut probing).poll(&mut context).is_pending());
            let mut set: Requests<_> = (0..4).map(|_| world.irecv(Source::Any, NEVER)).collect();
            assert!(set.test_any().is_none());
            if round % 4 == 0 {
                drop(world.isend(other, ONE, vec![round as u64]));
                assert_eq!(world.block_on(world.irecv(other, ONE)).unwrap().unwrap(), [round as u64]);
            }
            (coming, probing, set)
        });
    });
}

/// A request that is never dropped keeps no descriptor of a world that is gone.
#[test]
fn forgotten_request_keeps_no_descriptor() {
    // A process of its own: other tests of this program open descriptors.
    ranks::on(&[1], "forgotten_request_keeps_no_descriptor", |_| {
        let forget = || {
            let ended = transom::threads(1, |world| {
                world.event_fd().unwrap();
                world.arm().unwrap();
                std::mem::forget(world.irecv(0, NEVER));
            });
            ended.unwrap();
        };
        // Descriptors that the process keeps for all its worlds are made.
        forget();
        let before = descriptors();
        (0..20).for_each(|_| forget());
        assert_eq!(descriptors(), before);
    });
}
