//! The messages of one world or team: whose numbers ranks have there, and apart from those of others.

use super::error::Error;
use super::hub::Hub;
use super::locked::Fault;
use super::progress::Events;
use super::tag::{Peer, Source, Status};
use crate::provider::{self, Provider};
use std::collections::HashMap;
use std::ops::{Deref, RangeInclusive};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use transom_channel::{Error as Failure, Lost, Select, Status as Came};
use transom_locks::{Awaited, Rank};
use transom_windows::{Exchange as _, FabricError};

/// Contexts of a world: what the program sends, and what the library does.
const CONTEXTS: u32 = 7;
/// Of these that in which pipes are opened.
pub(super) const PIPES: u32 = 1;
/// Of these that of collectives, and, of those of the job, that in which ranks tell each other of them.
pub(crate) const COLLECTIVES: u32 = 2;
pub(crate) const CONTROL: u32 = 3;
/// Of these that in which partitioned messages are announced, by the program's tags, and that of their parts, by tags of the
/// sender's choice.
pub(super) const ANNOUNCED: u32 = 4;
pub(super) const PARTS: u32 = 5;
/// Of these that in which ranks meet that make a team.
pub(super) const TEAMS: u32 = 6;

/// That this rank is in its job: of all its worlds. Messages end with the last of them.
pub(crate) struct Presence {
    /// The provider of the whole job.
    root: Provider,
    /// All messages of this rank, or why it has none.
    hub: Result<Arc<Hub>, Error>,
    /// Descriptor of `event_fd`, made at its first use. Requests that outlive the worlds do not keep it.
    events: OnceLock<Events>,
    /// How many numbers of worlds that this rank leads were given out, that of the job among them.
    led: AtomicU32,
}

/// What a world has of its own: its context, and who is in it.
pub(crate) struct Space {
    presence: Arc<Presence>,
    context: u32,
    rank: Rank,
    size: usize,
    team: Option<Arc<Team>>,
    comm: OnceLock<Comm>,
}

/// The ranks of a team, in both directions.
pub(crate) struct Team {
    ranks: Box<[u32]>,
    places: HashMap<u32, Rank>,
    /// The messages of this rank, which are told when the team and all its requests are gone, and the team's contexts.
    hub: Option<Arc<Hub>>,
    contexts: RangeInclusive<u32>,
}

impl Drop for Team {
    fn drop(&mut self) {
        if let Some(hub) = &self.hub {
            hub.disband(self.contexts.clone());
        }
    }
}

/// What calls and requests need: cheap to clone and to keep, and no part of the job.
#[derive(Clone)]
pub(crate) struct Comm(Arc<Ranks>);

/// Of one context: the ranks that send there, and by what.
#[derive(Clone)]
pub(crate) struct Ranks {
    pub hub: Arc<Hub>,
    pub context: u32,
    rank: Rank,
    size: usize,
    team: Option<Arc<Team>>,
}

impl Deref for Comm {
    type Target = Ranks;

    #[inline(always)]
    fn deref(&self) -> &Ranks {
        &self.0
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        if let Ok(hub) = &self.hub {
            hub.close(std::thread::panicking());
        }
    }
}

impl Space {
    /// Of all ranks of a job.
    pub fn of_job(root: Provider) -> Space {
        // Messages come unasked: whoever sends finds a rank that takes them in its waits.
        let hub = Hub::open(&root).inspect_err(|error| tracing::warn!(%error, "no messages by this rank"));
        let (rank, size) = (root.rank(), root.size());
        let presence = Arc::new(Presence { root, hub, events: OnceLock::new(), led: AtomicU32::new(1) });
        Space { presence, context: 0, rank, size, team: None, comm: OnceLock::new() }
    }

    /// Returns a number for a team that this rank may lead. Each member of a team to be passes an offer to all: threads of a rank may make
    /// teams at once, and ranks would count these in another order.
    pub fn offer(&self) -> u32 {
        let next = |led| (led < self.of_each()).then_some(led + 1);
        self.presence.led.fetch_update(Relaxed, Relaxed, next).unwrap_or_else(|used_up| used_up)
    }

    /// The number that this rank offered leads no team. It is lost if another thread has made an offer since.
    pub fn withdraw(&self, offer: u32) {
        let _ = self.presence.led.compare_exchange(offer.wrapping_add(1), offer, Relaxed, Relaxed);
    }

    /// A team of these ranks of this world, this one among them, given what each has offered. The first member that has a number left leads
    /// the team. Nothing is sent.
    ///
    /// # Errors
    /// [`FabricError::Unsupported`] at all members, if none of them has a number left.
    pub fn of_team(&self, members: &[Rank], offers: &[u32]) -> Result<Space, FabricError> {
        let to_job = |member: &Rank| self.team.as_ref().map_or(*member as u32, |team| team.ranks[*member]);
        let ranks: Box<[u32]> = members.iter().map(to_job).collect();
        let of_each = self.of_each();
        let leader = offers.iter().position(|offer| *offer < of_each).ok_or(FabricError::Unsupported {
            what: "more teams than the messages of a job tell apart; keep teams and use them again",
        })?;
        let place = members.iter().position(|member| *member == self.rank).expect("a rank is in its team");
        if place != leader {
            self.withdraw(offers[place]);
        }
        let context = context(ranks[leader], offers[leader], of_each);
        let places = ranks.iter().enumerate().map(|(place, rank)| (*rank, place)).collect();
        let (hub, contexts) = (self.presence.hub.as_ref().ok().cloned(), contexts(context));
        let team = Some(Arc::new(Team { ranks, places, hub, contexts }));
        let presence = self.presence.clone();
        Ok(Space { presence, context, rank: place, size: members.len(), team, comm: OnceLock::new() })
    }

    /// Numbers of worlds that each rank of the job has.
    fn of_each(&self) -> u32 {
        of_each(self.presence.root.size() as u32)
    }

    /// The provider of the whole job.
    pub(crate) fn root(&self) -> &Provider {
        &self.presence.root
    }

    #[inline]
    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Ranks of the job that are its members, in the order of the team.
    pub(crate) fn members(&self) -> Vec<Rank> {
        let of_team = |team: &Arc<Team>| team.ranks.iter().map(|rank| *rank as Rank).collect();
        self.team.as_ref().map_or_else(|| (0..self.size).collect(), of_team)
    }

    /// All messages of this rank, for its first call of them in this world.
    pub(crate) fn hub(&self) -> Result<&Arc<Hub>, Error> {
        self.presence.hub.as_ref().inspect(|hub| hub.touch()).map_err(Error::clone)
    }

    /// All messages of this rank, for calls that send none: waits turn them as before.
    pub(crate) fn quiet_hub(&self) -> Option<&Arc<Hub>> {
        self.presence.hub.as_ref().ok()
    }

    pub(super) fn events(&self) -> Result<&Events, Error> {
        if let Some(events) = self.presence.events.get() {
            return Ok(events);
        }
        let made = Events::new()?;
        Ok(self.presence.events.get_or_init(|| made))
    }

    pub(crate) fn context(&self) -> u32 {
        self.context
    }

    /// Tells the others that this rank has failed.
    pub(crate) fn fail(&self) {
        provider::fail(&self.presence.root);
    }

    /// Whether this rank leaves the job with this world.
    pub(crate) fn is_last(&self) -> bool {
        Arc::strong_count(&self.presence) == 1
    }

    #[inline]
    pub(crate) fn comm(&self) -> Result<&Comm, Error> {
        match self.comm.get() {
            Some(comm) => Ok(comm),
            None => self.first(),
        }
    }

    #[cold]
    fn first(&self) -> Result<&Comm, Error> {
        let hub = self.hub()?.clone();
        let team = self.team.clone();
        let (rank, size) = (self.rank, self.size);
        if let Some(team) = &team {
            hub.team(team.contexts.clone(), &team.ranks)?;
        }
        Ok(self.comm.get_or_init(|| Comm(Arc::new(Ranks { hub, context: self.context, rank, size, team }))))
    }
}

/// Numbers of worlds that each rank of a job of this size has. None is used twice: messages of a team may come when it is dropped.
fn of_each(job: u32) -> u32 {
    u32::MAX / CONTEXTS / job
}

/// The first context of the world that a rank of the job leads after `led` others; rank 0 leads the job's own at first. Worlds that a
/// rank leads one after the other have neighbouring contexts, so that those that are closed are one run.
fn context(leader: u32, led: u32, of_each: u32) -> u32 {
    CONTEXTS * (leader * of_each + led)
}

/// All contexts of the world that has this first one.
fn contexts(first: u32) -> RangeInclusive<u32> {
    first..=first + (CONTEXTS - 1)
}

impl Comm {
    /// The same ranks, apart: in another of the contexts of their world.
    pub fn apart(&self, which: u32) -> Comm {
        Comm(Arc::new(Ranks { context: self.context.wrapping_add(which), ..Ranks::clone(self) }))
    }
}

impl Ranks {
    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The rank of the job, if there is such a one here.
    #[inline]
    pub fn to_job(&self, rank: Rank) -> Result<u32, Error> {
        if rank >= self.size {
            return Err(Error::NoSuchRank { rank, ranks: self.size });
        }
        Ok(self.team.as_ref().map_or(rank as u32, |team| team.ranks[rank]))
    }

    /// Whether this rank of the job is one of these.
    pub fn has(&self, rank: u32) -> bool {
        self.team.as_ref().map_or((rank as usize) < self.size, |team| team.places.contains_key(&rank))
    }

    /// As it is numbered here; that of the job if it is not of this team.
    #[inline(always)]
    pub fn numbered(&self, rank: u32) -> Rank {
        let place = self.team.as_ref().and_then(|team| team.places.get(&rank).copied());
        place.unwrap_or(rank as Rank)
    }

    /// To whom; none if to nobody.
    #[inline]
    pub fn target(&self, to: Peer) -> Result<Option<u32>, Error> {
        match to {
            Peer::Rank(rank) => self.to_job(rank).map(Some),
            Peer::None => Ok(None),
        }
    }

    /// What a receive takes; none if from nobody.
    #[inline]
    pub fn select(&self, from: Source, tag: Option<u32>) -> Result<Option<Select>, Error> {
        let source = match from {
            Source::Rank(rank) => Some(self.to_job(rank)?),
            Source::Any => None,
            Source::None => return Ok(None),
        };
        Ok(Some(Select { context: self.context, source, tag }))
    }

    /// Who ends a wait for that.
    pub fn awaited(&self, source: Option<u32>) -> Awaited {
        source.map_or(Awaited::Anyone, |rank| Awaited::Rank(rank as Rank))
    }

    /// What came, in elements of so many bytes.
    #[inline(always)]
    pub fn status(&self, came: Came, element: usize) -> Result<Status, Error> {
        let (from, bytes) = (self.numbered(came.peer), came.length);
        let (len, rest) = match element as u64 {
            0 => (0, bytes),
            element => (bytes / element, bytes % element),
        };
        match rest {
            0 => Ok(Status { from, tag: came.tag, len: len as usize }),
            _ => Err(Error::OtherType { from, tag: came.tag, bytes, element }),
        }
    }

    /// How a request ended, in elements of so many bytes.
    #[inline(always)]
    pub fn outcome(&self, result: Result<Came, Fault>, element: usize) -> Result<Status, Error> {
        match result {
            Ok(came) => self.status(came, element),
            Err(fault) => Err(self.fault(fault, element)),
        }
    }

    #[cold]
    pub fn fault(&self, fault: Fault, element: usize) -> Error {
        match fault {
            Fault::Message(failure) => self.failure(failure, element),
            Fault::Work(error) => error,
        }
    }

    #[cold]
    pub fn failure(&self, failure: Failure, element: usize) -> Error {
        match failure {
            Failure::Truncated { status, room } => match self.status(status, element) {
                Ok(status) => Error::Truncated { status, room: room as usize / element.max(1) },
                Err(other) => other,
            },
            Failure::NoSuchRank { rank, .. } => Error::NoSuchRank { rank: self.numbered(rank), ranks: self.size },
            Failure::Lost { rank, lost } => {
                let rank = self.numbered(rank);
                match lost {
                    Lost::Died => Error::PeerDied { rank },
                    Lost::Left => Error::PeerLeft { rank },
                    lost => Error::PeerLost { rank, lost },
                }
            }
            Failure::NoMemory { status } => {
                Error::NoMemory { from: self.numbered(status.peer), tag: status.tag, bytes: status.length }
            }
            Failure::Discarded { rank } => Error::TeamDropped { rank: self.numbered(rank) },
            Failure::Overdrawn { rank, overdraft } => Error::TooManyUnreceived { rank: self.numbered(rank), overdraft },
            Failure::Pipe { rank, fault } => Error::Pipe { rank: self.numbered(rank), fault },
            other => Error::Misuse { why: other.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{context, of_each};
    use std::sync::atomic::Ordering::Relaxed;

    /// A program may split its world again and again.
    #[cfg(not(miri))]
    #[test]
    fn dropped_teams_are_forgotten() {
        use crate::messages::{Source, Tag};
        const TAG: Tag<u64> = Tag::new(1);
        let ended = crate::threads(3, |world| -> Result<(), crate::Error> {
            let known = || world.space().comm().unwrap().hub.with(|core| core.engine.teams()).unwrap();
            let opened = || world.space().comm().unwrap().hub.with(|core| core.opened.len()).unwrap();
            for round in 0..40 {
                let team = world.split(Some(world.rank() as u64 % 2), 0)?.expect("a colour was named");
                let next = (team.rank() + 1) % team.size();
                team.send(next, TAG, &[round])?;
                assert_eq!(team.recv(Source::Any, TAG)?.0, [round]);
                drop(team.psend_init(next, TAG, vec![0_u64; 4], 2)?);
                assert_eq!((known(), opened()), (1, 1), "round {round}");
            }
            // A receive, also one that is made again and again, keeps the team that it is of: of others who die it is not told.
            let team = world.split(Some(0), 0)?.expect("a colour was named");
            let kept = team.recv_init(Source::Any, TAG, vec![0])?;
            drop(team);
            let team = world.split(Some(0), 0)?.expect("a colour was named");
            drop(team.irecv(Source::Any, TAG));
            assert_eq!(known(), 2);
            drop((kept, team));
            let team = world.split(Some(0), 0)?.expect("a colour was named");
            drop(team.irecv(Source::Any, TAG));
            assert_eq!(known(), 1);
            Ok(world.barrier()?)
        });
        assert!(ended.unwrap().into_iter().all(|ended| ended.is_ok()));
    }

    #[test]
    fn every_team_has_contexts_of_its_own() {
        let all = (0..5).flat_map(|leader| (0..7).map(move |led| context(leader, led, of_each(5))));
        let all: std::collections::BTreeSet<_> = all.collect();
        assert_eq!(all.len(), 35);
        assert!(all.iter().all(|first| first % 7 == 0));
        assert_eq!([0, 1, 2].map(|led| context(0, led, of_each(5))), [0, 7, 14]);
        // 613,566,756 worlds have contexts in a job of one rank, and half as many of each rank in a job of two.
        assert_eq!([of_each(1), of_each(2), of_each(1024)], [613_566_756, 306_783_378, 599_186]);
        assert_eq!(context(1, 306_783_377, of_each(2)), u32::MAX - 10);
        assert_eq!(super::contexts(u32::MAX - 10), u32::MAX - 10..=u32::MAX - 4);
    }

    /// The next member leads once the first has no number left; an error, at all, once none has.
    #[cfg(not(miri))]
    #[test]
    fn members_lead_until_no_number_is_left() {
        const MOST: u32 = 204_522_252;
        let ended = crate::threads(3, |world| {
            let (me, space) = (world.rank(), world.space());
            let led = &space.presence.led;
            led.store(if me < 2 { MOST - 1 } else { MOST }, Relaxed);
            let team = || world.split(Some(0), 0).map(|team| team.unwrap().space().context());
            assert_eq!(team().unwrap(), 7 * (MOST - 1), "rank 0 leads the last that it can");
            assert_eq!(team().unwrap(), 7 * (2 * MOST - 1), "then rank 1 does");
            let error = team().unwrap_err().to_string();
            assert!(error.contains("more teams than the messages of a job tell apart"), "{error}");
            // Teams without them have their own.
            assert_eq!(led.load(Relaxed), MOST);
            world.barrier().unwrap();
        });
        assert!(ended.is_ok());
    }
}
