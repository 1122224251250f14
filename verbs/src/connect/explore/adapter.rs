//! A rank's adapter: the queue pairs that it has made, and what is wrong with how a machine uses it.

use super::super::machine::Effects;
use super::super::message::{End, Message};
use crate::wr::{Kind, Received};
use rustix::io::Errno;

/// A queue pair that a side has made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Made {
    pub generation: u32,
    pub end: End,
    pub connected: Option<End>,
    pub alive: bool,
    /// It is the lane's.
    pub attached: bool,
    /// What was posted to it, and how many of that were answered.
    pub sent: Vec<Sent>,
    pub answered: usize,
    /// Packets that have come and were executed.
    pub arrived: u32,
    /// Of a mutant: it has told what it received, and goes on.
    pub sooner: bool,
}

/// A request as it was posted to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sent {
    pub number: u64,
    pub kind: Kind,
    pub packets: u32,
    /// In place of one that was executed.
    pub marker: bool,
    pub fenced: bool,
}

/// Which of the adapter's verbs is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    None,
    Make,
    Connect,
}

/// Distinct for each side and verb.
pub fn errno(side: usize, verb: usize) -> Errno {
    Errno::from_raw_os_error((1 + 2 * side + verb) as i32)
}

/// What a machine does in one step.
pub struct Doing<'a> {
    pub side: usize,
    pub rails: u32,
    pub made: &'a mut Vec<Made>,
    pub received: &'a mut Received,
    pub refused: &'a mut [bool; 2],
    pub refusal: Refusal,
    /// Whether the refusal came to be.
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
        // The numbers of packets go round.
        // Each side takes them by turns, and begins with another.
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

/// What is wrong with a run, made at the boundary of the machine: the code under check is the code that ships.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The attacker knows the secret.
    ForgeriesOpened,
    /// What is heard counts as of the current generation.
    OldHeard,
    /// Requests of a newer generation are not heard.
    NewUnheard,
    /// A reply of an old generation counts as one to the latest request.
    ReplyToAnother,
    /// Requests of both sides that cross are not heard.
    CrossingUnheard,
    /// What is sent in place of a repeated reply is nothing.
    RepliesOnce,
    /// Whoever waits does not ask again.
    AsksOnce,
    /// Rejects are not sent.
    RejectsUnsent,
    /// A reject tells another error.
    OtherReason,
    /// A queue pair is not destroyed when it is retired.
    NotRetired,
    /// A queue pair is taken as connected that is not.
    NotConnected,
    /// It is of another rail than the peer's.
    OtherRail,
    /// It is connected from another PSN on.
    OtherPsn,
    /// Ready before the peer is known to be connected.
    ReadyWhenAnswered,
    /// That a queue pair was lost is not told.
    LossUntold,
    /// That an older queue pair was lost counts for the current one.
    OldLoss,
    /// After a loss the generations begin anew.
    GenerationsAnew,
    /// That the peer died is not told.
    DeathUntold,
    /// That the peer died is told as the loss of the queue pair.
    DeathAsLoss,
    /// What was received is told before the queue pair takes nothing more.
    ToldTooSoon,
    /// Where nothing was received by the last queue pair, that is told, and not what was by one before.
    OldForgotten,
    /// All is posted again.
    AllAgain,
    /// Nothing is.
    NothingAgain,
    /// One packet fewer counts as received.
    OnePacketLess,
    /// One more.
    OnePacketMore,
    /// What was received counts for the last generation, whichever it was.
    AnyGeneration,
    /// The result of an atomic that is lost is told as if there were one.
    ResultsForged,
    /// Who is to retire its queue pair says that it has, and keeps it.
    RetiresInWords,
    /// Who is to retire an older one retires the last.
    OldRetired,
}
