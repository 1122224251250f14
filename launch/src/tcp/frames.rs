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

// Sent by ranks.
/// The identity of the rank's host. From then on the hub sends complete rounds to the first member of a group on each
/// host. The other members get empty rounds, and the parts from that first member.
pub(super) const HOST: u8 = 10;
/// A rank's part of a round among the ranks of its host. Each gets the parts of that host, in the order of the group.
pub(super) const PART_OF_HOST: u8 = 11;

// Sent by the hub.
/// The rank has joined.
pub(super) const WELCOME: u8 = 17;
/// A round is complete: the parts of all members, of those of one host ([`PART_OF_HOST`]), or nothing ([`HOST`]).
pub(super) const GATHERED: u8 = 18;
/// Members have left or died: the index of each in the group, and its [`MemberState`].
pub(super) const GONE: u8 = 19;
/// The hub refuses the rank. The body names the process that joined as this rank, or is zero if its process ended
/// before it joined.
pub(super) const REFUSED: u8 = 21;

/// Longest identity of a host, in bytes.
pub(super) const LONGEST_HOST: usize = 64;

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

/// Encodes the ranks of a team, in the order of the team: runs of a first rank, a step, and a number of ranks. All
/// ranks, and those of one host, are a run as a rule; each member sends the list.
pub(super) fn body_of_members(members: &[Rank]) -> Vec<u8> {
    let (mut body, mut rest) = (Vec::new(), members);
    while let Some((&first, others)) = rest.split_first() {
        let step = others.first().map_or(0, |&second| second as i64 - first as i64);
        let in_step =
            (1_i64..).zip(others).take_while(|(nth, rank)| **rank as i64 == first as i64 + nth * step).count();
        body.extend([first as u32, step as i32 as u32, 1 + in_step as u32].into_iter().flat_map(u32::to_le_bytes));
        rest = &others[in_step..];
    }
    body
}

/// Decodes the ranks of a team of a job of `size` ranks; `None` unless they are distinct ranks of it.
pub(super) fn parse_members(body: &[u8], size: usize) -> Option<Vec<Rank>> {
    let (numbers, rest) = body.as_chunks::<4>();
    let numbers: Vec<u32> = numbers.iter().map(|number| u32::from_le_bytes(*number)).collect();
    let (runs, others) = numbers.as_chunks::<3>();
    let mut seen = vec![false; size];
    let mut members = Vec::new();
    for &[first, step, count] in runs {
        // Each rank is seen once, which bounds the work.
        for nth in 0..i64::from(count) {
            let rank = Rank::try_from(i64::from(first) + nth * i64::from(step as i32)).ok()?;
            if std::mem::replace(seen.get_mut(rank)?, true) {
                return None;
            }
            members.push(rank);
        }
    }
    (rest.is_empty() && others.is_empty() && !members.is_empty()).then_some(members)
}

/// One member's part of a round.
pub(super) struct Part {
    /// Length of the message, in bytes. The bytes are missing if it exceeds [`LONGEST`].
    pub len: u64,
    pub bytes: Vec<u8>,
}

/// Encodes the parts of a round, in the order of the members.
pub(super) fn body_of_parts<'p>(parts: impl Iterator<Item = &'p Part>) -> Vec<u8> {
    let mut body = Vec::new();
    for part in parts {
        body.extend_from_slice(&part.len.to_le_bytes());
        body.extend_from_slice(&part.bytes);
    }
    body
}

/// Decodes a complete round into the message of each of `size` members.
pub(super) fn parse_parts(body: &[u8], size: usize) -> Result<Vec<Vec<u8>>, FabricError> {
    parse(body, Some(size))
}

/// Decodes a complete round of any number of members.
pub(super) fn parse_any_parts(body: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
    parse(body, None)
}

fn corrupt() -> FabricError {
    FabricError::Corrupt { why: "the hub sent a malformed round, expected one message of each rank".into() }
}

fn parse(mut body: &[u8], size: Option<usize>) -> Result<Vec<Vec<u8>>, FabricError> {
    let (mut parts, mut too_long) = (Vec::new(), None);
    while !body.is_empty() {
        let (len, rest) = body.split_first_chunk().ok_or_else(corrupt)?;
        let len = u64::from_le_bytes(*len);
        // The bytes of a message that is too long are missing.
        let (part, rest) = rest.split_at_checked(if len > LONGEST { 0 } else { len as usize }).ok_or_else(corrupt)?;
        if len > LONGEST {
            too_long = too_long.or(Some((parts.len(), len)));
        }
        parts.push(part.to_vec());
        body = rest;
    }
    if size.is_some_and(|size| size != parts.len()) {
        return Err(corrupt());
    }
    match too_long {
        Some((rank, len)) => {
            let why = format!("rank {rank} announces {len} bytes to all; {LONGEST} can be exchanged at most");
            Err(FabricError::Misuse { why })
        }
        None => Ok(parts),
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
        let body =
            |runs: &[[i32; 3]]| runs.as_flattened().iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
        for (members, runs) in [
            (&[2, 0][..], &[[2, -2, 2]][..]),
            (&[3], &[[3, 0, 1]]),
            (&[0, 1, 2, 3, 4], &[[0, 1, 5]]),
            (&[1, 3, 0, 2, 4], &[[1, 2, 2], [0, 2, 3]]),
            (&[4, 1, 3], &[[4, -3, 2], [3, 0, 1]]),
        ] {
            assert_eq!(body_of_members(members), body(runs), "{members:?}");
            assert_eq!(parse_members(&body(runs), 5).as_deref(), Some(members));
        }
        for wrong in
            [&[][..], &[[5, 0, 1]], &[[4, 1, 2]], &[[0, -1, 2]], &[[1, 0, 2]], &[[0, 1, 2], [1, 0, 1]], &[[0, 1, -1]]]
        {
            assert_eq!(parse_members(&body(wrong), 5), None, "{wrong:?}");
        }
        let whole = body(&[[0, 1, 5]]);
        for cut in 0..whole.len() {
            assert_eq!(parse_members(&whole[..cut], 5), None);
        }
    }
}
