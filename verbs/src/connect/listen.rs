//! Waiting on descriptors of a device that may be removed.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// Waits until one of the descriptors is readable, or for `time`; returns which are.
///
/// A descriptor with any other event becomes `mute` and is ignored from then on: the descriptors of a removed device
/// report errors for ever, and the wait would never sleep.
pub(super) fn listen<const N: usize>(
    to: [BorrowedFd<'_>; N],
    mute: &mut [bool; N],
    time: Option<&Timespec>,
) -> Result<[bool; N], Errno> {
    let (places, mut waiting): (Vec<usize>, Vec<PollFd<'_>>) =
        (0..N).filter(|&at| !mute[at]).map(|at| (at, PollFd::from_borrowed_fd(to[at], PollFlags::IN))).unzip();
    match poll(&mut waiting, time) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno),
    }
    let mut readable = [false; N];
    for (at, said) in places.into_iter().zip(waiting.iter().map(PollFd::revents)) {
        readable[at] = said.contains(PollFlags::IN);
        mute[at] = !readable[at] && !said.is_empty();
    }
    Ok(readable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Write, pipe};
    use std::os::fd::AsFd;

    #[test]
    fn removed_descriptor_is_ignored_once_drained() {
        const SOON: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let (first, mut writer) = pipe().unwrap();
        let (second, _other) = pipe().unwrap();
        let mut mute = [false; 2];
        let mut listened = || {
            let readable = listen([first.as_fd(), second.as_fd()], &mut mute, Some(&SOON)).unwrap();
            (readable, mute)
        };
        assert_eq!(listened(), ([false; 2], [false; 2]), "both are silent");
        writer.write_all(b"x").unwrap();
        assert_eq!(listened(), ([true, false], [false; 2]));
        // Data that arrived earlier stay readable; no more data can follow.
        drop(writer);
        assert_eq!(listened(), ([true, false], [false; 2]));
        std::io::Read::read(&mut &first, &mut [0]).unwrap();
        assert_eq!(listened(), ([false; 2], [true, false]));
        assert_eq!(listened(), ([false; 2], [true, false]), "for good");
    }
}
