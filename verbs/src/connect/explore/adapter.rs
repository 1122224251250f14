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
    pub alive: bool,
    /// Attached to the lane.
    pub attached: bool,
    /// Requests posted to it, and the number of them that were answered.
    pub sent: Vec<Sent>,
    pub answered: usize,
    /// Packets received and executed.
    pub arrived: u32,
    /// For a mutant: it reported its received position and still executes packets.
    pub sooner: bool,
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
    pub made: &'a mut Vec<Made>,
    pub received: &'a mut Received,
    pub refused: &'a mut [bool; 2],
    pub refusal: Refusal,
    /// The refused verb was called.
    pub met: bool,
    pub sent: Vec<Message>,
    pub mutant: Option<Mutant>,
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
        let by = by.filter(|_| self.mutant != Some(Mutant::OtherRail));
        let by = by.unwrap_or((self.made.len() + self.side) as u32 % self.rails);
        let end = End { by, queue_pair: number, psn: (0xff_fffd + number) % (1 << 24), received: *self.received };
        let (connected, attached, sent, answered, arrived, sooner) = Default::default();
        self.made.push(Made { generation, end, connected, alive: true, attached, sent, answered, arrived, sooner });
        Ok(end)
    }

    fn connect(&mut self, theirs: End) -> Result<(), Errno> {
        if self.refusal == Refusal::Connect {
            (self.met, self.refused[1]) = (true, true);
            return Err(errno(self.side, 1));
        }
        match self.made.last_mut() {
            Some(Made { end, .. }) if end.by != theirs.by => {
                self.wrong = Some("connects queue pairs of two rails".into());
            }
            Some(Made { connected: connected @ None, alive: true, .. }) => match self.mutant {
                Some(Mutant::NotConnected) => {}
                Some(Mutant::OtherPsn) => *connected = Some(End { psn: (theirs.psn + 1) % (1 << 24), ..theirs }),
                _ => *connected = Some(theirs),
            },
            other => self.wrong = Some(format!("connects {other:?}")),
        }
        Ok(())
    }

    fn retire(&mut self) {
        match self.made.last_mut() {
            Some(made) if made.alive => {
                made.alive = self.mutant == Some(Mutant::NotRetired);
                made.sooner = true;
                if let Some(theirs) = made.connected {
                    let next = (theirs.psn + made.arrived) % (1 << 24);
                    *self.received = match self.mutant {
                        Some(Mutant::OldForgotten) => Received { generation: made.generation, next },
                        _ => self.received.after(made.generation, theirs.psn, next),
                    };
                }
            }
            other => self.wrong = Some(format!("retires {other:?}")),
        }
    }

    fn send(&mut self, message: Message) {
        match (self.mutant, message) {
            (Some(Mutant::RejectsUnsent), Message::Reject { .. }) => {}
            (Some(Mutant::OtherReason), Message::Reject { generation, .. }) => {
                self.sent.push(Message::Reject { generation, errno: 99 });
            }
            _ => self.sent.push(message),
        }
    }
}

/// A fault inserted at the boundary of the machine; the code under check is the production code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The attacker knows the secret.
    ForgeriesOpened,
    /// Messages of old generations count as current.
    OldHeard,
    /// Requests of a newer generation are ignored.
    NewUnheard,
    /// A reply of an old generation counts for the latest request.
    ReplyToAnother,
    /// Crossing requests of both sides are ignored.
    CrossingUnheard,
    /// A repeated reply is not sent.
    RepliesOnce,
    /// A waiting side does not repeat its request.
    AsksOnce,
    /// Rejects are not sent.
    RejectsUnsent,
    /// A reject carries another error.
    OtherReason,
    /// Retiring does not destroy the queue pair.
    NotRetired,
    /// Connecting does not connect the queue pair.
    NotConnected,
    /// The queue pair is on another rail than the peer's.
    OtherRail,
    /// The queue pair is connected with another PSN.
    OtherPsn,
    /// A side is ready before it knows that the peer is connected.
    ReadyWhenAnswered,
    /// The loss of a queue pair is not reported.
    LossUntold,
    /// The loss of an older queue pair counts for the current one.
    OldLoss,
    /// Generations restart after a loss.
    GenerationsAnew,
    /// The peer's death is not reported.
    DeathUntold,
    /// The peer's death is reported as the loss of the queue pair.
    DeathAsLoss,
    /// The received position is reported before the queue pair stops receiving.
    ToldTooSoon,
    /// If the last queue pair received nothing, that is reported instead of the earlier position.
    OldForgotten,
    /// All requests are posted again.
    AllAgain,
    /// No request is posted again.
    NothingAgain,
    /// One packet too few counts as received.
    OnePacketLess,
    /// One packet too many counts as received.
    OnePacketMore,
    /// The received position counts for the latest generation, regardless of its own.
    AnyGeneration,
    /// A lost result of an atomic is reported as available.
    ResultsForged,
    /// A side asked to retire its queue pair confirms but keeps it.
    RetiresInWords,
    /// A side asked to retire an older queue pair retires the current one.
    OldRetired,
}
