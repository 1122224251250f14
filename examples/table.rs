//! A hash table whose slots are distributed over all ranks, without locks: a compare-and-swap claims a slot for a key
//! permanently, and fetch_and_op sums the values of a key.

use clap::Parser;
use std::collections::HashMap;
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;
use transom::provider::Provider;
use transom::windows::LockAllEpoch;
use transom::{Op, Rank, Window, World};

/// N ranks insert and look up overlapping random keys in one distributed hash table. Shows the rates.
///
/// Exits with an error if the table is full, or differs from a sequential one.
#[derive(Parser)]
#[command(after_help = "Examples:\n  cargo run --release --example table -- --ranks 4\n  \
                        cargo run --release --example table -- --ranks 8 --keys 1000 --inserts 50000\n  \
                        cargo run --release --example table -- --ranks 2 --keys 1000 --slots 100\n\n\
                        The last one has fewer slots than keys, and says so.")]
struct Args {
    /// Number of ranks to start
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=32767))]
    ranks: u16,
    /// Number of different keys
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1 << 28))]
    keys: u32,
    /// Number of inserts of each rank, each followed by one look-up
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    inserts: u32,
    /// Slots of the table at each rank [default: twice as many over all ranks as keys]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1 << 28))]
    slots: Option<u32>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("table: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<bool, Box<dyn Error>> {
    let world = transom::start(args.ranks.into())?;
    let slots = args.slots.map_or((2 * args.keys as usize).div_ceil(world.size()), |slots| slots as usize);
    let mut window: Window<u64> = world.allocate(2 * slots)?;

    window.fence()?;
    let begun = Instant::now();
    window.fence()?; // a second fence: after the first, others could begin before this rank reads the clock
    let epoch = window.lock_all()?;
    let outcome = User::new(world.rank(), args).use_it(&Table { epoch: &epoch, slots });
    epoch.unlock()?;
    let (failed, full) = match outcome {
        Ok(failed) => (failed, 0),
        Err(TableError::Window(error)) => return Err(error.into()),
        // No early return: the other ranks would wait for this one.
        Err(TableError::Full { .. }) => (0, 1),
    };
    window.fence()?;
    let seconds = begun.elapsed().as_secs_f64();

    let found_it_full = world.all_reduce_one(full, Op::Sum)?;
    if found_it_full > 0 {
        let slots = slots * world.size();
        let error = format!("{}, as {found_it_full} ranks found; try more --slots", TableError::Full { slots });
        return if world.rank() == 0 { Err(error.into()) } else { Ok(false) };
    }
    if failed > 0 {
        println!(
            "WRONG: {failed} look-ups of rank {} missed an inserted key, or found one that no rank had inserted",
            world.rank()
        );
    }
    let right = world.rank() != 0 || report(args, &world, &mut window, seconds)?;
    window.fence()?; // no rank frees its slots before rank 0 has read them
    Ok(right && failed == 0)
}

/// The table. A slot is two elements of its owner's part: the key, 0 while the slot is free, and the sum of the key's
/// values.
struct Table<'e, 'w> {
    epoch: &'e LockAllEpoch<'w, u64, Provider>,
    /// Slots per rank.
    slots: usize,
}

#[derive(Debug, thiserror::Error)]
enum TableError {
    #[error("all {slots} slots hold other keys")]
    Full { slots: usize },
    #[error(transparent)]
    Window(#[from] transom::Error),
}

impl Table<'_, '_> {
    /// Adds to the value of a key; a new key starts at 0.
    fn add(&self, key: u64, value: u64) -> Result<(), TableError> {
        for (owner, at) in self.probe(key) {
            let target = self.epoch.target(owner)?;
            // Most probed slots are taken, and stay so: a get costs less than a compare-and-swap.
            let mut found = target.get_one(at)?;
            if found == 0 {
                found = target.compare_and_swap(at, 0, key)?;
            }
            if found == 0 || found == key {
                target.fetch_and_op(at + 1, Op::Sum, value)?;
                return Ok(());
            }
        }
        Err(TableError::Full { slots: self.all_slots() })
    }

    fn get(&self, key: u64) -> Result<Option<u64>, transom::Error> {
        for (owner, at) in self.probe(key) {
            let target = self.epoch.target(owner)?;
            match target.get_one(at)? {
                0 => return Ok(None),
                found if found == key => return target.fetch_and_op(at + 1, Op::NoOp, 0).map(Some),
                _ => {}
            }
        }
        Ok(None)
    }

    /// The probe sequence of a key over all slots: owner and offset of each.
    fn probe(&self, key: u64) -> impl Iterator<Item = (Rank, usize)> + use<> {
        let (slots, all) = (self.slots, self.all_slots());
        let first = ((u128::from(key) * all as u128) >> 64) as usize;
        (first..all).chain(0..first).map(move |slot| (slot / slots, slot % slots * 2))
    }

    fn all_slots(&self) -> usize {
        self.slots * self.epoch.ranks()
    }
}

/// The reproducible operations of a rank on the table.
struct User {
    random: fastrand::Rng,
    keys: u32,
    inserts: u32,
    /// Sums of the values that this rank has inserted, by key.
    mine: HashMap<u64, u64>,
}

impl User {
    fn new(rank: Rank, args: &Args) -> Self {
        let random = fastrand::Rng::with_seed(rank as u64);
        User { random, keys: args.keys, inserts: args.inserts, mine: HashMap::new() }
    }

    /// Alternates inserts and look-ups, concurrently with other ranks; returns the number of impossible answers.
    fn use_it(&mut self, table: &Table) -> Result<u64, TableError> {
        let mut failed = 0;
        for _ in 0..self.inserts {
            let (key, value) = self.next_insert();
            table.add(key, value)?;
            let (key, exists) = self.next_look_up();
            // Other ranks may have added to the values that this rank inserted.
            let possible = match (table.get(key)?, self.mine.get(&key)) {
                (Some(found), mine) => exists && mine.is_none_or(|&mine| found >= mine),
                (None, mine) => mine.is_none(),
            };
            failed += u64::from(!possible);
        }
        Ok(failed)
    }

    fn next_insert(&mut self) -> (u64, u64) {
        let (key, value) = (key(self.random.u32(0..self.keys)), self.random.u64(0..1000));
        *self.mine.entry(key).or_default() += value;
        (key, value)
    }

    /// A key, and whether any rank may insert it.
    fn next_look_up(&mut self) -> (u64, bool) {
        let number = self.random.u32(0..self.keys + self.keys.div_ceil(4));
        (key(number), number < self.keys)
    }
}

/// Key of a number. Keys are distinct, not 0, and look random, so that each serves as its own hash.
fn key(number: u32) -> u64 {
    let mut key = u64::from(number) + 1;
    for _ in 0..2 {
        key = (key ^ (key >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    key
}

/// Compares the table with a sequential one.
fn report(args: &Args, world: &World, window: &mut Window<u64>, seconds: f64) -> Result<bool, transom::Error> {
    let mut expected: HashMap<u64, u64> = HashMap::new();
    for rank in 0..world.size() {
        let mut user = User::new(rank, args);
        for _ in 0..args.inserts {
            user.next_insert();
            user.next_look_up();
        }
        user.mine.into_iter().for_each(|(key, value)| *expected.entry(key).or_default() += value);
    }
    let (keys, mut slots, mut wrong) = (expected.len(), 0, 0);
    for owner in 0..world.size() {
        let epoch = window.lock_shared(owner)?;
        slots += epoch.len() / 2;
        for at in (0..epoch.len()).step_by(1 << 16) {
            let mut part = vec![0; (epoch.len() - at).min(1 << 16)];
            epoch.get(at, &mut part)?;
            // Removes each key that is found, so that a duplicate counts as wrong.
            let taken = part.chunks_exact(2).filter(|slot| slot[0] != 0);
            wrong += taken.filter(|slot| expected.remove(&slot[0]) != Some(slot[1])).count();
        }
    }
    let operations = 2.0 * world.size() as f64 * f64::from(args.inserts);
    println!("{} ranks, {} inserts and look-ups each of {} keys, {slots} slots", world.size(), args.inserts, args.keys);
    println!("  time   {seconds:.4} s");
    println!("  speed  {:.3} million inserts and look-ups/s", operations / seconds / 1e6);
    let right = wrong == 0 && expected.is_empty();
    if right {
        println!("the table holds {keys} keys, each once, and the sums of their values are right");
    } else {
        println!("WRONG: {wrong} slots have wrong contents, {} keys are missing", expected.len());
    }
    Ok(right)
}
