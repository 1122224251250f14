//! Control messages about collectives: which call a rank waits in, and failures. Each rank receives those of all its
//! worlds and teams with a single receive.

use super::discarded_receives::DiscardedReceives;
use super::group::Group;
use super::history::CallId;
use crate::messages::Error;
use crate::messages::comm::CONTROL;
use crate::messages::locked::{Core, Ended, Fault, Key, Work};
use crate::messages::progress_engine::ProgressEngine;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard};
use transom_channel::{Error as Failure, PeerFailure, RecvTarget, Select};
use transom_launch::lock;
use transom_locks::Rank;
use transom_shm_loopback::messages::Bytes;

/// A control message about one group. Ranks are numbered as in the group.
pub(super) enum ControlMsg {
    /// The sender waits in this call and asks whether the receiver makes the same one.
    Ask(CallId),
    Died(Rank),
    Left(Rank),
    Panicked(Rank),
    Mismatch(String),
    /// The sender has left the group.
    Gone,
    /// The sender has finished its call of this number and no longer remembers which call it was.
    Over(u32),
    /// The sender has left a group that had failed and sends nothing more to it. The receiver may not have seen the
    /// failure yet; this message does not report it.
    NoMore,
    /// The sender is creating a window or value and has not made the call in which the receiver waits. Fields: the
    /// number of the call, the number of the window.
    Makes(u32, u32),
    /// Mismatch between a split and the creation of the window or value of this number.
    BesideWindow(u32, String),
}

/// Longest message in bytes. Layout: `[kind, 0, 0, 0, context u32, rank or number u32]`, then an encoded [`CallId`] or
/// window number, or UTF-8 text.
const LONGEST: usize = 512;
const HEAD: usize = 12;

impl ControlMsg {
    /// The message that reports `error` to other ranks; `None` if the world itself is closed.
    pub fn why(error: &Error) -> Option<ControlMsg> {
        match error {
            Error::PeerDied { rank } | Error::PeerLost { rank, .. } => Some(ControlMsg::Died(*rank)),
            Error::PeerLeft { rank } | Error::TeamDropped { rank } => Some(ControlMsg::Left(*rank)),
            Error::OperatorPanicked { rank } => Some(ControlMsg::Panicked(*rank)),
            Error::Mismatch { why } => Some(ControlMsg::Mismatch(why.clone())),
            Error::Closed => None,
            other => Some(ControlMsg::Mismatch(format!("a collective failed at another rank: {other}"))),
        }
    }

    /// Sends the message to job rank `to`, about the group of `context`. The send is detached.
    pub fn send(&self, core: &mut Core, to: u32, context: u32) {
        let bytes = self.to_bytes(context);
        let len = bytes.len();
        let id = core.engine.send(to, CONTROL, 0, Bytes::owned(bytes.into_boxed_slice()), len, false);
        core.forget(Key::Message(id));
    }

    fn to_bytes(&self, context: u32) -> Vec<u8> {
        let (made, numbered);
        let (what, rank, rest): (u8, Rank, &[u8]) = match self {
            ControlMsg::Ask(call) => {
                made = call.to_bytes();
                (0, 0, &made)
            }
            ControlMsg::Died(rank) => (1, *rank, &[]),
            ControlMsg::Left(rank) => (2, *rank, &[]),
            ControlMsg::Panicked(rank) => (3, *rank, &[]),
            ControlMsg::Mismatch(why) => (4, 0, why.as_bytes()),
            ControlMsg::Gone => (5, 0, &[]),
            ControlMsg::Over(number) => (6, *number as Rank, &[]),
            ControlMsg::NoMore => (7, 0, &[]),
            ControlMsg::Makes(number, window) => {
                numbered = window.to_le_bytes();
                (8, *number as Rank, &numbered)
            }
            ControlMsg::BesideWindow(window, why) => (9, *window as Rank, why.as_bytes()),
        };
        let mut bytes = vec![what, 0, 0, 0];
        bytes.extend(context.to_le_bytes());
        bytes.extend((rank as u32).to_le_bytes());
        bytes.extend(&rest[..rest.len().min(LONGEST - HEAD)]);
        bytes
    }

    /// Decodes the context and the message; `None` if no rank of this library could have sent these bytes.
    fn from_bytes(bytes: &[u8]) -> Option<(u32, ControlMsg)> {
        let (&[what, _, _, _], rest) = bytes.split_first_chunk()?;
        let (context, rest) = rest.split_first_chunk()?;
        let (rank, rest) = rest.split_first_chunk()?;
        let rank = u32::from_le_bytes(*rank) as Rank;
        let saying = match what {
            0 => ControlMsg::Ask(CallId::from_bytes(rest.try_into().ok()?)),
            1 => ControlMsg::Died(rank),
            2 => ControlMsg::Left(rank),
            3 => ControlMsg::Panicked(rank),
            4 => ControlMsg::Mismatch(String::from_utf8_lossy(rest).into_owned()),
            5 => ControlMsg::Gone,
            6 => ControlMsg::Over(rank as u32),
            7 => ControlMsg::NoMore,
            8 => ControlMsg::Makes(rank as u32, u32::from_le_bytes(rest.try_into().ok()?)),
            9 => ControlMsg::BesideWindow(rank as u32, String::from_utf8_lossy(rest).into_owned()),
            _ => return None,
        };
        Some((u32::from_le_bytes(*context), saying))
    }
}

/// Groups in which this rank makes collectives, shared by all its worlds and teams.
#[derive(Default)]
pub(crate) struct Control {
    changes: Mutex<Changes>,
    /// `changes` holds steps that the listener has not taken yet.
    changed: AtomicBool,
    /// Windows and values that threads of this rank are creating: (context of the world, number there).
    making: Mutex<Vec<(u32, u32)>>,
}

/// Guard: a thread of this rank is creating a window or value until the guard is dropped.
pub(crate) struct Making {
    control: Arc<Control>,
    window: (u32, u32),
}

impl Drop for Making {
    fn drop(&mut self) {
        let mut making = lock(&self.control.making);
        if let Some(place) = making.iter().position(|window| *window == self.window) {
            making.swap_remove(place);
        }
    }
}

#[derive(Default)]
struct Changes {
    listens: bool,
    /// Joins and leaves in the order in which they happened.
    steps: Vec<Step>,
}

enum Step {
    Join(Arc<Group>),
    /// The group's context and the state to keep of it.
    Leave(u32, Left),
}

/// State kept of a group that this rank has left.
#[derive(Default)]
pub(super) struct Left {
    /// Number of calls that this rank made in the group.
    pub calls: u32,
    /// The group's failure, if it failed.
    pub broken: Option<Error>,
    /// Receives that discard messages which other ranks still send to the failed group.
    pub sinks: DiscardedReceives,
}

/// Number of left groups that are remembered. Questions about groups left earlier get no answer. A waiting rank repeats
/// its question every second.
const LEFT: usize = 1024;

impl Control {
    /// Registers a group in which this rank makes collectives.
    pub(super) fn join(self: &Arc<Self>, group: &Arc<Group>) -> Result<(), Error> {
        self.step(Step::Join(group.clone()));
        self.listen(&group.comm.progress_engine)
    }

    /// Records that this rank makes no more collectives in `context`.
    pub(super) fn leave(&self, context: u32, left: Left) {
        self.step(Step::Leave(context, left));
    }

    fn step(&self, step: Step) {
        self.changes().steps.push(step);
        self.changed.store(true, Release);
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        lock(&self.changes)
    }

    /// Marks this rank as creating the window or value `window` until the guard is dropped. Meanwhile the rank reports
    /// that to ranks that wait in a split of the same world.
    pub fn making(self: &Arc<Self>, progress_engine: &ProgressEngine, window: (u32, u32)) -> Result<Making, Error> {
        self.listen(progress_engine)?;
        lock(&self.making).push(window);
        Ok(Making { control: self.clone(), window })
    }

    /// Starts receiving control messages, unless this rank already does.
    pub(super) fn listen(self: &Arc<Self>, progress_engine: &ProgressEngine) -> Result<(), Error> {
        progress_engine.with(|core| {
            if !std::mem::replace(&mut self.changes().listens, true) {
                core.attend(Box::new(Listener { control: self.clone(), ..Listener::default() }));
            }
        })
    }
}

/// Receives control messages in each progress turn.
#[derive(Default)]
struct Listener {
    control: Arc<Control>,
    posted: Option<Key>,
    /// The receive failed because all peers are lost: no message can arrive.
    deaf: bool,
    /// Groups in which this rank makes collectives, by context.
    groups: HashMap<u32, Arc<Group>>,
    /// The last [`LEFT`] groups that this rank has left, most recent first, with their contexts.
    left: VecDeque<(u32, Left)>,
    /// Unanswered questions about calls that this rank has not made yet: (context, job rank of the asker, call). Only
    /// the last question of each asker in a context is kept, because a rank waits in one call at a time, or in the
    /// first of several that can end.
    asked: Vec<(u32, u32, CallId)>,
    /// Failed ranks and the cause of each loss.
    lost: Vec<Failure>,
}

/// Most questions kept of one asker, one for each context; further questions are dropped and the asker repeats them.
const ASKED: usize = 64;

impl Listener {
    #[cold]
    fn change(&mut self, core: &mut Core) {
        let control = self.control.clone();
        // Cleared before the steps are taken, so that a step added meanwhile is seen in the next turn.
        control.changed.store(false, Relaxed);
        for step in std::mem::take(&mut control.changes().steps) {
            match step {
                Step::Join(group) => {
                    self.lost.iter().for_each(|failure| lose(core, &group, failure));
                    self.groups.insert(group.comm.context, group);
                }
                Step::Leave(context, mut left) => {
                    if let Some(group) = self.groups.remove(&context)
                        && left.broken.as_ref().and_then(ControlMsg::why).is_some()
                    {
                        // This rank sends nothing more to the failed group.
                        group.others().for_each(|rank| group.tell(core, rank, &ControlMsg::NoMore));
                        left.sinks = group.take_sinks();
                    }
                    self.left.truncate(LEFT - 1);
                    self.left.push_front((context, left));
                }
            }
        }
    }

    /// Handles the control messages that have arrived.
    fn listen(&mut self, core: &mut Core) {
        while !self.deaf {
            let posted = *self.posted.get_or_insert_with(|| {
                let room = RecvTarget::Into(Bytes::owned(vec![0; LONGEST].into_boxed_slice()), LONGEST);
                Key::Message(core.engine.receive(Select { context: CONTROL, source: None, tag: None }, room))
            });
            let Some((result, bytes)) = core.ended(posted) else { return };
            self.posted = None;
            match result {
                Ok(came) => {
                    let bytes = bytes.and_then(|bytes| bytes.into_owner::<Box<[u8]>>()).unwrap_or_default();
                    self.hear(core, came.peer, &bytes[..bytes.len().min(came.length as usize)]);
                }
                // Each death is reported once; when no peer is left, the engine repeats the same failure.
                Err(Fault::Message(failure @ Failure::PeerFailure { .. })) if !self.lost.contains(&failure) => {
                    self.groups.values().for_each(|group| lose(core, group, &failure));
                    self.lost.push(failure);
                }
                // No rank of this library sends a message longer than `LONGEST`.
                Err(Fault::Message(Failure::Truncated { .. })) => {}
                Err(_) => self.deaf = true,
            }
        }
    }

    fn hear(&mut self, core: &mut Core, from: u32, bytes: &[u8]) {
        let Some((context, saying)) = ControlMsg::from_bytes(bytes) else { return };
        if let ControlMsg::Ask(made) = saying {
            self.asked.retain(|(at, asker, _)| (*at, *asker) != (context, from));
            if self.asked.iter().filter(|(_, asker, _)| *asker == from).count() < ASKED {
                self.asked.push((context, from, made));
            }
            return;
        }
        if let Some((_, left)) = self.left.iter_mut().find(|(at, _)| *at == context) {
            match saying {
                ControlMsg::NoMore => left.sinks.end(core, from),
                ControlMsg::Over(_) | ControlMsg::Gone | ControlMsg::Makes(..) => {}
                // The asker now discards messages that this rank might have sent to the group.
                _ => ControlMsg::NoMore.send(core, from, context),
            }
            return;
        }
        let Some(group) = self.groups.get(&context).filter(|group| group.comm.has(from)) else { return };
        // Clamps a rank from the message to a rank of the team.
        let member = |rank: Rank| rank.min(group.comm.size() - 1);
        let error = match saying {
            ControlMsg::Ask(_) => return,
            ControlMsg::Over(number) => return group.hear_over(group.comm.numbered(from), number),
            ControlMsg::Died(rank) => Error::PeerDied { rank: member(rank) },
            ControlMsg::Left(rank) => Error::PeerLeft { rank: member(rank) },
            ControlMsg::Panicked(rank) => Error::OperatorPanicked { rank: member(rank) },
            ControlMsg::Mismatch(why) => Error::Mismatch { why },
            ControlMsg::Makes(call, window) => {
                return group.hear_of_window(core, (group.comm.numbered(from), window), call);
            }
            ControlMsg::BesideWindow(window, why) => return group.fail_beside_window(core, window, why),
            ControlMsg::NoMore => return group.end_sink(core, from),
            ControlMsg::Gone => Error::PeerLeft { rank: group.comm.numbered(from) },
        };
        group.fail(core, error);
    }

    /// Answers ranks that wait in a call if this rank has made another call or has left.
    fn answer(&mut self, core: &mut Core) {
        let Listener { control, groups, left, asked, .. } = self;
        asked.retain(|(context, from, theirs)| {
            let group = groups.get(context);
            if group
                .is_some_and(|group| !group.comm.has(*from) || group.answer(core, group.comm.numbered(*from), *theirs))
            {
                return false;
            }
            let window = || lock(&control.making).iter().find(|(at, _)| at == context).map(|(_, number)| *number);
            if theirs.call.is_split()
                && let Some(window) = window()
            {
                ControlMsg::Makes(theirs.number, window).send(core, *from, *context);
                return false;
            }
            if group.is_some() {
                return true;
            }
            let found = left.iter().find(|(at, _)| at == context);
            let Some((_, Left { calls, broken, .. })) = found else { return true };
            if let Some(saying) = broken.as_ref().and_then(ControlMsg::why) {
                saying.send(core, *from, *context);
            } else if theirs.number.wrapping_sub(*calls) < 1 << 31 {
                ControlMsg::Gone.send(core, *from, *context);
            } else {
                // This rank finished its call of that number before it left; the call may have been a different one.
                ControlMsg::Over(theirs.number).send(core, *from, *context);
            }
            false
        });
    }
}

/// Fails `group` if the lost rank is one of its members.
fn lose(core: &mut Core, group: &Group, failure: &Failure) {
    // A rank that left normally fails a group only when another rank asks about a call.
    if matches!(failure, Failure::PeerFailure { rank, lost } if *lost != PeerFailure::Left && group.comm.has(*rank)) {
        group.fail(core, group.comm.failure(failure.clone(), 1));
    }
}

impl Work for Listener {
    fn progress(&mut self, core: &mut Core) -> Option<Ended> {
        if self.control.changed.load(Acquire) {
            self.change(core);
        }
        self.listen(core);
        if !self.asked.is_empty() {
            self.answer(core);
        }
        None
    }

    fn must_end(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::signature::{Kind, Signature};
    use super::*;

    #[test]
    fn what_is_said_is_heard_and_nothing_else() {
        let call = CallId { number: 7, history: 9, call: Signature::without(Kind::Barrier) };
        let ask = ControlMsg::Ask(call).to_bytes(0x0102_0304);
        assert_eq!(ask[..12], [0, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0]);
        assert!(matches!(ControlMsg::from_bytes(&ask), Some((0x0102_0304, ControlMsg::Ask(made))) if made == call));
        assert!((0..ask.len()).all(|len| ControlMsg::from_bytes(&ask[..len]).is_none()));
        assert!(matches!(
            ControlMsg::from_bytes(&[2, 0, 0, 0, 6, 0, 0, 0, 5, 0, 0, 0]),
            Some((6, ControlMsg::Left(5)))
        ));
        assert!(matches!(ControlMsg::from_bytes(&[5, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]), Some((6, ControlMsg::Gone))));
        assert!(matches!(
            ControlMsg::from_bytes(&ControlMsg::Over(u32::MAX).to_bytes(6)),
            Some((6, ControlMsg::Over(u32::MAX)))
        ));
        let makes = ControlMsg::Makes(5, 7).to_bytes(6);
        assert_eq!(makes, [8, 0, 0, 0, 6, 0, 0, 0, 5, 0, 0, 0, 7, 0, 0, 0]);
        assert!(matches!(ControlMsg::from_bytes(&makes), Some((6, ControlMsg::Makes(5, 7)))));
        assert!((0..makes.len()).all(|len| ControlMsg::from_bytes(&makes[..len]).is_none()));
        let beside = ControlMsg::BesideWindow(5, "why".into()).to_bytes(6);
        assert!(matches!(ControlMsg::from_bytes(&beside), Some((6, ControlMsg::BesideWindow(5, why))) if why == "why"));
        assert!(ControlMsg::from_bytes(&[10, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]).is_none());
        assert_eq!(ControlMsg::Mismatch("x".repeat(1000)).to_bytes(0).len(), 512);
    }

    /// Memory must stay bounded in a program that splits and drops teams in a loop.
    #[cfg(not(miri))]
    #[test]
    fn left_teams_beyond_the_limit_are_forgotten() {
        crate::threads(1, |world| {
            let mut listener = Listener::default();
            (0..10_000).for_each(|calls| listener.control.leave(6 * calls, Left { calls, ..Left::default() }));
            world.space().comm().unwrap().progress_engine.with(|core| listener.change(core)).unwrap();
            let kept: Vec<_> = listener.left.iter().map(|(context, left)| (*context, left.calls)).collect();
            assert_eq!(kept, (10_000 - LEFT as u32..10_000).rev().map(|calls| (6 * calls, calls)).collect::<Vec<_>>());
        })
        .unwrap();
    }
}
