//! Random programs of collectives, started and waited for in any order, between messages and one-sided operations. The
//! program knows the expected result of each. All ranks have one seed, which is printed on failure.

use crate::ranks;
use transom::collective::Ordered;
use transom::messages::{Request, Tag};
use transom::{Op, World};

/// A request in flight, and its expected result.
struct Started {
    request: Request<'static, Vec<u64>>,
    expected: Vec<u64>,
    what: String,
}

/// An element of a rank in a step.
fn number(step: usize, rank: usize, index: usize) -> u64 {
    ((step * 31 + rank * 17 + index * 7) % 97) as u64
}

/// Two functions x -> p x + q, the first and then the second; `p` is above `q` in a word. They do not commute.
fn composed(first: u64, second: u64) -> u64 {
    let ((p, q), (r, s)) = ((first >> 32, first as u32), (second >> 32, second as u32));
    let (p, r) = (p as u32, r as u32);
    u64::from(p.wrapping_mul(r)) << 32 | u64::from(q.wrapping_mul(r).wrapping_add(s))
}

fn program(world: &World, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (me, n) = (world.rank(), world.size());
    let mut window = world.allocate::<u64>(n).unwrap();
    let mut started: Vec<Started> = Vec::new();
    for step in 0..60 {
        let len = [0, 1, 2, 30, 700, 9000][random.usize(0..6)];
        let root = random.usize(0..n);
        let what = format!("seed {seed}, step {step}: of {len}, root {root}");
        let of = |rank: usize| (0..len).map(|index| number(step, rank, index)).collect::<Vec<_>>();
        let fold = |ranks: std::ops::Range<usize>, op: fn(u64, u64) -> u64| {
            let all = |index| ranks.clone().map(|rank| number(step, rank, index)).reduce(op).unwrap();
            (0..len).map(all).collect::<Vec<_>>()
        };
        let mut start = |request, expected: Vec<u64>| started.push(Started { request, expected, what: what.clone() });
        match random.usize(0..12) {
            0 => {
                let mut data = of(me);
                world.all_reduce(&mut data, Op::Sum).unwrap();
                assert_eq!(data, fold(0..n, |a, b| a + b), "{what}");
            }
            1 => {
                let mut data = of(me);
                world.broadcast(root, &mut data).unwrap();
                assert_eq!(data, of(root), "{what}");
            }
            2 => assert_eq!(world.all_gather(&of(me)).unwrap(), (0..n).flat_map(of).collect::<Vec<_>>(), "{what}"),
            3 => {
                let mut data: Vec<u64> = of(me).iter().map(|number| number | 31 << 32).collect();
                world.scan(&mut data, Ordered(composed)).unwrap();
                let of_all =
                    |index| (0..=me).map(|rank| number(step, rank, index) | 31 << 32).reduce(composed).unwrap();
                assert_eq!(data, (0..len).map(of_all).collect::<Vec<_>>(), "{what}");
            }
            4 => assert_eq!(
                world.gather(root, &of(me)).unwrap(),
                (me == root).then(|| (0..n).flat_map(of).collect::<Vec<_>>()),
                "{what}"
            ),
            5 => start(world.iall_reduce(of(me), Op::Max), fold(0..n, u64::max)),
            6 => start(world.ibroadcast(root, of(me)), of(root)),
            7 => start(world.iall_gather(of(me)), (0..n).flat_map(of).collect()),
            8 => {
                let given = (0..n).map(|to| (step * 1000 + me * n + to) as u64).collect();
                start(world.iall_to_all(given), (0..n).map(|from| (step * 1000 + from * n + me) as u64).collect());
            }
            9 => {
                let to = (me + 1) % n;
                let sent = world.isend(to, Tag::new(5), vec![step as u64; len]);
                assert_eq!(
                    world.recv((me + n - 1) % n, Tag::<u64>::new(5)).unwrap().0,
                    vec![step as u64; len],
                    "{what}"
                );
                sent.wait().unwrap();
            }
            10 => {
                window.lock_exclusive((me + 1) % n).unwrap().put(me, &[step as u64]).unwrap();
                window.fence().unwrap();
                assert_eq!(window.local().get((me + n - 1) % n).unwrap(), step as u64, "{what}");
                window.fence().unwrap();
            }
            _ => world.barrier().unwrap(),
        }
        // Each rank waits in a random order of its own.
        let mut own = fastrand::Rng::with_seed(seed ^ (step * n + me) as u64);
        while !started.is_empty() && own.usize(0..3) == 0 {
            let Started { request, expected, what } = started.swap_remove(own.usize(0..started.len()));
            assert_eq!(request.wait().unwrap(), expected, "{what}");
        }
    }
    for Started { request, expected, what } in started {
        assert_eq!(request.wait().unwrap(), expected, "{what}");
    }
}

#[test]
fn random_programs_give_expected_results() {
    ranks::on(&[1, 2, 3, 4, 8], "random_programs_give_expected_results", |world| {
        for seed in 0..ranks::rounds(12) as u64 {
            program(&world, seed);
        }
    });
}
