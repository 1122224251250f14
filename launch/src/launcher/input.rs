//! Stdin of this process, for rank 0 on a host.

use crate::process::Stat;
use rustix::event::{PollFd, PollFlags};
use rustix::stdio::stdin;

/// Most bytes on their way to the rank. They fit a pipe of the host, whose shell therefore never blocks on them. The
/// pipes of a user who has many hold only two pages (`pipe-user-pages-soft`), and a page may hold parts of one write.
const IN_FLIGHT: usize = 4 << 10;

/// Stdin of this process. Nothing here blocks.
pub(super) struct Input {
    ended: bool,
    /// Bytes that were sent to the host, and not yet written to the rank.
    in_flight: usize,
}

impl Input {
    pub fn new() -> Self {
        Input { ended: false, in_flight: 0 }
    }

    /// The descriptor to wait for, if the host takes more. A background job of a terminal must not read.
    pub fn awaited(&self) -> Option<PollFd<'static>> {
        let in_background = || {
            let own = || Stat::of(std::process::id()).map(|own| own.group);
            let foreground = rustix::termios::tcgetpgrp(stdin());
            foreground.is_ok_and(|group| own().is_some_and(|own| own != group.as_raw_pid() as u32))
        };
        let reads = !self.ended && self.in_flight < IN_FLIGHT && !in_background();
        reads.then(|| PollFd::from_borrowed_fd(stdin(), PollFlags::IN))
    }

    /// Reads what is there; an empty vector is the end. `None` if nothing can be read now.
    pub fn read(&mut self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; IN_FLIGHT - self.in_flight];
        let read = match rustix::io::read(stdin(), &mut bytes[..]) {
            Ok(read) => read,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => return None,
            // Closed, or a terminal that is gone.
            Err(_) => 0,
        };
        bytes.truncate(read);
        self.ended = read == 0;
        self.in_flight += read;
        Some(bytes)
    }

    /// The host has written bytes to the rank.
    pub fn fed(&mut self, bytes: usize) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }
}
