//! IS, integer sort: finds the rank of each key among all keys. Keys are divided into buckets, ranges of values. Each
//! rank of the job gets all keys of some buckets, by an all-to-all, by puts or by pipes, and counts them.

use crate::pipes::Pipes;
use crate::problem::{By, Check, Class, Clock, Outcome};
use crate::random::Random;
use std::ops::Range;
use transom::{Op, Section, Window, World};

/// With more ranks, one bucket could have more keys than a rank has room for.
pub const MOST_RANKS: usize = 128;
const ITERATIONS: usize = 10;
const TESTS: usize = 5;

pub fn run(world: &World, class: Class, by: By) -> Result<Outcome, transom::Error> {
    let mut sort = Sort::new(world, class, by)?;
    sort.rank_keys(1)?; // touches all memory once

    let mut right = 0;
    let clock = Clock::start(world)?;
    for iteration in 1..=ITERATIONS {
        let ranked = sort.rank_keys(iteration)?;
        right += sort.count_right_tests(iteration, &ranked);
    }
    let seconds = clock.stop(world)?;

    let ranked = sort.rank_keys(ITERATIONS)?;
    let right = world.all_reduce_one(right, Op::Sum)?;
    let wrong = world.all_reduce_one(sort.count_unsorted(&ranked)?, Op::Sum)?;
    let tests = (ITERATIONS * TESTS) as u64;
    let checks =
        vec![Check::equal("keys of known rank found:", right, tests), Check::equal("keys out of order:", wrong, 0)];
    let keys = sort.size.keys as f64;
    Ok(Outcome { iterations: ITERATIONS, seconds, mop: ITERATIONS as f64 * keys / 1e6, checks })
}

struct Size {
    keys: usize,
    /// Keys are below 2 to this power.
    log_values: u32,
    log_buckets: u32,
    /// Keys whose ranks are published: index, and rank before the first iteration.
    tests: [(usize, i64); TESTS],
    /// The ranks of this many tests grow by one in each iteration; the others fall.
    growing: usize,
}

impl Size {
    fn of(class: Class) -> Self {
        // NPB publishes the ranks with a different offset for each class: here it is part of the rank.
        let s = Size {
            keys: 1 << 16,
            log_values: 11,
            log_buckets: 9,
            tests: [(48427, 0), (17148, 18), (23627, 346), (62548, 64917), (4431, 65463)],
            growing: 3,
        };
        let w = Size {
            keys: 1 << 20,
            log_values: 16,
            log_buckets: 10,
            tests: [(357773, 1249 - 2), (934767, 11698 - 2), (875723, 1039987), (898999, 1043896), (404505, 1048018)],
            growing: 2,
        };
        let a = Size {
            keys: 1 << 23,
            log_values: 19,
            log_buckets: 10,
            tests: [
                (2112377, 104 - 1),
                (662041, 17523 - 1),
                (5336171, 123928 - 1),
                (3642833, 8288932 + 1),
                (4250760, 8388264 + 1),
            ],
            growing: 3,
        };
        class.select(s, w, a)
    }
}

struct Sort<'w> {
    world: &'w World,
    size: Size,
    /// This rank's keys, in the order of the sequence.
    keys: Vec<u32>,
    /// The same keys, ordered by bucket.
    bucketed: Vec<u32>,
    /// Keys of this rank's buckets, from all ranks.
    received: Vec<u32>,
    /// Memory that other ranks put keys into; only by one-sided.
    window: Option<Window<u32>>,
    /// Only by pipes.
    pipes: Option<Pipes>,
}

/// Ranks of the keys in this rank's buckets.
struct Ranked {
    /// Values of the keys that this rank got.
    values: Range<usize>,
    /// Number of keys, at all ranks, that are smaller than each of these values.
    smaller: Vec<u32>,
    /// Number of keys at all ranks that are smaller than all of these values.
    before: u32,
    /// Values of the test keys.
    tests: [u32; TESTS],
}

impl<'w> Sort<'w> {
    fn new(world: &'w World, class: Class, by: By) -> Result<Self, transom::Error> {
        let size = Size::of(class);
        let own = world.share(size.keys);
        let mut random = Random::at(Random::SEED, 4 * own.start as u64);
        let quarter = f64::from(1_u32 << (size.log_values - 2));
        let keys: Vec<u32> =
            own.map(|_| (quarter * (random.next() + random.next() + random.next() + random.next())) as u32).collect();
        let (window, pipes) = match by {
            By::Messages => (None, None),
            By::OneSided => (Some(world.allocate(2 * keys.len())?), None),
            By::Pipes => (None, Some(Pipes::open(world)?)),
        };
        Ok(Sort { world, bucketed: keys.clone(), received: Vec::new(), keys, size, window, pipes })
    }

    /// Collective: one iteration. Finds how many keys are smaller than each value.
    fn rank_keys(&mut self, iteration: usize) -> Result<Ranked, transom::Error> {
        let (world, me) = (self.world, self.world.rank());
        if me == 0 {
            self.keys[iteration] = iteration as u32;
            self.keys[iteration + ITERATIONS] = (1 << self.size.log_values) - iteration as u32;
        }
        let counts = self.sort_by_bucket();

        // One reduction for the counts of buckets and the values of the test keys, which are 0 except at their owners.
        let mut totals = counts.clone();
        let own = world.share(self.size.keys);
        totals
            .extend(self.size.tests.iter().map(|(at, _)| if own.contains(at) { self.keys[at - own.start] } else { 0 }));
        world.all_reduce(&mut totals, Op::Sum)?;
        let (totals, tests) = totals.split_at(counts.len());

        let buckets = divide(totals, self.keys.len(), world.size());
        let sum = |counts: &[u32]| counts.iter().map(|&count| count as usize).sum::<usize>();
        let given: Vec<usize> = buckets.iter().map(|range| sum(&counts[range.clone()])).collect();
        self.received.resize(sum(&totals[buckets[me].clone()]), 0);
        self.exchange(&given)?;

        // Keys are their own indices into the counts.
        let shift = self.size.log_values - self.size.log_buckets;
        let values = buckets[me].start << shift..buckets[me].end << shift;
        let mut smaller = vec![0; values.len()];
        self.received.iter().for_each(|&key| smaller[key as usize - values.start] += 1);
        let before = sum(&totals[..buckets[me].start]) as u32;
        sum_before(before, &mut smaller);
        Ok(Ranked { values, smaller, before, tests: tests.try_into().expect("one value for each test") })
    }

    /// Orders this rank's keys by bucket. Returns the number of keys in each.
    fn sort_by_bucket(&mut self) -> Vec<u32> {
        let shift = self.size.log_values - self.size.log_buckets;
        let mut counts = vec![0; 1 << self.size.log_buckets];
        self.keys.iter().for_each(|key| counts[(key >> shift) as usize] += 1);
        let mut next = counts.clone();
        sum_before(0, &mut next);
        for &key in &self.keys {
            let place = &mut next[(key >> shift) as usize];
            self.bucketed[*place as usize] = key;
            *place += 1;
        }
        counts
    }

    /// Collective: sends `given[rank]` keys to each rank, in the order of ranks, and fills `received`.
    fn exchange(&mut self, given: &[usize]) -> Result<(), transom::Error> {
        let world = self.world;
        let Some(window) = &mut self.window else {
            let mut taken = vec![0; world.size()];
            world.all_to_all(given, &mut taken)?;
            return match &mut self.pipes {
                None => Ok(world.all_to_all_v_into(&self.bucketed, given, &mut self.received, &taken)?),
                Some(pipes) => {
                    pipes.all_to_all(&self.bucketed, &adjacent(given), &mut self.received, &adjacent(&taken))
                }
            };
        };
        // Keys of lower ranks come first at each target, so the offset there is the sum of what they give.
        let mut offsets = given.to_vec();
        world.exscan(&mut offsets, Op::Sum)?;
        if world.rank() == 0 {
            offsets.fill(0);
        }
        // The first fence waits until all ranks have read the keys of the last iteration, the second until all puts
        // are complete.
        let (epoch, mut rest) = (window.fence()?, &self.bucketed[..]);
        for (rank, (&count, &offset)) in given.iter().zip(&offsets).enumerate() {
            let (keys, after) = rest.split_at(count);
            epoch.target(rank)?.put(offset, keys)?;
            rest = after;
        }
        window.fence()?;
        window.local().read_into(0, &mut self.received)
    }

    /// Returns how many test keys are in this rank's buckets and have the published rank.
    fn count_right_tests(&self, iteration: usize, ranked: &Ranked) -> u64 {
        let right = |(at, &key): (usize, &u32)| {
            let change = if at < self.size.growing { iteration as i64 } else { -(iteration as i64) };
            let key = key as usize;
            ranked.values.contains(&key)
                && i64::from(ranked.smaller[key - ranked.values.start]) == self.size.tests[at].1 + change
        };
        ranked.tests.iter().enumerate().filter(|&test| right(test)).count() as u64
    }

    /// Collective: moves this rank's keys to the places that their ranks name. Returns the number of keys that are
    /// smaller than the key before them.
    fn count_unsorted(&self, ranked: &Ranked) -> Result<u64, transom::Error> {
        let mut next = ranked.smaller.clone();
        let mut sorted = vec![u32::MAX; self.received.len()];
        for &key in &self.received {
            let place = &mut next[key as usize - ranked.values.start];
            sorted[(*place - ranked.before) as usize] = key;
            *place += 1;
        }
        // The largest key of all lower ranks must not exceed this rank's smallest.
        let below = self.world.exscan_one(sorted.last().copied().unwrap_or(0), Op::Max)?;
        let sorted: Vec<u32> = below.into_iter().chain(sorted).collect();
        Ok(sorted.windows(2).filter(|pair| pair[0] > pair[1]).count() as u64)
    }
}

/// Adjacent sections of these lengths.
fn adjacent(counts: &[usize]) -> Vec<Section<'static>> {
    let ends = counts.iter().scan(0, |end, &len| {
        *end += len;
        Some(Section::Contiguous { offset: *end - len, len })
    });
    ends.collect()
}

/// Replaces each count by `sum` and all counts before it.
fn sum_before(mut sum: u32, counts: &mut [u32]) {
    for count in counts {
        sum += std::mem::replace(count, sum);
    }
}

/// Divides the buckets among the ranks, in order. Each rank gets buckets until the ranks so far have their part of
/// the keys.
fn divide(totals: &[u32], keys_per_rank: usize, ranks: usize) -> Vec<Range<usize>> {
    let (mut divided, mut start, mut sum) = (Vec::with_capacity(ranks), 0, 0);
    for (bucket, &count) in totals.iter().enumerate() {
        sum += count as usize;
        if sum >= (divided.len() + 1) * keys_per_rank {
            divided.push(start..bucket + 1);
            start = bucket + 1;
        }
    }
    divided.resize(ranks, start..start);
    divided
}
