//! Connections on demand: whoever first needs a peer asks it by a datagram, and a thread of the peer answers, whatever
//! the program does meanwhile. [`machine`] is what both agree by, [`message`] what they say, [`pair`] the queue pairs that
//! come of it, [`service`] the thread.

mod address;
mod core;
#[cfg(test)]
mod explore;
mod machine;
mod message;
mod pair;
mod service;

pub(super) use core::{Core, Link};

use super::VerbsError;
use super::datagram::Post;
use super::rail::Rail;
use super::settings::Settings;
use crate::random::random;
use address::{Address, Card, Destination};
use message::MESSAGE;
use service::Connector;
use std::sync::Arc;
use std::thread::JoinHandle;
use transom_locks::Rank;
use transom_windows::Exchange;

/// Bytes that are kept here of each rank of the job, connected or not.
pub(super) const EACH: usize = size_of::<Address>() + size_of::<bool>() + Core::SEAT;

/// What a rank has of its adapter, and the thread that connects. All that a rank's teams share.
pub(super) struct Service {
    pub core: Arc<Core>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Collective: opens the device and tells all others where this rank is.
    pub fn new(job: &dyn Exchange, settings: &Settings) -> Result<Self, VerbsError> {
        let made = Self::prepare(settings);
        let mine = made.as_ref().map_or(Vec::new(), |(_, _, card)| card.to_bytes());
        let theirs = job.all_gather(&mine)?;
        let (rail, post, mine) = made?;
        let cards = theirs.iter().enumerate();
        let cards = cards.map(|(rank, card)| Card::from_bytes(card).ok_or(VerbsError::Peer { rank }));
        let cards = cards.collect::<Result<Vec<_>, _>>()?;
        if let Some(rank) = cards.iter().position(|card| card.link != mine.link) {
            return Err(other_link(rank, &rail, job.rank()));
        }
        let same_adapter = cards.iter().map(|card| card.adapter == mine.adapter).collect();
        let core = Arc::new(Core::new(job.rank(), rail, same_adapter)?);
        let addresses = cards.into_iter().map(|card| card.address).collect();
        let connector = Connector::new(core.clone(), post, addresses);
        let thread = std::thread::Builder::new().name("transom verbs".into()).spawn(move || connector.run());
        let thread = thread.map_err(|source| VerbsError::system("a thread that answers peers", source))?;
        Ok(Service { core, thread: Some(thread) })
    }

    fn prepare(settings: &Settings) -> Result<(Rail, Post<MESSAGE>, Card), VerbsError> {
        let rail = Rail::open(settings)?;
        let random_numbers = |source| VerbsError::system("random numbers", source);
        // Keys whose highest bit is set are the system's own.
        let key = u32::from_le_bytes(random().map_err(random_numbers)?) & 0x7fff_ffff;
        let post = Post::new(&rail, key)?;
        let (gid, lid, queue_pair) = (rail.gid(), rail.lid(), post.number());
        let [initiator_depth, responder_resources] = rail.initiated_and_served();
        let address = Address {
            datagrams: Destination { gid, lid, queue_pair, key },
            secret: random().map_err(random_numbers)?,
            mtu: rail.mtu() as u8,
            responder_resources,
            initiator_depth,
        };
        let card = Card { address, link: rail.link() as u8, adapter: rail.adapter() };
        Ok((rail, post, card))
    }
}

fn other_link(rank: Rank, rail: &Rail, me: Rank) -> VerbsError {
    let what = format!("the RDMA device of rank {rank} and {} of rank {me}", rail.name());
    let why = "they are of different links: InfiniBand, RoCE v1, RoCE v2; choose by TRANSOM_VERBS_DEVICE or \
               TRANSOM_VERBS_GID";
    VerbsError::unusable(what, why.into())
}

impl Drop for Service {
    fn drop(&mut self) {
        self.core.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
