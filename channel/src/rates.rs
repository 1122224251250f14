//! By which of two ways long messages of a peer come, where both can be: by what each takes. Messages that come at the same time are
//! a row, and come the same way, since each takes as long as all; a row is measured as a whole, from when the one before it has come.
//! It has messages of about one length, and not more than some: else those that always overlap would be one without an end.

use std::collections::VecDeque;

/// Rows that try the two ways at first, one half each: one that something disturbs decides nothing. Not by turns, as what the one leaves
/// in caches makes the other slow.
const TRIALS: u32 = 8;
/// Bytes, of the shortest messages of a class, after which they are tried a second time, and which then come by each way: memory that
/// packets go by is new to both processes the first time, and slow. A lap is twice what a ring has, unless it is chosen. Later trials are
/// as long: messages the other way make a few that change theirs slow.
const SOON: u64 = 16 << 20;
const LAP: u64 = 8 << 20;
/// After so many times the rows of such a trial there is another. In between it is looked as often whether packets have become slower.
const AGAIN: u32 = 32;
/// Messages differ by their length: below 128 KiB, 512 KiB, 2 MiB, and beyond.
const CLASSES: usize = 4;

/// Messages of a row.
const MOST: u32 = 8;

/// The shortest message of a class, in bytes, of those that are announced by themselves.
const fn shortest(class: usize) -> u64 {
    1 << (15 + 2 * class)
}

/// A way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Its sender copies it into packets, and they are copied out of these.
    Sent,
    /// It is read from where it is.
    Read,
}

/// What messages of a peer took.
#[derive(Debug, Default)]
pub struct Rates {
    classes: [Class; CLASSES],
    /// In the order in which they began.
    rows: VecDeque<Row>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Class {
    rows: u32,
    /// Nanoseconds that a MiB takes by each way: the least of late, as one that was disturbed tells nothing.
    takes: [u64; 2],
    /// By which way they come between trials.
    sent: bool,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    class: usize,
    way: Way,
    since: u64,
    bytes: u64,
    messages: u32,
    under_way: u32,
}

impl Class {
    /// How the next row comes, of messages of so many bytes at least.
    fn next(&mut self, shortest: u64) -> Way {
        let [second, long] = [SOON, 2 * LAP].map(|bytes| (bytes / shortest) as u32);
        let (at, trials) = match self.rows.checked_sub(second) {
            Some(after) => (after % (AGAIN * long), long),
            None => (self.rows, TRIALS),
        };
        self.rows = self.rows.wrapping_add(1);
        if at < trials {
            let way = if at < trials / 2 { Way::Sent } else { Way::Read };
            if at.is_multiple_of(trials / 2) {
                self.takes[way as usize] = u64::MAX;
            }
            return way;
        }
        // Packets take room that other messages want, so they must be worth it. And a change of way finds the caches as the other left them.
        if at.is_multiple_of(trials) {
            let [sent, read] = self.takes;
            // Between trials it is only left: where messages go both ways one way for each is slow for both, and they would change by turns.
            self.sent = if self.sent { sent - sent / 8 <= read } else { at == trials && sent < read - read / 8 };
        }
        if self.sent { Way::Sent } else { Way::Read }
    }

    /// A row of so many bytes has come.
    fn took(&mut self, way: Way, nanoseconds: u64, bytes: u64) {
        let took = (u128::from(nanoseconds) << 20) / u128::from(bytes.max(1));
        let (took, takes) = (u64::try_from(took).unwrap_or(u64::MAX), &mut self.takes[way as usize]);
        *takes = took.min(takes.saturating_add(took.min(takes.saturating_mul(2)).saturating_sub(*takes) / 8));
    }
}

impl Rates {
    /// A message of so many bytes is to come, at least one: by which way.
    pub fn begin(&mut self, bytes: u64, now: impl FnOnce() -> u64) -> Way {
        let class = (bytes.max(1).ilog2().saturating_sub(15) as usize / 2).min(CLASSES - 1);
        if self.rows.back().is_none_or(|row| row.class != class || row.messages == MOST) {
            let way = self.classes[class].next(shortest(class));
            self.rows.push_back(Row { class, way, since: now(), bytes: 0, messages: 0, under_way: 0 });
        }
        let row = self.rows.back_mut().expect("one was there, or is now");
        row.bytes = row.bytes.saturating_add(bytes);
        row.messages += 1;
        row.under_way += 1;
        row.way
    }

    /// One that had begun has come. Which one is not asked: those that began first are mostly first.
    pub fn end(&mut self, now: impl FnOnce() -> u64) {
        let Some(row) = self.rows.front_mut() else { return };
        row.under_way -= 1;
        if row.under_way > 0 {
            return;
        }
        let (row, now) = (self.rows.pop_front().expect("just looked at"), now());
        self.classes[row.class].took(row.way, now.saturating_sub(row.since), row.bytes);
        if let Some(next) = self.rows.front_mut() {
            next.since = next.since.max(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ways of so many messages, one after the other, that take so long for each byte. `S` and `R`.
    fn ways(rates: &mut Rates, count: usize, bytes: u64, sent: u64, read: u64) -> String {
        let one = |_| {
            let way = rates.begin(bytes, || 1000);
            rates.end(|| 1000 + bytes * if way == Way::Sent { sent } else { read });
            if way == Way::Sent { 'S' } else { 'R' }
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn both_ways_are_tried_and_the_faster_one_is_taken() {
        let mut rates = Rates::default();
        assert_eq!(ways(&mut rates, 12, 1 << 16, 2, 5), "SSSSRRRRSSSS");
        // Another length is another matter.
        // 16 MiB of those of 2 MiB, and more, are eight already.
        assert_eq!(ways(&mut rates, 20, 1 << 22, 5, 2), "SSSSRRRRSSSSRRRRRRRR");
        // 16 MiB of those of 32 KiB are 512.
        assert_eq!(ways(&mut rates, 500, 1 << 16, 5, 2), "S".repeat(500), "not measured again so soon");
        assert_eq!(ways(&mut rates, 512, 1 << 16, 5, 2), "S".repeat(256) + &"R".repeat(256));
        assert_eq!(
            ways(&mut rates, 31 * 512, 1 << 16, 2, 5),
            "R".repeat(31 * 512),
            "sixteen thousand later they are tried again"
        );
        assert_eq!(ways(&mut rates, 520, 1 << 16, 2, 5), "S".repeat(256) + &"R".repeat(256) + &"S".repeat(8));
    }

    /// What goes by memory for the first time: 256 slots of 16 KiB, of which a message of 64 KiB takes four.
    #[test]
    fn path_slow_only_at_first_is_found_later() {
        let (mut rates, mut slots) = (Rates::default(), 0);
        let mut one = || {
            let way = rates.begin(1 << 16, || 0);
            let took = if way == Way::Read {
                6
            } else if slots < 256 {
                60
            } else {
                4
            };
            slots += if way == Way::Sent { 4 } else { 0 };
            rates.end(|| took);
            way
        };
        let ways: Vec<Way> = (0..3000).map(|_| one()).collect();
        assert!(ways[8..512].iter().all(|way| *way == Way::Read));
        assert!(ways[1024..].iter().all(|way| *way == Way::Sent));
    }

    /// Packets take longer from some message on: that is found out before the next trial.
    #[test]
    fn what_becomes_slower_is_left() {
        let mut rates = Rates::default();
        assert_eq!(ways(&mut rates, 1024, 1 << 16, 4, 6), "SSSSRRRR".to_owned() + &"S".repeat(760) + &"R".repeat(256));
        assert_eq!(ways(&mut rates, 600, 1 << 16, 4, 6), "S".repeat(600));
        assert_eq!(ways(&mut rates, 600, 1 << 16, 9, 6), "S".repeat(424) + &"R".repeat(176));
        assert_eq!(ways(&mut rates, 2000, 1 << 16, 9, 20), "R".repeat(2000), "what packets take now is not known");
    }

    /// As where messages go both ways, and those of the other way are still read.
    #[test]
    fn a_way_that_is_slow_after_the_other_is_found() {
        let (mut rates, mut sent) = (Rates::default(), 0);
        let mut one = || {
            let way = rates.begin(1 << 16, || 0);
            sent = if way == Way::Sent { sent + 1 } else { 0 };
            rates.end(|| {
                if sent == 0 {
                    6
                } else if sent < 9 {
                    9
                } else {
                    4
                }
            });
            way
        };
        let ways: Vec<Way> = (0..20_000).map(|_| one()).collect();
        assert!(ways[8..512].iter().all(|way| *way == Way::Read));
        assert!(ways[1024..16_896].iter().all(|way| *way == Way::Sent));
        assert!(ways[17_408..].iter().all(|way| *way == Way::Sent));
    }

    #[test]
    fn what_takes_about_as_long_stays_as_it_is() {
        assert_eq!(ways(&mut Rates::default(), 12, 1 << 16, 90, 100), "SSSSRRRRRRRR");
        let mut rates = Rates::default();
        assert_eq!(ways(&mut rates, 512, 1 << 16, 85, 100), "SSSSRRRR".to_owned() + &"S".repeat(504));
        assert_eq!(ways(&mut rates, 512, 1 << 16, 100, 90), "S".repeat(256) + &"R".repeat(256));
        assert_eq!(ways(&mut rates, 31 * 512, 1 << 16, 100, 85), "S".repeat(31 * 512));
        assert_eq!(ways(&mut rates, 520, 1 << 16, 100, 85), "S".repeat(256) + &"R".repeat(256) + &"R".repeat(8));
    }

    #[test]
    fn disturbed_row_does_not_decide() {
        let mut rates = Rates::default();
        for sent in [1000, 1000, 2, 1000] {
            assert_eq!(ways(&mut rates, 1, 1 << 16, sent, 5), "S");
        }
        assert_eq!(ways(&mut rates, 7, 1 << 16, 2, 5), "RRRRSSS");
    }

    #[test]
    fn messages_at_the_same_time_are_measured_together() {
        let mut rates = Rates::default();
        // Sent: three of them in 6 us; read: one in 3 us.
        for _ in 0..4 {
            assert_eq!([0; 3].map(|now| rates.begin(1 << 16, || now)), [Way::Sent; 3]);
            for now in [2000, 4000, 6000] {
                rates.end(|| now);
            }
        }
        for _ in 0..4 {
            assert_eq!(rates.begin(1 << 16, || 0), Way::Read);
            rates.end(|| 3000);
        }
        assert_eq!(rates.begin(1 << 16, || 0), Way::Sent);
        rates.begin(1 << 16, || unreachable!("a row has begun"));
        rates.end(|| unreachable!("a row has not come"));
        rates.end(|| 6000);
        rates.begin(u64::MAX, || 5);
        rates.end(|| 0);
        rates.end(|| unreachable!("nothing is under way"));
    }

    /// What is asked for behind others that are slow is not slow itself.
    #[test]
    fn a_row_is_measured_from_when_the_one_before_it_has_come() {
        let (mut rates, mut now) = (Rates::default(), 0);
        let row = |rates: &mut Rates, way, now| (0..MOST).for_each(|_| assert_eq!(rates.begin(1 << 16, || now), way));
        for _ in 0..3 {
            row(&mut rates, Way::Sent, now);
            now += 80_000;
            (0..MOST).for_each(|_| rates.end(|| now));
        }
        row(&mut rates, Way::Sent, now);
        assert_eq!(rates.begin(1 << 16, || now), Way::Read);
        now += 80_000;
        (0..MOST).for_each(|_| rates.end(|| now));
        now += 1000;
        rates.end(|| now);
        for _ in 0..3 {
            row(&mut rates, Way::Read, now);
            now += 100_000;
            (0..MOST).for_each(|_| rates.end(|| now));
        }
        assert_eq!(rates.begin(1 << 16, || now), Way::Read, "1 us, not 81");
    }

    /// There are always two under way: still both ways are tried, of each length.
    #[test]
    fn messages_that_always_overlap_are_measured_in_rows() {
        let mut rates = Rates::default();
        let (mut now, mut under_way, mut came) = (0, VecDeque::new(), String::new());
        for number in 0..13 * MOST {
            let way = rates.begin(1 << 16, || now);
            if number % MOST == 0 {
                came.push(if way == Way::Sent { 'S' } else { 'R' });
            }
            under_way.push_back(way);
            if under_way.len() == 2 {
                now += if under_way.pop_front() == Some(Way::Sent) { 5000 } else { 2000 };
                rates.end(|| now);
            }
        }
        assert_eq!(came, "SSSSRRRRRRRRR");
        assert_eq!(rates.begin(1 << 22, || now), Way::Sent, "another length is not of that row");
    }
}
