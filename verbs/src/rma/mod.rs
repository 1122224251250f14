//! Windows over verbs: the [`Network`](transom_network::Network) of ranks that reach each other by their adapters.

mod collective;
mod failure;
mod far;
mod mail;
mod member;
mod network;
mod operations;
mod paths;
mod region;
mod striped;
mod transfer;
mod under_way;

pub use region::{Pending, Region, Remote};
pub use transfer::Transfer;

use super::VerbsError;
use super::connect::{Core, Service};
use super::counts::{QueuePairs, Registrations, WorkRequests};
use super::rail::RailInfo;
use super::settings::Settings;
use collective::lanes::{all_gather, barrier};
use mail::{Block, Mail};
use member::Member;
use paths::Paths;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use transom_channel::Config;
use transom_locks::{Awaited, Rank};
use transom_network::{Bootstrap, Node};
use transom_windows::{FabricError, OobExchange};

/// A rank's handle on the network of its job, over InfiniBand or RoCE; [`Hybrid`](transom_network::Hybrid) makes a
/// provider of it. Once the last clone and window of a rank are dropped, the rank has left the job.
///
/// # Examples
/// ```
/// use transom::verbs::{Hybrid, Node, Verbs, WorkRequests};
/// use transom::windows::{Fabric, Window};
/// let job = transom::shm_loopback::Loopback::alone()?;
/// match Hybrid::<Verbs>::open(std::sync::Arc::new(job.clone()), Node::all(job), &Default::default()) {
///     Ok(hybrid) => {
///         let verbs = hybrid.network();
///         println!("TRANSOM_VERBS_DEVICE={}", verbs.rails()[0].name); // mlx5_0:1:3
///         let mut window = Window::<u64, _>::allocate(&hybrid, 0, 10)?;
///         let before = verbs.work_requests_to_itself();
///         window.lock_exclusive(0)?.put(0, &[42])?;
///         let locked = verbs.work_requests_to_itself() - before;
///         assert_eq!((locked.compare_and_swaps, locked.writes), (2, 0)); // a rank's own data needs no adapter
///         assert_eq!(verbs.work_requests_to_others(), WorkRequests::default());
///         assert_eq!(verbs.queue_pairs().to_itself, 1);
///         assert!(verbs.registered_bytes() > 10 * size_of::<u64>());
///         assert_eq!((verbs.registrations().passing, verbs.copied_bytes()), (0, 0)); // no large put
///         assert!(verbs.divided_bytes().is_empty()); // a single rail
///     }
///     Err(why) => println!("{why}"), // no adapter on this machine
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Verbs(Arc<Member>);

impl Verbs {
    /// Opens this machine's RDMA devices for the ranks of `job`, selected by the TRANSOM_VERBS_ variables. Collective.
    /// `messages` configures the division of large operations among rails, and the paths of messages.
    fn new(job: Arc<dyn Bootstrap>, node: Node, messages: &Config) -> Result<Self, VerbsError> {
        let settings = Settings::from_env(messages);
        // The other ranks wait for this rank's address, so they are notified before an invalid variable is reported
        // here.
        let settings = match settings {
            Ok(settings) => settings,
            Err(error) => {
                job.all_gather(&[])?;
                return Err(error.into());
            }
        };
        let service = Arc::new(Service::new(&job, &settings)?);
        // Ranks that all share memory execute collectives there.
        let mail = if node.is_all() { None } else { Some(Self::meet(&*job, &service)?) };
        let peers = (0..job.size() as u32).collect();
        let paths = Paths::of(&service, settings.division, job.size());
        Ok(Verbs(Arc::new(Member::new(service, job, (node, peers), mail, paths, None))))
    }

    /// Publishes the collectives' blocks by the job's exchange; collective. Later collectives use lanes.
    fn meet(job: &dyn OobExchange, service: &Service) -> Result<Mail, VerbsError> {
        let block = Block::new(service);
        let all = job.all_gather(&block.as_ref().map_or(Vec::new(), Block::to_bytes))?;
        let block = block?;
        match all.iter().position(Vec::is_empty) {
            Some(rank) => Err(VerbsError::Peer { rank }),
            None => Ok(block.with(all.iter().map(Vec::as_slice))?),
        }
    }

    /// Makes a team of `members`, whose exchange and node these are. It shares the queue pairs of the job.
    fn team_of(&self, members: &[Rank], team: Arc<dyn Bootstrap>, node: Node) -> Result<Self, FabricError> {
        let member = &*self.0;
        let block = member.mail.as_ref().map(|_| Block::new(&member.service));
        let block_key = block.iter().flatten().map(Block::to_bytes).next().unwrap_or_default();
        let led = if team.rank() == 0 { member.remains.lead(member.exchange.rank()) } else { 0 };
        let all = team.all_gather(&[&led.to_le_bytes()[..], &block_key].concat())?;
        let block = block.transpose().map_err(|error| FabricError::System {
            what: "memory for the collectives of a team".into(),
            source: std::io::Error::other(error),
        })?;
        let (mut blocks, mut number) = (Vec::new(), None);
        for (rank, told) in all.iter().enumerate() {
            let bad = || FabricError::Corrupt {
                why: format!(
                    "rank {rank} sent {} bytes for a new team, expected a number of 8 bytes and a key",
                    told.len()
                ),
            };
            let (led, block) = told.split_first_chunk().ok_or_else(bad)?;
            number.get_or_insert(u64::from_le_bytes(*led));
            blocks.push(block);
        }
        let mail = block.map(|block| block.with(blocks.into_iter())).transpose()?;
        let peers = members.iter().map(|&rank| member.peers[rank]).collect();
        let service = member.service.clone();
        let number = number.ok_or(FabricError::GivenUp { rank: 0 })?;
        member.remains.share(number, all.len());
        let parent = Some((self.0.clone(), number));
        let team = Member::new(service, team, (node, peers), mail, member.paths.clone(), parent);
        Ok(Verbs(Arc::new(team)))
    }

    /// This rank's rails, in order. The n-th rail of a rank is connected with the n-th rail of each other rank.
    pub fn rails(&self) -> Vec<RailInfo> {
        self.0.service.cores().map(|core| core.rail.info()).collect()
    }

    /// Number of queue pairs that this rank has, and has created so far, on its own or a peer's request.
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

    /// Requests posted to queue pairs to other ranks so far; each is one remote operation.
    pub fn work_requests_to_others(&self) -> WorkRequests {
        let posted = self.0.service.cores().map(|core| core.endpoints.counts()[0]);
        posted.fold(WorkRequests::default(), |sum, of| sum + of)
    }

    /// Requests posted to this rank's queue pair to itself so far.
    ///
    /// They operate on words of its own memory and, if data move through shared memory, of its host's.
    pub fn work_requests_to_itself(&self) -> WorkRequests {
        self.0.core().endpoints.counts()[1]
    }

    /// Bytes of large puts and gets divided among rails so far, by rail; empty with a single rail.
    pub fn divided_bytes(&self) -> Vec<u64> {
        let rails = self.0.service.cores().count();
        self.0.paths.as_ref().map_or(Vec::new(), |paths| paths.bytes().take(rails).collect())
    }

    /// Counts registrations for buffers and large operations, and reuses.
    pub fn registrations(&self) -> Registrations {
        let made = self.0.service.cores().map(|core| core.memory.registrations());
        made.fold(Registrations::default(), |sum, of| sum + of)
    }

    /// Bytes of puts and gets copied through the library's registered memory so far.
    pub fn copied_bytes(&self) -> u64 {
        self.0.core().memory.bytes_copied()
    }

    /// Bytes currently registered with the adapter.
    ///
    /// They comprise this rank's windows, protocol words in windows of ranks that share memory with it, once it uses them, and
    /// the library's own buffers.
    pub fn registered_bytes(&self) -> usize {
        self.0.service.cores().map(|core| core.rail.domain.registered()).sum()
    }
}

impl OobExchange for Verbs {
    fn rank(&self) -> Rank {
        self.0.exchange.rank()
    }

    fn size(&self) -> usize {
        self.0.exchange.size()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
        let Member { remains, detached, mail, exchange, .. } = &*self.0;
        detached.sweep();
        let told = remains.tell(mine, || self.0.settle());
        let all = match mail {
            Some(mail) => all_gather(mail, &self.0, &told),
            None => exchange.all_gather(&told),
        }?;
        let message = |(rank, bytes): (Rank, &Vec<u8>)| {
            let message = remains.hear(bytes);
            let why = || format!("rank {rank} sent a malformed all-gather message of {} bytes", bytes.len());
            Ok(message.ok_or_else(|| FabricError::Corrupt { why: why() })?.to_vec())
        };
        all.iter().enumerate().map(message).collect()
    }

    /// Also reports dropped objects, if any rank has some to report.
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
