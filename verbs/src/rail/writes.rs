//! Order in which the bytes of writes become visible. The writer and the reader of a word or message must assume the
//! same.
//!
//! InfiniBand executes the requests of a queue pair in order, but does not promise when the bytes of a write become
//! visible: o9-20 and o9-21 of its specification (9.5). A reader may rely on them only after a later send, immediate
//! value or atomic of the same queue pair. Adapters with adaptive routing or relaxed ordering make use of that freedom.
//! A device may promise order within each write. None can promise it between two writes.

use crate::values::{NotifyBy, WordWrite};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writes {
    /// The way to write a word as one unit, after all earlier writes.
    pub notify_by: NotifyBy,
    /// The bytes of each write become visible in order.
    pub in_order: bool,
}

impl Writes {
    /// The order that the user forces, or else the one that the device promises.
    pub fn promised(set: WordWrite, in_order: bool) -> Writes {
        match set {
            WordWrite::Auto => Writes { notify_by: NotifyBy::Atomic, in_order },
            WordWrite::Write => Writes { notify_by: NotifyBy::Write, in_order },
            WordWrite::Atomic => Writes { notify_by: NotifyBy::Atomic, in_order: false },
        }
    }

    /// The weakest of these properties. A write is performed by the target's adapter, and any two ranks may have
    /// different adapters.
    pub fn least(all: impl IntoIterator<Item = Writes>) -> Option<Writes> {
        all.into_iter().reduce(|one, other| Writes {
            notify_by: if one.notify_by == NotifyBy::Atomic { one.notify_by } else { other.notify_by },
            in_order: one.in_order && other.in_order,
        })
    }

    pub fn to_byte(self) -> u8 {
        u8::from(self.notify_by == NotifyBy::Write) | u8::from(self.in_order) << 1
    }

    pub fn from_byte(byte: u8) -> Option<Writes> {
        let notify_by = if byte & 1 != 0 { NotifyBy::Write } else { NotifyBy::Atomic };
        (byte < 4).then_some(Writes { notify_by, in_order: byte & 2 != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TRANSOM_VERBS_WORD_WRITE=write on a device that promises order, and on one that does not.
    const ALL: Writes = Writes { notify_by: NotifyBy::Write, in_order: true };
    const WHOLE: Writes = Writes { notify_by: NotifyBy::Write, in_order: false };
    const SOFT: Writes = Writes { notify_by: NotifyBy::Atomic, in_order: false };
    /// A device that promises order.
    const ORDERED: Writes = Writes { notify_by: NotifyBy::Atomic, in_order: true };

    #[test]
    fn words_are_atomics_unless_writes_are_forced() {
        let promised = |set| [Writes::promised(set, true), Writes::promised(set, false)];
        assert_eq!(promised(WordWrite::Auto), [ORDERED, SOFT]);
        assert_eq!(promised(WordWrite::Write), [ALL, WHOLE]);
        assert_eq!(promised(WordWrite::Atomic), [SOFT, SOFT]);
    }

    #[test]
    fn weakest_adapter_determines_the_writes_of_all() {
        for (all, least) in [
            (&[ALL, ALL][..], ALL),
            (&[ALL, SOFT, ALL], SOFT),
            (&[SOFT, ALL], SOFT),
            (&[ALL, ORDERED], ORDERED),
            (&[WHOLE, ORDERED], SOFT),
        ] {
            assert_eq!(Writes::least(all.iter().copied()), Some(least), "{all:?}");
        }
        assert_eq!(Writes::least([]), None);
    }

    #[test]
    fn writes_round_trip_through_a_byte() {
        for writes in [ALL, WHOLE, SOFT, ORDERED] {
            assert_eq!(Writes::from_byte(writes.to_byte()), Some(writes));
        }
        assert_eq!(Writes::from_byte(4), None);
    }
}
