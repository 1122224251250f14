//! Puts and gets of every length, at every offset, of several types and sizes of parts; and refused calls.

use crate::ranks;
use transom::{Error, Window, World};

/// The value of element `at` of rank `owner` after `writer` wrote it.
fn value(owner: usize, writer: usize, at: usize) -> u64 {
    (owner as u64) << 40 | (writer as u64) << 20 | at as u64
}

#[test]
fn gets_of_any_span_return_what_was_put() {
    ranks::on_all_sizes("gets_of_any_span_return_what_was_put", |world: World| {
        let (me, n) = (world.rank(), world.size());
        const EACH: usize = 400;
        let mut window: Window<u64> = world.allocate(EACH * n).unwrap();
        window.fence().unwrap();
        // Every rank writes a stretch of its own in every part, in pieces of growing length.
        for target in 0..n {
            let all: Vec<u64> = (0..EACH).map(|at| value(target, me, at)).collect();
            let epoch = window.lock_shared(target).unwrap();
            let (mut at, mut len) = (0, 1);
            while at < EACH {
                let end = (at + len).min(EACH);
                epoch.put(me * EACH + at, &all[at..end]).unwrap();
                (at, len) = (end, len + 1);
            }
            epoch.unlock().unwrap();
        }
        window.fence().unwrap();
        for target in 0..n {
            let epoch = window.lock_shared(target).unwrap();
            for writer in 0..n {
                let expected: Vec<u64> = (0..EACH).map(|at| value(target, writer, at)).collect();
                for len in [1, 2, 3, 7, 8, 9, 64, 129, EACH] {
                    for at in [0, 1, EACH / 2 - 1, EACH - len] {
                        if at + len <= EACH {
                            let mut got = vec![0; len];
                            epoch.get(writer * EACH + at, &mut got).unwrap();
                            assert_eq!(got, expected[at..at + len], "{len} elements from {at} of {target}");
                        }
                    }
                }
            }
        }
        let local = window.local().read(0, EACH * n).unwrap();
        assert!((0..EACH * n).all(|at| local[at] == value(me, at / EACH, at % EACH)));
    });
}

#[test]
fn elements_of_any_plain_type_are_transferred() {
    fn check<T: bytemuck::Pod + PartialEq + std::fmt::Debug>(world: &World, make: impl Fn(usize) -> T) {
        let mut window: Window<T> = world.allocate(33).unwrap();
        let next = (world.rank() + 1) % world.size();
        let all: Vec<T> = (0..33).map(make).collect();
        let epoch = window.fence().unwrap();
        for (at, one) in all.iter().enumerate() {
            epoch.target(next).unwrap().put(at, std::slice::from_ref(one)).unwrap();
        }
        window.fence().unwrap();
        assert_eq!(window.local().read(0, 33).unwrap(), all);
        assert_eq!(window.lock_shared(next).unwrap().get_one(32).unwrap(), all[32]);
    }
    ranks::on_all_sizes("elements_of_any_plain_type_are_transferred", |world| {
        check::<u8>(&world, |at| at as u8);
        check::<i16>(&world, |at| -(at as i16));
        check::<f32>(&world, |at| at as f32 / 3.0);
        check::<u64>(&world, |at| at as u64 * 0x0101_0101_0101);
        check::<[u8; 3]>(&world, |at| [at as u8, 1, 2]);
        check::<[f64; 9]>(&world, |at| [at as f64; 9]);
    });
}

/// Memory that a provider keeps ready is memory like any other, wherever it comes from.
#[test]
fn buffers_of_any_type_are_zeroed_and_transferred() {
    fn check<T: bytemuck::Pod + PartialEq + std::fmt::Debug + Send + Sync>(
        world: &World,
        len: usize,
        make: fn(usize) -> T,
    ) {
        let mut window: Window<T> = world.allocate(len + 1).unwrap();
        let next = (world.rank() + 1) % world.size();
        for turn in 0..3 {
            let mut buffer = world.buffer::<T>(len).unwrap();
            assert_eq!((buffer.len(), &buffer[..]), (len, &vec![T::zeroed(); len][..]), "turn {turn}");
            // Another thread has it, and then this one again. The thread is joined, because ThreadSanitizer does not
            // see how a scope waits for its threads.
            std::thread::scope(|scope| {
                let fill = || buffer.iter_mut().enumerate().for_each(|(at, element)| *element = make(at + turn));
                scope.spawn(fill).join().unwrap();
            });
            let other = world.buffer::<T>(len).unwrap();
            let epoch = window.lock_all().unwrap();
            let target = epoch.target(next).unwrap();
            target.put(0, &buffer).unwrap();
            target.put(len / 3, &buffer[len / 3..len / 2]).unwrap();
            assert!(other.iter().all(|element| *element == T::zeroed()), "two live buffers share memory");
            buffer.fill(T::zeroed());
            target.flush().unwrap();
            target.get(0, &mut buffer).unwrap();
            assert!(buffer.iter().enumerate().all(|(at, element)| *element == make(at + turn)));
            target.get(0, &mut buffer[len / 2..]).unwrap();
            assert!(buffer[len / 2..].iter().enumerate().all(|(at, element)| *element == make(at + turn)));
            let outside = [target.put(2, &buffer), target.get(2, &mut buffer)];
            assert!(len == 0 || outside.iter().all(|end| matches!(end, Err(Error::OutOfBounds { .. }))));
        }
        window.fence().unwrap();
    }
    ranks::on_all_sizes("buffers_of_any_type_are_zeroed_and_transferred", |world| {
        check::<u8>(&world, 0, |at| at as u8);
        check::<[u8; 3]>(&world, 33, |at| [at as u8, 1, 2]);
        check::<u64>(&world, 10_000, |at| at as u64 * 0x0101_0101_0101);
        check::<[f64; 9]>(&world, 5000, |at| [at as f64; 9]);
        let error = world.buffer::<u64>(usize::MAX / 16).map(drop).unwrap_err();
        assert!(error.to_string().contains("buffer"), "{error}");
        // A buffer may outlive the world that it was made by.
        let buffer = world.buffer::<u64>(10_000).unwrap();
        drop(world);
        assert_eq!(buffer[9_999], 0);
    });
}

#[test]
fn parts_of_different_sizes_are_accessible() {
    ranks::on_all_sizes("parts_of_different_sizes_are_accessible", |world| {
        let mut window: Window<u32> = world.allocate(world.rank() * 5).unwrap();
        assert_eq!(window.local().len(), world.rank() * 5);
        let epoch = window.fence().unwrap();
        for rank in 0..world.size() {
            let target = epoch.target(rank).unwrap();
            assert_eq!((target.len(), target.is_empty()), (rank * 5, rank == 0));
            target.put(rank * 5, &[]).unwrap(); // an empty access at the end is inside
            let outside = target.put(rank * 5, &[1]);
            assert!(matches!(outside, Err(Error::OutOfBounds { len: 1, .. })), "{outside:?}");
        }
        window.fence().unwrap();
    });
}

#[test]
fn out_of_bounds_access_is_refused_without_effect() {
    ranks::on_all_sizes("out_of_bounds_access_is_refused_without_effect", |world| {
        let mut window: Window<u64> = world.allocate(10).unwrap();
        window.local().write(0, &[7; 10]).unwrap();
        window.fence().unwrap();
        let last = world.size() - 1;
        let epoch = window.lock_shared(last).unwrap();
        for (offset, len) in [(10, 1), (9, 2), (0, 11), (usize::MAX, 1), (usize::MAX / 8, 2), (1 << 61, 1), (11, 0)] {
            let mut buffer = vec![0; len];
            let tried = [
                epoch.put(offset, &buffer),
                epoch.get(offset, &mut buffer),
                if len > 0 { epoch.compare_and_swap(offset + (len - 1), 7, 0).map(drop) } else { Ok(()) },
            ];
            for (which, outcome) in tried.into_iter().enumerate() {
                match outcome {
                    Err(Error::OutOfBounds { window: 0, rank, size: 10, offset: at, .. }) if rank == last => {
                        assert!(which == 2 || at == offset, "error names offset {at}, expected {offset}");
                    }
                    Ok(()) if which == 2 && (len == 0 || offset.saturating_add(len) <= 10) => {}
                    other => panic!("{len} elements from {offset}: {other:?}"),
                }
            }
        }
        epoch.unlock().unwrap();
        let nobody = window.lock_shared(last + 1).map(drop);
        assert!(matches!(nobody, Err(Error::NoSuchRank { window: 0, .. })), "{nobody:?}");
        let epoch = window.fence().unwrap();
        assert!(matches!(epoch.target(usize::MAX).map(drop), Err(Error::NoSuchRank { .. })));
        assert!(matches!(window.local().set(10, 0), Err(Error::OutOfBounds { offset: 10, len: 1, size: 10, .. })));
        assert!(matches!(window.local().read(5, usize::MAX), Err(Error::OutOfBounds { .. })));
        assert_eq!(window.local().read(0, 10).unwrap(), [7; 10]);
    });
}
