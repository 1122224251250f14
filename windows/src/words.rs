//! Positions of the protocols' words in a region. A word's position tells the call of a rank that waits for the word.

use crate::Number;
use std::any::type_name;
use std::fmt;
use transom_locks::{At, Barrier, Field, LockLayout, Pscw, Rank};

/// The words of a window's protocols at each rank. In this order: those of the locks, of the fence's barrier, and of
/// post/start/complete/wait; the number of ranks that have freed their windows; and, on a line of their own, those of
/// accumulates. Other segments have only the locks' words. All indices are in words.
#[derive(Clone, Copy)]
pub(crate) struct Words {
    ranks: usize,
}

impl Words {
    pub const fn new(ranks: usize) -> Self {
        Words { ranks }
    }

    /// The number of the locks' words.
    pub const fn locks(self) -> usize {
        LockLayout::words(self.ranks)
    }

    pub const fn barrier(self) -> usize {
        self.locks()
    }

    pub const fn pscw(self) -> usize {
        self.barrier() + Barrier::words(self.ranks)
    }

    /// The number of ranks that have freed their windows, and access no elements of this rank any more.
    pub const fn freed(self) -> usize {
        self.pscw() + Pscw::words(self.ranks)
    }

    /// The gate of updates of the rank's elements.
    pub const fn gate(self) -> usize {
        (self.freed() + 1).next_multiple_of(8)
    }

    /// Nonzero: another rank asks this one to leave all gates of updates.
    pub const fn leave(self) -> usize {
        self.gate() + 1
    }

    /// The number of all words.
    pub const fn all(self) -> usize {
        self.leave() + 1
    }
}

/// The purpose of a segment, for messages.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    Window,
    /// A value behind a lock.
    Value,
    /// An array of values behind locks, with one family of locks per `ranks` values.
    Values,
}

/// The object that a rank makes together with the others, as exchanged between them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ObjectDesc<'a> {
    /// The number of the [`Purpose`], the object's number, and third the flavour of a window, the home of a value, or
    /// the number of values.
    pub numbers: [u64; 3],
    /// The element type: see [`element`].
    pub element: &'a str,
}

/// The element type, as ranks compare it: the kind of number, or else the name and the size. The name has no paths,
/// since the programs of a job may have the type in different modules.
pub(crate) fn element<T: 'static>() -> String {
    let bytes = size_of::<T>();
    Number::of::<T>().named(bytes as u64).unwrap_or_else(|| {
        let words = type_name::<T>().split_inclusive(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
        let name: String =
            words.filter_map(|word| word.rsplit("::").next()).flat_map(str::chars).take(LONGEST).collect();
        format!("{name} ({bytes} B)")
    })
}

/// Characters of a name that are compared.
const LONGEST: usize = 100;

impl fmt::Display for ObjectDesc<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WINDOW: u64 = Purpose::Window as u64;
        const VALUE: u64 = Purpose::Value as u64;
        const VALUES: u64 = Purpose::Values as u64;
        let ObjectDesc { numbers: [purpose, id, rest], element } = *self;
        match purpose {
            WINDOW => {
                let flavor =
                    ["allocate", "allocate_shared", "create", "dynamic"].get(rest as usize).unwrap_or(&"unknown");
                write!(f, "window {id} ({flavor}) of {element}")
            }
            VALUE => write!(f, "value {id} (mutex or rw_lock) of {element} at rank {rest}"),
            VALUES => write!(f, "array {id} of {rest} values (mutexes or rw_locks) of {element}"),
            _ => write!(f, "an object of unknown kind {purpose}, of {element}"),
        }
    }
}

/// The call in which a rank waits for a word of its own region.
pub(crate) struct Waiting {
    pub purpose: Purpose,
    /// The number of the window or value.
    pub id: u32,
    pub ranks: usize,
    /// The word's index.
    pub word: usize,
    /// True if it is another rank's word, which this rank watches.
    pub watched: bool,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waiting { purpose, id, ranks, word, watched } = *self;
        let words = Words::new(ranks);
        let of = match purpose {
            Purpose::Window if word >= words.gate() => return write!(f, "accumulate of window {id}"),
            Purpose::Window if word >= words.pscw() => {
                // Posts of other ranks write the even words, completes the odd ones.
                let call = if (word - words.pscw()).is_multiple_of(2) { "start" } else { "wait" };
                return write!(f, "{call} of window {id}");
            }
            Purpose::Window if word >= words.barrier() => return write!(f, "fence of window {id}"),
            Purpose::Window => "window",
            Purpose::Value | Purpose::Values => "value",
        };
        let (family, word) = (word / words.locks(), word % words.locks());
        // The word's meaning does not depend on the rank of its region.
        let field = LockLayout::new(0, ranks).field(At { rank: 0, word });
        let (target, field): (Rank, Field) = field.unwrap_or((0, Field::Word));
        // A watching request gets its answer here instead of in its own `go`.
        let field = if watched { Field::Go } else { field };
        let number = match purpose {
            Purpose::Values => format!("{} of array {id}", family * ranks + target),
            _ => id.to_string(),
        };
        let call = match (purpose, field) {
            (Purpose::Window, Field::Go | Field::Drained) => "lock_exclusive",
            (Purpose::Window, Field::Grant) => "lock_shared or lock_all",
            (Purpose::Value | Purpose::Values, Field::Go | Field::Drained) => "lock or write",
            (Purpose::Value | Purpose::Values, Field::Grant) => "read",
            // A rank in `unlock` waits for some of these words. No rank waits for the rest.
            (_, Field::Next | Field::Waiters | Field::Link | Field::Word | Field::Tickets | Field::Slot) => "unlock",
        };
        write!(f, "{call} of {of} {number} at rank {target}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_desc_names_object_and_element_type() {
        let made = |purpose, element: String, rest| {
            ObjectDesc { numbers: [purpose as u64, 3, rest], element: &element }.to_string()
        };
        assert_eq!(made(Purpose::Window, element::<f64>(), 0), "window 3 (allocate) of f64");
        assert_eq!(made(Purpose::Window, element::<[u8; 3]>(), 2), "window 3 (create) of [u8; 3] (3 B)");
        assert_eq!(
            made(Purpose::Value, element::<Option<std::num::NonZeroU16>>(), 7),
            "value 3 (mutex or rw_lock) of Option<NonZero<u16>> (2 B) at rank 7"
        );
        assert_eq!(made(Purpose::Values, element::<i32>(), 9), "array 3 of 9 values (mutexes or rw_locks) of i32");
    }

    #[test]
    fn each_word_names_the_waiting_call() {
        // Three ranks: locks 0..32, a barrier of two rounds 32..48, post/start/complete/wait 48..54, freed 54; then
        // accumulates 56..58.
        let words = Words::new(3);
        assert_eq!([words.barrier(), words.pscw(), words.freed(), words.gate(), words.all()], [32, 48, 54, 56, 58]);
        let call = |purpose, word| Waiting { purpose, id: 7, ranks: 3, word, watched: false }.to_string();
        for (word, expected) in [
            (8 * 3 + 1, "lock_exclusive of window 7 at rank 2"),
            (8 + 2, "lock_exclusive of window 7 at rank 0"),
            (8 * 2 + 4, "lock_shared or lock_all of window 7 at rank 1"),
            (8, "unlock of window 7 at rank 0"),
            (32, "fence of window 7"),
            (40, "fence of window 7"),
            (50, "start of window 7"),
            (51, "wait of window 7"),
            (56, "accumulate of window 7"),
        ] {
            assert_eq!(call(Purpose::Window, word), expected, "word {word}");
        }
        let watched = Waiting { purpose: Purpose::Window, id: 7, ranks: 3, word: 8, watched: true };
        assert_eq!(watched.to_string(), "lock_exclusive of window 7 at rank 0");
        assert_eq!(call(Purpose::Value, 8 + 4), "read of value 7 at rank 0");
        assert_eq!(call(Purpose::Values, 2 * 32 + 8 * 2 + 1), "lock or write of value 7 of array 7 at rank 1"); // the third family
    }
}
