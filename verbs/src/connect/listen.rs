//! Waiting for what a device tells, which may be taken away.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// Waits until one of these is readable, or for so long; which are. One that says anything else is `mute` from then on, and left out:
/// where the device was taken away its descriptors say so for ever, and nobody would sleep any more.
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
    fn what_is_taken_away_is_listened_to_no_more() {
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
        // What had come is there still; nothing else will be.
        drop(writer);
        assert_eq!(listened(), ([true, false], [false; 2]));
        std::io::Read::read(&mut &first, &mut [0]).unwrap();
        assert_eq!(listened(), ([false; 2], [true, false]));
        assert_eq!(listened(), ([false; 2], [true, false]), "for good");
    }
}
