//! Names of the words of locks, and their contents in words, for traces.

use crate::gate;
use crate::lock_word::{Grant, Moved, Next, Tickets, Waiters};
use crate::{At, Barrier, Field, LockLayout, LockWord, Pscw, Rank};

/// The name of a word.
pub(super) fn name(layout: Option<LockLayout>, at: At) -> String {
    let At { rank, word } = at;
    match layout.and_then(|layout| layout.field(at)) {
        None => format!("word {word} of rank {rank}"),
        Some((target, Field::Word)) => format!("lock word of rank {target}"),
        Some((target, Field::Tickets)) => format!("tickets of rank {target}"),
        Some((target, Field::Slot)) => format!("slot {word} of rank {target}"),
        Some((target, field)) => format!("{} of rank {rank}{}", format!("{field:?}").to_lowercase(), at_lock(target)),
    }
}

/// The name of a word of a mix: the words of a barrier and of access groups follow those of the locks.
pub(super) fn name_in_mix(ranks: usize, at: At) -> String {
    let barrier = LockLayout::words(ranks);
    let groups = barrier + Barrier::words(ranks);
    let At { rank, word } = at;
    match word {
        word if word < barrier || word >= groups + Pscw::words(ranks) => name(Some(LockLayout::new(0, ranks)), at),
        word if word < groups => format!("barrier round {} of rank {rank}", (word - barrier) / 8),
        word if (word - groups).is_multiple_of(2) => {
            format!("exposures by rank {} at rank {rank}", (word - groups) / 2)
        }
        word => format!("accesses by rank {} at rank {rank}", (word - groups) / 2),
    }
}

/// The end of the name of a word in a node. Traces with one lock leave it out.
pub(super) fn at_lock(target: Rank) -> String {
    format!(" at lock {target}")
}

/// The content of a word. `C` is the width of the counts of a lock word.
pub(super) fn value<const C: u32>(layout: Option<LockLayout>, at: At, value: u64) -> String {
    let Some((_, field)) = layout.and_then(|layout| layout.field(at)) else { return number(value) };
    match field {
        Field::Word => lock_word(LockWord::<C>(value)),
        Field::Next => next(value),
        Field::Slot | Field::Go if value == gate::TURN => "TURN at the gate".into(),
        Field::Go => go(value),
        Field::Waiters | Field::Link => waiters(Waiters(value)),
        Field::Grant => grant(value),
        Field::Tickets => format!("next {}, turn {}", Tickets::<C>(value).next(), Tickets::<C>(value).turn()),
        Field::Slot if value > 0 => format!("rank {}", value - 1),
        Field::Slot | Field::Drained => number(value),
    }
}

/// A number: small ones in decimal, others in hexadecimal.
fn number(value: u64) -> String {
    if value < 10_000 { value.to_string() } else { format!("{value:#x}") }
}

fn lock_word<const C: u32>(word: LockWord<C>) -> String {
    let mut parts = Vec::new();
    let counts = [("arrived", word.arrived()), ("departed", word.departed())];
    parts.extend(counts.iter().filter(|(_, count)| *count > 0).map(|(what, count)| format!("{what} {count}")));
    let ranks = [("tail", word.tail()), ("head", word.head())];
    parts.extend(ranks.iter().filter_map(|(what, rank)| Some(format!("{what} {}", (*rank)?))));
    parts.extend(word.is_marked().then(|| "marked".into()));
    parts.extend(word.is_urgent().then(|| "urgent".into()));
    if parts.is_empty() { "idle".into() } else { parts.join(", ") }
}

fn next(value: u64) -> String {
    let stays = if value & Next::STAY != 0 { ", STAY" } else { "" };
    match value & !Next::STAY {
        0 if stays.is_empty() => "0".into(),
        0 => "STAY".into(),
        Next::TURN => format!("TURN{stays}"),
        Next::AT_GO => format!("AT GO{stays}"),
        Next::LOOK => format!("LOOK{stays}"),
        word if Next::is_leaving(word) => format!("rank {} leaves{stays}", (word >> 32 & 0xffff).wrapping_sub(1)),
        word => {
            let Next { rank, readers, timed, watches } = Next::unpack(word);
            let flags = [(timed, ", timed"), (watches, ", watches")];
            let flags: String = flags.iter().filter(|flag| flag.0).map(|flag| flag.1).collect();
            format!("rank {}, {readers} readers{flags}{stays}", rank as isize)
        }
    }
}

fn go(value: u64) -> String {
    match Moved::unpack(value) {
        _ if value == 0 => "0".into(),
        None => format!("turn after {} readers", value - 1),
        Some(Moved { by, behind, readers }) => {
            let state = if Moved::is_pending(value) { "pending" } else { "settled" };
            format!("moved by {by} behind {behind}, {readers} readers, {state}")
        }
    }
}

fn waiters(word: Waiters) -> String {
    let named: Vec<_> =
        word.named().map(|reader| format!("{}{}", reader.rank, if reader.timed { "t" } else { "" })).collect();
    if word.0 == 0 { "none".into() } else { format!("{} readers: {}", word.count(), named.join(" ")) }
}

fn grant(value: u64) -> String {
    let given_up = if value & Grant::ABANDONED != 0 { "GIVEN UP" } else { "" };
    match value & !Grant::ABANDONED {
        0 if given_up.is_empty() => "0".into(),
        0 => given_up.into(),
        word => {
            let grant = match Grant::unpack(word) {
                Grant::Open => "OPEN".into(),
                Grant::Before(rank) => format!("then tell rank {}", rank as i32),
            };
            if given_up.is_empty() { grant } else { format!("{given_up}, {grant}") }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_of_a_lock_is_shown_by_name_and_content() {
        let layout = Some(LockLayout::new(0, 3));
        let show = |rank, word, held| {
            let at = At { rank, word };
            format!("{} = {}", name(layout, at), value::<16>(layout, at, held))
        };
        assert_eq!(show(0, 0, 0), "lock word of rank 0 = idle");
        assert_eq!(
            show(0, 0, (2 << 32) | LockWord::<16>(0).with_exclusive(1).0),
            "lock word of rank 0 = arrived 2, tail 1, head 1"
        );
        assert_eq!(
            show(2, 8, Next { rank: 1, readers: 2, timed: true, watches: false }.pack()),
            "next of rank 2 at lock 0 = rank 1, 2 readers, timed"
        );
        assert_eq!(show(2, 8, Next::leaves(1) | Next::STAY), "next of rank 2 at lock 0 = rank 1 leaves, STAY");
        assert_eq!(show(1, 17, 3), "go of rank 1 at lock 1 = turn after 2 readers");
        assert_eq!(show(1, 17, gate::TURN), "go of rank 1 at lock 1 = TURN at the gate");
        assert_eq!(show(1, 12, Grant::Before(2).pack()), "grant of rank 1 at lock 0 = then tell rank 2");
        assert_eq!(show(1, 12, Grant::ABANDONED | Grant::Open.pack()), "grant of rank 1 at lock 0 = GIVEN UP, OPEN");
        assert_eq!(show(0, 1, 3 << 32 | 1), "tickets of rank 0 = next 3, turn 1");
        assert_eq!(show(1, 99, 12), "word 99 of rank 1 = 12");
        // No content makes it panic.
        for (word, shift) in (0..32).flat_map(|word| (0..64).map(move |shift| (word, shift))) {
            show(0, word, u64::MAX >> shift);
            show(0, word, 1 << shift);
        }
    }
}
