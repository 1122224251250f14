//! The lines that rank 0 will print, and gathering the other ranks' values.

use std::error::Error;
use std::fmt::Write as _;
use transom::World;

pub type Outcome<R = ()> = Result<R, Box<dyn Error>>;

#[derive(Default)]
pub struct Facts {
    text: String,
    wrong: Option<String>,
}

impl Facts {
    /// The one-way time of a cache line, and the slowdown of a loop while the other core executes it too.
    pub fn cores(&mut self, crossing_ns: f64, slowdown: f64) {
        let _ = writeln!(self.text, "crossing {crossing_ns:.2}\nslowdown {slowdown:.3}");
    }

    pub fn samples(&mut self, samples: &[f64]) {
        for ns in samples {
            let _ = writeln!(self.text, "sample {ns:.3}");
        }
    }

    pub fn value(&mut self, name: &str, value: f64) {
        let _ = writeln!(self.text, "value {name} {value}");
    }

    /// Notes the first error; later ones are ignored.
    pub fn check(&mut self, right: bool, wrong: impl FnOnce() -> String) {
        if !right && self.wrong.is_none() {
            self.wrong = Some(wrong());
        }
    }

    pub fn text(mut self) -> Result<String, std::fmt::Error> {
        match self.wrong {
            None => writeln!(self.text, "check ok")?,
            Some(why) => writeln!(self.text, "check bad {why}")?,
        }
        Ok(self.text)
    }
}

/// Collective: the values of every rank, at rank 0. Other ranks get nothing.
pub fn gather(world: &World, mine: &[f64]) -> Result<Vec<Vec<f64>>, transom::Error> {
    let all = if world.rank() == 0 { mine.len() * world.size() } else { 0 };
    let mut window = world.allocate::<f64>(all)?;
    window.lock_shared(0)?.put(mine.len() * world.rank(), mine)?;
    window.fence()?;
    let rows = window.local().read(0, all)?.chunks_exact(mine.len()).map(<[f64]>::to_vec).collect();
    Ok(rows)
}
