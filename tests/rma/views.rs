//! Views of one window of bytes as elements of many types: each view accesses only its bytes, and atomics of different
//! widths are atomic with respect to each other.

use crate::ranks;
use transom::{Error, Op, Window, World};

#[test]
fn views_of_several_types_share_a_window() {
    let name = "views_of_several_types_share_a_window";
    ranks::on_all_sizes(name, |world: World| {
        const ROUNDS: usize = 50;
        let (me, n) = (world.rank(), world.size());
        // A counter, then one adjacent byte for each rank, then a row of floats for each rank.
        let mut window: Window<u8> = world.allocate(8 + 64 + 32 * n + 5).unwrap();
        let home = n - 1;
        window.fence().unwrap();
        let epoch = window.lock_shared(home).unwrap();
        let (count, bytes) = (epoch.view::<u64>(0).unwrap(), epoch.view::<u8>(8).unwrap());
        let row = epoch.view::<f32>(8 + 64 + 32 * me).unwrap();
        for round in 0..ranks::rounds(ROUNDS) {
            count.accumulate(0, Op::Sum, &[1]).unwrap();
            bytes.accumulate(me, Op::Sum, &[3]).unwrap();
            row.put(0, &[round as f32, me as f32]).unwrap();
        }
        epoch.unlock().unwrap();
        window.fence().unwrap();
        let rounds = ranks::rounds(ROUNDS);
        if me == home {
            let local = window.local();
            assert_eq!(local.view::<u64>(0).unwrap().get(0).unwrap(), (rounds * n) as u64);
            let mut expected = vec![0; 64];
            expected[..n].fill((3 * rounds) as u8);
            assert_eq!(local.read(8, 64).unwrap(), expected, "bytes of the ranks differ");
            let rows = local.view::<f32>(72).unwrap();
            assert_eq!(rows.len(), 8 * n + 1, "view counts an incomplete element");
            for rank in 0..n {
                assert_eq!(rows.read(8 * rank, 3).unwrap(), [rounds as f32 - 1.0, rank as f32, 0.0]);
            }
        }
        window.fence().unwrap();
    });
}

/// A view may be used by another thread than its epoch, also in an exclusive epoch.
#[test]
fn accumulates_by_epoch_and_views_lose_nothing() {
    ranks::on(&[1, 2], "accumulates_by_epoch_and_views_lose_nothing", |world: World| {
        let each = ranks::rounds(20_000) as u64;
        let mut window: Window<u64> = world.allocate(16).unwrap();
        let epoch = window.lock_exclusive(world.size() - 1).unwrap();
        let before = epoch.get_one(0).unwrap();
        let view = epoch.view::<u64>(0).unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(move || (0..each).for_each(|_| view.accumulate(0, Op::Sum, &[1]).unwrap()));
            (0..each).for_each(|_| epoch.accumulate(0, Op::Sum, &[1; 16]).unwrap());
            other.join().unwrap();
        });
        assert_eq!(epoch.get_one(0).unwrap() - before, 2 * each);
        epoch.unlock().unwrap();
        world.barrier().unwrap();
    });
}

#[test]
fn invalid_view_is_refused() {
    ranks::on(&[1, 2], "invalid_view_is_refused", |world: World| {
        let mut window: Window<u16> = world.allocate(50).unwrap(); // 100 bytes
        let epoch = window.lock_exclusive(0).unwrap();
        let why = |offset| match epoch.view::<u64>(offset) {
            Ok(view) => Ok(view.len()),
            Err(Error::View { rank: 0, offset: at, why, .. }) if at == offset => Err(why),
            Err(other) => panic!("{other}"),
        };
        assert_eq!([why(0), why(8), why(96), why(100)].map(|len| len.unwrap_or(99)), [12, 11, 0, 99]);
        assert!(why(101).unwrap_err().contains("ends before") && why(12).unwrap_err().contains("alignment"));
        assert!(why(usize::MAX).is_err());
        assert!(matches!(epoch.view::<()>(0), Err(Error::View { .. })));
        let view = epoch.view::<u64>(8).unwrap();
        assert!(
            matches!(view.put(11, &[1]), Err(Error::OutOfBounds { offset: 11, size: 11, .. })),
            "access beyond the view was accepted"
        );
        // An offset that is aligned within a view may be unaligned in the window.
        let odd = epoch.view::<u16>(2).unwrap();
        assert!(matches!(odd.view::<u32>(0), Err(Error::View { .. })));
        odd.view::<u32>(2).unwrap().accumulate(0, Op::Sum, &[0, 0]).unwrap();
        // A view of a view begins at the same byte.
        view.view::<u16>(2).unwrap().put_one(0, 7).unwrap();
        assert_eq!(epoch.get_one(5).unwrap(), 7);
    });
}
