//! Which message goes to which receive: in the order in which receives were posted, and messages of a pair were sent.

use crate::slab::{Id, Slab};
use crate::wire::Rank;
use foldhash::fast::RandomState;
use std::collections::HashMap;

/// What a receive or a probe takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Select {
    /// The team; see [`Envelope`](crate::packet::Envelope).
    pub context: u32,
    /// From whom; `None` from any.
    pub source: Option<Rank>,
    /// Which tag; `None` any.
    pub tag: Option<u32>,
}

/// A selection in two words: it is compared, and may be hashed, for every message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key(u64, u64);

impl Key {
    #[inline(always)]
    fn new(kind: usize, context: u32, source: Rank, tag: u32) -> Key {
        Key(u64::from(context) << 2 | kind as u64, u64::from(source) << 32 | u64::from(tag))
    }
}

/// Kinds of selections: with source and tag, or one, or none.
const KINDS: usize = 4;

impl Select {
    /// Which of the [`Label::keys`] it can be.
    #[inline]
    fn kind(&self) -> usize {
        2 * usize::from(self.source.is_none()) + usize::from(self.tag.is_none())
    }

    #[inline]
    fn key(&self) -> Key {
        Key::new(self.kind(), self.context, self.source.unwrap_or(0), self.tag.unwrap_or(0))
    }
}

/// What a message is matched by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// The team.
    pub context: u32,
    /// From whom.
    pub source: Rank,
    /// Which tag.
    pub tag: u32,
}

/// What a message or a receive is found by.
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
    /// All selections that this message fits, by their kinds.
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

/// What waits, in a queue for each of its `K` keys. It is found at the front of a queue and leaves all of them, each in the same
/// time however many wait: a queue is a list through the places of those that stand in it.
#[derive(Debug)]
struct Queues<L, T, const K: usize> {
    places: Slab<Place<L, T, K>>,
    ends: Ends,
    next: u64,
}

/// The first and the last of each queue; none of those that are empty. That of one queue is found without hashing: most programs
/// have one that is long.
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

    /// Of a queue that was empty.
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
struct Place<L, T, const K: usize> {
    /// In the order in which they came.
    number: u64,
    label: L,
    /// Who is before and behind it in each of its queues.
    beside: [(Option<Id>, Option<Id>); K],
    what: T,
}

impl<L: Keys<K>, T, const K: usize> Queues<L, T, K> {
    fn new() -> Self {
        Queues { places: Slab::default(), ends: Ends::default(), next: 0 }
    }

    fn push(&mut self, label: L, what: T) -> Id {
        self.next += 1;
        let id = self.places.insert(Place { number: self.next, label, beside: [(None, None); K], what });
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

    /// The first of a queue.
    #[inline]
    fn first(&self, key: Key) -> Option<(Id, &Place<L, T, K>)> {
        // Nothing is hashed where nothing waits.
        if self.places.is_empty() {
            return None;
        }
        let (first, _) = self.ends.get(&key)?;
        Some((first, self.places.get(first).expect("a queue names what waits")))
    }

    fn remove(&mut self, id: Id) -> Option<Place<L, T, K>> {
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
                (None, Some(behind)) => self.ends.get_mut(&key).expect("what waits stands in its queues").0 = behind,
                (Some(before), None) => self.ends.get_mut(&key).expect("what waits stands in its queues").1 = before,
                (None, None) => self.ends.remove(&key),
            }
        }
        Some(gone)
    }

    /// Those that `which` says, in the order in which they came.
    fn those(&self, which: impl Fn(&L, &T) -> bool) -> Vec<Id> {
        let all = self.places.iter().filter(|(_, place)| which(&place.label, &place.what));
        let mut those: Vec<_> = all.map(|(id, place)| (place.number, id)).collect();
        those.sort_unstable();
        those.into_iter().map(|(_, id)| id).collect()
    }
}

fn place<L, T, const K: usize>(places: &mut Slab<Place<L, T, K>>, id: Id) -> &mut Place<L, T, K> {
    places.get_mut(id).expect("who stands in a queue waits")
}

/// Receives `R` that wait for a message, and messages `M` that wait for a receive. Each step takes the same time however many
/// wait, and whatever they are.
#[derive(Debug)]
pub struct Matching<R, M> {
    posted: Queues<Select, R, 1>,
    unexpected: Queues<Label, M, KINDS>,
    /// How many receives of each kind are posted.
    kinds: [usize; KINDS],
    /// How many of them name each source.
    wanted: Vec<usize>,
}

impl<R, M> Default for Matching<R, M> {
    fn default() -> Self {
        Matching { posted: Queues::new(), unexpected: Queues::new(), kinds: [0; KINDS], wanted: Vec::new() }
    }
}

impl<R, M> Matching<R, M> {
    /// The first message that waits and fits; it waits no longer.
    pub fn take(&mut self, select: Select) -> Option<(Label, M)> {
        let (id, _) = self.unexpected.first(select.key())?;
        self.unexpected.remove(id).map(|message| (message.label, message.what))
    }

    /// The first message that waits and fits.
    pub fn peek(&self, select: Select) -> Option<(Label, &M)> {
        self.unexpected.first(select.key()).map(|(_, message)| (message.label, &message.what))
    }

    /// Posts a receive that no waiting message fits ([`take`](Self::take) said so). Its number cancels it.
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

    /// Withdraws a receive, unless it was matched.
    pub fn cancel(&mut self, number: Id) -> Option<R> {
        let receive = self.posted.remove(number)?;
        self.kinds[receive.label.kind()] -= 1;
        if let Some(source) = receive.label.source {
            self.wanted[source as usize] -= 1;
        }
        Some(receive.what)
    }

    /// The receive that a message goes to, which is posted no longer.
    pub fn arrived(&mut self, label: Label) -> Option<R> {
        let (number, _) = self.first(label)?;
        self.cancel(number)
    }

    /// The receive that a message goes to, and its number.
    #[inline]
    pub fn first(&self, label: Label) -> Option<(Id, &R)> {
        let mut first: Option<(Id, &Place<Select, R, 1>)> = None;
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

    /// Keeps a message that no receive waits for ([`arrived`](Self::arrived) said so).
    pub fn keep(&mut self, label: Label, message: M) {
        self.unexpected.push(label, message);
    }

    /// Whether a posted receive could take a message of this source.
    pub fn wants(&self, source: Rank) -> bool {
        self.kinds[2] + self.kinds[3] > 0 || self.wanted.get(source as usize).is_some_and(|count| *count > 0)
    }

    /// What the posted receive of this number takes.
    pub fn posted_select(&self, number: Id) -> Option<Select> {
        self.posted.places.get(number).map(|receive| receive.label)
    }

    /// What the posted receives take.
    pub fn selects(&self) -> impl Iterator<Item = &Select> {
        self.posted.places.iter().map(|(_, receive)| &receive.label)
    }

    /// Withdraws the posted receives that `which` says, in order.
    pub fn withdraw(&mut self, which: impl Fn(&Select) -> bool) -> Vec<R> {
        let those = self.posted.those(|select, _| which(select));
        those.into_iter().filter_map(|number| self.cancel(number)).collect()
    }

    /// Drops the waiting messages that `which` says, in order.
    pub fn discard(&mut self, which: impl Fn(&Label, &M) -> bool) -> Vec<M> {
        let those = self.unexpected.those(which);
        those.into_iter().filter_map(|id| self.unexpected.remove(id)).map(|message| message.what).collect()
    }

    /// Whether a posted receive takes such a message.
    pub fn is_wanted(&self, label: Label) -> bool {
        label.keys().iter().zip(self.kinds).any(|(key, posted)| posted > 0 && self.posted.first(*key).is_some())
    }

    /// Whether nothing waits, neither receives nor messages.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.posted.places.is_empty() && self.unexpected.places.is_empty()
    }

    /// How many receives are posted.
    pub fn posted(&self) -> usize {
        self.posted.places.len()
    }

    /// How many messages wait.
    pub fn unexpected(&self) -> usize {
        self.unexpected.places.len()
    }
}
