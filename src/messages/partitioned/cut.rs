//! Division of elements into parts, and its announcement to the receiver.

use crate::messages::Error;
use std::ops::Range;

/// Division of `len` elements of `element` bytes into `parts` parts, as even as possible, the longer parts first. No
/// part is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    len: usize,
    pub parts: usize,
    element: usize,
}

/// Announcement of a send end, sent before its parts. The tags of the parts start at `first`; the farewell has the tag
/// after the last part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Announcement {
    pub first: u32,
    pub parts: usize,
    /// Number of elements of all parts.
    len: usize,
    /// Size of an element, in bytes.
    element: usize,
}

impl Cut {
    pub fn new(len: usize, parts: usize, element: usize) -> Result<Cut, Error> {
        if parts == 0 || parts > len || element == 0 {
            let why = format!(
                "cannot divide {len} elements of {element} bytes into {parts} parts: expected at least 1 part, and an \
                 element in each"
            );
            return Err(Error::Misuse { why });
        }
        Ok(Cut { len, parts, element })
    }

    /// Returns the element range of a part.
    pub fn range(self, part: usize) -> Range<usize> {
        let start = |part: usize| part * (self.len / self.parts) + part.min(self.len % self.parts);
        start(part)..start(part + 1)
    }

    /// Returns the length of a part in bytes.
    pub fn bytes(self, part: usize) -> usize {
        self.range(part).len() * self.element
    }

    /// Returns the part that contains this element.
    fn part_of(self, element: usize) -> usize {
        let (short, longer) = (self.len / self.parts, self.len % self.parts);
        let of_longer = longer * (short + 1);
        if element < of_longer { element / (short + 1) } else { longer + (element - of_longer) / short }
    }

    /// Returns the parts that overlap a nonempty range of elements.
    pub fn parts_with(self, elements: Range<usize>) -> Range<usize> {
        self.part_of(elements.start)..self.part_of(elements.end - 1) + 1
    }
}

impl Announcement {
    pub const BYTES: usize = 32;

    pub fn new(first: u32, Cut { len, parts, element }: Cut) -> Announcement {
        Announcement { first, parts, len, element }
    }

    pub fn encode(&self) -> [u8; Self::BYTES] {
        let numbers = [self.first.into(), self.len as u64, self.parts as u64, self.element as u64];
        let bytes = numbers.map(u64::to_le_bytes);
        bytes.as_flattened().try_into().expect("four numbers of 8 bytes")
    }

    /// Decodes and validates an announcement received from a peer.
    pub fn decode(bytes: &[u8]) -> Result<Announcement, Error> {
        let malformed = || Error::Misuse {
            why: format!(
                "the peer sent a malformed announcement of a partitioned message ({bytes:?}, expected four numbers of 8 bytes: \
                 first tag, elements, parts, bytes of an element)"
            ),
        };
        let numbers = <[u8; Self::BYTES]>::try_from(bytes).map_err(|_| malformed())?;
        let number = |at: usize| u64::from_le_bytes(numbers.as_chunks().0[at]);
        let (first, parts) = (u32::try_from(number(0)).ok(), u32::try_from(number(2)).ok());
        let (len, element) = (usize::try_from(number(1)).ok(), usize::try_from(number(3)).ok());
        let read = || {
            let (first, parts) = (first?, parts?);
            first.checked_add(parts)?;
            Some(Announcement { first, parts: parts as usize, len: len?, element: element? })
        };
        read().ok_or_else(malformed)
    }

    /// Returns the sender's division of a message, after a check against the receiver's length and type.
    pub fn cut(&self, expected: Cut) -> Result<Cut, Error> {
        if (self.len, self.element) != (expected.len, expected.element) {
            let why = format!(
                "the sender's partitioned message has {} elements of {} bytes, the receiver's {} elements of {} bytes: \
                 name the same length and type at both ends",
                self.len, self.element, expected.len, expected.element
            );
            return Err(Error::Misuse { why });
        }
        Cut::new(self.len, self.parts, self.element)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(len: usize, parts: usize) -> Cut {
        Cut::new(len, parts, 8).unwrap()
    }

    #[test]
    fn parts_are_even_and_cover_all_elements() {
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
    fn malformed_announcement_is_refused() {
        let mine = cut(10, 2);
        let told = Announcement::new(7, cut(10, 5));
        assert_eq!(Announcement::decode(&told.encode()).unwrap(), told);
        assert_eq!(told.cut(mine).unwrap(), cut(10, 5));
        let says = |numbers: [u64; 4]| {
            Announcement::decode(numbers.map(u64::to_le_bytes).as_flattened()).and_then(|said| said.cut(mine))
        };
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
        assert!(Announcement::decode(&told.encode()[..31]).is_err());
    }
}
