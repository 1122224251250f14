//! fetch_and_op and compare_and_swap, alone and racing, against what a sequence of them must give.

mod ranks;
use transom::{Atomic, Op, Window, World};

const ALL: [Op; 6] = [Op::Sum, Op::Prod, Op::Min, Op::Max, Op::Replace, Op::NoOp];

#[test]
fn every_operation_returns_what_was_and_leaves_what_it_should() {
    fn check<T: Atomic + PartialEq + std::fmt::Debug>(world: &World, first: T, operands: &[T]) {
        let mut window: Window<T> = world.allocate(2).unwrap();
        window.fence().unwrap();
        // Rank r works on element 1 of the next rank: nobody else does.
        let next = (world.rank() + 1) % world.size();
        let epoch = window.lock_exclusive(next).unwrap();
        epoch.put(1, &[first]).unwrap();
        let mut expected = first;
        for op in ALL {
            for &operand in operands {
                assert_eq!(epoch.fetch_and_op(1, op, operand).unwrap(), expected, "{op:?} {operand:?}");
                expected = T::apply(op, expected, operand);
            }
        }
        assert_eq!(epoch.get_one(1).unwrap(), expected);
        assert_eq!(epoch.get_one(0).unwrap(), T::zeroed(), "the neighbour is untouched");
    }
    ranks::on_all_sizes("every_operation_returns_what_was_and_leaves_what_it_should", |world| {
        check::<u64>(&world, 5, &[0, 1, 3, u64::MAX, 1 << 63]);
        check::<i64>(&world, -5, &[0, 1, -3, i64::MAX, i64::MIN]);
        check::<f64>(&world, 0.5, &[0.0, 1.5, -3.25, 1e300, -1e-300]);
    });
}

#[test]
fn racing_sums_lose_nothing_and_every_ticket_is_drawn_once() {
    ranks::on_all_sizes("racing_sums_lose_nothing_and_every_ticket_is_drawn_once", |world| {
        const EACH: usize = 2000;
        let n = world.size();
        let mut tickets: Window<u64> = world.allocate(1).unwrap();
        let mut drawn: Window<u64> = world.allocate(EACH * n).unwrap();
        let mut sums: Window<f64> = world.allocate(1).unwrap();
        drawn.fence().unwrap();
        let last = n - 1;
        for _ in 0..EACH {
            let ticket = tickets.lock_shared(last).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
            drawn.lock_shared(0).unwrap().fetch_and_op(ticket as usize, Op::Sum, 1).unwrap();
            sums.lock_shared(last).unwrap().fetch_and_op(0, Op::Sum, 0.5).unwrap();
        }
        drawn.fence().unwrap();
        if world.rank() == 0 {
            assert!(drawn.local().read(0, EACH * n).unwrap().iter().all(|&times| times == 1));
        }
        let sum = sums.lock_shared(last).unwrap().get_one(0).unwrap();
        assert_eq!(sum, 0.5 * (EACH * n) as f64);
        drawn.fence().unwrap();
    });
}

#[test]
fn of_racing_swaps_one_wins_each_round() {
    ranks::on_all_sizes("of_racing_swaps_one_wins_each_round", |world| {
        const ROUNDS: u64 = 1000;
        let mut window: Window<u64> = world.allocate(2).unwrap();
        window.fence().unwrap();
        let mut won = 0;
        for round in 0..ROUNDS {
            let epoch = window.lock_all().unwrap();
            let target = epoch.target(0).unwrap();
            let found = target.compare_and_swap(0, round, round + 1).unwrap();
            assert!(found <= ROUNDS);
            won += u64::from(found == round);
            epoch.unlock().unwrap();
            // Not before this round is decided.
            while window.lock_shared(0).unwrap().get_one(0).unwrap() <= round {}
        }
        window.lock_shared(0).unwrap().fetch_and_op(1, Op::Sum, won).unwrap();
        window.fence().unwrap();
        assert_eq!(window.lock_shared(0).unwrap().get_one(1).unwrap(), ROUNDS);
        window.fence().unwrap();
    });
}
