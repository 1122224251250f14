//! Atomics forwarded by datagram, for a peer that the first rail does not reach. The origin asks the peer, whose own
//! adapter performs the atomic on the queue pair that connects the peer to itself, like all atomics on its words. At
//! most one per origin is in flight. The origin repeats the request until it is answered. The target remembers the last
//! request of each origin, so that it executes each atomic once and keeps its result.

use super::message::Message;
use super::service::Connector;
use crate::lane::Signal;
use crate::memory::{Lent, Slot};
use crate::progress;
use crate::wr::{RemoteAddress, Verb};
use std::time::{Duration, Instant};
use transom_locks::Rank;

/// An atomic that a peer was asked to perform.
pub(super) struct Asking {
    message: Message,
    again: Instant,
    wait: Duration,
}

/// First and longest interval between repetitions of a request.
const AGAIN: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(200)];
/// Interval between checks whether a served atomic is complete, which most are at once.
const LOOK: Duration = Duration::from_micros(20);
/// Interval between attempts to connect this rank to itself after its adapter refused.
const TRY: Duration = Duration::from_millis(100);

/// The last atomic that a peer requested, by request number, and its outcome.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Served {
    number: u64,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Outcome {
    #[default]
    UnderWay,
    Found(u64),
    Refused,
}

/// An atomic that a peer requested and that is not complete.
pub(super) struct Serving {
    peer: Rank,
    number: u64,
    verb: Verb,
    to: RemoteAddress,
    /// Time of the next check whether it can be posted or is complete.
    look: Instant,
    /// Slot for the result, and the number of the request to this rank itself, once posted.
    posted: Option<(Slot, u64)>,
}

impl Connector {
    pub(super) fn begin_to_ask(&mut self, peer: Rank, message: Message) {
        self.asking.insert(peer, Asking { message, again: Instant::now() + AGAIN[0], wait: AGAIN[0] });
        self.say(peer, message);
    }

    pub(super) fn answered(&mut self, peer: Rank, number: u64, found: Option<u64>) {
        if let Some(lane) = self.core.endpoints.lane(peer) {
            lane.answered(number, found);
        }
        self.asking.retain(|of, asking| {
            *of != peer || !matches!(asking.message, Message::Atomic { number: asked, .. } if asked == number)
        });
    }

    /// Handles a peer's request for an atomic, which may be a repetition.
    pub(super) fn serve(&mut self, peer: Rank, number: u64, verb: Verb, to: RemoteAddress) {
        let allowed = self.core.rail.domain.has_word(to);
        let served = &mut self.connections.entry(peer).or_default().served;
        if number < served.number {
            return;
        }
        if number > served.number {
            let outcome = if allowed { Outcome::UnderWay } else { Outcome::Refused };
            *served = Served { number, outcome };
            if allowed {
                self.serving.push(Serving { peer, number, verb, to, look: Instant::now(), posted: None });
            }
        }
        self.tell(peer);
    }

    /// Sends a peer the outcome of its last request, if there is one.
    fn tell(&mut self, peer: Rank) {
        let Served { number, outcome } = self.connections.entry(peer).or_default().served;
        let found = match outcome {
            Outcome::UnderWay => return,
            Outcome::Found(word) => Some(word),
            Outcome::Refused => None,
        };
        self.say(peer, Message::Answer { number, found });
    }

    /// Progresses the atomics that peers requested, and repeats this rank's own requests.
    pub(super) fn go_on_with_atomics(&mut self) {
        if !self.serving.is_empty() {
            let mut serving = std::mem::take(&mut self.serving);
            let now = Instant::now();
            serving.retain_mut(|one| one.look > now || !self.serve_one(one));
            self.serving.append(&mut serving);
        }
        if self.asking.is_empty() {
            return;
        }
        let now = Instant::now();
        let core = self.core.clone();
        let number =
            |message: &Message| if let Message::Atomic { number, .. } = message { Some(*number) } else { None };
        self.asking
            .retain(|peer, asking| core.endpoints.lane(*peer).and_then(|lane| lane.asked()) == number(&asking.message));
        let mut due = Vec::new();
        for (peer, asking) in self.asking.iter_mut().filter(|(_, asking)| asking.again <= now) {
            asking.wait = (asking.wait * 2).min(AGAIN[1]);
            asking.again = now + asking.wait;
            due.push((*peer, asking.message));
        }
        due.into_iter().for_each(|(peer, message)| self.say(peer, message));
    }

    /// Progresses one atomic; returns whether it has ended.
    fn serve_one(&mut self, one: &mut Serving) -> bool {
        let core = self.core.clone();
        progress::poll(&core.rail, &core.endpoints);
        one.look = Instant::now() + LOOK;
        let Some(lane) = core.endpoints.lane(core.me).filter(|lane| !lane.is_broken()) else {
            one.look = Instant::now() + TRY;
            self.connect_to_itself();
            return false;
        };
        let Some((cell, request)) = &one.posted else {
            let Ok(cell) = core.memory.cells.take() else { return false };
            // SAFETY: the slot is kept until the request is complete, or is lent to the lane.
            let posted = unsafe { lane.post(one.verb, one.to, cell.piece(8), Signal::Always, None) };
            if let Ok(request) = posted {
                one.posted = Some((cell, request));
            }
            return lane.failure().is_some();
        };
        match lane.is_complete(*request) {
            Ok(false) => return false,
            Ok(true) if !lane.is_lost(*request) => {
                let mut word = [0; 8];
                cell.read(&mut word);
                let served = &mut self.connections.entry(one.peer).or_default().served;
                if served.number == one.number {
                    served.outcome = Outcome::Found(u64::from_ne_bytes(word));
                }
                self.tell(one.peer);
            }
            // The result is lost for good: the peer waits until it gives up.
            outcome => tracing::error!(peer = one.peer, ?outcome, "the result of a peer's atomic is lost"),
        }
        true
    }

    /// Time at which atomics next need attention.
    pub(super) fn atomics_due(&self) -> Option<Instant> {
        let again = self.asking.values().map(|asking| asking.again).min();
        again.into_iter().chain(self.serving.iter().map(|one| one.look)).min()
    }

    /// Stops serving. Lends the result slots to the lane, because the adapter may still write to them.
    pub(super) fn stop_serving(&mut self) {
        for Serving { posted, .. } in self.serving.drain(..) {
            if let (Some((cell, request)), Some(lane)) = (posted, self.core.endpoints.lane(self.core.me)) {
                lane.lend(request, Lent::Slot(cell));
            }
        }
    }
}
