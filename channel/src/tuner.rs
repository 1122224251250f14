//! Chooses between two ways to move a peer's long messages, copying packets or reading, by their measured
//! time. Messages in flight at the same time share the path, so they form a row. All messages of a row move
//! the same way. A row is measured as a whole, from the end of the row before it. Its messages have similar
//! lengths, and there are at most [`MOST`]: otherwise messages that always overlap would form one endless
//! row.

use std::collections::VecDeque;

/// Rows of the first trial, half of them each way, so that one disturbed row decides nothing. The ways do not
/// alternate: one leaves the caches in a state that slows the other.
const TRIALS: u32 = 8;
/// `SOON`: bytes of a class, counted at its shortest length, before the second trial. `LAP`: bytes that each
/// way moves in that trial and in later ones. Packet memory is new to both processes in the first lap, and
/// slow. `LAP` is twice a ring's default size. Later trials are as long, since messages in the opposite
/// direction slow the first few after a change.
const SOON: u64 = 16 << 20;
const LAP: u64 = 8 << 20;
/// Number of trial lengths between the starts of two later trials. In between, the choice is checked at every
/// trial length for packets that have become slower.
const AGAIN: u32 = 32;
/// Number of length classes: below 128 KiB, 512 KiB, 2 MiB, and longer.
const CLASSES: usize = 4;

/// Most messages of a row.
const MOST: u32 = 8;

/// Shortest message of a class in bytes, among messages sent by rendezvous.
const fn shortest(class: usize) -> u64 {
    1 << (15 + 2 * class)
}

/// A way to move the data of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Sender and receiver copy the message through packets.
    Sent,
    /// The receiver reads the message from the sender's memory.
    Read,
}

/// Measured rates of the messages from one peer.
#[derive(Debug, Default)]
pub struct ProtocolTuner {
    classes: [Class; CLASSES],
    /// Rows in flight, in the order in which they began.
    rows: VecDeque<Row>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Class {
    rows: u32,
    /// Nanoseconds per MiB for each way: the recent minimum, so that a disturbed row does not count.
    takes: [u64; 2],
    /// True if messages are sent as packets between trials.
    sent: bool,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    class: usize,
    way: Protocol,
    since: u64,
    bytes: u64,
    messages: u32,
    under_way: u32,
}

impl Class {
    /// Protocol of the next row. `shortest` is the shortest length of its class, in bytes.
    fn next(&mut self, shortest: u64) -> Protocol {
        let [second, long] = [SOON, 2 * LAP].map(|bytes| (bytes / shortest) as u32);
        let (at, trials) = match self.rows.checked_sub(second) {
            Some(after) => (after % (AGAIN * long), long),
            None => (self.rows, TRIALS),
        };
        self.rows = self.rows.wrapping_add(1);
        if at < trials {
            let way = if at < trials / 2 { Protocol::Sent } else { Protocol::Read };
            if at.is_multiple_of(trials / 2) {
                self.takes[way as usize] = u64::MAX;
            }
            return way;
        }
        // Packets take slots that other messages need, so they must be clearly faster. After a change of way
        // the caches still suit the old one.
        if at.is_multiple_of(trials) {
            let [sent, read] = self.takes;
            // Between trials the choice may only change from packets to reads. With traffic in both
            // directions a mixed choice slows both, and the two sides would oscillate.
            self.sent = if self.sent { sent - sent / 8 <= read } else { at == trials && sent < read - read / 8 };
        }
        if self.sent { Protocol::Sent } else { Protocol::Read }
    }

    /// Records that a row of `bytes` has arrived.
    fn took(&mut self, way: Protocol, nanoseconds: u64, bytes: u64) {
        let took = (u128::from(nanoseconds) << 20) / u128::from(bytes.max(1));
        let (took, takes) = (u64::try_from(took).unwrap_or(u64::MAX), &mut self.takes[way as usize]);
        *takes = took.min(takes.saturating_add(took.min(takes.saturating_mul(2)).saturating_sub(*takes) / 8));
    }
}

impl ProtocolTuner {
    /// Begins a message of `bytes`, and returns the way it moves. An empty message counts as one byte.
    pub fn begin(&mut self, bytes: u64, now: impl FnOnce() -> u64) -> Protocol {
        let class = (bytes.max(1).ilog2().saturating_sub(15) as usize / 2).min(CLASSES - 1);
        if self.rows.back().is_none_or(|row| row.class != class || row.messages == MOST) {
            let way = self.classes[class].next(shortest(class));
            self.rows.push_back(Row { class, way, since: now(), bytes: 0, messages: 0, under_way: 0 });
        }
        let row = self.rows.back_mut().expect("found or added above");
        row.bytes = row.bytes.saturating_add(bytes);
        row.messages += 1;
        row.under_way += 1;
        row.way
    }

    /// Ends one message of the oldest row. The caller does not name the message: messages mostly end in the
    /// order in which they began.
    pub fn end(&mut self, now: impl FnOnce() -> u64) {
        let Some(row) = self.rows.front_mut() else { return };
        row.under_way -= 1;
        if row.under_way > 0 {
            return;
        }
        let (row, now) = (self.rows.pop_front().expect("looked up above"), now());
        self.classes[row.class].took(row.way, now.saturating_sub(row.since), row.bytes);
        if let Some(next) = self.rows.front_mut() {
            next.since = next.since.max(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ways of `count` consecutive messages, as `S` and `R`. `sent` and `read` are the nanoseconds per byte
    /// of each way.
    fn ways(tuner: &mut ProtocolTuner, count: usize, bytes: u64, sent: u64, read: u64) -> String {
        let one = |_| {
            let way = tuner.begin(bytes, || 1000);
            tuner.end(|| 1000 + bytes * if way == Protocol::Sent { sent } else { read });
            if way == Protocol::Sent { 'S' } else { 'R' }
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn both_ways_are_tried_and_the_faster_one_is_taken() {
        let mut tuner = ProtocolTuner::default();
        assert_eq!(ways(&mut tuner, 12, 1 << 16, 2, 5), "SSSSRRRRSSSS");
        // Each length class is measured on its own. Eight messages of 2 MiB, the shortest of this class, are
        // 16 MiB.
        assert_eq!(ways(&mut tuner, 20, 1 << 22, 5, 2), "SSSSRRRRSSSSRRRRRRRR");
        // 512 messages of 32 KiB, the shortest of this class, are 16 MiB.
        assert_eq!(ways(&mut tuner, 500, 1 << 16, 5, 2), "S".repeat(500), "not measured again so soon");
        assert_eq!(ways(&mut tuner, 512, 1 << 16, 5, 2), "S".repeat(256) + &"R".repeat(256));
        assert_eq!(
            ways(&mut tuner, 31 * 512, 1 << 16, 2, 5),
            "R".repeat(31 * 512),
            "sixteen thousand later they are tried again"
        );
        assert_eq!(ways(&mut tuner, 520, 1 << 16, 2, 5), "S".repeat(256) + &"R".repeat(256) + &"S".repeat(8));
    }

    /// Packets are slow while ring memory is new: 256 slots of 16 KiB, of which a message of 64 KiB takes
    /// four.
    #[test]
    fn path_slow_only_at_first_is_found_later() {
        let (mut tuner, mut slots) = (ProtocolTuner::default(), 0);
        let mut one = || {
            let way = tuner.begin(1 << 16, || 0);
            let took = if way == Protocol::Read {
                6
            } else if slots < 256 {
                60
            } else {
                4
            };
            slots += if way == Protocol::Sent { 4 } else { 0 };
            tuner.end(|| took);
            way
        };
        let ways: Vec<Protocol> = (0..3000).map(|_| one()).collect();
        assert!(ways[8..512].iter().all(|way| *way == Protocol::Read));
        assert!(ways[1024..].iter().all(|way| *way == Protocol::Sent));
    }

    /// A slowdown of packets between trials is detected before the next trial.
    #[test]
    fn what_becomes_slower_is_left() {
        let mut tuner = ProtocolTuner::default();
        assert_eq!(ways(&mut tuner, 1024, 1 << 16, 4, 6), "SSSSRRRR".to_owned() + &"S".repeat(760) + &"R".repeat(256));
        assert_eq!(ways(&mut tuner, 600, 1 << 16, 4, 6), "S".repeat(600));
        assert_eq!(ways(&mut tuner, 600, 1 << 16, 9, 6), "S".repeat(424) + &"R".repeat(176));
        assert_eq!(ways(&mut tuner, 2000, 1 << 16, 9, 20), "R".repeat(2000), "what packets take now is not known");
    }

    /// Packets are slow for the first 8 messages after a change of way, as with traffic in the opposite
    /// direction that is still read.
    #[test]
    fn a_way_that_is_slow_after_the_other_is_found() {
        let (mut tuner, mut sent) = (ProtocolTuner::default(), 0);
        let mut one = || {
            let way = tuner.begin(1 << 16, || 0);
            sent = if way == Protocol::Sent { sent + 1 } else { 0 };
            tuner.end(|| {
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
        let ways: Vec<Protocol> = (0..20_000).map(|_| one()).collect();
        assert!(ways[8..512].iter().all(|way| *way == Protocol::Read));
        assert!(ways[1024..16_896].iter().all(|way| *way == Protocol::Sent));
        assert!(ways[17_408..].iter().all(|way| *way == Protocol::Sent));
    }

    #[test]
    fn what_takes_about_as_long_stays_as_it_is() {
        assert_eq!(ways(&mut ProtocolTuner::default(), 12, 1 << 16, 90, 100), "SSSSRRRRRRRR");
        let mut tuner = ProtocolTuner::default();
        assert_eq!(ways(&mut tuner, 512, 1 << 16, 85, 100), "SSSSRRRR".to_owned() + &"S".repeat(504));
        assert_eq!(ways(&mut tuner, 512, 1 << 16, 100, 90), "S".repeat(256) + &"R".repeat(256));
        assert_eq!(ways(&mut tuner, 31 * 512, 1 << 16, 100, 85), "S".repeat(31 * 512));
        assert_eq!(ways(&mut tuner, 520, 1 << 16, 100, 85), "S".repeat(256) + &"R".repeat(256) + &"R".repeat(8));
    }

    #[test]
    fn disturbed_row_does_not_decide() {
        let mut tuner = ProtocolTuner::default();
        for sent in [1000, 1000, 2, 1000] {
            assert_eq!(ways(&mut tuner, 1, 1 << 16, sent, 5), "S");
        }
        assert_eq!(ways(&mut tuner, 7, 1 << 16, 2, 5), "RRRRSSS");
    }

    #[test]
    fn messages_at_the_same_time_are_measured_together() {
        let mut tuner = ProtocolTuner::default();
        // Three sent messages take 6 us together; one read takes 3 us.
        for _ in 0..4 {
            assert_eq!([0; 3].map(|now| tuner.begin(1 << 16, || now)), [Protocol::Sent; 3]);
            for now in [2000, 4000, 6000] {
                tuner.end(|| now);
            }
        }
        for _ in 0..4 {
            assert_eq!(tuner.begin(1 << 16, || 0), Protocol::Read);
            tuner.end(|| 3000);
        }
        assert_eq!(tuner.begin(1 << 16, || 0), Protocol::Sent);
        tuner.begin(1 << 16, || unreachable!("a row has begun"));
        tuner.end(|| unreachable!("a row has not come"));
        tuner.end(|| 6000);
        tuner.begin(u64::MAX, || 5);
        tuner.end(|| 0);
        tuner.end(|| unreachable!("nothing is under way"));
    }

    /// A row that waits behind slow messages is not charged for their time.
    #[test]
    fn a_row_is_measured_from_when_the_one_before_it_has_come() {
        let (mut tuner, mut now) = (ProtocolTuner::default(), 0);
        let row =
            |tuner: &mut ProtocolTuner, way, now| (0..MOST).for_each(|_| assert_eq!(tuner.begin(1 << 16, || now), way));
        for _ in 0..3 {
            row(&mut tuner, Protocol::Sent, now);
            now += 80_000;
            (0..MOST).for_each(|_| tuner.end(|| now));
        }
        row(&mut tuner, Protocol::Sent, now);
        assert_eq!(tuner.begin(1 << 16, || now), Protocol::Read);
        now += 80_000;
        (0..MOST).for_each(|_| tuner.end(|| now));
        now += 1000;
        tuner.end(|| now);
        for _ in 0..3 {
            row(&mut tuner, Protocol::Read, now);
            now += 100_000;
            (0..MOST).for_each(|_| tuner.end(|| now));
        }
        assert_eq!(tuner.begin(1 << 16, || now), Protocol::Read, "1 us, not 81");
    }

    /// Two messages are always in flight; each length class still tries both ways.
    #[test]
    fn messages_that_always_overlap_are_measured_in_rows() {
        let mut tuner = ProtocolTuner::default();
        let (mut now, mut under_way, mut came) = (0, VecDeque::new(), String::new());
        for number in 0..13 * MOST {
            let way = tuner.begin(1 << 16, || now);
            if number % MOST == 0 {
                came.push(if way == Protocol::Sent { 'S' } else { 'R' });
            }
            under_way.push_back(way);
            if under_way.len() == 2 {
                now += if under_way.pop_front() == Some(Protocol::Sent) { 5000 } else { 2000 };
                tuner.end(|| now);
            }
        }
        assert_eq!(came, "SSSSRRRRRRRRR");
        assert_eq!(tuner.begin(1 << 22, || now), Protocol::Sent, "another length is not of that row");
    }
}
