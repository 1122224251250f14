//! Properties of an adapter's writes. The writer and the reader of a word or message must assume the same.

use crate::values::NotifyBy;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writes {
    /// The way to write a word as one unit.
    pub notify_by: NotifyBy,
    /// The last bytes of a write become visible last.
    pub in_order: bool,
}

impl Writes {
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

    const ALL: Writes = Writes { notify_by: NotifyBy::Write, in_order: true };
    const WHOLE: Writes = Writes { notify_by: NotifyBy::Write, in_order: false };
    const SOFT: Writes = Writes { notify_by: NotifyBy::Atomic, in_order: false };
    /// TRANSOM_VERBS_WORD_WRITE=atomic.
    const SAID: Writes = Writes { notify_by: NotifyBy::Atomic, in_order: true };

    #[test]
    fn weakest_adapter_determines_the_writes_of_all() {
        for (all, least) in [
            (&[ALL, ALL][..], ALL),
            (&[ALL, SOFT, ALL], SOFT),
            (&[SOFT, ALL], SOFT),
            (&[ALL, SAID], SAID),
            (&[WHOLE, SAID], SOFT),
        ] {
            assert_eq!(Writes::least(all.iter().copied()), Some(least), "{all:?}");
        }
        assert_eq!(Writes::least([]), None);
    }

    #[test]
    fn writes_round_trip_through_a_byte() {
        for writes in [ALL, WHOLE, SOFT, SAID] {
            assert_eq!(Writes::from_byte(writes.to_byte()), Some(writes));
        }
        assert_eq!(Writes::from_byte(4), None);
    }
}
