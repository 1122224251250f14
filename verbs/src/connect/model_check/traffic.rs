//! Requests on the connection: the production account, a network that delays packets but keeps their order, and the
//! true effects at the far end.

use super::adapter::{Made, Sent};
use super::holds;
use super::world::Budget;
use crate::lane::{Account, RequestRecord, Start};
use crate::wr::{Kind, Piece, Received, RemoteAddress, Verb};

const MTU: u32 = 1024;

/// The requests that a side posted, over all generations.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Traffic {
    /// Number of requests that it may still post.
    pub posts: u8,
    account: Option<Account>,
    pub completed: u64,
    posted: Vec<PostKind>,
    /// Atomics whose results were reported lost.
    lost: Vec<u64>,
    /// Effects at the far end, in order: request number, and packet of the request.
    done: Vec<(u64, u32)>,
    /// Received position of this side's retired queue pairs.
    pub received: Received,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PostKind {
    /// Two packets.
    Write,
    /// Two packets.
    Send,
    Read,
    Atomic,
}

impl PostKind {
    pub const ALL: [PostKind; 4] = [PostKind::Write, PostKind::Send, PostKind::Read, PostKind::Atomic];

    fn kept(self) -> RequestRecord {
        let (verb, bytes) = match self {
            PostKind::Write => (Verb::Write, MTU + 1),
            PostKind::Send => (Verb::Send, MTU + 1),
            PostKind::Read => (Verb::Read, 8),
            PostKind::Atomic => (Verb::Add(1), 8),
        };
        let (to, piece) = (RemoteAddress { address: 8, key: 1 }, Piece { address: 8, bytes, key: 1 });
        RequestRecord::new(verb, to, piece, false)
    }
}

fn sent(number: u64, kept: RequestRecord, fenced: bool) -> Sent {
    let packets = if kept.verb.kind() == Kind::Write && kept.piece.bytes > 0 { 2 } else { 1 };
    Sent {
        number,
        kind: kept.verb.kind(),
        packets,
        marker: RequestRecord { end: 0, ..kept } == RequestRecord::MARKER,
        fenced,
    }
}

impl Traffic {
    /// Returns whether a result was lost.
    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    pub fn is_finished(&self) -> bool {
        self.completed == self.posted.len() as u64
    }

    /// Makes the side ready with `made`: unfinished requests are posted again, according to the far end's received
    /// position.
    pub fn attach(&mut self, made: &mut Made, theirs: Received) -> Result<(), String> {
        if made.attached {
            return Ok(());
        }
        made.attached = true;
        let start = Start { generation: made.generation, psn: made.end.psn, mtu: MTU };
        let Some(account) = &mut self.account else {
            self.account = Some(Account::new(start, 8, 0));
            return Ok(());
        };
        let lost = &mut self.lost;
        account
            .begin(start, theirs, |number| lost.push(number))
            .map_err(|_| "what was received was never sent".to_owned())?;
        let each = account.each::<()>(0, true, |number, kept, fenced| {
            made.sent.push(sent(number, kept, fenced));
            Ok(())
        });
        each.map_err(|()| unreachable!())
    }

    pub fn post(&mut self, what: PostKind, made: &mut Made) {
        self.posts -= 1;
        self.posted.push(what);
        let account = self.account.as_mut().expect("attached");
        let (kept, fenced) = (what.kept(), account.fences(what.kept().verb.kind(), self.completed, true));
        let number = self.posted.len() as u64;
        account.push(number, kept, &[]);
        made.sent.push(sent(number, kept, fenced));
    }

    /// The packet of `made` that `theirs` may execute next, if any.
    fn next<'m>(made: &'m Made, theirs: &Made) -> Option<(&'m Sent, u32)> {
        let mut before = 0;
        for (at, sent) in made.sent.iter().enumerate() {
            if theirs.arrived < before + sent.packets {
                // A fenced request is sent only after the earlier reads and atomics are answered.
                let unanswered = made.sent[made.answered..at].iter().any(|sent| sent.kind != Kind::Write);
                return (!(sent.fenced && unanswered)).then_some((sent, theirs.arrived - before));
            }
            before += sent.packets;
        }
        None
    }

    pub fn can_execute(made: &Made, theirs: &Made) -> bool {
        let connected = theirs.connected == Some(made.end) && made.connected == Some(theirs.end);
        theirs.alive && connected && Self::next(made, theirs).is_some()
    }

    /// Executes the next packet at the far end.
    pub fn execute(&mut self, made: &Made, theirs: &mut Made) -> Result<(), String> {
        let (&Sent { number, kind, packets, marker, .. }, packet) = Self::next(made, theirs).expect("it can");
        theirs.arrived += 1;
        if marker {
            return Ok(());
        }
        let last = |number: u64| match self.posted[number as usize - 1] {
            PostKind::Write | PostKind::Send => 1,
            PostKind::Read | PostKind::Atomic => 0,
        };
        if self.done.iter().any(|&(of, at)| of > number || of == number && at == last(number)) {
            return Err(format!("packet {packet} of {packets} of request {number} comes after {:?}", self.done));
        }
        if kind != Kind::Read {
            self.done.push((number, packet));
        }
        Ok(())
    }

    pub fn can_be_answered(made: &Made, theirs: &[Made]) -> bool {
        let needs: u32 = made.sent.iter().take(made.answered + 1).map(|sent| sent.packets).sum();
        let theirs = theirs.iter().find(|theirs| Some(theirs.end) == made.connected);
        made.alive
            && made.attached
            && made.answered < made.sent.len()
            && theirs.is_some_and(|made| made.arrived >= needs)
    }

    /// Delivers the next completion.
    pub fn answered(&mut self, made: &mut Made) -> Result<(), String> {
        let Sent { number, marker, .. } = made.sent[made.answered];
        made.answered += 1;
        if number != self.completed + 1 {
            return Err(format!("request {number} completes, and {} before", self.completed));
        }
        self.completed = number;
        self.account.as_mut().expect("attached").complete(number);
        self.is_right_of(number, marker)
    }

    /// Checks that completed requests took effect exactly once.
    pub fn is_right(&self) -> Result<(), String> {
        (1..=self.completed).try_for_each(|number| self.is_right_of(number, self.lost.contains(&number)))
    }

    /// `marker`: an empty write was posted in place of the request at last.
    fn is_right_of(&self, number: u64, marker: bool) -> Result<(), String> {
        let times = |last| self.done.iter().filter(|done| **done == (number, last)).count();
        let is_right = match self.posted[number as usize - 1] {
            PostKind::Write | PostKind::Send => times(1) == 1,
            PostKind::Read => !marker,
            PostKind::Atomic => times(0) == 1 && marker == self.lost.contains(&number),
        };
        if is_right { Ok(()) } else { Err(format!("request {number} is complete, and it is not so: {self:?}")) }
    }
}

/// Runs with requests: of both sides at once, and over several connections. Without a broken connection no result is
/// lost.
const TRAFFIC: [Budget; 4] = [
    Budget { wants: 1, losses: 0, refusals: 0, deaths: 0, posts: [1, 1], rails: 1, retires: 0, drains: 1, slow: false },
    Budget { wants: 1, losses: 2, refusals: 0, deaths: 0, posts: [1, 0], rails: 1, retires: 0, drains: 0, slow: false },
    Budget { wants: 1, losses: 1, refusals: 0, deaths: 0, posts: [2, 0], rails: 1, retires: 0, drains: 0, slow: false },
    Budget { wants: 1, losses: 1, refusals: 0, deaths: 0, posts: [1, 1], rails: 1, retires: 0, drains: 0, slow: false },
];

#[test]
fn requests_execute_once_on_any_network() {
    holds(&TRAFFIC);
}
