//! Objects that are made and dropped repeatedly leave no heap, mapping, descriptor or named memory behind.

mod ranks;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};
use transom::messages::Tag;
use transom::{Buffer, Distribution, Error, Op, Window, World};

/// Bytes of heap that this process has in use.
static IN_USE: AtomicIsize = AtomicIsize::new(0);

struct Counting;

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size() as isize, Relaxed);
        // SAFETY: caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size() as isize, Relaxed);
        // SAFETY: caller's contract.
        unsafe { System.dealloc(memory, layout) };
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Resources of this process and machine at one time.
#[derive(Debug, PartialEq)]
struct Resources {
    heap: isize,
    mappings: usize,
    descriptors: usize,
    named: usize,
}

impl Resources {
    fn is_at_most(&self, other: &Resources) -> bool {
        let count = |of: &Resources| [of.mappings, of.descriptors, of.named];
        self.heap <= other.heap && count(self).iter().zip(count(other)).all(|(mine, other)| *mine <= other)
    }
}

fn resources() -> Resources {
    /// Ranks that are threads must not count each other's open files.
    static ONE_READER: Mutex<()> = Mutex::new(());
    let _reader = ONE_READER.lock().unwrap();
    let entries = |path: &str| std::fs::read_dir(path).map_or(0, Iterator::count);
    Resources {
        mappings: std::fs::read_to_string("/proc/self/maps")
            .expect("/proc/self/maps should be readable")
            .lines()
            .count(),
        descriptors: entries("/proc/self/fd"),
        named: entries("/dev/shm"),
        heap: 0,
    }
}

/// Elements of 8 bytes from which a buffer is a block.
const BLOCK: usize = 512;

/// Objects that are made and dropped between two measurements, and the number of such batches.
const BATCH: usize = 250;
const BATCHES: usize = 12;

/// Makes and drops an object beside 0, 1, 2 and 4 others of its kind. Some batch must end with no more in use than
/// after an earlier one: queues and tables may reach a new largest size in a batch, but what each object leaves behind
/// only adds up.
fn unchanged<T>(world: &World, what: &str, make: impl Fn(&World) -> Result<T, Error>) {
    unchanged_by(BATCH, world, what, make);
}

/// Does the check of [`unchanged`] with batches of another size.
fn unchanged_by<T>(batch: usize, world: &World, what: &str, make: impl Fn(&World) -> Result<T, Error>) {
    let mut alive = Vec::with_capacity(4);
    for others in [0, 1, 2, 4] {
        while alive.len() < others {
            alive.push(make(world).unwrap());
        }
        let mut found = vec![at_rest(world)];
        let mut steady = false;
        while !steady {
            assert!(found.len() <= BATCHES, "{what} beside {others} others grows at rank {}: {found:#?}", world.rank());
            (0..ranks::rounds(batch)).for_each(|_| drop(make(world).unwrap()));
            found.push(at_rest(world));
            let (after, before) = found.split_last().expect("at least two measurements");
            let no_more = before.iter().any(|before| after.is_at_most(before));
            steady = world.all_reduce_one(u8::from(no_more), Op::Min).unwrap() == 1;
        }
    }
}

/// Resources while no rank makes or drops anything: threads share one heap.
fn at_rest(world: &World) -> Resources {
    turn(world);
    world.barrier().unwrap();
    let found = resources();
    world.barrier().unwrap();
    let heap = IN_USE.load(Relaxed);
    world.barrier().unwrap();
    Resources { heap, ..found }
}

/// Lets the engine of messages act on what arrived: the memory of a pipe's end goes once the peer's end is closed.
fn turn(world: &World) {
    (0..4).for_each(|_| drop(world.try_probe(0, Tag::<u8>::new(7)).unwrap()));
}

/// Runs `body` where ranks share memory: other providers keep caches of their own.
fn where_memory_is_shared(name: &str, body: impl Fn(&World) + Sync) {
    ranks::on(&[1, 2, 3], name, |world| {
        if ranks::share_memory(&world) {
            body(&world);
        }
    });
}

/// A team that is only split off and sends messages has no window space and no board: those are made by the first call
/// that needs them.
#[test]
fn split_teams_take_no_mapping_or_descriptor() {
    const TAG: Tag<u64> = Tag::new(8);
    const TEAMS: usize = 50;
    where_memory_is_shared("split_teams_take_no_mapping_or_descriptor", |world| {
        let n = world.size();
        let make = || {
            let team = world.split(Some(0), 0).unwrap().expect("a colour was named");
            team.send((team.rank() + 1) % n, TAG, &[7]).unwrap();
            assert_eq!(team.recv((team.rank() + n - 1) % n, TAG).unwrap().0, [7]);
            team
        };
        // Queues and tables have their size.
        drop((0..TEAMS).map(|_| make()).collect::<Vec<_>>());
        let before = at_rest(world);
        let teams: Vec<_> = (0..TEAMS).map(|_| make()).collect();
        let after = at_rest(world);
        let count = |of: &Resources| [of.mappings, of.descriptors, of.named];
        assert_eq!(count(&after), count(&before), "rank {}", world.rank());
        // Lists of members and tables; ranks that are threads share one heap.
        let ranks = if ranks::are_processes() { 1 } else { n };
        let most = (TEAMS * ranks * 2048) as isize;
        assert!(after.heap - before.heap <= most, "{before:?} {after:?}");
        if n > 1 && ranks::are_processes() {
            teams[0].allocate::<u64>(1).unwrap();
            let more = at_rest(world);
            assert!(more.mappings > after.mappings, "mappings of a window are not counted: {more:?}");
        }
        drop(teams);
    });
}

#[test]
fn dropped_windows_leave_no_resources() {
    where_memory_is_shared("dropped_windows_leave_no_resources", |world| {
        unchanged(world, "allocated window", |world| world.allocate::<u64>(10));
        unchanged(world, "window with signals", |world| world.allocate_with_signals::<u64>(10, 2));
        unchanged(world, "shared window", |world| world.allocate_shared::<u64>(10));
        // A created window that is dropped keeps its elements, which others may still reach: `free` returns them.
        unchanged(world, "created window", |world| world.create(vec![0_u64; 10])?.free());
        unchanged(world, "window that attaches memory", |world| {
            let mut window: Window<u64> = world.dynamic(2)?;
            let address = window.attach(10)?;
            window.detach(&address)?;
            Ok(window)
        });
        unchanged(world, "locked window", |world| {
            let mut window: Window<u64> = world.allocate(2)?;
            window.lock_all()?.target(0)?.put(0, &[1])?;
            Ok(window)
        });
        unchanged(world, "window on a buffer", |world| {
            let window = world.create_on(world.buffer::<u64>(BLOCK)?, 0)?;
            window.free_as::<Buffer<u64>>()
        });
        unchanged(world, "window of short and long accumulates", |world| {
            let mut window: Window<u64> = world.allocate(100)?;
            let epoch = window.lock_all()?;
            let target = epoch.target(0)?;
            (0..20).try_for_each(|_| target.fetch_add(0, 1).map(drop))?;
            target.accumulate(0, Op::Sum, &[1; 100])?;
            epoch.unlock()?;
            Ok(window)
        });
    });
}

#[test]
fn dropped_values_leave_no_resources() {
    where_memory_is_shared("dropped_values_leave_no_resources", |world| {
        unchanged(world, "array", |world| world.array::<u64, 2>([6, 6], Distribution::Block));
        unchanged(world, "array with ghost cells", |world| {
            let mut array = world.array::<u64, 2>([6, 6], Distribution::Block)?;
            let mut halo = array.halo([1, 1])?;
            halo.exchange(&mut array)?;
            Ok((array, halo))
        });
        unchanged(world, "mutex", |world| world.mutex(0, 1_u64));
        unchanged(world, "mutexes", |world| world.mutexes(5, |i| i));
        unchanged(world, "rw_lock", |world| world.rw_lock(0, 1_u64));
        unchanged(world, "buffer", |world| world.buffer::<u64>(10));
        unchanged(world, "buffer that others can map", |world| world.buffer::<u64>(BLOCK));
        unchanged(world, "scope", |world| {
            let mut window: Window<u64> = world.allocate(2)?;
            let epoch = window.lock_all()?;
            let (target, mut got) = (epoch.target(0)?, [0; 2]);
            transom::scope(|scope| scope.get(&target, 0, &mut got)?.wait().map(drop))?;
            epoch.unlock()?;
            Ok(window)
        });
    });
}

#[test]
fn dropped_teams_leave_no_resources() {
    where_memory_is_shared("dropped_teams_leave_no_resources", |world| {
        let split = |world: &World| Ok(world.split(Some(0), 0)?.expect("a colour was named"));
        // Ranks remember the last 1,024 teams that they left.
        (0..1024).for_each(|_| drop(split(world).unwrap()));
        unchanged_by(25, world, "team", split);
        unchanged_by(25, world, "team with a board", |world| split(world).inspect(|team| team.barrier().unwrap()));
        unchanged_by(25, world, "team with a window", |world| {
            split(world).inspect(|team| drop(team.allocate::<u64>(10).unwrap()))
        });
    });
}

#[test]
fn dropped_pipes_leave_no_resources() {
    where_memory_is_shared("dropped_pipes_leave_no_resources", |world| {
        let next = (world.rank() + 1) % world.size();
        // In a world of more than two ranks, ranks 0 and 1 have the pipe between them.
        unchanged(world, "pipe", |world| {
            turn(world);
            match (world.size(), world.rank()) {
                (1 | 2, _) => Ok(Some(world.pipe(next)?)),
                (_, rank @ (0 | 1)) => Ok(Some(world.pipe(1 - rank)?)),
                _ => Ok(None),
            }
        });
    });
}
