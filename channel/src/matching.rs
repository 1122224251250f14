//! Matching of messages to receives, in the order in which receives were posted and each pair's messages were
//! sent.

use crate::slab::{Id, Slab};
use crate::wire::Rank;
use foldhash::fast::RandomState;
use std::collections::HashMap;

/// Selection of a receive or probe: context, source and tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Select {
    /// Context of the team; see [`Envelope`](crate::packet::Envelope).
    pub context: u32,
    /// Rank of the sender; `None` matches any.
    pub source: Option<Rank>,
    /// Tag of the message; `None` matches any.
    pub tag: Option<u32>,
}

/// A selection packed into two words: it is compared, and may be hashed, for every message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key(u64, u64);

impl Key {
    #[inline(always)]
    fn new(kind: usize, context: u32, source: Rank, tag: u32) -> Key {
        Key(u64::from(context) << 2 | kind as u64, u64::from(source) << 32 | u64::from(tag))
    }
}

/// Number of selection kinds: each of source and tag is given or is a wildcard.
const KINDS: usize = 4;

impl Select {
    /// Index of this selection's key in [`Label::keys`].
    #[inline]
    fn kind(&self) -> usize {
        2 * usize::from(self.source.is_none()) + usize::from(self.tag.is_none())
    }

    #[inline]
    fn key(&self) -> Key {
        Key::new(self.kind(), self.context, self.source.unwrap_or(0), self.tag.unwrap_or(0))
    }
}

/// Matching fields of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// Context of the team.
    pub context: u32,
    /// Rank of the sender.
    pub source: Rank,
    /// Tag of the message.
    pub tag: u32,
}

/// Keys of the queues that hold a message or a receive.
trait Keys<const K: usize>: Copy {
    fn keys(self) -> [Key; K];
}

impl Keys<1> for Select {
    #[inline]
    fn keys(self) -> [Key; 1] {
        [self.key()]
    }
}

impl Keys<KINDS> for Label {
    /// The keys of all selections that match this message, by kind.
    #[inline]
    fn keys(self) -> [Key; KINDS] {
        let Label { context, source, tag } = self;
        [
            Key::new(0, context, source, tag),
            Key::new(1, context, source, 0),
            Key::new(2, context, 0, tag),
            Key::new(3, context, 0, 0),
        ]
    }
}

/// Waiting entries, each in one queue for each of its `K` keys. A search reads the front of a queue. Removal
/// unlinks an entry from all its queues in constant time: each queue is a linked list through the entries.
#[derive(Debug)]
struct Queues<L, T, const K: usize> {
    places: Slab<QueueEntry<L, T, K>>,
    ends: Ends,
    next: u64,
}

/// First and last entry of each nonempty queue. The ends of one queue are found without hashing, since most
/// programs have only one long queue.
#[derive(Debug, Default)]
struct Ends {
    one: Option<(Key, (Id, Id))>,
    others: HashMap<Key, (Id, Id), RandomState>,
}

impl Ends {
    #[inline]
    fn get(&self, key: &Key) -> Option<(Id, Id)> {
        match &self.one {
            Some((one, ends)) if one == key => Some(*ends),
            _ if self.others.is_empty() => None,
            _ => self.others.get(key).copied(),
        }
    }

    #[inline]
    fn get_mut(&mut self, key: &Key) -> Option<&mut (Id, Id)> {
        match &mut self.one {
            Some((one, ends)) if one == key => Some(ends),
            _ if self.others.is_empty() => None,
            _ => self.others.get_mut(key),
        }
    }

    /// Adds the ends of a queue that was empty.
    #[inline]
    fn insert(&mut self, key: Key, ends: (Id, Id)) {
        if self.one.is_none() {
            self.one = Some((key, ends));
        } else {
            self.others.insert(key, ends);
        }
    }

    #[inline]
    fn remove(&mut self, key: &Key) {
        if self.one.is_some_and(|(one, _)| one == *key) {
            self.one = None;
        } else {
            self.others.remove(key);
        }
    }
}

#[derive(Debug)]
struct QueueEntry<L, T, const K: usize> {
    /// Sequence number of arrival.
    number: u64,
    label: L,
    /// Previous and next entry in each of its queues.
    beside: [(Option<Id>, Option<Id>); K],
    what: T,
}

impl<L: Keys<K>, T, const K: usize> Queues<L, T, K> {
    fn new() -> Self {
        Queues { places: Slab::default(), ends: Ends::default(), next: 0 }
    }

    fn push(&mut self, label: L, what: T) -> Id {
        self.next += 1;
        let id = self.places.insert(QueueEntry { number: self.next, label, beside: [(None, None); K], what });
        for (queue, key) in label.keys().into_iter().enumerate() {
            match self.ends.get_mut(&key) {
                None => self.ends.insert(key, (id, id)),
                Some((_, last)) => {
                    let last = std::mem::replace(last, id);
                    place(&mut self.places, last).beside[queue].1 = Some(id);
                    place(&mut self.places, id).beside[queue].0 = Some(last);
                }
            }
        }
        id
    }

    /// First entry of a queue.
    #[inline]
    fn first(&self, key: Key) -> Option<(Id, &QueueEntry<L, T, K>)> {
        // Skips the hash where the queues are empty.
        if self.places.is_empty() {
            return None;
        }
        let (first, _) = self.ends.get(&key)?;
        Some((first, self.places.get(first).expect("queues hold only waiting entries")))
    }

    fn remove(&mut self, id: Id) -> Option<QueueEntry<L, T, K>> {
        let gone = self.places.remove(id)?;
        for (queue, (key, (before, behind))) in gone.label.keys().into_iter().zip(gone.beside).enumerate() {
            if let Some(before) = before {
                place(&mut self.places, before).beside[queue].1 = behind;
            }
            if let Some(behind) = behind {
                place(&mut self.places, behind).beside[queue].0 = before;
            }
            match (before, behind) {
                (Some(_), Some(_)) => {}
                (None, Some(behind)) => self.ends.get_mut(&key).expect("a waiting entry is in its queues").0 = behind,
                (Some(before), None) => self.ends.get_mut(&key).expect("a waiting entry is in its queues").1 = before,
                (None, None) => self.ends.remove(&key),
            }
        }
        Some(gone)
    }

    /// Entries that satisfy `which`, in the order of arrival.
    fn those(&self, which: impl Fn(&L, &T) -> bool) -> Vec<Id> {
        let all = self.places.iter().filter(|(_, place)| which(&place.label, &place.what));
        let mut those: Vec<_> = all.map(|(id, place)| (place.number, id)).collect();
        those.sort_unstable();
        those.into_iter().map(|(_, id)| id).collect()
    }
}

fn place<L, T, const K: usize>(places: &mut Slab<QueueEntry<L, T, K>>, id: Id) -> &mut QueueEntry<L, T, K> {
    places.get_mut(id).expect("queues hold only waiting entries")
}

/// Posted receives `R` and unexpected messages `M`. Each step takes constant time, independent of how many
/// entries wait and of their selections.
#[derive(Debug)]
pub struct Matching<R, M> {
    posted: Queues<Select, R, 1>,
    unexpected: Queues<Label, M, KINDS>,
    /// Number of posted receives of each kind.
    kinds: [usize; KINDS],
    /// Number of posted receives that name each source.
    wanted: Vec<usize>,
}

impl<R, M> Default for Matching<R, M> {
    fn default() -> Self {
        Matching { posted: Queues::new(), unexpected: Queues::new(), kinds: [0; KINDS], wanted: Vec::new() }
    }
}

impl<R, M> Matching<R, M> {
    /// Removes and returns the first unexpected message that matches.
    pub fn take(&mut self, select: Select) -> Option<(Label, M)> {
        let (id, _) = self.unexpected.first(select.key())?;
        self.unexpected.remove(id).map(|message| (message.label, message.what))
    }

    /// The first unexpected message that matches.
    pub fn peek(&self, select: Select) -> Option<(Label, &M)> {
        self.unexpected.first(select.key()).map(|(_, message)| (message.label, &message.what))
    }

    /// Posts a receive. [`take`](Self::take) must have found no matching message. The returned number cancels
    /// the receive.
    pub fn post(&mut self, select: Select, receive: R) -> Id {
        self.kinds[select.kind()] += 1;
        if let Some(source) = select.source {
            let source = source as usize;
            if self.wanted.len() <= source {
                self.wanted.resize(source + 1, 0);
            }
            self.wanted[source] += 1;
        }
        self.posted.push(select, receive)
    }

    /// Withdraws a posted receive; `None` if it was matched already.
    pub fn cancel(&mut self, number: Id) -> Option<R> {
        let receive = self.posted.remove(number)?;
        self.kinds[receive.label.kind()] -= 1;
        if let Some(source) = receive.label.source {
            self.wanted[source as usize] -= 1;
        }
        Some(receive.what)
    }

    /// Removes and returns the posted receive that matches a message.
    pub fn arrived(&mut self, label: Label) -> Option<R> {
        let (number, _) = self.first(label)?;
        self.cancel(number)
    }

    /// The posted receive that matches a message, and its number.
    #[inline]
    pub fn first(&self, label: Label) -> Option<(Id, &R)> {
        let mut first: Option<(Id, &QueueEntry<Select, R, 1>)> = None;
        for (key, posted) in label.keys().iter().zip(self.kinds) {
            // Most programs post receives of one kind.
            if posted > 0
                && let Some((id, receive)) = self.posted.first(*key)
                && first.is_none_or(|(_, earlier)| receive.number < earlier.number)
            {
                first = Some((id, receive));
            }
        }
        first.map(|(number, receive)| (number, &receive.what))
    }

    /// Stores an unexpected message. [`arrived`](Self::arrived) must have found no matching receive.
    pub fn keep(&mut self, label: Label, message: M) {
        self.unexpected.push(label, message);
    }

    /// Returns true if a posted receive could match a message from this source.
    pub fn wants(&self, source: Rank) -> bool {
        self.kinds[2] + self.kinds[3] > 0 || self.wanted.get(source as usize).is_some_and(|count| *count > 0)
    }

    /// Selection of the posted receive of this number.
    pub fn posted_select(&self, number: Id) -> Option<Select> {
        self.posted.places.get(number).map(|receive| receive.label)
    }

    /// Selections of all posted receives.
    pub fn selects(&self) -> impl Iterator<Item = &Select> {
        self.posted.places.iter().map(|(_, receive)| &receive.label)
    }

    /// Withdraws the posted receives that satisfy `which`, in posting order.
    pub fn withdraw(&mut self, which: impl Fn(&Select) -> bool) -> Vec<R> {
        let those = self.posted.those(|select, _| which(select));
        those.into_iter().filter_map(|number| self.cancel(number)).collect()
    }

    /// Drops the unexpected messages that satisfy `which`, in the order of arrival.
    pub fn discard(&mut self, which: impl Fn(&Label, &M) -> bool) -> Vec<M> {
        let those = self.unexpected.those(which);
        those.into_iter().filter_map(|id| self.unexpected.remove(id)).map(|message| message.what).collect()
    }

    /// Returns true if a posted receive matches this message.
    pub fn is_wanted(&self, label: Label) -> bool {
        label.keys().iter().zip(self.kinds).any(|(key, posted)| posted > 0 && self.posted.first(*key).is_some())
    }

    /// Returns true if no receive is posted and no message is unexpected.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.posted.places.is_empty() && self.unexpected.places.is_empty()
    }

    /// Number of posted receives.
    pub fn posted(&self) -> usize {
        self.posted.places.len()
    }

    /// Number of unexpected messages.
    pub fn unexpected(&self) -> usize {
        self.unexpected.places.len()
    }
}
