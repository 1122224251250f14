//! Locks that ranks compete for.

use super::facts::{Facts, Outcome, gather};
use super::memory::window;
use super::sampling;
use super::stretches::Stretches;
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};
use transom::{Op, World};

/// The period of the writer's requests.
const WISH: Duration = Duration::from_millis(1);

/// Rank 0 increments a value without contention.
pub fn value(world: &World, time: Duration, facts: &mut Facts) -> Outcome {
    let value = world.mutex(world.size().min(2) - 1, 0_u64)?;
    if world.rank() == 0 {
        let mut done = 0;
        let samples = sampling::alone(time, 1, |count| {
            done += count as u64;
            for _ in 0..count {
                let mut value = value.lock()?;
                *value += 1;
                value.unlock()?;
            }
            Ok(())
        })?;
        facts.samples(&samples);
        let found = *value.lock()?;
        facts.check(found == done, || format!("the value is {found}, expected {done}"));
    }
    world.barrier()?;
    Ok(())
}

/// All ranks increment a number at rank 0 under its lock. Acquisitions count once all ranks compete, and until the
/// first rank's time is over. Otherwise a rank that competes with no other for a moment would acquire the lock many
/// times more.
pub fn contended(world: &World, time: Duration, facts: &mut Facts) -> Outcome {
    const NUMBER: usize = 0;
    const COMPETING: usize = 1;
    const OVER: usize = 2;
    let mut window = window::<i64>(world, 3)?;
    let mut stretches = Stretches::new();
    // Ranks share the machine's clock, but not the origin of `Instant`.
    let origin = (Instant::now(), now_ns());
    window.lock_exclusive(0)?.fetch_and_op(COMPETING, Op::Sum, 1)?;
    let mut begun = Instant::now();
    let (mut last, mut longest, mut acquired, mut not_counted) = (begun, Duration::ZERO, 0u64, 0u64);
    loop {
        let epoch = window.lock_exclusive(0)?;
        let mut front = [0; 3];
        epoch.get(0, &mut front)?;
        epoch.put(NUMBER, &[front[NUMBER] + 1])?;
        let over = front[OVER] != 0;
        if !over && last - begun > time {
            epoch.put(OVER, &[1])?;
        }
        epoch.unlock()?;
        // Reads the clock outside the lock, where it delays no other rank.
        let now = Instant::now();
        stretches.record(front[NUMBER], || origin.1 + (now - origin.0).as_nanos() as f64);
        if over {
            not_counted += 1;
            break;
        }
        if front[COMPETING] == world.size() as i64 {
            acquired += 1;
            longest = longest.max(now - last);
        } else {
            not_counted += 1;
            begun = now;
        }
        last = now;
    }
    let took = last - begun;
    world.barrier()?;
    let mine = [acquired as f64, longest.as_nanos() as f64, took.as_secs_f64(), not_counted as f64];
    let all = gather(world, &mine)?;
    let counted = window.local().get(NUMBER)?;
    if world.rank() == 0 {
        let most = |field: usize| all.iter().map(|row| row[field]).fold(0.0, f64::max);
        facts.value("seconds", most(2));
        facts.value("longest_wait", most(1));
        for (rank, row) in all.iter().enumerate() {
            facts.value(&format!("acquired.{rank}"), row[0]);
        }
        let total: f64 = all.iter().map(|row| row[0] + row[3]).sum();
        facts.check(counted as f64 == total, || format!("the number is {counted}, expected {total}"));
    }
    stretches.report(world, facts)
}

/// The machine's monotonic clock, which all its processes share, in nanoseconds.
fn now_ns() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// Rank 1 writes at rank 0 once a millisecond, while all others read there without pause.
pub fn readers_writer(world: &World, time: Duration, facts: &mut Facts) -> Outcome {
    let mut window = window::<u64>(world, 1)?;
    let begun = Instant::now();
    let (mut done, mut longest, mut wrong) = (0u64, Duration::ZERO, 0u64);
    if world.rank() == 1 {
        let mut tick = 0;
        while WISH * tick < time {
            let wish = begun + WISH * tick;
            std::thread::sleep(wish.saturating_duration_since(Instant::now()));
            let wished = Instant::now();
            let epoch = window.lock_exclusive(0)?;
            // The calls by which an MPI program makes sure that it holds the lock.
            let before = epoch.get_one(0)?;
            epoch.flush()?;
            longest = longest.max(wished.elapsed());
            epoch.put(0, &[before + 1])?;
            epoch.unlock()?;
            done += 1;
            // Requests whose time passed meanwhile are dropped.
            tick = (tick + 1).max((begun.elapsed().as_nanos() / WISH.as_nanos()) as u32);
        }
    } else {
        let mut last = 0;
        while begun.elapsed() < time {
            let epoch = window.lock_shared(0)?;
            let value = epoch.get_one(0)?;
            epoch.unlock()?;
            wrong += u64::from(value < last);
            last = value;
            done += 1;
        }
    }
    let took = begun.elapsed();
    world.barrier()?;
    let all = gather(world, &[done as f64, longest.as_nanos() as f64, took.as_secs_f64(), wrong as f64])?;
    let written = window.local().get(0)?;
    if world.rank() == 0 {
        facts.value("seconds", all.iter().map(|row| row[2]).fold(0.0, f64::max));
        facts.value("wanted", (time.as_nanos() as f64 / WISH.as_nanos() as f64).ceil());
        facts.value("writes", all[1][0]);
        facts.value("longest_write_wait", all[1][1]);
        for (rank, row) in all.iter().enumerate().filter(|(rank, _)| *rank != 1) {
            facts.value(&format!("reads.{rank}"), row[0]);
        }
        facts.check(written as f64 == all[1][0], || {
            format!("the last written value is {written}, expected {}", all[1][0])
        });
        facts.check(all.iter().all(|row| row[3] == 0.0), || "a reader saw an older value after a newer one".into());
    }
    Ok(())
}
