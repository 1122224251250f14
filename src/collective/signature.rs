//! What a call is, in a few bytes that ranks compare.

use std::fmt;

/// Which call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A call that a rank refuses itself.
    Refused,
    Barrier,
    Broadcast,
    Reduce,
    AllReduce,
    ReduceScatter,
    Scan,
    Exscan,
    Gather,
    Scatter,
    AllGather,
    AllToAll,
    GatherV,
    ScatterV,
    AllGatherV,
    AllToAllV,
    ReduceScatterV,
    AllToAllSections,
    Neighbours,
}

/// Their names, by their numbers.
const NAMES: [&str; 19] = [
    "a collective wrongly, which it refused itself",
    "barrier",
    "broadcast",
    "reduce",
    "all_reduce",
    "reduce_scatter",
    "scan",
    "exscan",
    "gather",
    "scatter",
    "all_gather",
    "all_to_all",
    "gather_v",
    "scatter_v",
    "all_gather_v",
    "all_to_all_v",
    "reduce_scatter_v",
    "all_to_all_sections",
    "neighbours",
];

/// A call of a collective, as all ranks must make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signature {
    kind: u8,
    /// The number of the operation and 1, or 0.
    operation: u8,
    /// Bytes of an element.
    element: u16,
    /// The root and 1, or 0.
    root: u32,
    /// Elements, where all ranks name as many.
    len: u64,
}

impl Signature {
    pub const BYTES: usize = 16;

    pub fn of(kind: Kind, element: usize, len: usize) -> Signature {
        // Of longer elements the rest is compared: it is a check.
        Signature { kind: kind as u8, operation: 0, element: element as u16, root: 0, len: len as u64 }
    }

    pub fn root(self, root: usize) -> Signature {
        Signature { root: root as u32 + 1, ..self }
    }

    /// Of neighbours on the grid of this number, in the place of a root.
    pub fn on_grid(self, number: u32) -> Signature {
        Signature { root: number, ..self }
    }

    pub fn by(self, operation: u8) -> Signature {
        Signature { operation: operation.saturating_add(1), ..self }
    }

    pub fn name(&self) -> &'static str {
        NAMES.get(usize::from(self.kind)).copied().unwrap_or("an unknown collective")
    }

    /// The same as two words.
    #[inline]
    fn words(self) -> [u64; 2] {
        let Signature { kind, operation, element, root, len } = self;
        [u64::from(kind) | u64::from(operation) << 8 | u64::from(element) << 16 | u64::from(root) << 32, len]
    }

    #[inline]
    pub fn to_bytes(self) -> [u8; Signature::BYTES] {
        let [low, high] = self.words().map(u64::to_le_bytes);
        let mut bytes = [0; Signature::BYTES];
        bytes[..8].copy_from_slice(&low);
        bytes[8..].copy_from_slice(&high);
        bytes
    }

    pub fn from_bytes(bytes: &[u8; Signature::BYTES]) -> Signature {
        let [kind, operation, e0, e1, r0, r1, r2, r3, len @ ..] = *bytes;
        Signature {
            kind,
            operation,
            element: u16::from_le_bytes([e0, e1]),
            root: u32::from_le_bytes([r0, r1, r2, r3]),
            len: u64::from_le_bytes(len),
        }
    }

    /// A hash of this, after what was hashed before.
    #[inline]
    pub fn hash(&self, before: u32) -> u32 {
        let [low, high] = self.words();
        let mixed = (low ^ u64::from(before) << 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 32 ^ high).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed >> 32) as u32
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())?;
        if self.kind > 1 {
            write!(f, " of {} elements of {} bytes", self.len, self.element)?;
        }
        match self.root.checked_sub(1) {
            _ if self.kind == Kind::Neighbours as u8 => write!(f, ", on grid {:08x}", self.root)?,
            Some(root) => write!(f, ", root {root}")?,
            None => {}
        }
        match self.operation.checked_sub(1) {
            None => Ok(()),
            Some(12) => write!(f, ", by MinPlace"),
            Some(13) => write!(f, ", by MaxPlace"),
            Some(number) => match transom_windows::Op::ALL.get(usize::from(number)) {
                Some(op) => write!(f, ", by {op:?}"),
                None => write!(f, ", by operation {number} of the program's own"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, Signature};

    #[test]
    fn calls_are_told_apart() {
        let one = Signature::of(Kind::Broadcast, 8, 3).root(2);
        let others = [
            Signature::of(Kind::Reduce, 8, 3).root(2),
            Signature::of(Kind::Broadcast, 4, 3).root(2),
            Signature::of(Kind::Broadcast, 8, 4).root(2),
            Signature::of(Kind::Broadcast, 8, 3).root(3),
            one.by(0),
        ];
        assert_eq!(Signature::from_bytes(&one.to_bytes()), one);
        for other in others {
            assert_ne!(one.hash(7), other.hash(7), "{one} and {other}");
        }
        assert_ne!(one.hash(7), one.hash(8));
        assert_eq!(one.to_string(), "broadcast of 3 elements of 8 bytes, root 2");
        assert_eq!(
            Signature::of(Kind::AllReduce, 8, 1).by(0).to_string(),
            "all_reduce of 1 elements of 8 bytes, by Sum"
        );
        assert_eq!(Signature::of(Kind::Barrier, 1, 0).to_string(), "barrier");
    }
}
