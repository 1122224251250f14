//! The message space of one world or team: its rank numbers, and its contexts, which separate its messages from those
//! of others.

use super::error::Error;
use super::locked::Fault;
use super::progress::Events;
use super::progress_engine::ProgressEngine;
use super::tag::{Peer, Source, Status};
use crate::provider::{self, Provider};
use std::collections::HashMap;
use std::ops::{Deref, RangeInclusive};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use transom_channel::{Error as Failure, PeerFailure, Select, Status as Came};
use transom_locks::{Awaited, Rank};
use transom_windows::{FabricError, OobExchange as _};

/// Contexts of a world: one for the messages of the program, the others for those of the library.
const CONTEXTS: u32 = 7;
/// Offset of the context in which pipes are opened.
pub(super) const PIPES: u32 = 1;
/// Offsets of the context of collectives, and of the context (of the job only) for control messages of collectives.
pub(crate) const COLLECTIVES: u32 = 2;
pub(crate) const CONTROL: u32 = 3;
/// Offsets of the context in which partitioned messages are announced, by the program's tags, and of the context of
/// their parts, by tags that the sender chooses.
pub(super) const ANNOUNCED: u32 = 4;
pub(super) const PARTS: u32 = 5;
/// Offset of the context in which the members of a new team exchange messages.
pub(super) const TEAMS: u32 = 6;

/// Membership of this rank in its job, shared by all its worlds. Dropping the last world closes the messages.
pub(crate) struct Presence {
    /// The provider of the whole job.
    root: Provider,
    /// Progress engine of this rank, or the error for which the rank has no messages.
    progress_engine: Result<Arc<ProgressEngine>, Error>,
    /// Descriptor of `event_fd`, made at its first use. Requests that outlive the worlds do not keep it open.
    events: OnceLock<Events>,
    /// World numbers given out for worlds that this rank leads, that of the job included.
    led: AtomicU32,
}

/// Context and members of one world.
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
    /// Progress engine, which closes `contexts` when the team and all its requests are dropped.
    progress_engine: Option<Arc<ProgressEngine>>,
    contexts: RangeInclusive<u32>,
}

impl Drop for Team {
    fn drop(&mut self) {
        if let Some(progress_engine) = &self.progress_engine {
            progress_engine.disband(self.contexts.clone());
        }
    }
}

/// Handle of calls and requests on a message space: cheap to clone, and does not keep the rank in the job.
#[derive(Clone)]
pub(crate) struct Comm(Arc<Ranks>);

/// The ranks that send in one context, and the engine that carries their messages.
#[derive(Clone)]
pub(crate) struct Ranks {
    pub progress_engine: Arc<ProgressEngine>,
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
        if let Ok(progress_engine) = &self.progress_engine {
            progress_engine.close(std::thread::panicking());
        }
    }
}

impl Space {
    /// Makes the message space of all ranks of a job.
    pub fn of_job(root: Provider) -> Space {
        // The engine opens before the first call: peers may send eagerly at any time, and the waits of this rank must
        // receive their messages.
        let progress_engine = ProgressEngine::open(&root)
            .inspect_err(|error| tracing::warn!(%error, "this rank can send and receive no messages"));
        let (rank, size) = (root.rank(), root.size());
        let presence = Arc::new(Presence { root, progress_engine, events: OnceLock::new(), led: AtomicU32::new(1) });
        Space { presence, context: 0, rank, size, team: None, comm: OnceLock::new() }
    }

    /// Returns a number for a team that this rank may lead. Each prospective member passes its offer to all members. A
    /// counter that all ranks advance alike would not do: threads of a rank may make teams at once, in another order
    /// than on other ranks.
    pub fn offer(&self) -> u32 {
        let next = |led| (led < self.of_each()).then_some(led + 1);
        self.presence.led.fetch_update(Relaxed, Relaxed, next).unwrap_or_else(|used_up| used_up)
    }

    /// Withdraws an offered number that leads no team. The number is lost if another thread has made an offer since.
    pub fn withdraw(&self, offer: u32) {
        let _ = self.presence.led.compare_exchange(offer.wrapping_add(1), offer, Relaxed, Relaxed);
    }

    /// Makes the message space of a team of these ranks of this world, this rank included, from the offers of all
    /// members. The first member that has a number left leads the team. The call sends nothing.
    ///
    /// # Errors
    /// [`FabricError::Unsupported`] at all members, if none of them has a number left.
    pub fn of_team(&self, members: &[Rank], offers: &[u32]) -> Result<Space, FabricError> {
        let to_job = |member: &Rank| self.team.as_ref().map_or(*member as u32, |team| team.ranks[*member]);
        let ranks: Box<[u32]> = members.iter().map(to_job).collect();
        let of_each = self.of_each();
        let leader = offers.iter().position(|offer| *offer < of_each).ok_or(FabricError::Unsupported {
            what: "the numbers for teams of this job are used up; keep teams and use them again",
        })?;
        let place = members.iter().position(|member| *member == self.rank).expect("a rank is in its team");
        if place != leader {
            self.withdraw(offers[place]);
        }
        let context = context(ranks[leader], offers[leader], of_each);
        let places = ranks.iter().enumerate().map(|(place, rank)| (*rank, place)).collect();
        let (progress_engine, contexts) = (self.presence.progress_engine.as_ref().ok().cloned(), contexts(context));
        let team = Some(Arc::new(Team { ranks, places, progress_engine, contexts }));
        let presence = self.presence.clone();
        Ok(Space { presence, context, rank: place, size: members.len(), team, comm: OnceLock::new() })
    }

    /// World numbers available to each rank of the job.
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

    /// Job ranks of the members, in the order of the team.
    pub(crate) fn members(&self) -> Vec<Rank> {
        let of_team = |team: &Arc<Team>| team.ranks.iter().map(|rank| *rank as Rank).collect();
        self.team.as_ref().map_or_else(|| (0..self.size).collect(), of_team)
    }

    /// Returns the engine for the first message call in this world. From then on, waits make progress on messages.
    pub(crate) fn progress_engine(&self) -> Result<&Arc<ProgressEngine>, Error> {
        self.presence.progress_engine.as_ref().inspect(|progress_engine| progress_engine.touch()).map_err(Error::clone)
    }

    /// Returns the engine for calls that send no messages. Whether waits make progress on messages does not change.
    pub(crate) fn quiet_hub(&self) -> Option<&Arc<ProgressEngine>> {
        self.presence.progress_engine.as_ref().ok()
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

    /// Reports the failure of this rank to the job.
    pub(crate) fn fail(&self) {
        provider::fail(&self.presence.root);
    }

    /// Returns true if dropping this world makes the rank leave the job.
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
        let progress_engine = self.progress_engine()?.clone();
        let team = self.team.clone();
        let (rank, size) = (self.rank, self.size);
        if let Some(team) = &team {
            progress_engine.team(team.contexts.clone(), &team.ranks)?;
        }
        Ok(self.comm.get_or_init(|| Comm(Arc::new(Ranks { progress_engine, context: self.context, rank, size, team }))))
    }
}

/// World numbers available to each rank of a job of `job` ranks. No number is used twice: messages of a dropped team
/// may still arrive.
fn of_each(job: u32) -> u32 {
    u32::MAX / CONTEXTS / job
}

/// First context of the world that job rank `leader` leads after `led` others; the job's own world is the first that
/// rank 0 leads. Worlds that a rank leads one after the other have adjacent contexts, so that closed contexts form one
/// run.
fn context(leader: u32, led: u32, of_each: u32) -> u32 {
    CONTEXTS * (leader * of_each + led)
}

/// All contexts of the world whose first context is `first`.
fn contexts(first: u32) -> RangeInclusive<u32> {
    first..=first + (CONTEXTS - 1)
}

impl Comm {
    /// The same ranks in another context of their world, at offset `which`.
    pub fn apart(&self, which: u32) -> Comm {
        Comm(Arc::new(Ranks { context: self.context.wrapping_add(which), ..Ranks::clone(self) }))
    }
}

impl Ranks {
    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns true for a team, false for the ranks of the job.
    pub fn is_team(&self) -> bool {
        self.team.is_some()
    }

    /// Converts a rank of this world to a rank of the job.
    #[inline]
    pub fn to_job(&self, rank: Rank) -> Result<u32, Error> {
        if rank >= self.size {
            return Err(Error::NoSuchRank { rank, ranks: self.size });
        }
        Ok(self.team.as_ref().map_or(rank as u32, |team| team.ranks[rank]))
    }

    /// Returns true if this job rank is a member.
    pub fn has(&self, rank: u32) -> bool {
        self.team.as_ref().map_or((rank as usize) < self.size, |team| team.places.contains_key(&rank))
    }

    /// Converts a job rank to its number in this world. A job rank outside the team keeps its number.
    #[inline(always)]
    pub fn numbered(&self, rank: u32) -> Rank {
        let place = self.team.as_ref().and_then(|team| team.places.get(&rank).copied());
        place.unwrap_or(rank as Rank)
    }

    /// Job rank of the receiver; `None` for [`Peer::None`].
    #[inline]
    pub fn target(&self, to: Peer) -> Result<Option<u32>, Error> {
        match to {
            Peer::Rank(rank) => self.to_job(rank).map(Some),
            Peer::None => Ok(None),
        }
    }

    /// Matching criteria of a receive; `None` for [`Source::None`].
    #[inline]
    pub fn select(&self, from: Source, tag: Option<u32>) -> Result<Option<Select>, Error> {
        let source = match from {
            Source::Rank(rank) => Some(self.to_job(rank)?),
            Source::Any => None,
            Source::None => return Ok(None),
        };
        Ok(Some(Select { context: self.context, source, tag }))
    }

    /// The ranks whose action can end a wait for a message from `source`.
    pub fn awaited(&self, source: Option<u32>) -> Awaited {
        source.map_or(Awaited::Anyone, |rank| Awaited::Rank(rank as Rank))
    }

    /// Status of a received message, in elements of `element` bytes.
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

    /// Result of a request, in elements of `element` bytes.
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
            Failure::PeerFailure { rank, lost } => {
                let rank = self.numbered(rank);
                match lost {
                    PeerFailure::Died => Error::PeerDied { rank },
                    PeerFailure::Left => Error::PeerLeft { rank },
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

    /// A program may split its world many times.
    #[cfg(not(miri))]
    #[test]
    fn dropped_team_leaves_no_engine_state() {
        use crate::messages::{Source, Tag};
        const TAG: Tag<u64> = Tag::new(1);
        let ended = crate::threads(3, |world| -> Result<(), crate::Error> {
            let known = || world.space().comm().unwrap().progress_engine.with(|core| core.engine.teams()).unwrap();
            let opened = || world.space().comm().unwrap().progress_engine.with(|core| core.opened.len()).unwrap();
            for round in 0..40 {
                let team = world.split(Some(world.rank() as u64 % 2), 0)?.expect("a colour was named");
                let next = (team.rank() + 1) % team.size();
                team.send(next, TAG, &[round])?;
                assert_eq!(team.recv(Source::Any, TAG)?.0, [round]);
                drop(team.psend_init(next, TAG, vec![0_u64; 4], 2)?);
                assert_eq!((known(), opened()), (1, 1), "round {round}");
            }
            // A receive, also a persistent one, keeps its team: the team's receives learn of no deaths outside it.
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
    fn contexts_of_any_two_teams_are_distinct() {
        let all = (0..5).flat_map(|leader| (0..7).map(move |led| context(leader, led, of_each(5))));
        let all: std::collections::BTreeSet<_> = all.collect();
        assert_eq!(all.len(), 35);
        assert!(all.iter().all(|first| first % 7 == 0));
        assert_eq!([0, 1, 2].map(|led| context(0, led, of_each(5))), [0, 7, 14]);
        // A job of one rank has contexts for 613,566,756 worlds; in a job of two, each rank has half as many.
        assert_eq!([of_each(1), of_each(2), of_each(1024)], [613_566_756, 306_783_378, 599_186]);
        assert_eq!(context(1, 306_783_377, of_each(2)), u32::MAX - 10);
        assert_eq!(super::contexts(u32::MAX - 10), u32::MAX - 10..=u32::MAX - 4);
    }

    /// The next member leads once the first has no number left. All members get an error once none has.
    #[cfg(not(miri))]
    #[test]
    fn leader_out_of_numbers_passes_to_next_member() {
        const MOST: u32 = 204_522_252;
        let ended = crate::threads(3, |world| {
            let (me, space) = (world.rank(), world.space());
            let led = &space.presence.led;
            led.store(if me < 2 { MOST - 1 } else { MOST }, Relaxed);
            let team = || world.split(Some(0), 0).map(|team| team.unwrap().space().context());
            assert_eq!(team().unwrap(), 7 * (MOST - 1), "rank 0 should lead with its last number");
            assert_eq!(team().unwrap(), 7 * (2 * MOST - 1), "rank 1 should lead next");
            let error = team().unwrap_err().to_string();
            assert!(error.contains("the numbers for teams of this job are used up"), "{error}");
            // A failed team uses up no number.
            assert_eq!(led.load(Relaxed), MOST);
            world.barrier().unwrap();
        });
        assert!(ended.is_ok());
    }
}
