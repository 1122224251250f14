//! How elements are cut into parts, and what the sender tells of it.

use crate::messages::Error;
use std::ops::Range;

/// So many elements, of so many bytes each, in so many parts: as evenly as can be, the longer ones first. No part has no bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    len: usize,
    pub parts: usize,
    element: usize,
}

/// What a sender says of a message before its parts: their tags are the `first` and those that follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Announcement {
    pub first: u32,
    pub cut: Cut,
}

impl Cut {
    pub fn new(len: usize, parts: usize, element: usize) -> Result<Cut, Error> {
        if parts == 0 || parts > len || element == 0 {
            let why = format!(
                "{len} elements of {element} bytes cannot be sent in {parts} parts: there must be a part at least, and an element in \
                 each"
            );
            return Err(Error::Misuse { why });
        }
        Ok(Cut { len, parts, element })
    }

    /// The elements of a part.
    pub fn range(self, part: usize) -> Range<usize> {
        let start = |part: usize| part * (self.len / self.parts) + part.min(self.len % self.parts);
        start(part)..start(part + 1)
    }

    /// Bytes of a part.
    pub fn bytes(self, part: usize) -> usize {
        self.range(part).len() * self.element
    }

    /// The part that has this element.
    fn part_of(self, element: usize) -> usize {
        let (short, longer) = (self.len / self.parts, self.len % self.parts);
        let of_longer = longer * (short + 1);
        if element < of_longer { element / (short + 1) } else { longer + (element - of_longer) / short }
    }

    /// The parts that have any of these elements, which are some.
    pub fn parts_with(self, elements: Range<usize>) -> Range<usize> {
        self.part_of(elements.start)..self.part_of(elements.end - 1) + 1
    }
}

impl Announcement {
    pub const BYTES: usize = 32;

    pub fn encode(&self) -> [u8; Self::BYTES] {
        let Cut { len, parts, element } = self.cut;
        let numbers = [self.first.into(), len as u64, parts as u64, element as u64];
        let bytes = numbers.map(u64::to_le_bytes);
        bytes.as_flattened().try_into().expect("four numbers of 8 bytes")
    }

    /// What these bytes of a peer say to who expects a message of so many elements of this size.
    pub fn decode(bytes: &[u8], expected: Cut) -> Result<Announcement, Error> {
        let misuse = |why| Error::Misuse { why };
        let Ok(bytes) = <[u8; Self::BYTES]>::try_from(bytes) else {
            return Err(misuse(format!("a partitioned message is announced by {bytes:?}, which is no announcement")));
        };
        let number = |at: usize| u64::from_le_bytes(bytes.as_chunks().0[at]);
        let (len, parts, element) = (number(1), number(2), number(3));
        if (len, element) != (expected.len as u64, expected.element as u64) {
            let why = format!(
                "a partitioned message of {len} elements of {element} bytes is sent, and one of {} elements of {} bytes is received: \
                 both ends name the same length and type",
                expected.len, expected.element
            );
            return Err(misuse(why));
        }
        let (first, parts) = (u32::try_from(number(0)).ok(), u32::try_from(parts).ok());
        match (first, parts) {
            (Some(first), Some(parts)) if first.checked_add(parts).is_some() => {
                Ok(Announcement { first, cut: Cut::new(expected.len, parts as usize, expected.element)? })
            }
            _ => Err(misuse(format!("a partitioned message is announced by {bytes:?}, which no sender says"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(len: usize, parts: usize) -> Cut {
        Cut::new(len, parts, 8).unwrap()
    }

    #[test]
    fn parts_are_even_and_all() {
        assert_eq!((0..4).map(|part| cut(10, 4).range(part)).collect::<Vec<_>>(), [0..3, 3..6, 6..8, 8..10]);
        assert_eq!(cut(10, 4).bytes(0), 24);
        assert_eq!(cut(3, 3).range(2), 2..3);
        for (len, parts) in [(1, 1), (10, 4), (7, 7), (100, 8), (9, 2)] {
            let cut = cut(len, parts);
            for element in 0..len {
                assert!(cut.range(cut.part_of(element)).contains(&element), "{element} of {len} in {parts}");
            }
        }
        assert_eq!(cut(10, 4).parts_with(5..7), 1..3);
        assert_eq!(cut(10, 4).parts_with(0..10), 0..4);
        for (len, parts, element) in [(3, 0, 8), (3, 4, 8), (0, 0, 1), (3, 3, 0)] {
            assert!(matches!(Cut::new(len, parts, element), Err(Error::Misuse { .. })));
        }
    }

    #[test]
    fn what_no_sender_says_is_refused() {
        let mine = cut(10, 2);
        let told = Announcement { first: 7, cut: cut(10, 5) };
        assert_eq!(Announcement::decode(&told.encode(), mine).unwrap(), told);
        let says = |numbers: [u64; 4]| Announcement::decode(numbers.map(u64::to_le_bytes).as_flattened(), mine);
        for wrong in [
            [7, 11, 5, 8],
            [7, 10, 5, 4],
            [7, 10, 0, 8],
            [7, 10, 11, 8],
            [1 << 32, 10, 5, 8],
            [u32::MAX.into(), 10, 5, 8],
            [7, 10, 1 << 40, 8],
        ] {
            assert!(matches!(says(wrong), Err(Error::Misuse { .. })), "{wrong:?}");
        }
        assert!(Announcement::decode(&told.encode()[..31], mine).is_err());
    }
}
