//! By which rail a packet goes, and how a long message is divided among rails.
//!
//! A packet goes by the next rail of a row, which a [`Spread`] makes. What is long is cut into a stripe for each of some rails:
//! evenly, by the bandwidths that the rails declare, or by what the stripes before took, so that all of them end together.

use crate::wire::{RAILS, Rail};

/// The weights of all rails together.
pub const TOTAL: u32 = 3 * 1024;
/// The least that a rail keeps: what gets nothing is never measured again.
pub const FLOOR: u32 = TOTAL / 64;
/// Stripes begin at multiples of so many bytes, where all are longer.
pub const CELL: u64 = 4096;
/// Of ten parts of a weight so many are what was measured last, and the others what was there: a of formula (4).
const NEW: u64 = 9;
/// How many pieces of what is pulled there are for each rail, about, at most.
const PIECES: u64 = 16;
/// How many of them a rail has under way: it is not to stand still until another is handed over.
pub(crate) const UNDER_WAY: u8 = 2;

/// By which rails packets go that may go by any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// By the first. The others are connected when something is divided.
    First,
    /// By one for each rank, counted round: ranks of a host go by several.
    Binding,
    /// By each in turn.
    RoundRobin,
    /// By each in turn, by several in a row of one that declares more bandwidth.
    Weighted,
    /// By each in turn, so many packets in a row.
    Window(u8),
}

impl Spread {
    /// The rails of packets, which go round in it.
    pub fn row(self, rank: u32, rails: &[Rail]) -> Vec<u8> {
        let count = rails.len();
        let times = |rail: usize| match self {
            Spread::First => u32::from(rail == 0),
            Spread::Binding => u32::from(rail == rank as usize % count),
            Spread::RoundRobin => 1,
            Spread::Weighted => {
                let [least, this] = [rails.iter().map(speed).min().unwrap_or(1), speed(&rails[rail])];
                (this / least).clamp(1, 64)
            }
            Spread::Window(packets) => packets.max(1).into(),
        };
        (0..count).flat_map(|rail| (0..times(rail)).map(move |_| rail as u8)).collect()
    }
}

/// How what is long is divided among rails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stripe {
    /// As much by each.
    Even,
    /// By the bandwidths that they declare.
    Weighted,
    /// Evenly at first, and then by what their last stripes took.
    Adaptive,
    /// Likewise, in pieces, of which a rail has few under way; one that has none left takes those of another.
    Pull,
}

/// Some of the rails of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rails(u8);

impl Rails {
    /// Whether this one is among them.
    pub fn has(self, rail: usize) -> bool {
        self.0 >> rail & 1 == 1
    }

    /// How many.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// With this one.
    #[must_use]
    pub fn and(self, rail: usize) -> Rails {
        Rails(self.0 | 1 << rail)
    }

    /// Without this one.
    #[must_use]
    pub fn but(self, rail: usize) -> Rails {
        Rails(self.0 & !(1 << rail))
    }

    /// In order.
    pub fn iter(self) -> impl Iterator<Item = usize> + Clone {
        (0..RAILS).filter(move |rail| self.has(*rail))
    }
}

impl FromIterator<usize> for Rails {
    fn from_iter<R: IntoIterator<Item = usize>>(rails: R) -> Rails {
        rails.into_iter().fold(Rails::default(), Rails::and)
    }
}

/// A part of something long, by one rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Which.
    pub rail: usize,
    /// Where it begins, in bytes.
    pub at: u64,
    /// Its bytes.
    pub length: u64,
}

/// The shares of the rails to one peer.
///
/// ```
/// use transom_channel::striping::{Stripe, Timed, Weights};
/// let mut weights = Weights::new(Stripe::Adaptive, [1, 1].into_iter());
/// let parts = weights.cut(1 << 20, [0, 1].into_iter().collect(), 65536);
/// assert_eq!(parts.clone().map(|part| part.length).collect::<Vec<_>>(), [524_288, 524_288]);
/// // The first rail took 4 times as long as the second.
/// let mut timed = Timed::new(parts);
/// (0..2).for_each(|rail| timed.posted(rail, 0));
/// assert!(!timed.done(1, 1_000));
/// assert!(timed.done(0, 4_000));
/// weights.learn(&timed);
/// assert_eq!(weights.now(), [706, 2366]);
/// ```
#[derive(Debug, Clone)]
pub struct Weights {
    policy: Stripe,
    now: [u32; RAILS],
    rails: usize,
}

impl Weights {
    /// Of rails with these bandwidths, in any unit; 0 is not known.
    pub fn new(policy: Stripe, bandwidths: impl Iterator<Item = u32>) -> Weights {
        let all: Vec<u64> = bandwidths.map(|bandwidth| bandwidth.into()).collect();
        let known = policy == Stripe::Weighted && all.iter().all(|bandwidth| *bandwidth > 0);
        let share = |bandwidth: u64| if known { bandwidth } else { 1 };
        let sum: u64 = all.iter().map(|bandwidth| share(*bandwidth)).sum();
        let mut now = [0; RAILS];
        for (weight, bandwidth) in now.iter_mut().zip(&all) {
            *weight = (u64::from(TOTAL) * share(*bandwidth) / sum) as u32;
        }
        let mut weights = Weights { policy, now, rails: all.len() };
        weights.settle(&(0..all.len()).collect::<Vec<_>>(), TOTAL);
        weights
    }

    /// The weights, whose sum does not change.
    pub fn now(&self) -> &[u32] {
        &self.now[..self.rails]
    }

    /// Cuts a length into a stripe for each of these rails, or the heaviest of them, so that on average each has `least` bytes
    /// at least; in the order of the rails, each byte once. One alone may be shorter, and empty.
    pub fn cut(&self, length: u64, rails: Rails, least: u64) -> impl Iterator<Item = Part> + Clone + use<> {
        let count = (length / least.max(1)).clamp(1, rails.len() as u64) as usize;
        let (now, mut chosen, mut left) = (self.now, Rails::default(), rails);
        while chosen.len() < count
            && let Some(rail) = self.heaviest(left)
        {
            (chosen, left) = (chosen.and(rail), left.but(rail));
        }
        let sum: u64 = chosen.iter().map(|rail| u64::from(now[rail])).sum();
        let cell = if length >= CELL * u64::from(TOTAL / FLOOR) { CELL } else { 1 };
        let (mut before, mut at) = (0, 0);
        chosen.iter().enumerate().filter_map(move |(nth, rail)| {
            before += u64::from(now[rail]);
            let end = match nth + 1 == count {
                true => length,
                false => (u128::from(length) * u128::from(before) / u128::from(sum)) as u64 / cell * cell,
            };
            let part = (end > at || length == 0).then_some(Part { rail, at, length: end - at });
            at = end;
            part
        })
    }

    /// As [`cut`](Self::cut); what is to be pulled is cut further, into pieces of `least` bytes or more.
    pub fn pieces(&self, length: u64, rails: Rails, least: u64) -> impl Iterator<Item = Part> + Clone + use<> {
        let parts = self.cut(length, rails, least);
        let bytes = match if self.pulls() { parts.clone().count() as u64 } else { 1 } {
            1 => u64::MAX,
            count => (length / (PIECES * count)).max(least).max(1),
        };
        parts.flat_map(move |part| {
            let count = (part.length / bytes).max(1);
            let at = move |nth: u64| match nth {
                0 => part.at,
                nth if nth == count => part.at + part.length,
                nth => part.at + (u128::from(part.length) * u128::from(nth) / u128::from(count)) as u64,
            };
            (0..count).map(move |nth| Part { rail: part.rail, at: at(nth), length: at(nth + 1) - at(nth) })
        })
    }

    /// Which of these has the most weight; of equals the first.
    pub fn heaviest(&self, rails: Rails) -> Option<usize> {
        rails.iter().reduce(|most, rail| if self.now[rail] > self.now[most] { rail } else { most })
    }

    /// Whether what is cut is pulled.
    pub fn pulls(&self) -> bool {
        self.policy == Stripe::Pull
    }

    /// Takes note of what the stripes of one message took: formula (4) of Liu, Vishnu and Panda, with the shares that this
    /// message had. Rails that it did not use keep their weights, and the others what they have together.
    pub fn learn(&mut self, timed: &Timed) {
        let used: Vec<usize> = (0..self.rails).filter(|rail| timed.bytes[*rail] > 0).collect();
        if !matches!(self.policy, Stripe::Adaptive | Stripe::Pull) || used.len() < 2 {
            return;
        }
        // Bytes in 2^20 nanoseconds. What is found at once took a nanosecond at least.
        let rate = |rail: usize| (u128::from(timed.bytes[rail]) << 20) / u128::from(timed.took[rail].max(1));
        let all: u128 = used.iter().map(|rail| rate(*rail)).sum();
        let together: u32 = used.iter().map(|rail| self.now[*rail]).sum();
        if all == 0 {
            return;
        }
        for rail in &used {
            let measured = u128::from(together) * u128::from(NEW) * rate(*rail) / all;
            self.now[*rail] = ((u128::from(10 - NEW) * u128::from(self.now[*rail]) + measured) / 10) as u32;
        }
        self.settle(&used, together);
    }

    /// None of these has less than the least, and together they have so much: the heaviest gets what is left over, and gives
    /// what is missing. `together` is the least of each at least.
    fn settle(&mut self, rails: &[usize], together: u32) {
        for rail in rails {
            self.now[*rail] = self.now[*rail].max(FLOOR);
        }
        let mut sum: u32 = rails.iter().map(|rail| self.now[*rail]).sum();
        // Of equals the first.
        while sum != together
            && let Some(heaviest) = rails.iter().rev().max_by_key(|rail| self.now[**rail])
        {
            let was = self.now[*heaviest];
            self.now[*heaviest] = (was + together).saturating_sub(sum).max(FLOOR);
            sum = sum + self.now[*heaviest] - was;
        }
    }
}

/// The stripes of one message under way, each with the bytes that it has: the shares by which it was divided, whatever they are
/// when it ends.
#[derive(Debug, Clone, Default)]
pub struct Timed {
    bytes: [u64; RAILS],
    /// When the first of a rail was handed over.
    began: [Option<u64>; RAILS],
    took: [u64; RAILS],
    left: u8,
}

impl Timed {
    /// Nothing of it is posted yet.
    pub fn new(parts: impl IntoIterator<Item = Part>) -> Timed {
        let mut timed = Timed::default();
        for part in parts {
            timed.left += 1;
            timed.bytes[part.rail] += part.length;
        }
        timed
    }

    /// A rail takes so many bytes that were to be another's.
    pub fn taken(&mut self, from: usize, by: usize, bytes: u64) {
        self.bytes[from] -= bytes;
        self.bytes[by] += bytes;
    }

    /// A stripe of a rail was handed over.
    pub fn posted(&mut self, rail: usize, now: u64) {
        self.began[rail].get_or_insert(now);
    }

    /// It was found to have ended. Whether all have.
    pub fn done(&mut self, rail: usize, now: u64) -> bool {
        self.took[rail] = now.saturating_sub(self.began[rail].unwrap_or(now));
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }
}

/// For shares; never 0.
fn speed(rail: &Rail) -> u32 {
    rail.bandwidth.max(1)
}
