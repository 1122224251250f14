//! EP, embarrassingly parallel: ranks count pairs of Gaussian deviates in square annuli. They communicate only at the
//! end, when they add their sums.

use crate::problem::{Check, Class, Clock, Outcome};
use crate::random::Random;
use transom::{Op, World};

const SEED: u64 = 271_828_183;
/// Pairs of a batch, the unit of work.
const BATCH: u64 = 1 << 16;

pub fn run(world: &World, class: Class) -> Result<Outcome, transom::Error> {
    let log_pairs = class.select(24, 25, 28);
    let published = class.select(
        [-3.24783465203474e3, -6.958407078382297e3],
        [-2.863319731645753e3, -6.320053679109499e3],
        [-4.295875165629892e3, -1.580732573678431e4],
    );
    let pairs = 1_u64 << log_pairs;

    let clock = Clock::start(world)?;
    let mut tally = Tally { sums: [0.0; 2], annuli: [0; 10] };
    // `share` divides the batches among the ranks: any number of ranks will do.
    for batch in world.share((pairs / BATCH) as usize) {
        tally.add_batch(batch as u64);
    }
    world.all_reduce(&mut tally.sums, Op::Sum)?;
    world.all_reduce(&mut tally.annuli, Op::Sum)?;
    let seconds = clock.stop(world)?;

    let check = |what, axis: usize| Check::near(what, tally.sums[axis], published[axis], 1e-8);
    let mut checks = vec![check("sum of x", 0), check("sum of y", 1)];
    if class == Class::A {
        // The counts that the report of the benchmarks publishes for class A.
        let counts = [98_257_395, 93_827_014, 17_611_549, 1_110_028, 26_536, 245, 0, 0, 0, 0];
        checks.extend((0..10).map(|at| Check::equal(&format!("pairs in annulus {at}:"), tally.annuli[at], counts[at])));
    }
    Ok(Outcome { iterations: 1, seconds, mop: 2.0 * pairs as f64 / 1e6, checks })
}

struct Tally {
    /// Sums of the deviates x and y.
    sums: [f64; 2],
    /// Number of pairs whose larger coordinate is in 0..1, in 1..2 and so on.
    annuli: [u64; 10],
}

impl Tally {
    /// Turns uniform numbers into Gaussian ones by Marsaglia's polar method.
    fn add_batch(&mut self, batch: u64) {
        let mut random = Random::at(SEED, batch * 2 * BATCH);
        for _ in 0..BATCH {
            let (x, y) = (2.0 * random.next() - 1.0, 2.0 * random.next() - 1.0);
            let square = x * x + y * y;
            if square <= 1.0 {
                let scale = (-2.0 * square.ln() / square).sqrt();
                let (x, y) = (x * scale, y * scale);
                self.annuli[x.abs().max(y.abs()) as u32 as usize] += 1;
                self.sums[0] += x;
                self.sums[1] += y;
            }
        }
    }
}
