//! Lines from the launcher.

use crate::launcher::records::{BLOCK, SIGNALS};
use rustix::process::Signal;
use transom_locks::Rank;

/// Longest line, in bytes.
const LONGEST: usize = 64;

/// A request of the launcher.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    Signal(Signal, Rank),
    /// Bytes for the stdin of rank 0.
    Input(Vec<u8>),
    EndOfInput,
    Check,
    End,
}

/// Removes the first request from the bytes received; `None` if it is not complete.
pub(super) fn take(received: &mut Vec<u8>) -> Result<Option<Command>, String> {
    let Some(end) = received.iter().take(LONGEST).position(|byte| *byte == b'\n') else {
        let is_short = received.len() < LONGEST;
        return if is_short { Ok(None) } else { Err(format!("{LONGEST} bytes without a line's end")) };
    };
    let line = String::from_utf8_lossy(&received[..end]).into_owned();
    let wrong = || format!("{line:?}, expected a signal and a rank, IN, EOF, CHECK or END");
    let (word, number) = if line == "END" { ("END", "0") } else { line.split_once(' ').ok_or_else(wrong)? };
    let number: usize = number.parse().map_err(|_| wrong())?;
    let (command, len) = match word {
        "END" => (Command::End, 0),
        "CHECK" => (Command::Check, 0),
        "EOF" => (Command::EndOfInput, 0),
        "IN" if number <= BLOCK => match received.get(end + 1..end + 1 + number) {
            Some(bytes) => (Command::Input(bytes.to_vec()), number),
            None => return Ok(None),
        },
        name => match SIGNALS.iter().find(|(signal, _)| *signal == name) {
            Some((_, signal)) => (Command::Signal(*signal, number), 0),
            None => return Err(wrong()),
        },
    };
    received.drain(..end + 1 + len);
    Ok(Some(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_taken_in_order() {
        let mut received = b"TERM 3\nIN 3\na\nbCHECK 0\nEOF 0\nKILL 12\nEND\nIN 4\nabc".to_vec();
        let commands: Vec<_> = std::iter::from_fn(|| take(&mut received).unwrap()).collect();
        let expected = [
            Command::Signal(Signal::TERM, 3),
            Command::Input(b"a\nb".to_vec()),
            Command::Check,
            Command::EndOfInput,
            Command::Signal(Signal::KILL, 12),
            Command::End,
        ];
        assert_eq!((&commands[..], &received[..]), (&expected[..], &b"IN 4\nabc"[..]));
    }

    #[test]
    fn malformed_commands_are_refused() {
        for wrong in
            [&b"HUP 1\n"[..], b"TERM\n", b"TERM x\n", b"TERM -1\n", b"IN 65537\n", b"\n", b"\xff 1\n", &[b'x'; 64]]
        {
            assert!(take(&mut wrong.to_vec()).is_err(), "{wrong:?}");
        }
        assert_eq!(take(&mut vec![b'x'; 63]), Ok(None));
    }
}
