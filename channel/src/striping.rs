//! Chooses the rail of a packet, and divides long messages among rails.
//!
//! Packets take the rails in the order of a row, which a [`Spread`] makes. A long message is cut into one
//! stripe for each of several rails. Stripes are equal, or proportional to declared bandwidths, or sized by
//! the times of earlier stripes so that all end together.

use crate::wire::{RAILS, Rail};

/// Sum of the weights of all rails.
pub const TOTAL: u32 = 3 * 1024;
/// Smallest weight of a rail: a rail without traffic would never be measured again.
pub const FLOOR: u32 = TOTAL / 64;
/// Alignment of the starts of stripes, in bytes, where all stripes are longer.
pub const CELL: u64 = 4096;
/// Tenths of a new weight that come from the last measurement; the rest is the old weight. This is the factor
/// a of formula (4).
const NEW: u64 = 9;
/// Approximate limit of pieces for each rail, where pieces are pulled.
const PIECES: u64 = 16;
/// Pieces of a rail in flight, so that the rail is not idle until the next piece is posted.
pub(crate) const UNDER_WAY: u8 = 2;

/// Distribution of packets that may use any rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// All on the first rail. Other rails are connected when a message is divided.
    First,
    /// One rail for each rank, in turn: the ranks of a host use different rails.
    Binding,
    /// Each rail in turn.
    RoundRobin,
    /// Each rail in turn, with more consecutive packets on rails of higher declared bandwidth.
    Weighted,
    /// Each rail in turn, with this number of consecutive packets.
    Window(u8),
}

impl Spread {
    /// Rails of consecutive packets, repeated cyclically.
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

/// Division of long messages among rails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stripe {
    /// Equal stripes.
    Even,
    /// Stripes proportional to the declared bandwidths.
    Weighted,
    /// Stripes proportional to these weights of 1 to 64, one for each rail. Rails beyond them have the
    /// smallest weight, [`FLOOR`].
    Given([u8; RAILS]),
    /// No division: the whole message on one rail for each rank, in turn, so that the ranks of a host use
    /// different rails. Another rail takes it while that rail is not connected.
    Binding,
    /// Equal stripes at first, later sized by the times of earlier stripes.
    Adaptive,
    /// Like `Adaptive`, but in pieces, few of them in flight on each rail. A rail without pieces left takes
    /// pieces of another.
    Pull,
}

/// A set of rails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rails(u8);

impl Rails {
    /// Returns true if the set contains `rail`.
    pub fn has(self, rail: usize) -> bool {
        self.0 >> rail & 1 == 1
    }

    /// Number of rails in the set.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns true if the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The set with `rail` added.
    #[must_use]
    pub fn and(self, rail: usize) -> Rails {
        Rails(self.0 | 1 << rail)
    }

    /// The set with `rail` removed.
    #[must_use]
    pub fn but(self, rail: usize) -> Rails {
        Rails(self.0 & !(1 << rail))
    }

    /// The rails in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> + Clone {
        (0..RAILS).filter(move |rail| self.has(*rail))
    }
}

impl FromIterator<usize> for Rails {
    fn from_iter<R: IntoIterator<Item = usize>>(rails: R) -> Rails {
        rails.into_iter().fold(Rails::default(), Rails::and)
    }
}

/// A part of a long message on one rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Index of the rail.
    pub rail: usize,
    /// Offset in the message, in bytes.
    pub at: u64,
    /// Length in bytes.
    pub length: u64,
}

/// Weights of the rails to one peer.
///
/// ```
/// use transom_channel::striping::{Stripe, Timed, Weights};
/// let mut weights = Weights::new(Stripe::Adaptive, 0, [1, 1].into_iter());
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
    /// Initial weights of this rank for rails of these bandwidths, in any unit; 0 is unknown.
    pub fn new(policy: Stripe, rank: u32, bandwidths: impl Iterator<Item = u32>) -> Weights {
        let all: Vec<u64> = bandwidths.map(|bandwidth| bandwidth.into()).collect();
        let rails = all.len();
        let known = all.iter().all(|bandwidth| *bandwidth > 0);
        let share = |rail: usize| match policy {
            Stripe::Weighted if known => all[rail],
            Stripe::Given(weights) => weights[rail].into(),
            Stripe::Binding => u64::from(rail == rank as usize % rails),
            Stripe::Weighted | Stripe::Even | Stripe::Adaptive | Stripe::Pull => 1,
        };
        let sum: u64 = (0..rails).map(share).sum::<u64>().max(1);
        let mut now = [0; RAILS];
        for (rail, weight) in now.iter_mut().enumerate().take(rails) {
            *weight = (u64::from(TOTAL) * share(rail) / sum) as u32;
        }
        let mut weights = Weights { policy, now, rails };
        weights.settle(&(0..rails).collect::<Vec<_>>(), TOTAL);
        weights
    }

    /// The current weights. Their sum is constant.
    pub fn now(&self) -> &[u32] {
        &self.now[..self.rails]
    }

    /// Cuts `length` bytes into one stripe for each of these rails, or for the heaviest of them, so that the
    /// stripes have at least `least` bytes on average. Stripes are in the order of the rails and cover each
    /// byte once. A single stripe may be shorter than `least`, or empty.
    pub fn cut(&self, length: u64, rails: Rails, least: u64) -> impl Iterator<Item = Part> + Clone + use<> {
        let most = if self.policy == Stripe::Binding { 1 } else { rails.len() as u64 };
        let count = (length / least.max(1)).clamp(1, most) as usize;
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

    /// Like [`cut`](Self::cut), but cuts stripes that are to be pulled further, into pieces of at least
    /// `least` bytes.
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

    /// The rail of the largest weight; the first of equals.
    pub fn heaviest(&self, rails: Rails) -> Option<usize> {
        rails.iter().reduce(|most, rail| if self.now[rail] > self.now[most] { rail } else { most })
    }

    /// Returns true if rails pull pieces.
    pub fn pulls(&self) -> bool {
        self.policy == Stripe::Pull
    }

    /// Updates the weights from the stripe times of one message: formula (4) of Liu, Vishnu and Panda, with
    /// the shares of that message. The sum over the rails that it used is kept; other rails keep their
    /// weights.
    pub fn learn(&mut self, timed: &Timed) {
        let used: Vec<usize> = (0..self.rails).filter(|rail| timed.bytes[*rail] > 0).collect();
        if !matches!(self.policy, Stripe::Adaptive | Stripe::Pull) || used.len() < 2 {
            return;
        }
        // Bytes per 2^20 ns. A stripe found complete at once counts as 1 ns.
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

    /// Raises the weights of `rails` to the minimum and makes their sum `together`. The heaviest rail takes
    /// the excess or gives what is missing. `together` must be at least `FLOOR` for each rail.
    fn settle(&mut self, rails: &[usize], together: u32) {
        for rail in rails {
            self.now[*rail] = self.now[*rail].max(FLOOR);
        }
        let mut sum: u32 = rails.iter().map(|rail| self.now[*rail]).sum();
        // The first of equals.
        while sum != together
            && let Some(heaviest) = rails.iter().rev().max_by_key(|rail| self.now[**rail])
        {
            let was = self.now[*heaviest];
            self.now[*heaviest] = (was + together).saturating_sub(sum).max(FLOOR);
            sum = sum + self.now[*heaviest] - was;
        }
    }
}

/// Stripes of one message in flight, with the bytes of each rail. These are the shares at the time of the
/// cut, whatever the weights are at its end.
#[derive(Debug, Clone, Default)]
pub struct Timed {
    bytes: [u64; RAILS],
    /// Time at which the first stripe of each rail was posted, in ns.
    began: [Option<u64>; RAILS],
    took: [u64; RAILS],
    left: u8,
}

impl Timed {
    /// Timing of `parts` before any of them is posted.
    pub fn new(parts: impl IntoIterator<Item = Part>) -> Timed {
        let mut timed = Timed::default();
        for part in parts {
            timed.left += 1;
            timed.bytes[part.rail] += part.length;
        }
        timed
    }

    /// Moves `bytes` of the share of rail `from` to rail `by`.
    pub fn taken(&mut self, from: usize, by: usize, bytes: u64) {
        self.bytes[from] -= bytes;
        self.bytes[by] += bytes;
    }

    /// Records that a stripe of a rail was posted.
    pub fn posted(&mut self, rail: usize, now: u64) {
        self.began[rail].get_or_insert(now);
    }

    /// Records that a stripe was found complete. Returns whether all stripes are.
    pub fn done(&mut self, rail: usize, now: u64) -> bool {
        self.took[rail] = now.saturating_sub(self.began[rail].unwrap_or(now));
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }
}

/// Bandwidth as a share; never 0.
fn speed(rail: &Rail) -> u32 {
    rail.bandwidth.max(1)
}
