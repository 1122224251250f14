//! How two ranks agree on a connection: the state that each keeps of the other, without device, clock or network.
//!
//! ```text
//!            want                      reply
//!   absent --------> asked ------------------------------> ready
//!      |               | request (both asked)                ^
//!      | request       v                                     | reply
//!      +----------> answered --------------------------------+
//!
//!   request of a newer generation    any state --> answered: what there was is retired
//!   lost                             asked, answered, ready --> absent, or asked again if somebody waits
//!   reject, no queue pair, died      any state --> failed; want and requests lead out of it, but not out of a death
//! ```
//! The rules that it rests on:
//! - A rank has at most one queue pair of a generation, ever, and its generation never falls. So whoever names a queue
//!   pair of a generation means the only one that there can be, however late the datagram is.
//! - Of two generations the greater counts. A side that lost its queue pair goes on with the next; the other follows when
//!   it hears of it. Crossing requests have the same generation, and each answers the other's.
//! - A rank replies once it is connected, and is `ready` once it knows that the peer is, too: then what is posted arrives.
//! - Both ends of a connection are of one rail. Whoever asks chooses it, and who answers follows; where both asked at once, the side whose
//!   rail has the lower number gives up its queue pair, and asks for the next generation by the other rail.
//! - Only whoever wants the connection asks again. To be silent is no failure; that the peer died is told by the job.
//!
//! A queue pair that is retired first takes nothing more, and then says what it has received; the end of the next
//! generation tells that to the peer. So once a side is ready it knows what of all that it ever posted was executed: the
//! rest, and reads, it posts again. Of an atomic that was executed, and not answered, the result is lost.
//!
//! Who does not wait for the next generation, since what was posted goes another way, asks the peer to retire what it has
//! of the last: once it has answered, nothing comes of that any more.

use super::message::{End, Message};
use rustix::io::Errno;
use std::time::Duration;

/// What this rank knows of its connection with one peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Machine {
    /// Of the queue pair of this side, or of the last that there was or was to be.
    generation: u32,
    state: State,
    /// Whether somebody waits for the connection.
    wanted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) enum State {
    /// No queue pair.
    #[default]
    Absent,
    /// There is one, and the peer was told.
    Asked { mine: End },
    /// It is connected to the peer's, which may not be connected yet.
    Answered { mine: End, theirs: End },
    /// Both are connected to each other, as far as this side has heard.
    Ready { mine: End, theirs: End },
    /// There can be none.
    Failed(Reason),
}

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reason {
    /// This side's adapter refused.
    Here(Errno),
    /// The peer's did.
    There(Errno),
    /// The job says that the peer died.
    Died,
}

/// What a machine makes happen. It has at most one queue pair at a time.
pub(crate) trait Effects {
    /// Makes a queue pair, of that rail, or whichever works.
    fn make(&mut self, generation: u32, by: Option<u32>) -> Result<End, Errno>;
    /// Connects it to the peer's.
    fn connect(&mut self, theirs: End) -> Result<(), Errno>;
    /// Destroys it: what it has received by then is part of all ends that are made later.
    fn retire(&mut self);
    /// Sends a datagram, which may be lost.
    fn send(&mut self, message: Message);
}

impl Machine {
    pub fn state(&self) -> State {
        self.state
    }

    /// Of the queue pair that there is, or was last.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether the peer is to be asked [`again`](Self::again) after a while.
    pub fn is_waiting(&self) -> bool {
        self.wanted
    }

    /// Somebody needs the connection. After a failure that is a new attempt.
    pub fn want(&mut self, effects: &mut impl Effects) {
        match self.state {
            State::Ready { .. } | State::Failed(Reason::Died) => {}
            State::Asked { .. } | State::Answered { .. } => {
                self.wanted = true;
                self.again(effects);
            }
            State::Absent | State::Failed(_) => {
                self.wanted = true;
                self.ask(None, effects);
            }
        }
    }

    /// It is time to ask again.
    pub fn again(&self, effects: &mut impl Effects) {
        let generation = self.generation;
        match self.state {
            State::Asked { mine } | State::Answered { mine, .. } => effects.send(Message::Request { generation, mine }),
            _ => {}
        }
    }

    /// The queue pair of that generation is of no use any more.
    pub fn lost(&mut self, generation: u32, effects: &mut impl Effects) {
        if generation == self.generation && self.retire(effects) && self.wanted {
            self.ask(None, effects);
        }
    }

    /// Nobody waits any more: there is to be no connection.
    pub fn given_up(&mut self, why: Errno, effects: &mut impl Effects) {
        if self.state != State::Failed(Reason::Died) {
            self.retire(effects);
            self.fail(Reason::Here(why));
        }
    }

    /// The job says that the peer died.
    pub fn died(&mut self, effects: &mut impl Effects) {
        self.retire(effects);
        self.fail(Reason::Died);
    }

    /// A datagram of the peer, which may be late or repeated.
    pub fn heard(&mut self, message: Message, effects: &mut impl Effects) {
        if self.state == State::Failed(Reason::Died) {
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
                State::Asked { mine } => self.join(mine, theirs, true, effects),
                State::Answered { mine, theirs } => self.enter(State::Ready { mine, theirs }),
                _ => {}
            },
            // Where this side has been ready, the peer's end has gone since.
            Message::Reject { generation, errno } if generation == self.generation => {
                if self.retire(effects) {
                    self.fail(Reason::There(Errno::from_raw_os_error(errno.into())));
                }
            }
            // Of an old generation; the peer has gone on from it, or will hear of this one.
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
            // Nothing for the machine.
            Message::Probe
            | Message::Alive
            | Message::Atomic { .. }
            | Message::Answer { .. }
            | Message::Retired { .. } => {}
        }
    }

    /// The peer asks, under this side's generation or an older one.
    fn asked(&mut self, generation: u32, theirs: End, effects: &mut impl Effects) {
        let now = generation == self.generation;
        match self.state {
            State::Asked { mine } if now && mine.by < theirs.by => {
                self.retire(effects);
                self.ask(Some(theirs.by), effects);
            }
            // It hears of this side's, and follows.
            State::Asked { mine } if now && mine.by > theirs.by => self.again(effects),
            State::Asked { mine } if now => self.join(mine, theirs, false, effects),
            // The peer is behind: this side goes first.
            State::Asked { .. } => self.again(effects),
            // The reply was lost.
            State::Answered { mine, .. } | State::Ready { mine, .. } if now => {
                effects.send(Message::Reply { generation, mine });
            }
            // Late: the peer has had a queue pair of this generation, since this side knows it.
            State::Answered { .. } | State::Ready { .. } => {}
            // This side's queue pair of that generation has gone.
            State::Absent => {
                self.ask(Some(theirs.by), effects);
                self.reject(generation, effects);
            }
            State::Failed(_) => self.reject(generation, effects),
        }
    }

    /// Makes a queue pair of the next generation, and tells the peer.
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
                self.enter(State::Asked { mine });
                self.again(effects);
            }
            Err(errno) => self.fail(Reason::Here(errno)),
        }
    }

    /// Connects this side's queue pair, and tells the peer, which is connected already or not.
    fn join(&mut self, mine: End, theirs: End, ready: bool, effects: &mut impl Effects) {
        match effects.connect(theirs) {
            Ok(()) => {
                self.enter(if ready { State::Ready { mine, theirs } } else { State::Answered { mine, theirs } });
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

    /// If this side has failed, it tells the peer, which asked under that generation.
    fn reject(&self, generation: u32, effects: &mut impl Effects) {
        if let State::Failed(Reason::Here(errno) | Reason::There(errno)) = self.state {
            effects.send(Message::Reject { generation, errno: errno.raw_os_error() as u16 });
        }
    }

    fn fail(&mut self, reason: Reason) {
        self.enter(State::Failed(reason));
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.wanted &= !matches!(state, State::Ready { .. } | State::Failed(_));
    }

    /// Whether there was a queue pair.
    fn retire(&mut self, effects: &mut impl Effects) -> bool {
        let there_is = matches!(self.state, State::Asked { .. } | State::Answered { .. } | State::Ready { .. });
        if there_is {
            effects.retire();
            self.state = State::Absent;
        }
        there_is
    }
}

/// When a peer that does not answer is asked again: soon for a second and a half, in which it may find out by itself that a connection
/// broke, then each second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    asked: u32,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(25);
    /// At first each takes twice as long as the one before, up to so often; then as long as that one.
    const TWICE: u32 = 3;
    /// So many are soon.
    const SOON: u32 = 10;
    const LAST: Duration = Duration::from_secs(1);

    /// How long to wait for an answer now.
    pub fn next(&mut self) -> Duration {
        let soon = Self::FIRST * (1 << self.asked.min(Self::TWICE));
        let wait = if self.asked < Self::SOON { soon } else { Self::LAST };
        self.asked = self.asked.saturating_add(1);
        wait
    }

    /// Whether the log is to say again that the peer is silent: after 4, 12, 28, 60 seconds and so on.
    pub fn is_to_be_told(&self) -> bool {
        // The 2nd of those once a second, and then ever more rarely.
        let slow = self.asked.saturating_sub(Self::SOON);
        slow > 0 && (slow + 6).is_power_of_two()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_peer_is_asked_and_told_of_ever_more_rarely() {
        let (mut backoff, mut at, mut told) = (Backoff::default(), Duration::ZERO, Vec::new());
        let mut asked = Vec::new();
        for _ in 0..300 {
            at += backoff.next();
            asked.push(at.as_millis());
            if backoff.is_to_be_told() {
                told.push(at.as_secs());
            }
        }
        assert_eq!(asked[..12], [25, 75, 175, 375, 575, 775, 975, 1175, 1375, 1575, 2575, 3575]);
        assert_eq!(asked[299], 291_575, "once a second in the end");
        assert_eq!(told, [3, 11, 27, 59, 123, 251]);
    }
}
