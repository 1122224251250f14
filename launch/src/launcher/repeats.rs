//! Long lines that several ranks write to stderr: the first is forwarded at once, the same line of other ranks once for
//! all of them.

use crate::ranges::ranges;
use std::time::{Duration, Instant};
use transom_locks::Rank;

/// Length in bytes of the lines that are joined. Shorter lines, as of a program that prints where it is, are never
/// delayed.
const LENGTH: std::ops::RangeInclusive<usize> = 120..=4096;
/// Time from the first line to the joined one.
const DELAY: Duration = Duration::from_millis(250);
/// Most lines for which repeats are awaited.
const OPEN: usize = 64;

/// Lines forwarded for one rank within [`DELAY`], and the ranks that have repeated them.
#[derive(Default)]
pub(super) struct Repeats(Vec<Line>);

struct Line {
    text: Vec<u8>,
    first: Rank,
    /// Ranks whose same line is held back.
    again: Vec<Rank>,
    until: Instant,
}

impl Repeats {
    /// Returns whether the whole line of this rank repeats a line of another rank, and is held back.
    pub fn hold(&mut self, rank: Rank, text: &[u8], now: Instant) -> bool {
        if !LENGTH.contains(&text.len()) {
            return false;
        }
        let same = self.0.iter_mut().find(|line| line.text == text);
        match same {
            Some(line) if line.first == rank => false,
            Some(line) => {
                line.again.push(rank);
                true
            }
            None => {
                if self.0.len() < OPEN {
                    self.0.push(Line { text: text.to_vec(), first: rank, again: Vec::new(), until: now + DELAY });
                }
                false
            }
        }
    }

    /// Takes the lines whose time is over.
    pub fn over(&mut self, now: Instant) -> Vec<Vec<u8>> {
        self.take(|line| line.until <= now)
    }

    /// Takes the lines held back of a rank, which precede its next line.
    pub fn of(&mut self, rank: Rank) -> Vec<Vec<u8>> {
        self.take(|line| line.again.contains(&rank))
    }

    /// Takes all lines.
    pub fn all(&mut self) -> Vec<Vec<u8>> {
        self.take(|_| true)
    }

    /// Time at which [`over`](Self::over) has a line; `None` if no line is held back.
    pub fn next_time(&self) -> Option<Instant> {
        self.0.iter().filter(|line| !line.again.is_empty()).map(|line| line.until).min()
    }

    /// Removes lines; returns those that are held back, each behind its ranks.
    fn take(&mut self, mut ends: impl FnMut(&Line) -> bool) -> Vec<Vec<u8>> {
        let ended = self.0.extract_if(.., |line| ends(line));
        let held = ended.filter(|line| !line.again.is_empty());
        held.map(|mut line| {
            line.again.sort_unstable();
            [format!("[{}] ", ranges(&line.again)).as_bytes(), &line.text].concat()
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(of: char) -> Vec<u8> {
        let mut line = of.to_string().repeat(*LENGTH.start()).into_bytes();
        line.push(b'\n');
        line
    }

    fn joined(ranks: &str, of: char) -> Vec<u8> {
        [ranks.as_bytes(), &line(of)].concat()
    }

    #[test]
    fn repeated_lines_are_joined_with_their_ranks() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        assert!(!repeats.hold(4, &line('a'), now));
        assert_eq!(repeats.next_time(), None, "no line is held back");
        assert!([7, 0, 2, 1, 5].into_iter().all(|rank| repeats.hold(rank, &line('a'), now)));
        assert!(!repeats.hold(5, &line('b'), now));
        assert!(repeats.hold(0, &line('b'), now));
        assert_eq!(repeats.next_time(), Some(now + DELAY));
        assert_eq!(repeats.over(now), [[0_u8; 0]; 0]);
        assert_eq!(repeats.over(now + DELAY), [joined("[0-2, 5, 7] ", 'a'), joined("[0] ", 'b')]);
        assert!(!repeats.hold(3, &line('a'), now + DELAY), "a later line is forwarded");
    }

    #[test]
    fn held_line_precedes_the_next_of_its_rank() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        repeats.hold(0, &line('a'), now);
        repeats.hold(1, &line('a'), now);
        assert_eq!(repeats.of(0), [[0_u8; 0]; 0]);
        assert_eq!(repeats.of(1), [joined("[1] ", 'a')]);
        repeats.hold(0, &line('a'), now);
        repeats.hold(1, &line('a'), now);
        assert_eq!(repeats.all(), [joined("[1] ", 'a')]);
    }

    #[test]
    fn short_and_own_lines_are_not_held() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        for rank in 0..3 {
            assert!(!repeats.hold(rank, b"reached A\n", now));
            assert!(!repeats.hold(rank, &[b'x'; 5000], now));
        }
        for _ in 0..3 {
            assert!(!repeats.hold(0, &line('a'), now));
        }
        assert_eq!(repeats.all(), [[0_u8; 0]; 0]);
    }
}
