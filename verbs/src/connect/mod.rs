//! Connections on demand. The first rank that needs a peer sends it a datagram; a thread of the peer answers, whatever
//! the program does meanwhile. [`machine`] is the protocol, [`message`] its messages, [`pair`] the queue pairs, and
//! [`service`] the thread.

mod address;
mod atomics;
mod core;
mod failover_qp;
mod idle;
mod joining;
mod listen;
mod machine;
mod message;
#[cfg(test)]
mod model_check;
mod moves;
mod other_rails;
mod pair;
mod reach;
mod service;
mod timeout_backoff;

pub(super) use core::{Core, Link, UNORDERED};
pub(super) use failover_qp::{LaneQueue, Twin};

use super::VerbsError;
use super::datagram::{Mailbox, Post, Recipient};
use super::rail::{Offer, Rail, Survey, Writes};
use super::settings::{Settings, datagram_rails};
use super::sys::Domain;
use address::{Address, Card, Destination};
use message::MESSAGE;
use service::Connector;
use std::sync::Arc;
use std::thread::JoinHandle;
use transom_channel::Paths;
use transom_launch::random;
use transom_locks::Rank;
use transom_network::Bootstrap;

/// Bytes kept for each rank of the job, connected or not.
pub(super) const EACH: usize = size_of::<Address>() + size_of::<bool>() + Core::SEAT;

/// Flag that a rank tells beside its cards: its rails are named.
const NAMED: u8 = 1;

/// A rank's adapters and connecting threads. All its teams share it.
pub(super) struct Service {
    pub core: Arc<Core>,
    /// Services of the rails after the first.
    further: Vec<Service>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Collective: the ranks select their rails together, open the devices, and tell each other where they are.
    pub fn new(job: &Arc<dyn Bootstrap>, settings: &Settings) -> Result<Self, VerbsError> {
        let survey = Survey::new(settings);
        let offers = job.all_gather(&survey.as_ref().map_or(Vec::new(), |survey| survey.offer().to_bytes()))?;
        let survey = survey?;
        let offer = |(rank, told): (Rank, &Vec<u8>)| Offer::from_bytes(told).ok_or(VerbsError::Peer { rank });
        let offers = offers.iter().enumerate().map(offer).collect::<Result<Vec<_>, _>>()?;
        let is_named = offers.iter().any(|offer| offer.is_named);
        let made = survey.open(&offers, job.rank()).and_then(|rails| {
            let prepare = |rail| Self::prepare(rail, (settings.paths, settings.datagrams), job.rank());
            rails.into_iter().map(prepare).collect::<Result<Vec<_>, _>>()
        });
        let mine = made.as_ref().map_or(Vec::new(), |made| {
            let cards = made.iter().flat_map(|made| made.card.to_bytes());
            let flags = u8::from(!settings.named.is_empty()) * NAMED;
            std::iter::once(flags).chain(cards).collect()
        });
        let theirs = job.all_gather(&mine)?;
        let mut made = made?;
        let each = (mine.len() - 1) / made.len();
        made.truncate(common(&theirs, each)?);
        let cards = |rail: usize| {
            let card = |(rank, told): (Rank, &Vec<u8>)| {
                let card = told.get(1..).and_then(|cards| cards.chunks(each).nth(rail)).and_then(Card::from_bytes);
                card.ok_or(VerbsError::Peer { rank })
            };
            theirs.iter().enumerate().map(card).collect::<Result<Vec<_>, _>>()
        };
        let mut cards = (0..made.len()).map(cards).collect::<Result<Vec<_>, _>>()?;
        for rail in 0..cards.len() {
            let Some((one, other, why)) = reach::unreached(&cards[rail]) else { continue };
            if rail == 0 || is_named {
                return Err(unreached(rail, [one, other], why));
            }
            tracing::warn!(
                rank = job.rank(),
                rail,
                one,
                other,
                why,
                "ports cannot reach each other; using fewer rails"
            );
            cards.truncate(rail);
            made.truncate(rail);
            break;
        }
        let count = made.len();
        made.iter_mut().skip(datagram_rails(settings.paths, count)).for_each(|made| made.mail = None);
        let writes =
            Writes::least(cards.iter().flatten().map(|card| card.writes)).expect("the list includes this rank");
        let users: Vec<u64> = cards.iter().flatten().map(|card| card.adapter).collect();
        let mut rails = made.into_iter().zip(cards).map(|(mut made, cards)| {
            if made.rail.writes != writes {
                tracing::info!(
                    rank = job.rank(),
                    ?writes,
                    "words and completion flags are written as the least capable adapter allows"
                );
            }
            made.rail.writes = writes;
            let users = users.iter().filter(|adapter| **adapter == made.card.adapter).count();
            made.rail.share_connections(users);
            Self::start(job, made, count > 1, cards)
        });
        let mut first = rails.next().expect("there is one at least")?;
        first.further = rails.collect::<Result<_, _>>()?;
        first.further.iter().for_each(|further| first.core.memory.also(&further.core.memory));
        for (number, core) in first.cores().enumerate() {
            let others = first.shared_cores().filter(|other| !std::ptr::eq(&***other, core));
            core.beside(number, others.map(Arc::downgrade).collect());
        }
        Ok(first)
    }

    /// Starts one rail, given the cards of all ranks.
    fn start(job: &Arc<dyn Bootstrap>, made: Prepared, several: bool, cards: Vec<Card>) -> Result<Self, VerbsError> {
        let me = job.rank();
        let Prepared { rail, post, mail, paths, card: mine } = made;
        if let Some(rank) = cards.iter().position(|card| card.link != mine.link) {
            return Err(other_link(rank, &rail, me));
        }
        if let Some(rank) = cards.iter().position(|card| card.paths != mine.paths) {
            return Err(other_paths(rank, cards[rank].paths, me, mine.paths));
        }
        let same_adapter = cards.iter().map(|card| card.adapter == mine.adapter).collect();
        let mail = mail.map(|mail| mail.with(cards.iter().map(|card| recipient(&rail, card))));
        let addresses = cards.into_iter().map(|card| card.address).collect();
        let core = Arc::new(Core::new(me, rail, same_adapter, addresses, (paths, mail))?);
        let frequent = several || core.addresses.len() > core.rail.most_connections;
        let connector = Connector::new(core.clone(), post, frequent, Arc::downgrade(job));
        let thread = std::thread::Builder::new().name("transom verbs".into()).spawn(move || connector.run());
        let thread = thread.map_err(|source| VerbsError::system("starting the connecting thread", source))?;
        Ok(Service { core, further: Vec::new(), thread: Some(thread) })
    }

    /// The cores of all rails.
    pub fn cores(&self) -> impl Iterator<Item = &Core> {
        self.shared_cores().map(|core| &**core)
    }

    fn shared_cores(&self) -> impl Iterator<Item = &Arc<Core>> {
        std::iter::once(&self.core).chain(self.further.iter().map(|service| &service.core))
    }

    /// The domains of the rails after the first.
    pub fn further_domains(&self) -> impl Iterator<Item = &Arc<Domain>> {
        self.further.iter().map(|service| &service.core.rail.domain)
    }

    /// The core of one rail.
    pub fn core_of(&self, rail: usize) -> &Core {
        rail.checked_sub(1).map_or(&self.core, |further| &self.further[further].core)
    }

    fn prepare(rail: Rail, (paths, mail): (Paths, Option<(usize, u32)>), me: Rank) -> Result<Prepared, VerbsError> {
        let random_numbers = |source| VerbsError::system("drawing random numbers", source);
        // Q_Keys with the highest bit set are reserved for privileged consumers.
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
        let mail = match mail {
            Some((lanes, buffers)) => Some(Mailbox::new(&rail, me as u32, key, lanes, buffers)?),
            None => None,
        };
        let messages = mail.as_ref().map_or(0, Mailbox::number);
        let (link, adapter, writes) = (rail.link() as u8, rail.adapter(), rail.writes);
        let (pkey, global) = (rail.pkey(), rail.is_global());
        let card = Card { address, link, adapter, paths: paths as u8, writes, pkey, global, messages };
        Ok(Prepared { rail, post, mail, paths, card })
    }
}

/// A rail of this rank before the other ranks' cards are known.
struct Prepared {
    rail: Rail,
    post: Post<MESSAGE>,
    mail: Option<Mailbox>,
    paths: Paths,
    card: Card,
}

/// Datagram address for messages to a rank, and its MTU as an exponent.
fn recipient(rail: &Rail, card: &Card) -> (Recipient, u8) {
    let Destination { gid, lid, key, .. } = card.address.datagrams;
    (Recipient { path: rail.path(gid, lid), queue_pair: card.messages, key }, card.address.mtu)
}

/// The number of rails that all ranks use, given each rank's record with cards of `card` bytes. Ranks whose rails are
/// not named in settings accept fewer than they have.
fn common(told: &[Vec<u8>], card: usize) -> Result<usize, VerbsError> {
    // A rank whose device cannot be opened publishes nothing and reports its own error.
    let rails = told.iter().enumerate().filter_map(|(rank, told)| {
        let (named, cards) = told.split_first()?;
        Some((cards.len() / card, *named & NAMED != 0, rank))
    });
    let (fewest, _, rank) = rails.clone().min_by_key(|(count, ..)| *count).unwrap_or_default();
    if fewest == 0 {
        return Err(VerbsError::Peer { rank });
    }
    match rails.filter(|(_, named, _)| *named).max_by_key(|(count, ..)| *count) {
        Some((count, _, other)) if count > fewest => {
            let what = format!("TRANSOM_VERBS_DEVICE: rank {other} has {count} rails, and rank {rank} has {fewest}");
            Err(VerbsError::unusable(what, "name the same number of devices at every rank".into()))
        }
        _ => Ok(fewest),
    }
}

fn other_paths(rank: Rank, theirs: u8, me: Rank, mine: u8) -> VerbsError {
    let name = |paths| match paths {
        paths if paths == Paths::Connections as u8 => "connections",
        paths if paths == Paths::Datagrams as u8 => "datagrams",
        _ => "both connections and datagrams",
    };
    let (theirs, mine) = (name(theirs), name(mine));
    let what = format!("TRANSOM_MESSAGES: rank {rank} sends messages by {theirs}, and rank {me} by {mine}");
    VerbsError::unusable(what, "set the same paths (rc, ud, both) at all ranks, or none".into())
}

fn unreached(rail: usize, [one, other]: [Rank; 2], why: String) -> VerbsError {
    let what = format!("the RDMA ports of rank {one} and rank {other} (rail {rail}) cannot reach each other: {why}");
    let todo =
        "select ports by TRANSOM_VERBS_DEVICE, TRANSOM_VERBS_GID or TRANSOM_VERBS_PKEY, or set TRANSOM_FABRIC=tcp";
    VerbsError::unusable(what, todo.into())
}

fn other_link(rank: Rank, rail: &Rail, me: Rank) -> VerbsError {
    let what = format!("the RDMA device of rank {rank} and {} of rank {me}", rail.name());
    let why = "they have different link types (InfiniBand, RoCE v1, RoCE v2); select devices by TRANSOM_VERBS_DEVICE or \
               TRANSOM_VERBS_GID";
    VerbsError::unusable(what, why.into())
}

impl Drop for Service {
    fn drop(&mut self) {
        self.core.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.core.joining.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_with_fewest_rails_determines_their_number() {
        let told = |ranks: &[(u8, usize)]| -> Vec<Vec<u8>> {
            ranks.iter().map(|(named, rails)| [vec![*named], vec![7; 5 * rails]].concat()).collect()
        };
        let common = |ranks: &[(u8, usize)]| common(&told(ranks), 5).map_err(|error| error.to_string());
        assert_eq!(common(&[(0, 1)]), Ok(1));
        assert_eq!(common(&[(0, 3), (0, 2), (0, 4)]), Ok(2));
        assert_eq!(common(&[(0, 3), (1, 2), (1, 2)]), Ok(2), "two rails are named, and the others have as many");
        for (ranks, what) in [
            ([(1, 2), (1, 3), (1, 2)], "rank 1 has 3 rails, and rank 0 has 2"),
            ([(0, 1), (0, 4), (1, 2)], "rank 2 has 2 rails, and rank 0 has 1"),
        ] {
            let told = common(&ranks).unwrap_err();
            assert!(told.contains(what) && told.contains("name the same number of devices at every rank"), "{told}");
        }
        assert_eq!(super::common(&[vec![], vec![0; 11]], 5).ok(), Some(2));
        assert!(
            super::common(&[vec![0, 7, 7], vec![0, 7]], 1).is_ok(),
            "rank 1 named no rails, yet its number of rails was refused"
        );
        // No rank of this library publishes fewer than one rail.
        for nothing in [vec![vec![0; 6], vec![1; 5]], vec![vec![0; 6], vec![0]]] {
            assert!(matches!(super::common(&nothing, 5), Err(VerbsError::Peer { rank: 1 })));
        }
    }
}
