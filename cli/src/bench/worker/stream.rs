//! A plain TCP stream between ranks 0 and 1 if they are on one machine and share no memory: what any protocol over TCP takes
//! at least.
//!
//! Both ends use plain system calls without Nagle's algorithm, as the shortest program in C would. `stream.one_way` is
//! half of the time in which a message of N bytes goes and one of N bytes comes back; `stream.round_trip` is that of a
//! message of N bytes and an answer of 8. In both, both ends poll. `stream.asleep` is as `stream.round_trip`, but the
//! answering end sleeps until the message arrives, like the thread that serves a rank whose program computes.

use super::facts::{Facts, Outcome};
use crate::bench::statistics::median;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use transom::World;
use transom::messages::Tag;

/// Time of one measurement, and the least number of round trips in it.
const TIME: Duration = Duration::from_millis(10);
const LEAST: usize = 20;
const ANSWER: usize = 8;
/// Unsuccessful calls after which an end yields its core.
const PATIENCE: u32 = 100;
const TAG: Tag<u64> = Tag::new(1);

/// The lesser of the medians so far, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    pub one_way: f64,
    pub round_trip: f64,
    pub asleep: f64,
}

impl Stream {
    /// Collective. Returns `None` if ranks 0 and 1 share memory or are on two machines, and at other ranks.
    pub fn measure(world: &World, bytes: usize) -> Outcome<Option<Stream>> {
        if world.size() < 2 {
            return Ok(None);
        }
        let window = world.allocate::<u64>(1)?;
        let mut measured = None;
        if are_on_one_machine(world)? && world.rank() < 2 && window.local().of(1 - world.rank()).is_err() {
            let stream = connect(world)?;
            stream.set_nodelay(true)?;
            let first = world.rank() == 0;
            let game = |answer, polls| -> Outcome<f64> {
                stream.set_nonblocking(polls)?;
                play(first, &mut Polled(&stream), bytes, answer)
            };
            measured = Some(Stream {
                one_way: game(bytes, true)? / 2.0,
                round_trip: game(ANSWER, true)?,
                asleep: game(ANSWER, first)?,
            });
        }
        world.barrier()?;
        Ok(measured)
    }

    /// The lesser times, because other load can only add to them.
    pub fn least(self, other: Stream) -> Stream {
        Stream {
            one_way: self.one_way.min(other.one_way),
            round_trip: self.round_trip.min(other.round_trip),
            asleep: self.asleep.min(other.asleep),
        }
    }

    pub fn report(self, facts: &mut Facts) {
        facts.value("stream.one_way", self.one_way);
        facts.value("stream.round_trip", self.round_trip);
        facts.value("stream.asleep", self.asleep);
    }
}

/// Collective: returns true if ranks 0 and 1 run under one kernel, with the same network.
fn are_on_one_machine(world: &World) -> Outcome<bool> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let mut own = [0_u8; 64];
    let text = boot.into_iter().chain(network.into_os_string().into_encoded_bytes());
    own.iter_mut().zip(text).for_each(|(to, from)| *to = from);
    let all = world.all_gather(&own)?;
    Ok(all[..own.len()] == all[own.len()..][..own.len()])
}

/// A stream to the other of ranks 0 and 1, which are on this machine.
fn connect(world: &World) -> Outcome<TcpStream> {
    if world.rank() == 1 {
        let (port, _) = world.recv(0, TAG)?;
        return Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, u16::try_from(port[0])?))?);
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    world.send(1, TAG, &[u64::from(listener.local_addr()?.port())])?;
    Ok(listener.accept()?.0)
}

/// A stream whose calls are repeated until they have an effect.
struct Polled<'a>(&'a TcpStream);

impl Polled<'_> {
    fn poll(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
        let mut looks = 0u32;
        loop {
            match call() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            // The other end may need this core.
            looks = looks.saturating_add(1);
            if looks > PATIENCE { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}

impl Read for Polled<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Self::poll(|| self.0.read(into))
    }
}

impl Write for Polled<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::poll(|| self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Nanoseconds of a message and its answer. The first byte of a message is 1 if another follows.
fn play(first: bool, stream: &mut Polled, bytes: usize, answer: usize) -> Outcome<f64> {
    let (mut message, mut reply) = (vec![1; bytes.max(1)], vec![0; answer]);
    let mut times = Vec::new();
    if first {
        let begun = Instant::now();
        while message[0] == 1 {
            message[0] = u8::from(times.len() < LEAST || begun.elapsed() < TIME);
            let sent = Instant::now();
            stream.write_all(&message)?;
            stream.read_exact(&mut reply)?;
            times.push(sent.elapsed().as_secs_f64() * 1e9);
        }
        return Ok(median(&times));
    }
    while message[0] == 1 {
        stream.read_exact(&mut message)?;
        stream.write_all(&reply)?;
    }
    Ok(0.0)
}
