//! `transom bench-worker`: one rank of a job that measures one thing once. See [`protocol`](super::protocol).

mod arguments;
mod block;
mod calls;
mod collectives;
mod connections;
mod crossing;
mod elements;
mod facts;
mod gaps;
mod kernel;
mod locks;
mod lu;
mod memory;
mod messages;
mod moved;
mod operations;
mod overlap;
mod pipeline;
mod pipes;
mod polling;
mod random;
mod sampling;
mod startup;
mod stream;
mod stretches;

use super::cores;
pub use arguments::Worker;
use arguments::{Element, From, Measurement, Sync};
use facts::{Facts, Outcome, gather};
use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;
use stream::Stream;
use transom::World;

impl Worker {
    pub fn execute(self) -> Result<ExitCode, Box<dyn Error>> {
        let world = transom::init()?;
        self.check(world.size())?;
        let cores = self.cores();
        let core = cores.get(world.rank()).copied().filter(|_| world.size() <= cores.len());
        if let Some(core) = core {
            cores::bind(core);
        }
        let mut facts = Facts::default();
        match self.measurement {
            Measurement::Startup => startup::measure(&world, &mut facts)?,
            Measurement::Connections => connections::measure(&world, &mut facts)?,
            _ => {
                // Measured before and after, so that samples taken while the system moved a rank can be recognized.
                crossing::take(&world, &cores, &mut facts)?;
                let before = Stream::measure(&world, self.bytes)?;
                self.measure(&world, &mut facts)?;
                crossing::take(&world, &cores, &mut facts)?;
                if let (Some(before), Some(after)) = (before, Stream::measure(&world, self.bytes)?) {
                    before.least(after).report(&mut facts);
                }
                if core.is_some() {
                    let all = gather(&world, &[cores::current() as f64])?;
                    all.iter().enumerate().for_each(|(rank, core)| facts.value(&format!("cpu.{rank}"), core[0]));
                }
            }
        }
        if world.rank() == 0 {
            std::io::stdout().write_all(facts.text()?.as_bytes())?;
        }
        // No rank exits while others may still need it.
        world.barrier()?;
        Ok(ExitCode::SUCCESS)
    }

    fn measure(&self, world: &World, facts: &mut Facts) -> Outcome {
        use Measurement::*;
        match self.measurement {
            Accumulate | GetAccumulate => match self.element {
                Element::I64 => operations::sums(self, world, facts, |count| count as i64),
                Element::F64 => operations::sums(self, world, facts, |count| count as f64),
            },
            Put | Get | PutBw | GetBw if self.from != From::Borrowed => moved::measure(self, world, facts),
            Put | Get | EightGets | FetchAndOp | CompareAndSwap => operations::latency(self, world, facts),
            PutBw | GetBw => operations::bandwidth(self, world, facts),
            Lock => operations::lock(self, world, facts),
            Value => locks::value(world, self.time(), facts),
            Random => random::measure(self, world, facts),
            ElementGet | ElementPut | ElementFetch => elements::measure(self, world, facts),
            Contended => locks::contended(world, self.time(), facts),
            ReadersWriter => locks::readers_writer(world, self.time(), facts),
            Barrier => operations::barrier(world, self.time(), facts),
            Pingpong if self.sync == Sync::Gaps => gaps::measure(self, world, facts),
            Pingpong | Stream | Bidirectional | MessageRate | PollingSet => messages::measure(self, world, facts),
            Overhead => calls::overhead(world, self.bytes, self.time(), facts),
            OverlapMessages => calls::overlap(world, self.bytes, self.time(), facts),
            OverlapCollectives => calls::overlap_collectives(world, self.bytes, self.time(), facts),
            Registration => calls::registration(world, self.bytes, facts),
            PollCost => polling::measure(world, self.time(), facts),
            Pipe => pipes::measure(world, self.bytes, self.time(), facts),
            Broadcast | Reduce | AllReduce | Scan | AllGather | AllToAll => collectives::measure(self, world, facts),
            Kernel => kernel::measure(world, self.block, facts),
            Lu | LuOutside => lu::measure(self, world, facts),
            Overlap => overlap::measure(self, world, facts),
            Pipeline => pipeline::measure(self, world, facts),
            Startup | Connections => Ok(()),
        }
    }
}
