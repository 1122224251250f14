//! Windows over verbs: the [`Fabric`](transom_windows::Fabric) of ranks that reach each other by their adapters.

mod collective;
mod fabric;
mod failure;
mod far;
mod mail;
mod member;
mod moving;
mod operations;
mod paths;
mod region;
mod striped;
mod under_way;

pub use moving::Moving;
pub use region::{Pending, Region, Remote};

use super::VerbsError;
use super::bootstrap::{Bootstrap, Node};
use super::connect::{Core, Service};
use super::counts::{QueuePairs, Registrations, WorkRequests};
use super::messages::VerbsWire;
use super::settings::Settings;
use collective::lanes::{all_gather, barrier};
use mail::{Block, Mail};
use member::Member;
use paths::Paths;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use transom_channel::Config;
use transom_locks::{Awaited, Rank};
use transom_shm_loopback::{Loopback, Meet};
use transom_windows::{Exchange, FabricError};

/// A rank's handle on the fabric of its job, over InfiniBand or RoCE. Once the last clone and window of a rank are gone, the
/// rank has left the job.
///
/// # Examples
/// ```
/// use transom::verbs::{Node, Verbs, WorkRequests};
/// use transom::windows::{Fabric, Window};
/// let job = transom::shm_loopback::Loopback::alone()?;
/// match Verbs::new(std::sync::Arc::new(job.clone()), Node::all(job), &Default::default()) {
///     Ok(verbs) => {
///         let mut window = Window::<u64, _>::allocate(&verbs, 0, 10)?;
///         let before = verbs.work_requests_to_itself();
///         window.lock_exclusive(0)?.put(0, &[42])?;
///         let locked = verbs.work_requests_to_itself() - before;
///         assert_eq!((locked.compare_and_swaps, locked.writes), (2, 0)); // one's own data needs no adapter
///         assert_eq!(verbs.work_requests_to_others(), WorkRequests::default());
///         assert_eq!(verbs.queue_pairs().to_itself, 1);
///         assert!(verbs.registered_bytes() > 10 * size_of::<u64>());
///         assert_eq!((verbs.registrations().passing, verbs.copied_bytes()), (0, 0)); // nothing large was put
///         assert!(verbs.divided_bytes().is_empty()); // one rail
///     }
///     Err(why) => println!("{why}"), // no adapter here
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Verbs(Arc<Member>);

impl Verbs {
    /// Collective: the ranks of `job` over this machine's RDMA devices, as the TRANSOM_VERBS_ variables say. What is large
    /// is divided among rails as `messages` says; messages go by the paths that it names.
    ///
    /// # Errors
    /// On all ranks if on one: see [`VerbsError`].
    pub fn new(job: Arc<dyn Bootstrap>, node: Node, messages: &Config) -> Result<Self, VerbsError> {
        let settings = Settings::from_env(messages);
        // The others wait for this rank's address: a variable that is wrong is told after they have been.
        let settings = match settings {
            Ok(settings) => settings,
            Err(error) => {
                job.all_gather(&[])?;
                return Err(error.into());
            }
        };
        let hybrid = settings.hybrid.unwrap_or(!node.is_all());
        let service = Arc::new(Service::new(&*job, &settings, hybrid)?);
        // Ranks that share memory do together what they do by that.
        let mail = if node.is_all() { None } else { Some(Self::meet(&*job, &service)?) };
        let peers = (0..job.size() as u32).collect();
        let paths = Paths::of(&service, settings.division, job.size());
        Ok(Verbs(Arc::new(Member::new(service, job, (node, peers), hybrid, mail, paths, None))))
    }

    /// Collective, by the exchange of the job: from now on the ranks do it by their lanes.
    fn meet(job: &dyn Exchange, service: &Service) -> Result<Mail, VerbsError> {
        let block = Block::new(service);
        let all = job.all_gather(&block.as_ref().map_or(Vec::new(), Block::to_bytes))?;
        let block = block?;
        match all.iter().position(Vec::is_empty) {
            Some(rank) => Err(VerbsError::Peer { rank }),
            None => Ok(block.with(all.iter().map(Vec::as_slice))?),
        }
    }

    /// A team of these ranks, in this order, this one among them; all of them call it, and nobody else need. `meet` gives what each
    /// passes to all of them, in that order, or ends with an error at all. The team shares the queue pairs of the job.
    ///
    /// # Errors
    /// Those of `meet` and of the exchange.
    pub fn team(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Self, FabricError> {
        let Member { exchange, node, .. } = &*self.0;
        let exchange = exchange.team_of(members, meet)?;
        let places: Vec<_> = (0..members.len()).filter(|&place| node.here(members[place]).is_some()).collect();
        let here: Vec<_> = places.iter().filter_map(|&place| node.here(members[place])).collect();
        let memory = node.memory.team(&here, &mut |mine| {
            let mut said = meet(mine)?;
            Ok(places.iter().map(|&place| std::mem::take(&mut said[place])).collect())
        })?;
        self.team_of(exchange, memory)
    }

    /// Collective: the team whose exchange and memory these are.
    fn team_of(&self, team: Arc<dyn Bootstrap>, memory: Loopback) -> Result<Self, FabricError> {
        let member = &*self.0;
        let block = member.mail.as_ref().map(|_| Block::new(&member.service));
        let block_key = block.iter().flatten().map(Block::to_bytes).next().unwrap_or_default();
        let led = if team.rank() == 0 { member.remains.lead(member.exchange.rank()) } else { 0 };
        let mine = [member.exchange.rank() as u64, memory.rank() as u64, led];
        let all = team.all_gather(&[mine.map(u64::to_le_bytes).as_flattened(), &block_key].concat())?;
        let block = block.transpose().map_err(|error| FabricError::System {
            what: "memory for what the ranks of a team make together".into(),
            source: std::io::Error::other(error),
        })?;
        let (mut peers, mut here, mut blocks, mut number) = (Vec::new(), Vec::new(), Vec::new(), None);
        for (rank, told) in all.iter().enumerate() {
            let bad = || FabricError::Corrupt { why: format!("rank {rank} of a team names no rank") };
            let (numbers, block) = told.split_first_chunk::<24>().ok_or_else(bad)?;
            let [old, on_node, led] = std::array::from_fn(|at| u64::from_le_bytes(numbers.as_chunks::<8>().0[at]));
            let (old, on_node) = (old as usize, on_node as usize);
            number.get_or_insert(led);
            peers.push(*member.peers.get(old).ok_or_else(bad)?);
            here.push(Some(on_node).filter(|&on_node| member.node.here(old).is_some() && on_node < memory.size()));
            blocks.push(block);
        }
        let mail = block.map(|block| block.with(blocks.into_iter())).transpose()?;
        let node = Node::some(memory, here, member.node.hosts.clone());
        let service = member.service.clone();
        let number = number.ok_or(FabricError::GivenUp { rank: 0 })?;
        member.remains.share(number, all.len());
        let parent = Some((self.0.clone(), number));
        let (hybrid, paths) = (member.hybrid, member.paths.clone());
        let team = Member::new(service, team, (node, peers.into()), hybrid, mail, paths, parent);
        Ok(Verbs(Arc::new(team)))
    }

    /// A number of each rank's host, if there are several.
    #[doc(hidden)]
    pub fn hosts(&self) -> Option<Vec<u32>> {
        let host = |peer: &u32| self.0.node.hosts.get(*peer as usize).copied();
        self.0.peers.iter().map(host).collect()
    }

    /// What the ranks of this host share, if there are several, and data is to go through it.
    #[doc(hidden)]
    pub fn memory_of_host(&self) -> Option<&Loopback> {
        Some(&self.0.node.memory).filter(|_| self.0.hybrid && !self.0.node.hosts.is_empty())
    }

    /// Of each rank, its number among those of this host, if it is one of them.
    #[doc(hidden)]
    pub fn ranks_of_host(&self) -> Vec<Option<Rank>> {
        (0..self.0.exchange.size()).map(|rank| self.0.node.here(rank)).collect()
    }

    /// The wire of this rank's messages; once for each rank of a job, before it may receive any. An error if the device has no shared
    /// receive queues.
    #[doc(hidden)]
    pub fn wire(&self) -> Result<VerbsWire, FabricError> {
        VerbsWire::open(&self.0.service, &self.0.exchange, &self.0.node.memory)
    }

    /// How many queue pairs this rank has, and has made so far, whoever asked for them.
    pub fn queue_pairs(&self) -> QueuePairs {
        let core = self.0.core();
        let to_itself = usize::from(core.endpoints.lane(core.me).is_some());
        let cores = || self.0.service.cores();
        let there =
            |core: &Core| core.endpoints.all().filter(|(peer, lane)| *peer != core.me && lane.has_queue()).count();
        QueuePairs {
            to_others: cores().map(|core| core.made.load(Relaxed)).sum(),
            now: cores().map(there).sum(),
            to_itself,
        }
    }

    /// What this rank has posted so far to its queue pairs to others: each is one remote operation.
    pub fn work_requests_to_others(&self) -> WorkRequests {
        let posted = self.0.service.cores().map(|core| core.endpoints.counts()[0]);
        posted.fold(WorkRequests::default(), |sum, of| sum + of)
    }

    /// What this rank has posted so far to its queue pair to itself: words of its own memory and, if data moves through
    /// shared memory, of its host's.
    pub fn work_requests_to_itself(&self) -> WorkRequests {
        self.0.core().endpoints.counts()[1]
    }

    /// Bytes of large puts and gets that were divided among rails, by rail; nothing where there is one.
    pub fn divided_bytes(&self) -> Vec<u64> {
        let rails = self.0.service.cores().count();
        self.0.paths.as_ref().map_or(Vec::new(), |paths| paths.bytes().take(rails).collect())
    }

    /// How often memory was registered, for buffers and large operations, and how often that was not needed.
    pub fn registrations(&self) -> Registrations {
        let made = self.0.service.cores().map(|core| core.memory.registrations());
        made.fold(Registrations::default(), |sum, of| sum + of)
    }

    /// Bytes of puts and gets that were copied to or from registered memory of the library's own, on their way.
    pub fn copied_bytes(&self) -> u64 {
        self.0.core().memory.bytes_copied()
    }

    /// Bytes of memory that this rank has registered with its adapter now: its windows, others' that share memory with it
    /// and it has attached, and what operations travel through.
    pub fn registered_bytes(&self) -> usize {
        self.0.service.cores().map(|core| core.rail.domain.registered()).sum()
    }
}

impl Exchange for Verbs {
    fn rank(&self) -> Rank {
        self.0.exchange.rank()
    }

    fn size(&self) -> usize {
        self.0.exchange.size()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
        let Member { remains, mail, exchange, .. } = &*self.0;
        remains.sweep();
        if remains.is_untold() {
            // What was let go of must not be reached by what this rank did before.
            self.0.settle();
        }
        let told = remains.tell(mine);
        let all = match mail {
            Some(mail) => all_gather(mail, &self.0, &told),
            None => exchange.all_gather(&told),
        }?;
        let message = |(rank, bytes): (Rank, &Vec<u8>)| {
            let message = remains.hear(bytes);
            let why = || format!("rank {rank} sent {} bytes that are no message of this library", bytes.len());
            Ok(message.ok_or_else(|| FabricError::Corrupt { why: why() })?.to_vec())
        };
        all.iter().enumerate().map(message).collect()
    }

    /// Tells what was let go of, too, if anybody has something to tell.
    fn barrier(&self) -> Result<(), FabricError> {
        match &self.0.mail {
            Some(mail) if !barrier(mail, &self.0, self.0.remains.is_untold())? => Ok(()),
            _ => self.all_gather(&[]).map(drop),
        }
    }

    fn check_peers(&self, awaited: Awaited) -> Result<(), FabricError> {
        self.0.exchange.check_peers(awaited)
    }

    fn lost(&self) -> Option<FabricError> {
        self.0.exchange.lost()
    }

    fn fail(&self) {
        self.0.exchange.fail();
    }
}
