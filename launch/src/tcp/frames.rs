//! The frames between ranks and the hub: their kinds and bodies. Each frame names its group: [`JOB`], or a team's
//! random number.

use transom_locks::Rank;
use transom_windows::FabricError;

/// Longest message of an exchange, in bytes.
pub(super) const LONGEST: u64 = 1 << 24;

// Sent by ranks.
/// A rank's part of a round: its message.
pub(super) const PART: u8 = 1;
/// A rank's part of a round that is longer than [`LONGEST`]: only its length.
pub(super) const TOO_LONG: u8 = 2;
/// The rank leaves the group.
pub(super) const LEAVE: u8 = 3;
/// The rank failed in the group.
pub(super) const FAIL: u8 = 4;
/// The members of a new team.
pub(super) const FORM: u8 = 5;
/// The rank leaves all groups, and closes the connection.
pub(super) const BYE: u8 = 6;
/// The first frame. It proves that the rank itself is connected and that no third party replayed its first message.
pub(super) const HERE: u8 = 7;

// Sent by ranks, and passed on by the hub to the rank that the body names. The hub replaces that by the sender's rank.
/// Asks whether the process of a rank runs.
pub(super) const ASK: u8 = 8;
/// Answers [`ASK`]. A stopped process does not answer.
pub(super) const RUNS: u8 = 9;

// Sent by the hub.
/// The rank has joined.
pub(super) const WELCOME: u8 = 17;
/// A round is complete: the parts of all members.
pub(super) const GATHERED: u8 = 18;
/// Members have left or died: the index of each in the group, and its [`MemberState`].
pub(super) const GONE: u8 = 19;
/// The hub refuses the rank. The body names the process that joined as this rank, or is zero if its process ended
/// before it joined.
pub(super) const REFUSED: u8 = 21;

/// The group of all ranks of the job.
pub(super) const JOB: u64 = 0;

/// State of a member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum MemberState {
    There = 0,
    Left = 1,
    Died = 2,
}

impl MemberState {
    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        [MemberState::There, MemberState::Left, MemberState::Died].into_iter().find(|state| *state as u8 == byte)
    }
}

/// Encodes members that are gone, each with its state.
pub(super) fn body_of_gone(gone: impl Iterator<Item = (usize, MemberState)>) -> Vec<u8> {
    gone.flat_map(|(member, state)| {
        let [a, b, c, d] = (member as u32).to_le_bytes();
        [a, b, c, d, state as u8]
    })
    .collect()
}

/// Decodes the members of a group of `size` that are gone; `None` if the body is malformed.
pub(super) fn parse_gone(body: &[u8], size: usize) -> Option<Vec<(usize, MemberState)>> {
    let (entries, rest) = body.as_chunks::<5>();
    let entry = |&[a, b, c, d, state]: &[u8; 5]| {
        let member = u32::from_le_bytes([a, b, c, d]) as usize;
        Some((member, MemberState::from_byte(state)?)).filter(|_| member < size)
    };
    if rest.is_empty() { entries.iter().map(entry).collect() } else { None }
}

/// Encodes the ranks of a team, in the order of the team.
pub(super) fn body_of_members(members: &[Rank]) -> Vec<u8> {
    members.iter().flat_map(|&rank| (rank as u32).to_le_bytes()).collect()
}

/// Decodes the ranks of a team of a job of `size` ranks; `None` unless they are distinct ranks of it.
pub(super) fn parse_members(body: &[u8], size: usize) -> Option<Vec<Rank>> {
    let (numbers, rest) = body.as_chunks::<4>();
    let members: Vec<Rank> = numbers.iter().map(|number| u32::from_le_bytes(*number) as Rank).collect();
    let mut once = members.clone();
    once.sort_unstable();
    once.dedup();
    (rest.is_empty() && once.len() == members.len() && once.last().is_some_and(|&last| last < size)).then_some(members)
}

/// One member's part of a round.
pub(super) struct Part {
    /// Length of the message, in bytes. The bytes are missing if it exceeds [`LONGEST`].
    pub len: u64,
    pub bytes: Vec<u8>,
}

/// Encodes a complete round, in the order of the members.
pub(super) fn body_of_parts(parts: impl Iterator<Item = Part>) -> Vec<u8> {
    let mut body = Vec::new();
    for part in parts {
        body.extend_from_slice(&part.len.to_le_bytes());
        body.extend_from_slice(&part.bytes);
    }
    body
}

/// Decodes a complete round into the message of each of `size` members.
pub(super) fn parse_parts(mut body: &[u8], size: usize) -> Result<Vec<Vec<u8>>, FabricError> {
    let corrupt =
        || FabricError::Corrupt { why: "the hub sent a malformed round, expected one message of each rank".into() };
    let (mut parts, mut too_long) = (Vec::with_capacity(size), None);
    for rank in 0..size {
        let (len, rest) = body.split_first_chunk().ok_or_else(corrupt)?;
        let len = u64::from_le_bytes(*len);
        body = rest;
        if len > LONGEST {
            too_long = too_long.or(Some((rank, len)));
        } else {
            let (part, rest) = body.split_at_checked(len as usize).ok_or_else(corrupt)?;
            parts.push(part.to_vec());
            body = rest;
        }
    }
    match too_long {
        Some((rank, len)) => {
            let why = format!("rank {rank} announces {len} bytes to all; {LONGEST} can be exchanged at most");
            Err(FabricError::Misuse { why })
        }
        None if body.is_empty() => Ok(parts),
        None => Err(corrupt()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_rounds_are_refused() {
        let part = |len: u64, bytes: &[u8]| [&len.to_le_bytes()[..], bytes].concat();
        assert_eq!(parse_parts(&[part(0, b""), part(2, b"ab")].concat(), 2).unwrap(), [&b""[..], b"ab"]);
        for wrong in [vec![], part(0, b""), part(3, b"ab"), [part(0, b""), part(0, b"x")].concat(), part(u64::MAX, b"")]
        {
            assert!(matches!(parse_parts(&wrong, 2), Err(FabricError::Corrupt { .. })), "{wrong:?}");
        }
    }

    #[test]
    fn malformed_departure_lists_are_refused() {
        let gone = [(2, MemberState::Died), (0, MemberState::Left)];
        assert_eq!(body_of_gone(gone.into_iter()), b"\x02\0\0\0\x02\0\0\0\0\x01");
        assert_eq!(parse_gone(&body_of_gone(gone.into_iter()), 3).unwrap(), gone);
        for wrong in [&b"\x03\0\0\0\x02"[..], b"\0\0\0\0\x03", b"\0\0\0\0"] {
            assert!(parse_gone(wrong, 3).is_none());
        }
    }

    #[test]
    fn malformed_member_lists_are_refused() {
        assert_eq!(parse_members(b"\x02\0\0\0\0\0\0\0", 3), Some(vec![2, 0]));
        assert_eq!(body_of_members(&[2, 0]), b"\x02\0\0\0\0\0\0\0");
        for wrong in [&b""[..], b"\0\0\0", b"\x03\0\0\0", b"\x01\0\0\0\x01\0\0\0", b"\0\0\0\0\0"] {
            assert_eq!(parse_members(wrong, 3), None);
        }
    }
}
