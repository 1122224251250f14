//! The connection protocol between two ranks: the state that each keeps about the other, without device, clock or
//! network.
//!
//! ```text
//!            want                      reply
//!   absent --------> asked ------------------------------> ready
//!      |               | request (both asked)                ^
//!      | request       v                                     | reply
//!      +----------> answered --------------------------------+
//!
//!   request of a newer generation    any state --> answered: the old queue pair is retired
//!   lost                             asked, answered, ready --> absent, or asked again if an operation waits
//!   reject, no queue pair, died      any state --> failed; want and requests lead out of it, except after a death
//!   drain, drained                   ready --> draining --> absent, or asked again if an operation waits
//! ```
//! Rules of the protocol:
//! - A rank creates at most one queue pair per generation, and its generation never decreases. A generation therefore
//!   identifies one queue pair, however late a datagram that names it arrives.
//! - The higher generation wins. A side that lost its queue pair continues with the next generation; the other side
//!   follows when it learns of that. Crossing requests have the same generation, and each side answers the other's.
//! - A rank replies once it is connected, and is `ready` once it knows that the peer is connected too: then posted
//!   requests arrive.
//! - Both ends of a connection are on the same rail. The requesting side chooses the rail, and the answering side
//!   follows. If both request at once, the side whose rail has the lower number gives up its queue pair, and requests
//!   the next generation on the other rail.
//! - Only a side that wants the connection repeats its request. Silence is not a failure; the job reports the peer's
//!   death. A side that cannot answer yet says `Alive`, so that it does not count as unreachable.
//! - An adapter may take seconds to connect a queue pair, if it has to resolve the peer's address. The side is `joining`
//!   meanwhile, and replies afterwards. No peer is ready, so nothing arrives at a queue pair whose connection is abandoned.
//!
//! Retiring a queue pair first stops reception and then reads the received position, which the end of the next
//! generation carries to the peer. A ready side therefore knows which of all requests it ever posted were executed. It
//! posts the others again, and reads too. The result of an atomic that was executed but not answered is lost.
//!
//! A side that does not wait for the next generation, because its requests take another way, asks the peer to retire
//! the last one. Once the peer has confirmed, requests of that generation have no further effect.
//!
//! An idle connection is given up without a request in flight. A side that drains posts nothing more in this generation,
//! and reports when its posted requests are complete (`Drained`). The peer then drains too, retires its queue pair once
//! its own requests are complete, and confirms that (`Retired`). The queue pair of the first side answers the peer's
//! requests until then. A side that has reported never posts in this generation again, so late reports are true.

use super::message::{End, Message};
use rustix::io::Errno;
use std::time::Duration;

/// State of the connection with one peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Machine {
    /// Generation of this side's queue pair, or of its last one.
    generation: u32,
    state: ConnectionState,
    /// An operation waits for the connection.
    wanted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) enum ConnectionState {
    /// No queue pair.
    #[default]
    Absent,
    /// This side has a queue pair and has sent a request.
    Asked { mine: End },
    /// The adapter is connecting the queue pair to the peer's. `ready`: the peer's is connected already.
    Joining { mine: End, theirs: End, ready: bool },
    /// The queue pair is connected to the peer's, which may not be connected yet.
    Answered { mine: End, theirs: End },
    /// Both queue pairs are connected to each other, as far as this side knows.
    Ready { mine: End, theirs: End },
    /// Both queue pairs are connected. This side posts nothing more, and retires its own after the peer's.
    Draining { mine: End, theirs: End },
    /// No connection is possible.
    Failed(Reason),
}

/// The reason for the lack of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reason {
    /// This side's adapter refused.
    Here(Errno),
    /// The peer's adapter refused.
    There(Errno),
    /// The job reported the peer's death.
    Died,
}

/// Effects of a machine, which has at most one queue pair at a time.
pub(crate) trait Effects {
    /// Creates a queue pair on rail `by`, or on any rail that works.
    fn make(&mut self, generation: u32, by: Option<u32>) -> Result<End, Errno>;
    /// Connects the queue pair to the peer's, or begins to; returns whether it is connected. The outcome is otherwise
    /// reported by [`Machine::joined`].
    fn connect(&mut self, theirs: End) -> Result<bool, Errno>;
    /// Destroys the queue pair. Its received position is part of every end created later.
    fn retire(&mut self);
    /// Posts no further request to the queue pair; returns whether all posted ones are complete.
    fn drained(&mut self) -> bool;
    /// Sends a datagram, which may be lost.
    fn send(&mut self, message: Message);
}

impl Machine {
    pub fn state(&self) -> ConnectionState {
        self.state
    }

    /// Generation of the current queue pair, or of the last one.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns whether an operation waits for the connection.
    pub fn is_waiting(&self) -> bool {
        self.wanted
    }

    /// Returns whether the last message must be repeated [`again`](Self::again) later.
    pub fn is_repeating(&self) -> bool {
        self.wanted || matches!(self.state, ConnectionState::Draining { .. })
    }

    /// Requests the connection. After a failure this starts a new attempt.
    pub fn want(&mut self, effects: &mut impl Effects) {
        match self.state {
            ConnectionState::Ready { .. } | ConnectionState::Failed(Reason::Died) => {}
            ConnectionState::Asked { .. }
            | ConnectionState::Joining { .. }
            | ConnectionState::Answered { .. }
            | ConnectionState::Draining { .. } => {
                self.wanted = true;
                self.again(effects);
            }
            ConnectionState::Absent | ConnectionState::Failed(_) => {
                self.wanted = true;
                self.ask(None, effects);
            }
        }
    }

    /// Begins to give up an idle connection.
    pub fn drain(&mut self, effects: &mut impl Effects) {
        if let ConnectionState::Ready { mine, theirs } = self.state {
            self.enter(ConnectionState::Draining { mine, theirs });
            self.again(effects);
        }
    }

    /// Repeats the request, or the report that this side has drained.
    pub fn again(&self, effects: &mut impl Effects) {
        let generation = self.generation;
        match self.state {
            ConnectionState::Asked { mine }
            | ConnectionState::Joining { mine, .. }
            | ConnectionState::Answered { mine, .. } => effects.send(Message::Request { generation, mine }),
            ConnectionState::Draining { .. } if effects.drained() => effects.send(Message::Drained { generation }),
            _ => {}
        }
    }

    /// Reports that the queue pair of that generation is unusable.
    pub fn lost(&mut self, generation: u32, effects: &mut impl Effects) {
        if generation == self.generation && self.retire(effects) && self.wanted {
            self.ask(None, effects);
        }
    }

    /// Abandons the attempt to connect.
    pub fn given_up(&mut self, why: Errno, effects: &mut impl Effects) {
        if self.state != ConnectionState::Failed(Reason::Died) {
            self.retire(effects);
            self.fail(Reason::Here(why));
        }
    }

    /// Reports the peer's death.
    pub fn died(&mut self, effects: &mut impl Effects) {
        self.retire(effects);
        self.fail(Reason::Died);
    }

    /// Handles a datagram from the peer, which may be late or a duplicate.
    pub fn heard(&mut self, message: Message, effects: &mut impl Effects) {
        if self.state == ConnectionState::Failed(Reason::Died) {
            return;
        }
        match message {
            Message::Request { generation, mine: theirs, .. } if generation > self.generation => {
                self.retire(effects);
                self.generation = generation;
                match effects.make(generation, Some(theirs.by)) {
                    Ok(mine) => self.join(mine, theirs, false, effects),
                    Err(errno) => self.refuse(errno, effects),
                }
            }
            Message::Request { generation, mine: theirs } => self.asked(generation, theirs, effects),
            Message::Reply { generation, mine: theirs } if generation == self.generation => match self.state {
                ConnectionState::Asked { mine } => self.join(mine, theirs, true, effects),
                ConnectionState::Joining { mine, theirs, .. } => {
                    self.enter(ConnectionState::Joining { mine, theirs, ready: true });
                }
                ConnectionState::Answered { mine, theirs } => self.enter(ConnectionState::Ready { mine, theirs }),
                _ => {}
            },
            // If this side was ready, the peer's queue pair has been lost since.
            Message::Reject { generation, errno } if generation == self.generation => {
                if self.retire(effects) {
                    self.fail(Reason::There(Errno::from_raw_os_error(errno.into())));
                }
            }
            // An old generation: the peer has moved on, or will learn of this generation.
            Message::Reply { .. } | Message::Reject { .. } => {}
            Message::Retire { generation } => {
                if generation >= self.generation {
                    let there_was = self.retire(effects);
                    self.generation = generation;
                    if there_was && self.wanted {
                        self.ask(None, effects);
                    }
                }
                effects.send(Message::Retired { generation });
            }
            Message::Drained { generation } if generation <= self.generation => {
                if generation == self.generation && !self.gives_up(effects) {
                    // Repeated once this side's requests are complete.
                    return effects.send(Message::Alive);
                }
                effects.send(Message::Retired { generation });
            }
            Message::Retired { generation }
                if generation == self.generation && matches!(self.state, ConnectionState::Draining { .. }) =>
            {
                self.lost(generation, effects);
            }
            Message::Drained { .. } | Message::Retired { .. } => {}
            // Not messages of this protocol.
            Message::Probe
            | Message::Alive
            | Message::Atomic { .. }
            | Message::Answer { .. }
            | Message::Moved(_)
            | Message::Spare { .. } => {}
        }
    }

    /// Handles a request under this side's generation or an older one.
    fn asked(&mut self, generation: u32, theirs: End, effects: &mut impl Effects) {
        let now = generation == self.generation;
        match self.state {
            ConnectionState::Asked { mine } if now && mine.by < theirs.by => {
                self.retire(effects);
                self.ask(Some(theirs.by), effects);
            }
            // The peer learns of this side's rail, and follows.
            ConnectionState::Asked { mine } if now && mine.by > theirs.by => self.again(effects),
            ConnectionState::Asked { mine } if now => self.join(mine, theirs, false, effects),
            // The peer is behind, so this side's generation takes precedence.
            ConnectionState::Asked { .. } => self.again(effects),
            // The reply was lost.
            ConnectionState::Answered { mine, .. } | ConnectionState::Ready { mine, .. } if now => {
                effects.send(Message::Reply { generation, mine });
            }
            ConnectionState::Draining { .. } if now => {
                let drained = effects.drained();
                effects.send(if drained { Message::Drained { generation } } else { Message::Alive });
            }
            // A late request: the peer already had a queue pair of this generation, since this side knows it.
            ConnectionState::Answered { .. } | ConnectionState::Ready { .. } | ConnectionState::Draining { .. } => {}
            // The reply follows once this side is connected. A request for another rail came by that rail, where this
            // answer would not arrive.
            ConnectionState::Joining { .. } if theirs.by == 0 => effects.send(Message::Alive),
            ConnectionState::Joining { .. } => {}
            // This side's queue pair of that generation is gone.
            ConnectionState::Absent => {
                self.ask(Some(theirs.by), effects);
                self.reject(generation, effects);
            }
            ConnectionState::Failed(_) => self.reject(generation, effects),
        }
    }

    /// Retires the queue pair that the peer does not use any more, once this side's requests are complete; returns
    /// whether there is none now.
    fn gives_up(&mut self, effects: &mut impl Effects) -> bool {
        if let ConnectionState::Ready { mine, theirs } = self.state {
            self.enter(ConnectionState::Draining { mine, theirs });
        }
        if matches!(self.state, ConnectionState::Draining { .. }) && !effects.drained() {
            return false;
        }
        self.lost(self.generation, effects);
        true
    }

    /// Creates a queue pair of the next generation, and sends a request.
    fn ask(&mut self, by: Option<u32>, effects: &mut impl Effects) {
        let made = match self.generation.checked_add(1) {
            None => Err(Errno::OVERFLOW),
            Some(next) => {
                self.generation = next;
                effects.make(next, by)
            }
        };
        match made {
            Ok(mine) => {
                self.enter(ConnectionState::Asked { mine });
                self.again(effects);
            }
            Err(errno) => self.fail(Reason::Here(errno)),
        }
    }

    /// Connects this side's queue pair, and replies. `ready`: the peer is already connected.
    fn join(&mut self, mine: End, theirs: End, ready: bool, effects: &mut impl Effects) {
        match effects.connect(theirs) {
            Ok(true) => self.joins(mine, theirs, ready, Ok(()), effects),
            Ok(false) => self.enter(ConnectionState::Joining { mine, theirs, ready }),
            Err(errno) => self.joins(mine, theirs, ready, Err(errno), effects),
        }
    }

    /// Reports the outcome of a connection of that generation that was begun.
    pub fn joined(&mut self, generation: u32, outcome: Result<(), Errno>, effects: &mut impl Effects) {
        if let ConnectionState::Joining { mine, theirs, ready } = self.state
            && generation == self.generation
        {
            self.joins(mine, theirs, ready, outcome, effects);
        }
    }

    fn joins(&mut self, mine: End, theirs: End, ready: bool, outcome: Result<(), Errno>, effects: &mut impl Effects) {
        match outcome {
            Ok(()) => {
                self.enter(if ready {
                    ConnectionState::Ready { mine, theirs }
                } else {
                    ConnectionState::Answered { mine, theirs }
                });
                effects.send(Message::Reply { generation: self.generation, mine });
            }
            Err(errno) => {
                effects.retire();
                self.refuse(errno, effects);
            }
        }
    }

    fn refuse(&mut self, errno: Errno, effects: &mut impl Effects) {
        self.fail(Reason::Here(errno));
        self.reject(self.generation, effects);
    }

    /// Sends a reject under the peer's generation, if this side has failed.
    fn reject(&self, generation: u32, effects: &mut impl Effects) {
        if let ConnectionState::Failed(Reason::Here(errno) | Reason::There(errno)) = self.state {
            effects.send(Message::Reject { generation, errno: errno.raw_os_error() as u16 });
        }
    }

    fn fail(&mut self, reason: Reason) {
        self.enter(ConnectionState::Failed(reason));
    }

    fn enter(&mut self, state: ConnectionState) {
        self.state = state;
        self.wanted &= !matches!(state, ConnectionState::Ready { .. } | ConnectionState::Failed(_));
    }

    /// Retires the queue pair; returns whether there was one.
    fn retire(&mut self, effects: &mut impl Effects) -> bool {
        let there_is = matches!(
            self.state,
            ConnectionState::Asked { .. }
                | ConnectionState::Joining { .. }
                | ConnectionState::Answered { .. }
                | ConnectionState::Ready { .. }
                | ConnectionState::Draining { .. }
        );
        if there_is {
            effects.retire();
            self.state = ConnectionState::Absent;
        }
        there_is
    }
}

/// Intervals of repeated requests to a silent peer: short for a second and a half, in which the peer may detect a
/// broken connection itself; then one second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    asked: u32,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(25);
    /// Number of doublings of the interval at first.
    const TWICE: u32 = 3;
    /// Number of short intervals.
    const SOON: u32 = 10;
    const LAST: Duration = Duration::from_secs(1);

    /// Time to wait for an answer now.
    pub fn next(&mut self) -> Duration {
        let soon = Self::FIRST * (1 << self.asked.min(Self::TWICE));
        let wait = if self.asked < Self::SOON { soon } else { Self::LAST };
        self.asked = self.asked.saturating_add(1);
        wait
    }

    /// Returns whether to resolve the peer's address again: after about 7 seconds of silence, and every 5 from then on.
    pub fn is_to_be_resolved(&self) -> bool {
        let slow = self.asked.saturating_sub(Self::SOON);
        slow > 0 && slow.is_multiple_of(5)
    }

    /// Returns whether to log again that the peer is silent: after about 4, 12, 28, 60 seconds and so on.
    pub fn is_to_be_told(&self) -> bool {
        // The 2nd of the one-second intervals, and then at doubling distances.
        let slow = self.asked.saturating_sub(Self::SOON);
        slow > 0 && (slow + 6).is_power_of_two()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_peer_is_asked_and_logged_ever_more_rarely() {
        let (mut backoff, mut at, mut told) = (Backoff::default(), Duration::ZERO, Vec::new());
        let (mut asked, mut resolved) = (Vec::new(), Vec::new());
        for _ in 0..300 {
            at += backoff.next();
            asked.push(at.as_millis());
            if backoff.is_to_be_resolved() {
                resolved.push(at.as_secs());
            }
            if backoff.is_to_be_told() {
                told.push(at.as_secs());
            }
        }
        assert_eq!(asked[..12], [25, 75, 175, 375, 575, 775, 975, 1175, 1375, 1575, 2575, 3575]);
        assert_eq!(asked[299], 291_575, "once a second in the end");
        assert_eq!(told, [3, 11, 27, 59, 123, 251]);
        assert_eq!(resolved[..4], [6, 11, 16, 21]);
    }
}
