//! The protocol of the launcher and a host while its ranks run. The host sends records:
//!
//! ```text
//!     o RANK LENGTH    LENGTH bytes of the rank's stdout follow; length 0 is the end of stdout
//!     e RANK LENGTH    the same for stderr
//!     l RANK 1         a part of the rank's output was lost, because the host cannot write it to a file
//!     x RANK STATUS    the rank has exited with this `$?`
//!     i 0 LENGTH       this many bytes of stdin have been written to rank 0
//! ```
//!
//! The launcher sends lines:
//!
//! ```text
//!     SIGNAL RANK      sends a signal of [`SIGNALS`] to the rank's process group
//!     IN LENGTH        LENGTH bytes for the stdin of rank 0 follow
//!     EOF 0            ends that stdin
//!     CHECK 0          makes the host check the launcher's processes there
//!     END              all ranks have ended. If the stream ends without it, the host kills its ranks
//! ```

use super::outcome::Status;
use rustix::process::Signal;
use transom_locks::Rank;

/// Most bytes in a record.
pub(super) const BLOCK: usize = 65536;
/// Longest head line of a record, in bytes.
const LONGEST_HEAD: usize = 64;
/// Signals that the launcher passes on, by name.
pub(super) const SIGNALS: [(&str, Signal); 6] = [
    ("TERM", Signal::TERM),
    ("KILL", Signal::KILL),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("STOP", Signal::STOP),
    ("CONT", Signal::CONT),
];

/// An event from a host.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// A rank wrote to its stdout (0) or stderr (1). An empty message means that the stream has ended.
    Wrote(Rank, usize, Vec<u8>),
    /// Part of a rank's output is lost.
    Lost(Rank),
    Exited(Rank, Status),
    /// This many bytes of stdin have been written to rank 0.
    Fed(usize),
    /// `ssh` itself, or the login, wrote to stderr.
    Complained(Vec<u8>),
    /// The connection to the host failed, with the reason.
    Broken(String),
}

/// The head of a record.
pub(super) fn head(kind: char, rank: Rank, number: usize) -> String {
    format!("{kind} {rank} {number}\n")
}

/// Removes complete records from the bytes received from a host with these ranks, which ascend. Appends their events to
/// `told`.
pub(super) fn take_records(received: &mut Vec<u8>, ranks: &[Rank], told: &mut Vec<Told>) -> Result<(), String> {
    let mut taken = 0;
    while let Some(end) = received[taken..].iter().take(LONGEST_HEAD).position(|byte| *byte == b'\n') {
        let head = &received[taken..taken + end];
        let (kind, rank, number) = parse(head)
            .filter(|(_, rank, _)| ranks.binary_search(rank).is_ok())
            .ok_or_else(|| format!("it sent {:?}, which is not a record", String::from_utf8_lossy(head)))?;
        let begin = taken + end + 1;
        let len = if matches!(kind, b'x' | b'l' | b'i') { 0 } else { number };
        let Some(bytes) = received.get(begin..begin + len) else { break };
        told.push(match kind {
            b'x' => Told::Exited(rank, Status::Exited(number as i32).of_shell()),
            b'l' => Told::Lost(rank),
            b'i' => Told::Fed(number),
            _ => Told::Wrote(rank, usize::from(kind == b'e'), bytes.to_vec()),
        });
        taken = begin + len;
    }
    received.drain(..taken);
    if received.len() > LONGEST_HEAD && !received[..LONGEST_HEAD].contains(&b'\n') {
        return Err("it sent 64 bytes without a record's head".into());
    }
    Ok(())
}

/// Parses a record's head into kind, rank and number.
fn parse(head: &[u8]) -> Option<(u8, Rank, usize)> {
    let mut words = std::str::from_utf8(head).ok()?.split(' ');
    let (kind, rank, number) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let most = match kind {
        "o" | "e" | "i" => BLOCK,
        "x" => 255,
        "l" => 1,
        _ => return None,
    };
    (words.next().is_none() && number <= most).then_some((kind.as_bytes()[0], rank, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_record_heads_are_refused() {
        assert_eq!(parse(b"o 3 65536"), Some((b'o', 3, 65536)));
        assert_eq!(parse(b"x 0 137"), Some((b'x', 0, 137)));
        assert_eq!(parse(b"l 0 1"), Some((b'l', 0, 1)));
        assert_eq!(parse(b"i 0 65536"), Some((b'i', 0, 65536)));
        for wrong in [
            &b""[..],
            b"o 3",
            b"o 3 65537",
            b"x 3 256",
            b"l 3 2",
            b"y 3 1",
            b"o -1 1",
            b"o 1 1 1",
            b"o 1 \xff",
            b"ox 1 1",
        ] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn partial_and_foreign_records_are_not_taken() {
        let (mut received, mut told) = (b"o 2 3\nabce 3 0\nl 2 1\nx 3 7\no 2 5\nab".to_vec(), Vec::new());
        take_records(&mut received, &[0, 2, 3], &mut told).unwrap();
        let wrote = |rank, stream, bytes: &[u8]| Told::Wrote(rank, stream, bytes.to_vec());
        assert_eq!(told, [wrote(2, 0, b"abc"), wrote(3, 1, b""), Told::Lost(2), Told::Exited(3, Status::Exited(7))]);
        assert_eq!(received, b"o 2 5\nab");
        for (wrong, why) in
            [(&b"x 4 0\n"[..], "\"x 4 0\""), (b"o 1 1\na", "\"o 1 1\""), (&[b'o'; 100], "without a record")]
        {
            let error = take_records(&mut wrong.to_vec(), &[0, 2, 3], &mut told).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
