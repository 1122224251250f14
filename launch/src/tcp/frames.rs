//! The frames between ranks and the hub: their kinds, and what is in their bodies. Each names the group that it is of:
//! [`JOB`], or a team's number, which is random.

use transom_locks::Rank;
use transom_windows::FabricError;

/// The longest message of an exchange, in bytes.
pub(super) const LONGEST: u64 = 1 << 24;

// To the hub.
/// A rank's part of a round: its message.
pub(super) const PART: u8 = 1;
/// A rank's part of a round, longer than [`LONGEST`]: its length only.
pub(super) const TOO_LONG: u8 = 2;
/// The rank leaves the group.
pub(super) const LEAVE: u8 = 3;
/// The rank has failed in the group.
pub(super) const FAIL: u8 = 4;
/// A team: its members.
pub(super) const FORM: u8 = 5;
/// The rank leaves all groups, and closes the connection.
pub(super) const BYE: u8 = 6;
/// The first frame: the rank is there itself, and its first message was not repeated by another.
pub(super) const HERE: u8 = 7;

// From the hub.
/// The rank has joined.
pub(super) const WELCOME: u8 = 17;
/// A round is complete: the parts of all members.
pub(super) const GATHERED: u8 = 18;
/// Members have left or died: the number of each in the group, and its [`State`].
pub(super) const GONE: u8 = 19;
/// The rank cannot join. The body is the process that has joined as this rank; zeros if it ended before it joined.
pub(super) const REFUSED: u8 = 21;

/// The group of all ranks of the job.
pub(super) const JOB: u64 = 0;

/// Of a member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    There = 0,
    Left = 1,
    Died = 2,
}

impl State {
    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        [State::There, State::Left, State::Died].into_iter().find(|state| *state as u8 == byte)
    }
}

/// Members that are gone, and how.
pub(super) fn body_of_gone(gone: impl Iterator<Item = (usize, State)>) -> Vec<u8> {
    gone.flat_map(|(member, state)| {
        let [a, b, c, d] = (member as u32).to_le_bytes();
        [a, b, c, d, state as u8]
    })
    .collect()
}

/// The members of a group of `size` that are gone, and how; `None` if it is not a list of such.
pub(super) fn parse_gone(body: &[u8], size: usize) -> Option<Vec<(usize, State)>> {
    let (entries, rest) = body.as_chunks::<5>();
    let entry = |&[a, b, c, d, state]: &[u8; 5]| {
        let member = u32::from_le_bytes([a, b, c, d]) as usize;
        Some((member, State::from_byte(state)?)).filter(|_| member < size)
    };
    if rest.is_empty() { entries.iter().map(entry).collect() } else { None }
}

/// The ranks of a team, in the order of the team.
pub(super) fn body_of_members(members: &[Rank]) -> Vec<u8> {
    members.iter().flat_map(|&rank| (rank as u32).to_le_bytes()).collect()
}

/// The ranks of a team out of a job of `size` ranks; `None` if they are not different ranks of it.
pub(super) fn parse_members(body: &[u8], size: usize) -> Option<Vec<Rank>> {
    let (numbers, rest) = body.as_chunks::<4>();
    let members: Vec<Rank> = numbers.iter().map(|number| u32::from_le_bytes(*number) as Rank).collect();
    let mut once = members.clone();
    once.sort_unstable();
    once.dedup();
    (rest.is_empty() && once.len() == members.len() && once.last().is_some_and(|&last| last < size)).then_some(members)
}

/// What one member gave to a round.
pub(super) struct Part {
    /// Of the message. If it is longer than [`LONGEST`], the message is not here.
    pub len: u64,
    pub bytes: Vec<u8>,
}

/// A complete round, in the order of the members.
pub(super) fn body_of_parts(parts: impl Iterator<Item = Part>) -> Vec<u8> {
    let mut body = Vec::new();
    for part in parts {
        body.extend_from_slice(&part.len.to_le_bytes());
        body.extend_from_slice(&part.bytes);
    }
    body
}

/// The message of each of `size` members, out of a complete round.
pub(super) fn parse_parts(mut body: &[u8], size: usize) -> Result<Vec<Vec<u8>>, FabricError> {
    let corrupt = || FabricError::Corrupt { why: "the hub sends a round that is not one message of each rank".into() };
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
    fn rounds_are_checked() {
        let part = |len: u64, bytes: &[u8]| [&len.to_le_bytes()[..], bytes].concat();
        assert_eq!(parse_parts(&[part(0, b""), part(2, b"ab")].concat(), 2).unwrap(), [&b""[..], b"ab"]);
        for wrong in [vec![], part(0, b""), part(3, b"ab"), [part(0, b""), part(0, b"x")].concat(), part(u64::MAX, b"")]
        {
            assert!(matches!(parse_parts(&wrong, 2), Err(FabricError::Corrupt { .. })), "{wrong:?}");
        }
    }

    #[test]
    fn who_is_gone_is_checked() {
        let gone = [(2, State::Died), (0, State::Left)];
        assert_eq!(body_of_gone(gone.into_iter()), b"\x02\0\0\0\x02\0\0\0\0\x01");
        assert_eq!(parse_gone(&body_of_gone(gone.into_iter()), 3).unwrap(), gone);
        for wrong in [&b"\x03\0\0\0\x02"[..], b"\0\0\0\0\x03", b"\0\0\0\0"] {
            assert!(parse_gone(wrong, 3).is_none());
        }
    }

    #[test]
    fn members_are_checked() {
        assert_eq!(parse_members(b"\x02\0\0\0\0\0\0\0", 3), Some(vec![2, 0]));
        assert_eq!(body_of_members(&[2, 0]), b"\x02\0\0\0\0\0\0\0");
        for wrong in [&b""[..], b"\0\0\0", b"\x03\0\0\0", b"\x01\0\0\0\x01\0\0\0", b"\0\0\0\0\0"] {
            assert_eq!(parse_members(wrong, 3), None);
        }
    }
}
