//! When verbs take effect: four networks, and the trait for a network of your own.

use crate::{At, Rank};
use std::fmt;

/// The time at which verbs take effect. [`Delivery`] has four networks. Implement this trait for a network of your own,
/// and pass it to [`Sim::with_delivery`](super::Sim::with_delivery).
///
/// # Examples
/// An adapter that delivers messages in any order, as AWS EFA does: each word has its own queue. A flag that is put after
/// its data then overtakes the data.
/// ```
/// use transom_locks::model::{sim, Deliver, Delivery, Sim};
/// use transom_locks::{At, Awaited, Error, Network, Rank, Wake};
///
/// #[derive(Debug)]
/// struct AnyOrder;
/// impl Deliver for AnyOrder {
///     fn queue(&self, from: Rank, at: At) -> Option<usize> {
///         (from != at.rank).then_some(at.word)
///     }
/// }
///
/// let net = || Sim::new(2, 2, sim::once(|rank, network| {
///     if rank == 0 {
///         network.notify(At { rank: 1, word: 0 }, 7, Wake::Home)?;
///         return Ok(network.notify(At { rank: 1, word: 1 }, 1, Wake::Home)?);
///     }
///     network.wait(1, Awaited::Rank(0), |flag| flag == 1)?;
///     if network.read_own(0)? == 7 { Ok(()) } else { Err(Error::Epoch("the flag overtook the data")) }
/// }));
/// net().with_delivery(Delivery::Deferred).explore(100).unwrap();
/// let failure = net().with_delivery(AnyOrder).explore(100).unwrap_err().violation().unwrap();
/// assert!(failure.what.contains("the flag overtook the data"));
/// assert_eq!(failure.schedule(), "0x2 0>1/1 1x2"); // the message in queue 1 arrives first
/// ```
pub trait Deliver: fmt::Debug {
    /// The queue in which a put of `from` to the word `at` travels, or an addition that is not waited for. `None` if it
    /// takes effect at once. Messages of one queue between two ranks arrive in order, each in a step of its own. An atomic
    /// that is waited for follows the earlier messages of its queue. Queues have the numbers 0 to 15.
    fn queue(&self, from: Rank, at: At) -> Option<usize>;

    /// Returns whether an atomic of `from` on the word `at` takes two steps, between which a put is lost. No by default.
    fn is_torn(&self, _from: Rank, _at: At) -> bool {
        false
    }

    /// Returns whether `rank` watches words of `other` ([`Network::watches`](crate::Network::watches)). No by default.
    fn watches(&self, _rank: Rank, _other: Rank) -> bool {
        false
    }
}

/// The number of queues from one rank to another.
pub(super) const QUEUES: usize = 16;

/// When a notify, or an addition that is not waited for, takes effect.
///
/// # Examples
/// ```
/// use transom_locks::model::{sim, Delivery, Sim};
/// use transom_locks::{At, Network, Wake};
/// // A put to a word that another rank changes by an addition may be lost.
/// const WORD: At = At { rank: 2, word: 0 };
/// let mixed = |delivery| {
///     let net = sim::once(|rank, network| match rank {
///         0 => network.add(WORD, 1, Wake::Home).map(drop),
///         1 => network.notify(WORD, 8, Wake::Home),
///         _ => Ok(()),
///     });
///     let mut ends = std::collections::BTreeSet::new();
///     Sim::new(3, 1, net).with_delivery(delivery).explore_with(&Default::default(), (), |(), step| {
///         if step.after.is_done() {
///             ends.insert(step.after.word(WORD));
///         }
///         Ok(())
///     }).unwrap();
///     Vec::from_iter(ends)
/// };
/// assert_eq!(mixed(Delivery::Immediate), [8, 9]);
/// assert_eq!(mixed(Delivery::Torn), [1, 8, 9]);
/// ```
///
/// ```
/// use transom_locks::model::{sim, Delivery, Sim};
/// use transom_locks::{At, Network, Wake};
/// // Two ranks notify a third; the program ends in either order of delivery.
/// let notify = sim::once(|rank, network| network.notify(At { rank: 2, word: 0 }, rank as u64, Wake::Home));
/// let net = Sim::new(3, 1, notify).with_delivery(Delivery::Deferred);
/// assert!(net.explore(1000).unwrap() > 8);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// Immediately.
    Immediate,
    /// In a step of its own, as on a network adapter. Order is FIFO between two ranks; later operations of a rank to
    /// the same destination take effect after.
    Deferred,
    /// Immediately, in memory that all ranks share, as between processes of one host: ranks watch each other's words.
    Watched,
    /// Immediately, but each compare-and-swap and addition takes two steps: it reads the word, and later writes it.
    /// Other atomics on the word wait; a put in between is lost. Adapters promise no more than that (Ambal et al.,
    /// RDMA-TSO-RMW, arXiv 2601.14642, 2026).
    Torn,
}

impl Deliver for Delivery {
    fn queue(&self, from: Rank, at: At) -> Option<usize> {
        (*self == Delivery::Deferred && at.rank != from).then_some(0)
    }

    fn is_torn(&self, _: Rank, _: At) -> bool {
        *self == Delivery::Torn
    }

    fn watches(&self, _: Rank, _: Rank) -> bool {
        *self == Delivery::Watched
    }
}
