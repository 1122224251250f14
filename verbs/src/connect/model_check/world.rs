//! Two ranks, their adapters, and the network between them: possible steps, and invariants after each step.

use super::super::machine::{ConnectionState, Effects, Machine, Reason};
use super::super::message::{End, Message, Secret};
use super::adapter::{Doing, Made, Refusal, errno};
use super::traffic::{PostKind, Traffic};
use super::{explore, holds};
use crate::wr::Received;
use rustix::io::Errno;

const SECRETS: [Secret; 2] = [[1; 16], [2; 16]];
const EVIL: End = End { by: 0, queue_pair: 0x666, psn: 0x666, received: Received { generation: 0, next: 0 } };

/// Remaining events of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    pub wants: u8,
    pub losses: u8,
    pub refusals: u8,
    pub deaths: u8,
    /// Requests per side.
    pub posts: [u8; 2],
    /// Number of rails between which the sides alternate.
    pub rails: u32,
    /// Number of times that a side asks its peer to retire a generation that has ended here.
    pub retires: u8,
    /// Number of times that a side begins to give up a connection.
    pub drains: u8,
    /// Adapters connect a queue pair some steps after the request.
    pub slow: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Side {
    pub machine: Machine,
    pub made: Vec<Made>,
    pub traffic: Traffic,
    /// The program waits for the connection, by its own account.
    asks: bool,
    wants: u8,
    /// Verbs that its adapter has refused so far: making, connecting.
    refused: [bool; 2],
    pub dead: bool,
    heard_of_death: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub sides: [Side; 2],
    /// Every datagram sent so far, by receiver; sorted.
    network: [Vec<Message>; 2],
    pub budget: Budget,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Want,
    Again,
    Hear(Message),
    Forged(Message),
    PeerFailure,
    Post(PostKind),
    /// The peer executes a packet posted to this side's queue pair with that index.
    Execute(usize),
    Answer,
    Die,
    Told,
    Retire(u32),
    Drain,
    /// The adapter has connected the queue pair with that index.
    Joined(usize),
}

impl World {
    pub fn new(budget: Budget) -> Self {
        let side = |posts| {
            let mut traffic = Traffic::default();
            traffic.posts = posts;
            Side { wants: budget.wants, traffic, ..Side::default() }
        };
        World { sides: budget.posts.map(side), network: [vec![], vec![]], budget }
    }

    /// The possible steps of a side.
    pub fn steps(&self, side: usize) -> Vec<Step> {
        let Side { machine, made, traffic, wants, dead, heard_of_death, .. } = &self.sides[side];
        if *dead {
            return vec![];
        }
        let has_end = matches!(
            machine.state(),
            ConnectionState::Asked { .. }
                | ConnectionState::Joining { .. }
                | ConnectionState::Answered { .. }
                | ConnectionState::Ready { .. }
                | ConnectionState::Draining { .. }
        );
        let over = made.iter().filter(|made| !made.alive).map(|made| made.generation).max().unwrap_or(0);
        let generation = machine.generation().max(1);
        let forged = [
            Message::Request { generation: generation + 1, mine: EVIL },
            Message::Request { generation, mine: EVIL },
            Message::Reply { generation, mine: EVIL },
            Message::Reject { generation, errno: 99 },
            Message::Retire { generation },
            Message::Drained { generation },
            Message::Retired { generation },
        ];
        let joined = made.iter().enumerate().filter(|(_, made)| made.connecting.is_some());
        let joined = joined.map(|(at, _)| Step::Joined(at));
        let ready = matches!(machine.state(), ConnectionState::Ready { .. });
        let mine = made.iter().enumerate().filter(|(_, made)| !made.sent.is_empty());
        let theirs = |made: &Made| self.sides[1 - side].made.iter().any(|theirs| Traffic::can_execute(made, theirs));
        let executes = mine.filter(|(_, made)| theirs(made)).map(|(at, _)| Step::Execute(at));
        let posts = PostKind::ALL.map(Step::Post);
        let posts = posts.into_iter().filter(|_| {
            traffic.posts > 0 && made.last().is_some_and(|made| made.attached && made.alive && !made.drains)
        });
        let answers = made.last().is_some_and(|made| Traffic::can_be_answered(made, &self.sides[1 - side].made));
        let traffic = executes.chain(posts).chain(answers.then_some(Step::Answer));
        let steps = self.network[side].iter().copied().map(Step::Hear).chain(forged.map(Step::Forged));
        let may = [
            (*wants > 0, Step::Want),
            (machine.is_repeating(), Step::Again),
            (has_end && self.budget.losses > 0, Step::PeerFailure),
            (self.budget.deaths > 0, Step::Die),
            (self.sides[1 - side].dead && !heard_of_death, Step::Told),
            (self.budget.retires > 0 && over > 0, Step::Retire(over)),
            (self.budget.drains > 0 && ready, Step::Drain),
        ];
        steps
            .chain(joined)
            .chain(traffic)
            .chain(may.into_iter().filter_map(|(may, step)| may.then_some(step)))
            .collect()
    }

    /// The world after a step, with the messages it sent; `None` if the step does not meet the refusal.
    pub fn after(&self, side: usize, step: Step, refusal: Refusal) -> Option<Result<(Self, Vec<Message>), String>> {
        let mut world = self.clone();
        if let Some(done) = world.carries(side, step) {
            return Some(done.map_err(|wrong| format!("{wrong}: {world:#?}")).map(|()| (world, vec![])));
        }
        let Side { machine, made, traffic, refused, asks, wants, dead, heard_of_death } = &mut world.sides[side];
        let before = machine.clone();
        let (received, Budget { rails, slow, .. }) = (&mut traffic.received, self.budget);
        let mut doing =
            Doing { side, rails, slow, made, received, refused, refusal, met: false, sent: vec![], wrong: None };
        match step {
            Step::Post(_) | Step::Execute(_) | Step::Answer => unreachable!("nothing for the machine"),
            Step::Want => {
                (*asks, *wants) = (true, wants.saturating_sub(1));
                machine.want(&mut doing);
            }
            Step::Again => machine.again(&mut doing),
            Step::Hear(message) => {
                let sealed = message.seal(1 - side, side, None, &SECRETS[side]);
                let (from, _, message) = Message::open(&sealed, side, &SECRETS[side]).expect("sealed by the peer");
                assert_eq!(from, 1 - side);
                machine.heard(message, &mut doing);
            }
            Step::Forged(message) => {
                let sealed = message.seal(1 - side, side, None, &[3; 16]);
                if let Some((_, _, message)) = Message::open(&sealed, side, &SECRETS[side]) {
                    machine.heard(message, &mut doing);
                }
            }
            Step::PeerFailure => {
                world.budget.losses -= 1;
                let lost = machine.generation();
                machine.lost(lost, &mut doing);
                if doing.made.iter().any(|made| made.alive && made.generation == lost) {
                    doing.wrong = Some("keeps the queue pair that was lost".into());
                }
            }
            Step::Die => {
                world.budget.deaths -= 1;
                *dead = true;
                doing.made.iter_mut().for_each(|made| made.alive = false);
            }
            Step::Told => {
                *heard_of_death = true;
                machine.died(&mut doing);
            }
            Step::Retire(generation) => {
                world.budget.retires -= 1;
                doing.send(Message::Retire { generation });
            }
            Step::Joined(at) => {
                let (generation, outcome) = doing.joined(at);
                machine.joined(generation, outcome, &mut doing);
            }
            Step::Drain => {
                world.budget.drains -= 1;
                machine.drain(&mut doing);
            }
        }
        if refusal != Refusal::None && !doing.met {
            return None;
        }
        let (sent, met, mut wrong) = (doing.sent, doing.met, doing.wrong);
        if let (ConnectionState::Ready { theirs, .. }, Some(made)) = (machine.state(), made.last_mut())
            && let Err(why) = traffic.attach(made, theirs.received)
        {
            wrong = Some(why);
        }
        for message in &sent {
            let (Message::Request { generation, mine } | Message::Reply { generation, mine }) = *message else {
                continue;
            };
            if !made.iter().any(|made| made.alive && (made.generation, made.end) == (generation, mine)) {
                wrong = Some(format!("sends {message:?}, but has no such queue pair"));
            }
        }
        if let Step::Hear(Message::Reject { generation, .. }) = step
            && generation == machine.generation()
            && made.iter().any(|made| made.alive)
        {
            wrong = Some("keeps a queue pair whose peer said that it has none".into());
        }
        let needs_answer = match (step, machine.state()) {
            (Step::Hear(Message::Request { mine, .. }), ConnectionState::Joining { .. }) => {
                mine.by == 0 && before == *machine
            }
            (Step::Hear(Message::Request { generation, .. }), ConnectionState::Draining { .. }) => {
                generation == before.generation()
            }
            (Step::Hear(Message::Drained { generation }), _) => generation == before.generation() && !*heard_of_death,
            _ => false,
        };
        if needs_answer && sent.is_empty() {
            wrong = Some("does not answer, and counts as unreachable if it takes long".into());
        }
        world.budget.refusals -= u8::from(met);
        *asks &= !matches!(machine.state(), ConnectionState::Ready { .. } | ConnectionState::Failed(_));
        let network = &mut world.network[1 - side];
        // Machines ignore `Alive`.
        for message in sent.iter().filter(|message| **message != Message::Alive) {
            if let Err(place) = network.binary_search_by_key(&key(message), key) {
                network.insert(place, *message);
            }
        }
        let told = sent.iter().filter(|message| !matches!(message, Message::Retired { .. })).count();
        let wrong =
            wrong.or_else(|| (told > 1).then(|| format!("sends {sent:?} at once")).or_else(|| world.wrong(side)));
        let fell = machine_of(&world, side).generation() < before.generation();
        Some(match wrong.or_else(|| fell.then(|| "the generation fell".into())) {
            None => Ok((world, sent)),
            Some(wrong) => Err(format!("{wrong}: {world:#?}")),
        })
    }

    /// The violated invariant after a step of that side, if any.
    fn wrong(&self, side: usize) -> Option<String> {
        let [me, peer] = [&self.sides[side], &self.sides[1 - side]];
        if me.dead {
            return None;
        }
        let alive: Vec<&Made> = me.made.iter().filter(|made| made.alive).collect();
        let state = me.machine.state();
        let expected = match state {
            ConnectionState::Absent | ConnectionState::Failed(_) => None,
            ConnectionState::Asked { mine } | ConnectionState::Joining { mine, .. } => Some((mine, None)),
            ConnectionState::Answered { mine, theirs }
            | ConnectionState::Ready { mine, theirs }
            | ConnectionState::Draining { mine, theirs } => Some((mine, Some(theirs))),
        };
        let found = alive.iter().map(|made| (made.end, made.connected)).collect::<Vec<_>>();
        if found != expected.into_iter().collect::<Vec<_>>()
            || alive.iter().any(|made| made.generation != me.machine.generation())
        {
            return Some(format!("{state:?}, and the adapter has {alive:?}"));
        }
        let said = self.network[1 - side].iter();
        let mut retired =
            said.filter_map(|said| if let Message::Retired { generation } = said { Some(generation) } else { None });
        if retired.any(|retired| alive.iter().any(|made| made.generation <= *retired)) {
            return Some("confirmed the retirement of a queue pair that is alive".into());
        }
        let ready = |state| match state {
            ConnectionState::Ready { mine, theirs } => Some((mine, theirs)),
            _ => None,
        };
        if let Some((mine, theirs)) = ready(state) {
            let theirs = peer.made.iter().find(|made| made.end == theirs);
            let Some(theirs) = theirs.filter(|made| made.generation == me.machine.generation()) else {
                return Some("ready with what the peer has not made in this generation".into());
            };
            if theirs.connected != Some(mine) {
                return Some("ready, and the peer's queue pair is not connected to this side's".into());
            }
            if let Some((its, other)) = ready(peer.machine.state()).filter(|_| !peer.dead)
                && ((its, other) != (theirs.end, mine) || peer.machine.generation() != me.machine.generation())
            {
                return Some("both are ready, with different connections".into());
            }
        }
        let known = |by: &Side, number: usize, error: Errno| {
            (0..2).any(|verb| by.refused[verb] && errno(number, verb) == error)
        };
        match state {
            ConnectionState::Failed(Reason::Died) if !peer.dead => Some("the peer lives".into()),
            ConnectionState::Failed(Reason::Here(error)) if !known(me, side, error) => {
                Some("no such refusal here".into())
            }
            ConnectionState::Failed(Reason::There(error)) if !known(peer, 1 - side, error) => {
                Some("no such refusal there".into())
            }
            _ if me.asks && !me.machine.is_waiting() => {
                Some("the program waits, but the machine will not repeat its request".into())
            }
            _ => None,
        }
    }

    /// Checks progress on a fair network: the job reports deaths, and every waiting side ends. A side that starts `now`
    /// needs to ask only once, even if the peer's adapter refuses.
    pub fn settles(&self, now: Option<(usize, Refusal)>) -> Result<(), String> {
        let mut world = self.clone();
        let mut under_way: Vec<(usize, Message)> = Vec::new();
        let go = |world: &mut World, under_way: &mut Vec<_>, side: usize, step| -> Result<(), String> {
            let refusal =
                now.map_or(Refusal::None, |(first, refusal)| if side == first { Refusal::None } else { refusal });
            let refused = (world.budget.refusals > 0).then(|| world.after(side, step, refusal)).flatten();
            let after = refused.or_else(|| world.after(side, step, Refusal::None));
            let (after, sent) = after.expect("nothing is refused")?;
            *world = after;
            under_way.extend(sent.into_iter().map(|message| (1 - side, message)));
            Ok(())
        };
        if let Some((side, _)) = now {
            go(&mut world, &mut under_way, side, Step::Want)?;
        }
        for _ in 0..if now.is_some() { 1 } else { 4 } {
            for side in 0..2 {
                for step in [Step::Told, Step::Again] {
                    if world.steps(side).contains(&step) && (now.is_none() || step == Step::Told) {
                        go(&mut world, &mut under_way, side, step)?;
                    }
                }
            }
            for _ in 0..12 {
                for side in 0..2 {
                    while let Some(step) = world.steps(side).into_iter().find(|step| matches!(step, Step::Joined(_))) {
                        go(&mut world, &mut under_way, side, step)?;
                    }
                }
                if under_way.is_empty() {
                    break;
                }
                let (side, message) = under_way.remove(0);
                if !world.sides[side].dead {
                    go(&mut world, &mut under_way, side, Step::Hear(message))?;
                }
            }
        }
        let [first, second] = &world.sides;
        if !under_way.is_empty() {
            return Err(format!("the exchange of messages does not end: {under_way:?}: {self:#?}"));
        }
        if now.is_some_and(|(side, _)| world.sides[side].asks) {
            return Err(format!("one request does not suffice: {self:#?} becomes {world:#?}"));
        }
        if now.is_none() && [first, second].iter().any(|side| side.asks && !side.dead) {
            return Err(format!("a side waits for ever: {self:#?} becomes {world:#?}"));
        }
        let waited = (0..2).find(|&side| now.is_none() && self.sides[side].asks && !first.dead && !second.dead);
        match waited.map(|side| (world.sides[side].machine.state(), world.sides[1 - side].machine.state())) {
            Some(
                (ConnectionState::Ready { .. }, ConnectionState::Ready { .. } | ConnectionState::Answered { .. })
                | (ConnectionState::Failed(_), _),
            )
            | None => Ok(()),
            Some(states) => Err(format!("{states:?} after waiting: {self:#?}")),
        }
    }
}

fn machine_of(world: &World, side: usize) -> &Machine {
    &world.sides[side].machine
}

/// An arbitrary total order of messages.
fn key(message: &Message) -> [u32; 4] {
    match *message {
        Message::Request { generation, mine } => [1, generation, mine.queue_pair, mine.psn],
        Message::Reply { generation, mine } => [2, generation, mine.queue_pair, mine.psn],
        Message::Reject { generation, errno } => [3, generation, errno.into(), 0],
        Message::Retire { generation } => [4, generation, 0, 0],
        Message::Retired { generation } => [5, generation, 0, 0],
        Message::Drained { generation } => [6, generation, 0, 0],
        Message::Probe
        | Message::Alive
        | Message::Atomic { .. }
        | Message::Answer { .. }
        | Message::Moved(_)
        | Message::Spare { .. } => unreachable!("no machine sends them"),
    }
}

/// Checks that news of older queue pairs, and messages of a dead peer, change nothing.
pub fn changes_nothing(world: &World, side: usize) -> Result<(), String> {
    let mut after = world.clone();
    let Side { machine, made, traffic, refused, heard_of_death, .. } = &mut after.sides[side];
    let (received, Budget { rails, slow, .. }) = (&mut traffic.received, world.budget);
    let (refusal, met, sent, wrong) = (Refusal::None, false, vec![], None);
    let mut doing = Doing { side, rails, slow, made, received, refused, refusal, met, sent, wrong };
    for old in 0..machine.generation() {
        machine.lost(old, &mut doing);
        machine.joined(old, Ok(()), &mut doing);
        machine.heard(Message::Retire { generation: old }, &mut doing);
        machine.heard(Message::Retired { generation: old }, &mut doing);
        machine.heard(Message::Drained { generation: old }, &mut doing);
    }
    if *heard_of_death {
        world.network[side].iter().for_each(|message| machine.heard(*message, &mut doing));
    }
    let sent = doing.sent.iter().filter(|message| !matches!(message, Message::Retired { .. })).count();
    if after == *world && sent == 0 {
        Ok(())
    } else {
        Err(format!("news of the past changes {world:#?} into {after:#?}"))
    }
}

const RUNS: [Budget; 7] = [
    Budget { wants: 1, losses: 1, refusals: 0, deaths: 0, posts: [0, 0], rails: 1, retires: 0, drains: 1, slow: false },
    Budget { wants: 1, losses: 1, refusals: 1, deaths: 0, posts: [0, 0], rails: 1, retires: 0, drains: 0, slow: true },
    Budget { wants: 1, losses: 1, refusals: 0, deaths: 0, posts: [0, 0], rails: 2, retires: 0, drains: 0, slow: true },
    Budget { wants: 1, losses: 1, refusals: 1, deaths: 1, posts: [0, 0], rails: 1, retires: 0, drains: 0, slow: false },
    Budget { wants: 2, losses: 2, refusals: 0, deaths: 0, posts: [0, 0], rails: 2, retires: 0, drains: 0, slow: false },
    Budget { wants: 2, losses: 1, refusals: 1, deaths: 0, posts: [0, 0], rails: 1, retires: 0, drains: 0, slow: false },
    Budget { wants: 2, losses: 2, refusals: 0, deaths: 0, posts: [0, 0], rails: 1, retires: 1, drains: 0, slow: false },
];

#[test]
fn machines_agree_on_any_network() {
    holds(&RUNS);
}

/// Two million states: `cargo test --release -p transom-verbs --lib larger_budget -- --ignored`.
#[test]
#[ignore = "takes minutes and 4 GiB"]
fn machines_agree_with_a_larger_budget() {
    let budget = Budget {
        wants: 2,
        losses: 2,
        refusals: 1,
        deaths: 1,
        posts: [0, 0],
        rails: 1,
        retires: 0,
        drains: 0,
        slow: false,
    };
    println!("{} states", explore(budget).unwrap_or_else(|wrong| panic!("{wrong}")));
}
