//! What is known of how adapters do writes: who writes a word or a message and who looks for it are to go by the same.

use crate::values::NotifyBy;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writes {
    /// How a word is put in one piece.
    pub notify_by: NotifyBy,
    /// Whether the last bytes of a write are seen last.
    pub in_order: bool,
}

impl Writes {
    /// The least that all of these promise: it is the far end's adapter that does a write, and any two ranks may be of different ones.
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
    /// TRANSOM_VERBS_NOTIFY has it so.
    const SAID: Writes = Writes { notify_by: NotifyBy::Atomic, in_order: true };

    #[test]
    fn ranks_of_different_adapters_go_by_what_all_promise() {
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
    fn a_byte_says_it() {
        for writes in [ALL, WHOLE, SOFT, SAID] {
            assert_eq!(Writes::from_byte(writes.to_byte()), Some(writes));
        }
        assert_eq!(Writes::from_byte(4), None);
    }
}
