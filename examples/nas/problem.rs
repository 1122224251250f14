//! Problem classes, forms of communication, time and verification, which the kernels share.

use clap::ValueEnum;
use std::time::Instant;
use transom::{Op, World};

/// A problem size that NPB defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Class {
    /// Sample: less than a second
    #[value(name = "S")]
    S,
    /// Workstation
    #[value(name = "W")]
    W,
    /// The smallest class for parallel computers
    #[value(name = "A")]
    A,
}

impl Class {
    /// Selects the value of this class.
    pub fn select<T>(self, s: T, w: T, a: T) -> T {
        match self {
            Class::S => s,
            Class::W => w,
            Class::A => a,
        }
    }
}

/// A form of communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// Messages and collectives
    Messages,
    /// Puts into windows
    OneSided,
    /// Pipes between each two ranks
    Pipes,
}

/// The result of a kernel, the same at all ranks.
pub struct Outcome {
    pub iterations: usize,
    /// Time of the slowest rank.
    pub seconds: f64,
    /// Millions of operations, as NPB counts them.
    pub mop: f64,
    pub checks: Vec<Check>,
}

/// A computed value beside the published one.
pub struct Check {
    pub text: String,
    pub right: bool,
}

impl Check {
    /// Compares a value whose relative error may be at most `tolerance`.
    pub fn near(what: &str, found: f64, published: f64, tolerance: f64) -> Self {
        let error = ((found - published) / published).abs();
        let text =
            format!("{what} {found:.13e}, published {published:.13e}, error {error:.1e} (at most {tolerance:.0e})");
        Check { text, right: error <= tolerance }
    }

    /// Compares a count.
    pub fn equal(what: &str, found: u64, expected: u64) -> Self {
        Check { text: format!("{what} {found}, expected {expected}"), right: found == expected }
    }
}

/// The time of a kernel, from the moment at which all ranks are ready.
pub struct Clock(Instant);

impl Clock {
    /// Collective: waits for all ranks, then starts the clock.
    pub fn start(world: &World) -> Result<Self, transom::Error> {
        world.barrier()?;
        Ok(Clock(Instant::now()))
    }

    /// Collective: returns the seconds that the slowest rank needed.
    pub fn stop(self, world: &World) -> Result<f64, transom::Error> {
        Ok(world.all_reduce_one(self.0.elapsed().as_secs_f64(), Op::Max)?)
    }
}
