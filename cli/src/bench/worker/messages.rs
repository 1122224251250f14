//! Messages between ranks 0 and 1, or between pairs: latency, bandwidth and rate.

use super::arguments::{self, Measurement, Worker};
use super::facts::{Facts, Outcome};
use super::operations::pattern;
use super::sampling;
use crate::bench::buffer::Buffer;
use std::hint::black_box;
use std::ops::DerefMut;
use transom::World;
use transom::messages::{Error, Request, Source, Tag};

const DATA: Tag<u64> = Tag::new(1);
const ANSWER: Tag<u8> = Tag::new(2);
/// Messages before a reply, as in OSU.
const IN_A_ROW: usize = 64;
/// The most bytes in flight at once, unless a single message has more.
const UNDER_WAY: usize = 4 << 20;

pub struct Messages<'w> {
    pub world: &'w World,
    pub me: usize,
    /// The partner of rank 0 or 1.
    pub other: usize,
    source: Elements,
    into: Elements,
}

type Elements = Box<dyn DerefMut<Target = [u64]> + Send + Sync>;

/// Elements computed from their index, in the kind of memory to be measured.
fn elements(worker: &Worker, world: &World, len: usize, element: fn(usize) -> u64) -> Result<Elements, transom::Error> {
    if worker.sync != arguments::Sync::Buffers {
        return Ok(Box::new(Buffer::new(len, element)));
    }
    let mut buffer = world.buffer(len)?;
    buffer.iter_mut().enumerate().for_each(|(at, place)| *place = element(at));
    Ok(Box::new(buffer))
}

pub fn measure(worker: &Worker, world: &World, facts: &mut Facts) -> Outcome {
    let (me, n) = (world.rank(), world.size());
    let in_a_row = match worker.measurement {
        Measurement::MessageRate => (UNDER_WAY / worker.bytes).clamp(1, IN_A_ROW),
        _ => IN_A_ROW,
    };
    let pairs = n / 2;
    let partner = if me < pairs { me + pairs } else { me - pairs };
    // Messages in flight at the same time have separate buffers.
    let buffers = if worker.measurement == Measurement::MessageRate { in_a_row } else { 1 };
    let mut messages = Messages::new(worker, world, buffers)?;
    let (unit, at_once) = match worker.measurement {
        Measurement::Pingpong => (2, 1),
        Measurement::Bidirectional => (1, 1),
        Measurement::MessageRate => (in_a_row, pairs),
        Measurement::PollingSet => (IN_A_ROW, n - 1),
        _ => (IN_A_ROW, 1),
    };
    let samples = sampling::together(world, worker.time(), unit, |count| {
        match worker.measurement {
            Measurement::PollingSet => (0..count / unit).try_for_each(|_| messages.all_to_one())?,
            Measurement::MessageRate if me < 2 * pairs => {
                (0..count / unit).try_for_each(|_| messages.under_way(me < pairs, partner, in_a_row))?;
            }
            _ if me > 1 => {}
            Measurement::Pingpong => (0..count / 2).try_for_each(|_| messages.there_and_back(|| {}))?,
            Measurement::Bidirectional => (0..count).try_for_each(|_| messages.both_ways())?,
            _ => (0..count / unit).try_for_each(|_| messages.in_a_row())?,
        }
        Ok(())
    })?;
    facts.samples(&samples.iter().map(|ns| ns / at_once as f64).collect::<Vec<_>>());
    messages.verify(facts)
}

impl<'w> Messages<'w> {
    /// `buffers` is the number of messages that can be received at once.
    pub fn new(worker: &Worker, world: &'w World, buffers: usize) -> Result<Self, transom::Error> {
        let (len, me) = (worker.bytes / 8, world.rank());
        let (source, into) = (elements(worker, world, len, pattern)?, elements(worker, world, len * buffers, |_| 0)?);
        Ok(Messages { world, me, other: 1 - me.min(1), source, into })
    }

    /// Sends back the received message. Each sender calls `before` first.
    #[inline(always)]
    pub fn there_and_back(&mut self, before: impl FnOnce()) -> Result<(), Error> {
        let Messages { world, me, other, source, into } = self;
        let into = &mut into[..source.len()];
        if *me == 0 {
            before();
            world.send(*other, DATA, black_box(source))?;
            world.recv_into(*other, DATA, into)?;
        } else if *me == 1 {
            world.recv_into(*other, DATA, into)?;
            before();
            world.send(*other, DATA, into)?;
        }
        Ok(())
    }

    /// Sends one more message there and back; rank 0 checks the returned data.
    pub fn verify(&mut self, facts: &mut Facts) -> Outcome {
        self.into.fill(0);
        self.there_and_back(|| {})?;
        let right = self.me != 0 || self.into[..self.source.len()] == self.source[..];
        facts.check(right, || "the messages delivered wrong elements".into());
        Ok(())
    }

    fn both_ways(&mut self) -> Result<(), Error> {
        let Messages { world, other, source, into, .. } = self;
        world.sendrecv(*other, DATA, black_box(source), *other, DATA, into).map(drop)
    }

    fn in_a_row(&mut self) -> Result<(), Error> {
        let Messages { world, me, other, source, into } = self;
        if *me == 0 {
            (0..IN_A_ROW).try_for_each(|_| world.send(*other, DATA, black_box(source)))?;
            world.recv_into(*other, ANSWER, &mut [0]).map(drop)
        } else {
            (0..IN_A_ROW).try_for_each(|_| world.recv_into(*other, DATA, into).map(drop))?;
            world.send(*other, ANSWER, &[1])
        }
    }

    /// Does the same as [`in_a_row`](Self::in_a_row), but starts all messages before it waits for the first.
    fn under_way(&mut self, sends: bool, other: usize, count: usize) -> Result<(), Error> {
        let Messages { world, source, into, .. } = self;
        let len = source.len();
        world.scope(|scope| {
            if sends {
                Request::wait_all((0..count).map(|_| scope.isend(other, DATA, black_box(source))))?;
            } else {
                Request::wait_all(into.chunks_exact_mut(len).map(|into| scope.irecv(other, DATA, into)))?;
            }
            Ok::<(), Error>(())
        })?;
        match sends {
            true => world.recv_into(other, ANSWER, &mut [0]).map(drop),
            false => world.send(other, ANSWER, &[1]),
        }
    }

    /// All others send to rank 0, which receives from any source.
    fn all_to_one(&mut self) -> Result<(), Error> {
        let Messages { world, me, source, into, .. } = self;
        if *me > 0 {
            (0..IN_A_ROW).try_for_each(|_| world.send(0, DATA, black_box(source)))?;
            return world.recv_into(0, ANSWER, &mut [0]).map(drop);
        }
        let others = 1..world.size();
        (0..IN_A_ROW * others.len()).try_for_each(|_| world.recv_into(Source::Any, DATA, into).map(drop))?;
        others.into_iter().try_for_each(|other| world.send(other, ANSWER, &[1]))
    }
}
