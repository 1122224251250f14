//! Calls that allocate no memory if ranks share memory.

mod ranks;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use transom::{Assert, Error, Mode, Op, Section, Target, Window, World, scope};

/// Counts the allocations of this thread.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATED.try_with(|count| count.set(count.get() + 1));
        // SAFETY: by the caller's word.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: by the caller's word.
        unsafe { System.dealloc(memory, layout) };
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn scopes_allocate_nothing() {
    ranks::on_all_sizes("scopes_allocate_nothing", |world: World| {
        if !ranks::share_memory(&world) {
            return;
        }
        let mut window: Window<u64> = world.allocate(2000).unwrap();
        window.fence().unwrap();
        let epoch = window.lock_all().unwrap();
        let next: Target<'_, u64> = epoch.target((world.rank() + 1) % world.size()).unwrap();
        let mut into = [[0; 10]; 100];
        let before = ALLOCATED.get();
        scope(|scope| {
            for (i, into) in into.iter_mut().enumerate() {
                scope.get(&next, i, into)?.wait()?;
                scope.put(&next, 1000, &[5; 8])?;
            }
            Ok::<(), Error>(())
        })
        .unwrap();
        assert_eq!(ALLOCATED.get() - before, 0);
        drop(vec![1u8; 3]);
        assert_eq!(ALLOCATED.get() - before, 1, "allocation counter missed an allocation");
        epoch.unlock().unwrap();
        window.fence().unwrap();
    });
}

#[test]
fn short_accumulates_allocate_nothing() {
    ranks::on_all_sizes("short_accumulates_allocate_nothing", |world: World| {
        if !ranks::share_memory(&world) {
            return;
        }
        let next = (world.rank() + 1) % world.size();
        for mode in [Mode::Exclusive, Mode::Shared] {
            let mut window: Window<u64> = world.allocate(100).unwrap();
            let epoch = window.lock_with(next, mode, Assert::empty()).unwrap();
            let mut found = [0; 8];
            let before = ALLOCATED.get();
            for len in 1..=8 {
                for op in [Op::Sum, Op::Min, Op::Xor, Op::Replace] {
                    epoch.accumulate(3, op, &[5; 8][..len]).unwrap();
                    epoch.get_accumulate(3, op, &[5; 8][..len], &mut found[..len]).unwrap();
                }
            }
            epoch.accumulate_section(&Section::Indexed { offsets: &[9, 2], block: 4 }, Op::Sum, &[1; 8]).unwrap();
            assert_eq!(ALLOCATED.get() - before, 0, "{mode:?}");
            epoch.unlock().unwrap();
            world.barrier().unwrap();
        }
    });
}

/// Values of up to 64 bytes.
#[test]
fn guards_of_small_values_allocate_nothing() {
    ranks::on_all_sizes("guards_of_small_values_allocate_nothing", |world: World| {
        if !ranks::share_memory(&world) {
            return;
        }
        let mutex = world.mutex(0, [0u64; 8]).unwrap();
        let large = world.mutex(0, [0u64; 100]).unwrap();
        let mut gate: Window<u64> = world.allocate(0).unwrap();
        // A waiting rank receives messages, which allocates. Barriers send some in debug builds, and fences send none.
        world.barrier().unwrap();
        gate.fence().unwrap();
        let before = ALLOCATED.get();
        mutex.lock().unwrap()[7] += 1;
        assert_eq!(ALLOCATED.get() - before, 0);
        large.lock().unwrap()[99] += 1;
        assert_eq!(ALLOCATED.get() - before, 1, "allocation counter missed an allocation");
        gate.fence().unwrap();
        let n = world.size() as u64;
        assert_eq!((mutex.lock().unwrap()[7], large.lock().unwrap()[99]), (n, n));
        world.barrier().unwrap();
    });
}
