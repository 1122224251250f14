//! Compact encoding of a call, for comparison between ranks.

use super::reduction::{MAX_PLACE, MIN_PLACE};
use std::any::type_name;
use std::fmt;
use transom_windows::Number;

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A call that its own rank refused.
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
    Split,
    /// Creation of the first window or value of a team.
    Window,
}

/// Names of the started calls, by kind; the blocking call's name omits the first letter.
const NAMES: [&str; 21] = [
    " a collective with invalid arguments",
    "ibarrier",
    "ibroadcast",
    "ireduce",
    "iall_reduce",
    "ireduce_scatter",
    "iscan",
    "iexscan",
    "igather",
    "iscatter",
    "iall_gather",
    "iall_to_all",
    "igather_v",
    "iscatter_v",
    "iall_gather_v",
    "iall_to_all_v",
    "ireduce_scatter_v",
    "iall_to_all_sections",
    "ineighbours",
    "isplit",
    "ithe creation of a window or value",
];

/// Signature of a call, which must be equal at all ranks. Two words, so that it is built and compared in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signature {
    /// Bit fields, lowest first:
    ///
    /// - 6 bits: [`Kind`]
    /// - 1 bit: the operation does not commute
    /// - 1 bit: the call is started and waited for later
    /// - 8 bits: operation number plus one; 0 without an operation
    /// - 14 bits: element size in bytes
    /// - 2 bits: kind of number
    /// - 32 bits: root plus one, or grid number; 0 without either
    what: u64,
    /// Low 48 bits: number of elements, if it is the same at all ranks. High 16 bits: [hash](type_hash) of the element
    /// type's name, 0 for numbers.
    len: u64,
}

/// Blocking calls may use shared memory; started calls use messages. The two forms therefore do not match.
const STARTED: u64 = 1 << 7;
/// The operation does not commute: long data uses other algorithms.
const ORDERED: u64 = 1 << 6;
const KIND: u64 = ORDERED - 1;
const OPERATION: u32 = 8;
const ELEMENT: u32 = 16;
const NUMBER: u32 = 30;
const ROOT: u32 = 32;
const TYPE: u32 = 48;

const PLACES_END: u8 = MAX_PLACE + 4;

impl Signature {
    pub const BYTES: usize = 16;

    #[inline]
    pub fn of<T: 'static>(kind: Kind, len: usize) -> Signature {
        // Larger sizes are truncated: the comparison is only a check.
        let bytes = size_of::<T>() as u64 & ((1 << (NUMBER - ELEMENT)) - 1);
        let number = Number::of::<T>();
        let hash = if number == Number::None { type_hash(type_name::<T>()) } else { 0 };
        // No process has memory for 2^48 elements.
        let len = len as u64 & ((1 << TYPE) - 1) | u64::from(hash) << TYPE;
        Signature { what: kind as u64 | bytes << ELEMENT | (number as u64) << NUMBER, len }
    }

    /// Signature of a call without elements.
    #[inline]
    pub fn without(kind: Kind) -> Signature {
        Signature { what: kind as u64, len: 0 }
    }

    #[inline]
    pub fn root(self, root: usize) -> Signature {
        self.on_grid(root as u32 + 1)
    }

    /// Adds the number of a neighbour grid, stored in the bits of a root.
    #[inline]
    pub fn on_grid(self, number: u32) -> Signature {
        Signature { what: self.what | u64::from(number) << ROOT, ..self }
    }

    #[inline]
    pub fn by(self, operation: u8, commutes: bool) -> Signature {
        let ordered = if commutes { 0 } else { ORDERED };
        Signature { what: self.what | ordered | u64::from(operation.saturating_add(1)) << OPERATION, ..self }
    }

    /// The signature of the started form.
    #[inline]
    pub fn started(self) -> Signature {
        Signature { what: self.what | STARTED, ..self }
    }

    pub fn is_split(&self) -> bool {
        self.what & KIND == Kind::Split as u64
    }

    pub fn name(&self) -> &'static str {
        let name = NAMES.get((self.what & KIND) as usize).copied().unwrap_or(" an unknown collective");
        if self.what & STARTED == 0 { &name[1..] } else { name.trim_start() }
    }

    #[inline]
    pub fn words(self) -> [u64; 2] {
        [self.what, self.len]
    }

    #[inline]
    pub fn of_words([what, len]: [u64; 2]) -> Signature {
        Signature { what, len }
    }

    pub fn to_bytes(self) -> [u8; Signature::BYTES] {
        self.words().map(u64::to_le_bytes).as_flattened().try_into().expect("two words")
    }

    pub fn from_bytes(bytes: &[u8; Signature::BYTES]) -> Signature {
        let (words, _) = bytes.as_chunks();
        Signature::of_words([0, 1].map(|word| u64::from_le_bytes(words[word])))
    }

    /// Hash of this signature, chained with the hash `before` of the earlier calls.
    #[inline]
    pub fn hash(&self, before: u64) -> u64 {
        let [low, high] = self.words();
        let mixed = (low ^ before).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 32 ^ high).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^ mixed >> 32
    }
}

/// Hash of a type's name without module paths, because programs of one job may define the type in different modules.
/// Never 0.
fn type_hash(name: &str) -> u16 {
    let (mut hash, mut word) = (0xcbf2_9ce4_8422_2325_u64, 0xcbf2_9ce4_8422_2325);
    for byte in name.bytes() {
        if byte == b':' {
            // A path ends here: the hash returns to its value at the start of the word.
            hash = word;
            continue;
        }
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        if !(byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()) {
            word = hash;
        }
    }
    ((hash >> TYPE) as u16).max(1)
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, len, type_hash) = (self.what, self.len & ((1 << TYPE) - 1), self.len >> TYPE);
        let (kind, operation, element, root) = (
            (what & KIND) as u8,
            (what >> OPERATION) as u8,
            what >> ELEMENT & ((1 << (NUMBER - ELEMENT)) - 1),
            (what >> ROOT) as u32,
        );
        write!(f, "{}", self.name())?;
        if kind > 1 && kind < Kind::Split as u8 {
            let [elements, bytes] = [len, element].map(|many| if many == 1 { "" } else { "s" });
            match Number::of_bits(what >> NUMBER).named(element) {
                None => write!(f, " of {len} element{elements} of {element} byte{bytes}")?,
                Some(number) => write!(f, " of {len} {number}")?,
            }
        }
        match root.checked_sub(1) {
            _ if kind == Kind::Neighbours as u8 => write!(f, ", on a grid")?,
            Some(root) => write!(f, ", root {root}")?,
            None => {}
        }
        match operation.checked_sub(1) {
            None => {}
            Some(number @ MIN_PLACE..PLACES_END) => {
                write!(f, ", by {}", if number < MAX_PLACE { "MinLoc" } else { "MaxLoc" })?;
                // The element size without the 8 bytes of the location.
                if let Some(value) = Number::of_bits(number.into()).named(element.saturating_sub(8)) {
                    write!(f, " of {value}")?;
                }
            }
            Some(number) => match transom_windows::Op::ALL.get(usize::from(number)) {
                Some(op) => write!(f, ", by {op:?}")?,
                None => write!(f, ", by user-defined operation {number}")?,
            },
        }
        if what & ORDERED != 0 {
            write!(f, ", which does not commute")?;
        }
        // Two types may have the same element size; then only the hash differs.
        if type_hash > 0 {
            write!(f, ", type name hash {type_hash:04x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, MIN_PLACE, Signature, type_hash};

    #[test]
    fn type_hash_ignores_paths_only() {
        assert_eq!(type_hash("[a::b::Pair<c::Left, u8>; 2]"), type_hash("[Pair<Left, u8>; 2]"));
        assert_ne!(type_hash("Pair<Left, u8>"), type_hash("Pair<Right, u8>"));
        assert_ne!(type_hash("[f32; 2]"), type_hash("[u16; 4]"));
    }

    #[test]
    fn different_calls_have_different_signatures() {
        let one = Signature::of::<u64>(Kind::Broadcast, 3).root(2);
        let others = [
            Signature::of::<u64>(Kind::Reduce, 3).root(2),
            Signature::of::<u32>(Kind::Broadcast, 3).root(2),
            Signature::of::<i64>(Kind::Broadcast, 3).root(2),
            Signature::of::<f64>(Kind::Broadcast, 3).root(2),
            Signature::of::<[u64; 1]>(Kind::Broadcast, 3).root(2),
            Signature::of::<u64>(Kind::Broadcast, 4).root(2),
            Signature::of::<[u32; 2]>(Kind::Broadcast, 3).root(2),
            Signature::of::<u64>(Kind::Broadcast, 3).root(3),
            one.by(0, true),
            one.by(0, false),
            one.started(),
        ];
        assert_eq!(Signature::from_bytes(&one.to_bytes()), one);
        for other in others {
            assert_ne!(one.hash(7), other.hash(7), "{one} and {other}");
        }
        assert_ne!(one.hash(7), one.hash(8));
        let composite = [
            Signature::of::<[f32; 2]>(Kind::Broadcast, 1),
            Signature::of::<[u16; 4]>(Kind::Broadcast, 1),
            Signature::of::<[u32; 2]>(Kind::Broadcast, 1),
        ];
        assert!(composite[0] != composite[1] && composite[1] != composite[2] && composite[0] != composite[2]);
        assert_eq!(one.to_string(), "broadcast of 3 u64, root 2");
        assert_eq!(Signature::of::<f64>(Kind::AllReduce, 1).by(0, true).to_string(), "all_reduce of 1 f64, by Sum");
        assert_eq!(
            Signature::of::<[f64; 2]>(Kind::Scan, 1).by(33, false).to_string(),
            "scan of 1 element of 16 bytes, by user-defined operation 33, which does not commute, type name hash 2f14"
        );
        let placed = Signature::of::<[f64; 2]>(Kind::Scan, 1);
        for (number, says) in [(MIN_PLACE, "MinLoc"), (15, "MinLoc of f64"), (17, "MaxLoc of u64")] {
            assert_eq!(
                placed.by(number, true).to_string(),
                format!("scan of 1 element of 16 bytes, by {says}, type name hash 2f14")
            );
        }
        assert_eq!(Signature::of::<i8>(Kind::AllGather, 0).started().to_string(), "iall_gather of 0 i8");
        assert_eq!(
            Signature::of::<[u8; 16_385]>(Kind::Gather, 2).to_string(),
            "gather of 2 elements of 1 byte, type name hash d614"
        );
        assert_eq!(Signature::without(Kind::Barrier).to_string(), "barrier");
        assert_eq!(Signature::without(Kind::Barrier).started().to_string(), "ibarrier");
        assert_eq!([one.name(), one.started().name()], ["broadcast", "ibroadcast"]);
    }
}
