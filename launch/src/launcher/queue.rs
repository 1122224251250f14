//! Output that waits until this process can write it without blocking.

use super::repeats::Repeats;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::Instant;
use transom_locks::Rank;

/// While this many bytes are queued, no more output of ranks is read, and ranks that write block.
const ENOUGH: usize = 1 << 20;
/// `PIPE_BUF`: a pipe that `poll` reports as ready takes this many bytes without blocking, in one piece.
const PORTION: usize = 4096;
/// Most bytes that one read of a rank's output takes.
pub(super) const READ: usize = 64 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

/// Lines of both streams in one queue, so that a terminal receives them whole and in order of arrival.
pub(super) struct Queue {
    /// This process's stdout and stderr, each until a write to it fails.
    outlets: [Option<OwnedFd>; 2],
    lines: VecDeque<(Stream, Vec<u8>)>,
    bytes: usize,
    /// Bytes of the first entry that are written.
    written: usize,
    pub repeats: Repeats,
}

impl Queue {
    pub fn new() -> io::Result<Self> {
        let mut stdout = io::stdout();
        // Output that this process printed itself precedes that of its ranks.
        let _ = stdout.flush();
        let outlets = [stdout.as_fd().try_clone_to_owned()?, io::stderr().as_fd().try_clone_to_owned()?];
        Ok(Queue {
            outlets: outlets.map(Some),
            lines: VecDeque::new(),
            bytes: 0,
            written: 0,
            repeats: Repeats::default(),
        })
    }

    /// Returns whether more output of ranks should be read now.
    pub fn has_room(&self) -> bool {
        self.bytes < ENOUGH
    }

    /// The descriptor that must become writable before more can be written; `None` if nothing is queued.
    pub fn awaited(&self) -> Option<BorrowedFd<'_>> {
        self.lines.front().and_then(|(stream, _)| self.outlet(*stream))
    }

    fn outlet(&self, stream: Stream) -> Option<BorrowedFd<'_>> {
        self.outlets[stream as usize].as_ref().map(OwnedFd::as_fd)
    }

    /// Queues bytes for a stream.
    pub fn push(&mut self, stream: Stream, parts: &[&[u8]]) {
        if self.outlet(stream).is_none() {
            return;
        }
        if self.lines.back().is_none_or(|(last, _)| *last != stream) {
            self.lines.push_back((stream, Vec::new()));
        }
        if let Some((_, lines)) = self.lines.back_mut() {
            for part in parts {
                lines.extend_from_slice(part);
                self.bytes += part.len();
            }
        }
    }

    /// Queues lines of a rank's stderr behind their prefix, except those that repeat a line of another rank. The first
    /// line has no prefix if it has `begun` before.
    pub fn push_tagged(&mut self, rank: Option<Rank>, lead: &str, lines: &[u8], begun: bool) {
        let now = Instant::now();
        for (number, line) in lines.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let begun = begun && number == 0;
            if let Some(rank) = rank {
                let earlier = self.repeats.of(rank);
                self.push_joined(earlier);
                if !begun && line.ends_with(b"\n") && self.repeats.hold(rank, line, now) {
                    continue;
                }
            }
            self.push(Stream::Stderr, &[if begun { b"" } else { lead.as_bytes() }, line]);
        }
    }

    /// Queues whole lines for stderr.
    pub fn push_joined(&mut self, lines: Vec<Vec<u8>>) {
        lines.iter().for_each(|line| self.push(Stream::Stderr, &[line]));
    }

    /// Drops the written part of the first entry, which may grow for ever while its stream is never fully written.
    /// Moves no more bytes than were written.
    fn forget_written(&mut self) {
        if let Some((_, lines)) = self.lines.front_mut()
            && self.written >= READ.max(lines.len() / 2)
        {
            lines.drain(..self.written);
            self.written = 0;
        }
    }

    /// Writes as much as possible without blocking. An error is always one of stdout, which is then closed.
    pub fn write(&mut self) -> io::Result<()> {
        while let Some((stream, lines)) = self.lines.front() {
            let (stream, rest) = (*stream, &lines[self.written..]);
            let outlet = self.outlet(stream).filter(|_| !rest.is_empty());
            let Some(outlet) = outlet else {
                self.bytes -= rest.len();
                self.written = 0;
                self.lines.pop_front();
                continue;
            };
            if !ready(outlet) {
                return Ok(());
            }
            match rustix::io::write(outlet, portion(rest)) {
                Ok(written) => {
                    self.bytes -= written;
                    self.written += written;
                    self.forget_written();
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => {
                    self.outlets[stream as usize] = None;
                    // Without stderr the launcher cannot report this error; the job continues.
                    if stream == Stream::Stdout {
                        return Err(error.into());
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns whether a write would not block; it may still fail. A signal can interrupt `poll` even with a zero timeout
/// (EINTR). The answer is then false, and the launcher's loop asks again.
fn ready(fd: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::OUT)], Some(&now)).is_ok_and(|ready| ready > 0)
}

/// The longest run of whole lines that fits into one portion, or one portion of a line that does not fit.
fn portion(bytes: &[u8]) -> &[u8] {
    if bytes.len() <= PORTION {
        return bytes;
    }
    let whole = bytes[..PORTION].iter().rposition(|byte| *byte == b'\n');
    &bytes[..whole.map_or(PORTION, |last| last + 1)]
}

#[cfg(test)]
mod tests {
    use super::{Queue, Stream, ready};
    use nix::sys::pthread::{pthread_kill, pthread_self};
    use nix::sys::signal::Signal;
    use rustix::fd::AsFd;
    use std::io::{Read, Write};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Memory stays bounded on a stream whose queue never empties.
    #[test]
    fn written_output_is_freed() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut queue = Queue {
            outlets: [Some(writer.into()), None],
            lines: Default::default(),
            bytes: 0,
            written: 0,
            repeats: Default::default(),
        };
        let (line, mut read) = ([[b'x'; 1023].as_slice(), b"\n"].concat(), vec![0; 64 << 10]);
        (0..1024).for_each(|_| queue.push(Stream::Stdout, &[&line]));
        for _ in 0..500 {
            (0..64).for_each(|_| queue.push(Stream::Stdout, &[&line]));
            queue.write().unwrap();
            reader.read_exact(&mut read).unwrap();
            assert!(read.chunks(1024).all(|chunk| chunk == line), "lines are whole");
        }
        // 1 MiB stays in the queue or in the pipe.
        let kept: usize = queue.lines.iter().map(|(_, lines)| lines.capacity()).sum();
        assert!(queue.bytes <= 1 << 20 && kept < 5 << 20, "{} bytes are to be written, {kept} are kept", queue.bytes);
    }

    /// A signal that interrupts `poll` must not count as ready: the write would block the launcher until the reader
    /// reads.
    #[test]
    fn full_pipe_is_not_ready_when_signals_interrupt() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        assert!(ready(writer.as_fd()));
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        while writer.write(&[0; 4096]).is_ok() {}
        let (stop, heard) = (AtomicBool::new(false), Arc::new(AtomicBool::new(false)));
        let handler = signal_hook::flag::register(Signal::SIGURG as i32, heard.clone()).unwrap();
        let asked = pthread_self();
        std::thread::scope(|scope| {
            let signals = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    pthread_kill(asked, Signal::SIGURG).unwrap();
                }
            });
            while !heard.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            let wrong = (0..50_000).filter(|_| ready(writer.as_fd())).count();
            stop.store(true, Ordering::Relaxed);
            signals.join().unwrap();
            assert_eq!(wrong, 0, "times that a full pipe was reported ready");
        });
        signal_hook::low_level::unregister(handler);
        drop(reader);
    }
}
