//! Windows on memory of any owner type.

use crate::ranks;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use transom::{Buffer, Error, FabricError, Op, Owner, Window, World};

/// Memory of another library, which counts what it frees.
struct Foreign {
    elements: NonNull<[u64]>,
    freed: &'static AtomicUsize,
}

impl Foreign {
    fn new(len: usize, value: u64, freed: &'static AtomicUsize) -> Self {
        Foreign { elements: NonNull::from(Box::leak(vec![value; len].into_boxed_slice())), freed }
    }

    fn elements(&self) -> &[u64] {
        // SAFETY: nobody else has them now.
        unsafe { self.elements.as_ref() }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.freed.fetch_add(1, SeqCst);
        // SAFETY: they were leaked by `new`, and are freed once.
        drop(unsafe { Box::from_raw(self.elements.as_ptr()) });
    }
}

// SAFETY: it alone knows of the elements.
unsafe impl Send for Foreign {}
// SAFETY: as above, and shared it lets them be read only.
unsafe impl Sync for Foreign {}

// SAFETY: the elements are on the heap, and nobody else knows of them.
unsafe impl Owner for Foreign {
    type Element = u64;

    fn elements(&mut self) -> NonNull<[u64]> {
        self.elements
    }
}

const LEN: usize = 1000;

/// Each rank puts its number at every other.
fn visit(world: &World, window: &mut Window<u64>) {
    let (me, n) = (world.rank(), world.size());
    for rank in 0..n {
        let epoch = window.lock_exclusive(rank).unwrap();
        assert_eq!(epoch.get_one(LEN - 1).unwrap(), 100 + rank as u64);
        epoch.put(me, &[me as u64 + 1]).unwrap();
        epoch.unlock().unwrap();
    }
}

fn visited(n: usize, me: usize) -> Vec<u64> {
    let value = 100 + me as u64;
    (0..LEN).map(|at| if at < n { at as u64 + 1 } else { value }).collect()
}

#[test]
fn free_returns_the_owner_with_remote_writes() {
    ranks::on_all_sizes("free_returns_the_owner_with_remote_writes", |world: World| {
        static FREED: AtomicUsize = AtomicUsize::new(0);
        let (me, n) = (world.rank(), world.size());
        let before = FREED.load(SeqCst);
        let mut window = world.create_on(Foreign::new(LEN, 100 + me as u64, &FREED), 1).unwrap();
        visit(&world, &mut window);
        let back: Foreign = window.free_as().unwrap();
        assert_eq!(back.elements(), visited(n, me));
        world.barrier().unwrap();
        assert!(FREED.load(SeqCst) - before < n, "free dropped the owner of this rank");
        drop(back);
    });
}

/// Each rank may pass any value of the owner type; a rank without elements passes an empty vector.
#[test]
fn window_of_different_owner_types_works() {
    ranks::on_all_sizes("window_of_different_owner_types_works", |world: World| {
        static FREED: AtomicUsize = AtomicUsize::new(0);
        let (me, n, value) = (world.rank(), world.size(), 100 + world.rank() as u64);
        let mut window = match me % 4 {
            0 => world.create(vec![value; LEN]),
            1 => {
                let mut buffer = world.buffer::<u64>(LEN).unwrap();
                buffer.fill(value);
                world.create_on(buffer, 0)
            }
            2 => world.create_on(vec![value; LEN].into_boxed_slice().into_vec(), 0),
            _ => world.create_on(Foreign::new(LEN, value, &FREED), 0),
        }
        .unwrap();
        visit(&world, &mut window);
        match me % 4 {
            0 => assert_eq!(window.free().unwrap(), visited(n, me)),
            1 => assert_eq!(window.free_as::<Buffer<u64>>().unwrap()[..], visited(n, me)),
            2 => assert_eq!(window.free_as::<Vec<u64>>().unwrap(), visited(n, me)),
            // A rank that asks for another owner type gets an error, and no rank waits for it.
            _ => {
                let (id, before) = (window.id(), FREED.load(SeqCst));
                let error = window.free_as::<Vec<u64>>().unwrap_err();
                let misuse = |error: &Error| match error {
                    Error::Fabric { window, source: FabricError::Misuse { .. }, .. } => *window == id,
                    _ => false,
                };
                assert!(misuse(&error), "{error}");
                assert!(FREED.load(SeqCst) > before, "refused free_as did not drop the owner");
            }
        }
    });
}

/// Other ranks map a buffer: they load from it, and their atomics need no system call.
#[test]
fn window_on_a_buffer_is_mapped_by_others() {
    ranks::on_all_sizes("window_on_a_buffer_is_mapped_by_others", |world: World| {
        if !ranks::share_memory(&world) || world.size() == 1 {
            return;
        }
        let (me, n) = (world.rank(), world.size());
        // Buffers from one page on are mapped.
        const LEN: usize = 600;
        let mut buffer = world.buffer::<u64>(LEN).unwrap();
        buffer.fill(me as u64);
        let mut window = world.create_on(buffer, 0).unwrap();
        let epoch = window.lock_all().unwrap();
        for rank in 0..n {
            assert_eq!(epoch.local().of(rank).unwrap().get(LEN - 1).unwrap(), rank as u64);
        }
        let before = (0..n).map(|rank| epoch.target(rank).unwrap().fetch_and_op(me, Op::Sum, 100).unwrap());
        assert!(before.enumerate().all(|(rank, before)| before == rank as u64));
        epoch.unlock().unwrap();
        window.fence().unwrap();
        // Short accumulates of a rank are admitted one by one 16 times, and then the thread stays admitted: the memory
        // has atomics.
        let counted = window.counters();
        let epoch = window.lock_shared((me + 1) % n).unwrap();
        (0..100).for_each(|_| _ = epoch.fetch_and_op(LEN - 2, Op::Sum, 1).unwrap());
        epoch.unlock().unwrap();
        let used = window.counters() - counted;
        assert!(used.word_cas == 0 && used.word_adds <= 2 + 33, "{used:?}");
        let back = window.free_as::<Buffer<u64>>().unwrap();
        let expected = |at| me as u64 + if at < n || at == LEN - 2 { 100 } else { 0 };
        assert!(back.iter().enumerate().all(|(at, &element)| element == expected(at)), "{:?}", &back[..8]);
    });
}

/// A dropped window leaks its memory, because other ranks may still write there. A window that cannot be made does
/// not.
#[test]
fn dropped_window_leaks_only_reachable_owners() {
    ranks::on(&[2, 3], "dropped_window_leaks_only_reachable_owners", |world: World| {
        static FREED: AtomicUsize = AtomicUsize::new(0);
        static REFUSED: AtomicUsize = AtomicUsize::new(0);
        let (me, before) = (world.rank(), REFUSED.load(SeqCst));
        let mut window = world.create_on(Foreign::new(LEN, 100 + me as u64, &FREED), 0).unwrap();
        visit(&world, &mut window);
        drop(window);
        world.barrier().unwrap();
        assert_eq!(FREED.load(SeqCst), 0);
        // Rank 0 asks for another window than the others.
        let made = match me {
            0 => world.allocate::<u64>(LEN),
            _ => world.create_on(Foreign::new(LEN, 0, &REFUSED), 0),
        };
        assert!(made.is_err());
        assert!(me == 0 || REFUSED.load(SeqCst) > before);
        world.barrier().unwrap();
    });
}
