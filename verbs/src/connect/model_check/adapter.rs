//! A simulated adapter: the queue pairs that a rank created, and checks of the machine's use of them.

use super::super::machine::Effects;
use super::super::message::{End, Message};
use crate::wr::{Kind, Received};
use rustix::io::Errno;

/// A queue pair created by a side.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Made {
    pub generation: u32,
    pub end: End,
    pub connected: Option<End>,
    /// The adapter is connecting it to this end.
    pub connecting: Option<End>,
    pub alive: bool,
    /// Attached to the lane.
    pub attached: bool,
    /// The lane posts nothing more to it.
    pub drains: bool,
    /// Requests posted to it, and the number of them that were answered.
    pub sent: Vec<Sent>,
    pub answered: usize,
    /// Packets received and executed.
    pub arrived: u32,
}

/// A request as posted to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sent {
    pub number: u64,
    pub kind: Kind,
    pub packets: u32,
    /// Posted in place of a request that was executed before.
    pub marker: bool,
    pub fenced: bool,
}

/// The verb that the adapter refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    None,
    Make,
    Connect,
}

/// An error number distinct for each side and verb.
pub fn errno(side: usize, verb: usize) -> Errno {
    Errno::from_raw_os_error((1 + 2 * side + verb) as i32)
}

/// The effects of one step of a machine.
pub struct Doing<'a> {
    pub side: usize,
    pub rails: u32,
    /// The adapter connects queue pairs later.
    pub slow: bool,
    pub made: &'a mut Vec<Made>,
    pub received: &'a mut Received,
    pub refused: &'a mut [bool; 2],
    pub refusal: Refusal,
    /// The refused verb was called.
    pub met: bool,
    pub sent: Vec<Message>,
    pub wrong: Option<String>,
}

impl Effects for Doing<'_> {
    fn make(&mut self, generation: u32, by: Option<u32>) -> Result<End, Errno> {
        if self.refusal == Refusal::Make {
            (self.met, self.refused[0]) = (true, true);
            return Err(errno(self.side, 0));
        }
        if self.made.iter().any(|made| made.alive) {
            self.wrong = Some("two queue pairs at once".into());
        }
        if self.made.last().is_some_and(|last| last.generation >= generation) {
            self.wrong = Some(format!("a second queue pair of generation {generation}, or an older one"));
        }
        let number = 2 + 2 * self.made.len() as u32 + self.side as u32;
        // Packet numbers wrap around.
        let by = by.unwrap_or((self.made.len() + self.side) as u32 % self.rails);
        let end = End { by, queue_pair: number, psn: (0xff_fffd + number) % (1 << 24), received: *self.received };
        let (connected, connecting, attached, drains, sent, answered, arrived) = Default::default();
        self.made.push(Made {
            generation,
            end,
            connected,
            connecting,
            alive: true,
            attached,
            drains,
            sent,
            answered,
            arrived,
        });
        Ok(end)
    }

    fn connect(&mut self, theirs: End) -> Result<bool, Errno> {
        if !self.slow && self.refusal == Refusal::Connect {
            (self.met, self.refused[1]) = (true, true);
            return Err(errno(self.side, 1));
        }
        match self.made.last_mut() {
            Some(Made { end, .. }) if end.by != theirs.by => {
                self.wrong = Some("connects queue pairs of two rails".into());
            }
            Some(Made { connected: None, connecting: connecting @ None, alive: true, .. }) if self.slow => {
                *connecting = Some(theirs);
            }
            Some(Made { connected: connected @ None, alive: true, .. }) => *connected = Some(theirs),
            other => self.wrong = Some(format!("connects {other:?}")),
        }
        Ok(!self.slow)
    }

    fn retire(&mut self) {
        match self.made.last_mut() {
            Some(made) if made.alive => {
                made.alive = false;
                if let Some(theirs) = made.connected {
                    let next = (theirs.psn + made.arrived) % (1 << 24);
                    *self.received = self.received.after(made.generation, theirs.psn, next);
                }
            }
            other => self.wrong = Some(format!("retires {other:?}")),
        }
    }

    fn drained(&mut self) -> bool {
        match self.made.last_mut() {
            Some(made) if made.alive => {
                made.drains = true;
                made.answered == made.sent.len()
            }
            other => {
                self.wrong = Some(format!("drains {other:?}"));
                true
            }
        }
    }

    fn send(&mut self, message: Message) {
        self.sent.push(message);
    }
}

impl Doing<'_> {
    /// The adapter has connected the queue pair with that index, or refuses; the queue pair may be retired.
    pub fn joined(&mut self, at: usize) -> (u32, Result<(), Errno>) {
        let made = &mut self.made[at];
        let theirs = made.connecting.take();
        if self.refusal == Refusal::Connect {
            (self.met, self.refused[1]) = (true, true);
            return (made.generation, Err(errno(self.side, 1)));
        }
        if made.alive {
            made.connected = theirs;
        }
        (made.generation, Ok(()))
    }
}
