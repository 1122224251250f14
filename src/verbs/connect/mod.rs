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
use super::datagram::{Mailbox, Post, Recipient};
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
        let made = Self::prepare(settings, job.rank());
        let mine = made.as_ref().map_or(Vec::new(), |made| made.card.to_bytes());
        let theirs = job.all_gather(&mine)?;
        let Prepared { rail, post, mail, card: mine } = made?;
        let cards = theirs.iter().enumerate();
        let cards = cards.map(|(rank, card)| Card::from_bytes(card).ok_or(VerbsError::Peer { rank }));
        let cards = cards.collect::<Result<Vec<_>, _>>()?;
        if let Some(rank) = cards.iter().position(|card| card.link != mine.link) {
            return Err(other_link(rank, &rail, job.rank()));
        }
        if let Some(rank) = cards.iter().position(|card| (card.messages == 0) != (mine.messages == 0)) {
            return Err(other_paths(rank, job.rank(), mail.is_some()));
        }
        let same_adapter = cards.iter().map(|card| card.adapter == mine.adapter).collect();
        let mail = mail.map(|mail| mail.with(cards.iter().map(|card| recipient(&rail, card))));
        let core = Arc::new(Core::new(job.rank(), rail, same_adapter, mail)?);
        let addresses = cards.into_iter().map(|card| card.address).collect();
        let connector = Connector::new(core.clone(), post, addresses);
        let thread = std::thread::Builder::new().name("transom verbs".into()).spawn(move || connector.run());
        let thread = thread.map_err(|source| VerbsError::system("a thread that answers peers", source))?;
        Ok(Service { core, thread: Some(thread) })
    }

    fn prepare(settings: &Settings, me: Rank) -> Result<Prepared, VerbsError> {
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
        let mail = match settings.datagrams {
            Some(lanes) => Some(Mailbox::new(&rail, me as u32, key, lanes)?),
            None => None,
        };
        let messages = mail.as_ref().map_or(0, Mailbox::number);
        let card = Card { address, link: rail.link() as u8, adapter: rail.adapter(), messages };
        Ok(Prepared { rail, post, mail, card })
    }
}

/// What a rank has before it knows of the others.
struct Prepared {
    rail: Rail,
    post: Post<MESSAGE>,
    mail: Option<Mailbox>,
    card: Card,
}

/// Where a rank takes messages as datagrams, and the exponent of its MTU.
fn recipient(rail: &Rail, card: &Card) -> (Recipient, u8) {
    let Destination { gid, lid, key, .. } = card.address.datagrams;
    (Recipient { path: rail.path(gid, lid), queue_pair: card.messages, key }, card.address.mtu)
}

fn other_paths(rank: Rank, me: Rank, mine: bool) -> VerbsError {
    let (ud, rc) = if mine { (me, rank) } else { (rank, me) };
    let what = format!("TRANSOM_MESSAGES: rank {ud} has its messages sent by datagrams, and rank {rc} by connections");
    VerbsError::unusable(what, "say paths=ud at all ranks, or at none".into())
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
