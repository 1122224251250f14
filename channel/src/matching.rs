//! Which message goes to which receive: in the order in which receives were posted, and messages of a pair were sent.

use crate::wire::Rank;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What a receive or a probe takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Select {
    /// The team; see [`Envelope`](crate::packet::Envelope).
    pub context: u32,
    /// From whom; `None` from any.
    pub source: Option<Rank>,
    /// Which tag; `None` any.
    pub tag: Option<u32>,
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

impl Label {
    /// All selections that this message fits, the exact one first.
    fn fits(self) -> [Select; 4] {
        let Label { context, source, tag } = self;
        [(Some(source), Some(tag)), (Some(source), None), (None, Some(tag)), (None, None)].map(|(source, tag)| Select {
            context,
            source,
            tag,
        })
    }
}

/// Numbers by selection, each selection's in order.
#[derive(Debug, Default)]
struct Index(HashMap<Select, BTreeSet<u64>>);

impl Index {
    fn insert(&mut self, key: Select, number: u64) {
        self.0.entry(key).or_default().insert(number);
    }

    fn remove(&mut self, key: Select, number: u64) {
        if let Some(numbers) = self.0.get_mut(&key) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.0.remove(&key);
            }
        }
    }

    fn first(&self, key: Select) -> Option<u64> {
        self.0.get(&key)?.first().copied()
    }
}

/// Receives `R` that wait for a message, and messages `M` that wait for a receive. Each step takes time by the logarithm
/// of how many wait, whatever they are.
#[derive(Debug)]
pub struct Matching<R, M> {
    posted: BTreeMap<u64, (Select, R)>,
    unexpected: BTreeMap<u64, (Label, M)>,
    by_select: Index,
    by_label: Index,
    /// How many posted receives name each source; `None` counts those from any.
    wanted: HashMap<Option<Rank>, usize>,
    next: u64,
}

impl<R, M> Default for Matching<R, M> {
    fn default() -> Self {
        Matching {
            posted: BTreeMap::new(),
            unexpected: BTreeMap::new(),
            by_select: Index::default(),
            by_label: Index::default(),
            wanted: HashMap::new(),
            next: 0,
        }
    }
}

impl<R, M> Matching<R, M> {
    /// The first message that waits and fits; it waits no longer.
    pub fn take(&mut self, select: Select) -> Option<(Label, M)> {
        if self.unexpected.is_empty() {
            return None;
        }
        let number = self.by_label.first(select)?;
        Some(self.remove_unexpected(number))
    }

    /// The first message that waits and fits.
    pub fn peek(&self, select: Select) -> Option<(Label, &M)> {
        let (label, message) = &self.unexpected[&self.by_label.first(select)?];
        Some((*label, message))
    }

    /// Posts a receive that no waiting message fits ([`take`](Self::take) said so). Its number cancels it.
    pub fn post(&mut self, select: Select, receive: R) -> u64 {
        let number = self.number();
        self.posted.insert(number, (select, receive));
        self.by_select.insert(select, number);
        *self.wanted.entry(select.source).or_default() += 1;
        number
    }

    /// Withdraws a receive, unless it was matched.
    pub fn cancel(&mut self, number: u64) -> Option<R> {
        let (select, receive) = self.posted.remove(&number)?;
        self.by_select.remove(select, number);
        if let Some(count) = self.wanted.get_mut(&select.source) {
            *count -= 1;
            if *count == 0 {
                self.wanted.remove(&select.source);
            }
        }
        Some(receive)
    }

    /// The receive that a message goes to, which is posted no longer.
    pub fn arrived(&mut self, label: Label) -> Option<R> {
        if self.posted.is_empty() {
            return None;
        }
        let number = label.fits().into_iter().filter_map(|key| self.by_select.first(key)).min()?;
        self.cancel(number)
    }

    /// Keeps a message that no receive waits for ([`arrived`](Self::arrived) said so).
    pub fn keep(&mut self, label: Label, message: M) {
        let number = self.number();
        self.unexpected.insert(number, (label, message));
        for key in label.fits() {
            self.by_label.insert(key, number);
        }
    }

    /// Whether a posted receive could take a message of this source.
    pub fn wants(&self, source: Rank) -> bool {
        self.wanted.contains_key(&Some(source)) || self.wanted.contains_key(&None)
    }

    /// What the posted receives take.
    pub fn selects(&self) -> impl Iterator<Item = &Select> {
        self.posted.values().map(|(select, _)| select)
    }

    /// Withdraws the posted receives that `which` says, in order.
    pub fn withdraw(&mut self, which: impl Fn(&Select) -> bool) -> Vec<R> {
        let numbers: Vec<u64> = self.posted.iter().filter(|(_, (select, _))| which(select)).map(|(n, _)| *n).collect();
        numbers.into_iter().filter_map(|number| self.cancel(number)).collect()
    }

    /// Drops the waiting messages that `which` says, in order.
    pub fn discard(&mut self, which: impl Fn(&Label, &M) -> bool) -> Vec<M> {
        let numbers: Vec<u64> =
            self.unexpected.iter().filter(|(_, (label, message))| which(label, message)).map(|(n, _)| *n).collect();
        numbers.into_iter().map(|number| self.remove_unexpected(number).1).collect()
    }

    /// Whether a posted receive takes such a message.
    pub fn is_wanted(&self, label: Label) -> bool {
        !self.posted.is_empty() && label.fits().into_iter().any(|key| self.by_select.first(key).is_some())
    }

    /// Whether nothing waits, neither receives nor messages.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.posted.is_empty() && self.unexpected.is_empty()
    }

    /// How many receives are posted.
    pub fn posted(&self) -> usize {
        self.posted.len()
    }

    /// How many messages wait.
    pub fn unexpected(&self) -> usize {
        self.unexpected.len()
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn remove_unexpected(&mut self, number: u64) -> (Label, M) {
        let (label, message) = self.unexpected.remove(&number).expect("the index names what is kept");
        for key in label.fits() {
            self.by_label.remove(key, number);
        }
        (label, message)
    }
}
