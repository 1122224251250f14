//! What each call costs in remote operations, as the docs say: counted by the window itself, where nobody is in the
//! way.

mod ranks;
use transom::{Counters, Op, Window};

const NONE: Counters = Counters {
    puts: 0,
    gets: 0,
    atomics: 0,
    accumulates: 0,
    signals: 0,
    locks: 0,
    flushes: 0,
    fences: 0,
    word_cas: 0,
    word_adds: 0,
    word_posts: 0,
};

fn cost(window: &mut Window<u64>, call: impl FnOnce(&mut Window<u64>) -> Result<(), transom::Error>) -> Counters {
    let before = window.counters();
    call(window).unwrap();
    window.counters() - before
}

#[test]
fn calls_cost_what_the_docs_say() {
    ranks::on_all_sizes("calls_cost_what_the_docs_say", |world| {
        let (me, n) = (world.rank(), world.size() as u64);
        let mut window: Window<u64> = world.allocate(4).unwrap();
        window.fence().unwrap();
        for rank in 0..world.size() {
            if rank == me {
                // All others are in the fence below: nobody is in the way.
                let target = world.size() - 1 - me;
                // The first guess of a word that readers changed since fails, and teaches the next.
                let first = cost(&mut window, |w| w.lock_exclusive(target)?.unlock());
                assert!(first == Counters { locks: 1, word_cas: first.word_cas, ..NONE } && first.word_cas <= 3);
                let exclusive = cost(&mut window, |w| w.lock_exclusive(target)?.unlock());
                assert_eq!(exclusive, Counters { locks: 1, word_cas: 2, ..NONE });
                let shared = cost(&mut window, |w| w.lock_shared(target)?.unlock());
                assert_eq!(shared, Counters { locks: 1, word_adds: 2, ..NONE });
                // A word left by readers is known from then on: no second try.
                let after_readers = cost(&mut window, |w| w.lock_exclusive(target)?.unlock());
                assert_eq!(after_readers, Counters { locks: 1, word_cas: 2, ..NONE });
                let all = cost(&mut window, |w| w.lock_all()?.unlock());
                assert_eq!(all, Counters { locks: n, word_adds: 2 * n, ..NONE });
                let operations = cost(&mut window, |w| {
                    let epoch = w.lock_shared(target)?;
                    epoch.put(0, &[1, 2])?;
                    epoch.get_one(0)?;
                    epoch.fetch_and_op(0, Op::Sum, 1)?;
                    epoch.compare_and_swap(0, 1, 1)?;
                    epoch.flush()?;
                    epoch.unlock()
                });
                let expected = Counters { locks: 1, word_adds: 2, puts: 1, gets: 1, atomics: 2, flushes: 1, ..NONE };
                assert_eq!(operations, expected);
                assert_eq!(cost(&mut window, |w| w.local().set(0, 1)), NONE, "one's own part is no remote operation");
            }
            let fence = cost(&mut window, |w| w.fence().map(drop));
            let rounds = u64::from(world.size().next_power_of_two().ilog2());
            assert_eq!(fence, Counters { fences: 1, word_posts: rounds, ..NONE });
        }
    });
}
