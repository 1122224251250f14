//! Accumulates of single words at random places of memory larger than all caches.

use super::arguments::{Sync, Worker};
use super::facts::{Facts, Outcome};
use super::operations::partner;
use super::sampling;
use crate::bench::limits::{FAR, Random};
use transom::{Op, Section, Window, World};

/// Operands of a call that has several.
const SCATTERED: usize = 1000;

/// Rank 0 accumulates at its partner, which holds the words.
pub fn measure(worker: &Worker, world: &World, facts: &mut Facts) -> Outcome {
    let home = world.size().min(2) - 1;
    let mut window: Window<u64> = world.allocate(if world.rank() == home { FAR } else { 0 })?;
    // Touches every page, and maps it at the origin.
    let mut ones = vec![1; 1 << 16];
    for at in (0..window.local().len()).step_by(ones.len()) {
        window.local().write(at, &ones)?;
    }
    world.barrier()?;
    if world.rank() == 0 {
        let epoch = window.lock_all()?;
        let target = epoch.target(partner(world))?;
        let (op, apply): (Op, fn(u64, u64) -> u64) = match worker.sync {
            Sync::Sum => (Op::Sum, u64::wrapping_add),
            Sync::Or => (Op::Or, |a, b| a | b),
            Sync::And => (Op::And, |a, b| a & b),
            Sync::Replace => (Op::Replace, |_, b| b),
            _ => (Op::Xor, |a, b| a ^ b),
        };
        (0..FAR).step_by(ones.len()).try_for_each(|at| target.get(at, &mut ones))?;
        let (mut random, mut calls) = (Random(1), 0);
        let samples = if worker.sync == Sync::Scattered {
            let (mut offsets, mut operands) = (vec![0; SCATTERED], vec![0; SCATTERED]);
            sampling::alone(worker.time(), SCATTERED, |count| {
                calls += count;
                for _ in 0..count / SCATTERED {
                    for (offset, operand) in offsets.iter_mut().zip(&mut operands) {
                        *operand = random.next();
                        *offset = *operand as usize % FAR;
                    }
                    target.accumulate_section(&Section::Indexed { offsets: &offsets, block: 1 }, op, &operands)?;
                }
                Ok(())
            })?
        } else {
            sampling::alone(worker.time(), 1, |count| {
                calls += count;
                for _ in 0..count {
                    let operand = random.next();
                    target.accumulate(operand as usize % FAR, op, &[operand])?;
                }
                Ok(())
            })?
        };
        facts.samples(&samples);
        let (mut random, mut expected) = (Random(1), vec![1; FAR]);
        for _ in 0..calls {
            let operand = random.next();
            let word = &mut expected[operand as usize % FAR];
            *word = apply(*word, operand);
        }
        let mut right = true;
        for (at, expected) in expected.chunks(ones.len()).enumerate() {
            target.get(at * expected.len(), &mut ones)?;
            right &= ones == expected;
        }
        facts.check(right, || "the words differ from those that one rank alone computes".into());
        epoch.unlock()?;
    }
    world.barrier()?;
    Ok(())
}
