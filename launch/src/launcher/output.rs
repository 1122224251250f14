//! The ranks' output: read from their pipes, split into lines, and written without blocking the launcher.

use super::prefix::OutputPrefix;
use super::repeats::Repeats;
use super::stamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;
use transom_locks::Rank;

/// Limit on the bytes of incomplete lines, of all ranks together. A line longer than its stream's share is forwarded in
/// parts, which lines of other ranks may separate. Ranks that write no newlines therefore cannot fill the memory.
const UNENDED: usize = 64 << 20;
/// Lower bound of a stream's share, in bytes.
const LEAST_SHARE: usize = 64 << 10;
/// While this many bytes are queued, the launcher reads no more, and ranks that write block.
const ENOUGH: usize = 1 << 20;
/// `PIPE_BUF`: a pipe that `poll` reports as ready takes this many bytes without blocking, in one piece.
const PORTION: usize = 4096;
const READ: usize = 64 << 10;

/// The read ends of a rank's stdout and stderr.
pub(super) type Pipes = [OwnedFd; 2];

/// Additions to each line.
#[derive(Clone, Copy)]
pub(super) struct Format {
    pub prefix: OutputPrefix,
    pub timestamps: bool,
}

/// The ranks' pipes, and the output read from them.
pub(super) struct Output {
    /// Two sources per rank, by rank; then one per host.
    sources: Vec<Source>,
    ranks: usize,
    /// Most bytes of an incomplete line that a source may keep.
    share: usize,
    sink: Sink,
    buffer: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stream {
    Stdout,
    Stderr,
}

struct Source {
    /// `None` for the `ssh` of a host.
    rank: Option<Rank>,
    stream: Stream,
    /// Prefix of each line,
    prefix: String,
    /// behind the time at which it was received.
    timestamps: bool,
    /// The pipe, if the launcher reads this source itself.
    pipe: Option<OwnedFd>,
    /// Bytes received of an incomplete line.
    line: Vec<u8>,
    /// An earlier part of the current line has been forwarded.
    begun: bool,
    /// File that gets the lines too, until a write to it fails.
    file: Option<(PathBuf, File)>,
    /// Error of that write, until it is reported.
    file_error: Option<io::Error>,
}

enum Sink {
    /// Captured output, by rank.
    Kept(Vec<Vec<u8>>),
    Forwarded(Queue),
}

/// Lines of both streams in one queue, so that a terminal receives them whole and in order of arrival.
struct Queue {
    /// This process's stdout and stderr, each until a write to it fails.
    outlets: [Option<OwnedFd>; 2],
    lines: VecDeque<(Stream, Vec<u8>)>,
    bytes: usize,
    /// Bytes of the first entry that are written.
    written: usize,
    repeats: Repeats,
}

impl Output {
    /// The output of ranks on this machine, read from `pipes`.
    pub fn here(pipes: Vec<Pipes>, format: Format, keep: bool) -> io::Result<Self> {
        let ranks = pipes.len();
        let pipes: Vec<OwnedFd> = pipes.into_iter().flatten().collect();
        pipes.iter().try_for_each(|pipe| rustix::io::ioctl_fionbio(pipe, true))?;
        Self::new(ranks, pipes.into_iter().map(Some), &[], format, keep)
    }

    /// The output of ranks on hosts, which [`take`](Output::take) passes in.
    pub fn on_hosts(ranks: usize, hosts: &[&str], format: Format, keep: bool) -> io::Result<Self> {
        Self::new(ranks, (0..2 * ranks).map(|_| None), hosts, format, keep)
    }

    fn new(
        ranks: usize,
        pipes: impl Iterator<Item = Option<OwnedFd>>,
        hosts: &[&str],
        Format { prefix, timestamps }: Format,
        keep: bool,
    ) -> io::Result<Self> {
        let tagged = |stream, name: String| {
            let tagged = prefix == OutputPrefix::All || (prefix, stream) == (OutputPrefix::Stderr, Stream::Stderr);
            if tagged { format!("[{name}] ") } else { String::new() }
        };
        let source = |rank, stream, prefix, pipe| Source {
            rank,
            stream,
            prefix,
            timestamps,
            pipe,
            line: Vec::new(),
            begun: false,
            file: None,
            file_error: None,
        };
        let of_rank = |(number, pipe)| {
            let (rank, stream) = (number / 2, [Stream::Stdout, Stream::Stderr][number % 2]);
            source(Some(rank), stream, tagged(stream, rank.to_string()), pipe)
        };
        let mut sources: Vec<Source> = pipes.enumerate().map(of_rank).collect();
        let of_host = |host: &&str| source(None, Stream::Stderr, tagged(Stream::Stderr, (*host).to_owned()), None);
        sources.extend(hosts.iter().map(of_host));
        let share = (UNENDED / sources.len().max(1)).max(LEAST_SHARE);
        let sink = if keep { Sink::Kept(vec![Vec::new(); ranks]) } else { Sink::Forwarded(Queue::new()?) };
        Ok(Output { sources, ranks, share, sink, buffer: vec![0; READ] })
    }

    /// Writes the stdout and stderr of each rank to these files, too.
    pub fn write_to(&mut self, files: Vec<[(PathBuf, File); 2]>) {
        for (source, file) in self.sources.iter_mut().zip(files.into_iter().flatten()) {
            source.file = Some(file);
        }
    }

    /// Returns whether the launcher should read more output now.
    pub fn has_room(&self) -> bool {
        match &self.sink {
            Sink::Kept(_) => true,
            Sink::Forwarded(queue) => queue.bytes < ENOUGH,
        }
    }

    /// Takes bytes that a rank wrote to stdout (0) or stderr (1).
    pub fn take(&mut self, rank: Rank, stream: usize, bytes: &[u8]) {
        self.sources[2 * rank + stream].take(bytes, self.share, &mut self.sink);
    }

    /// Takes bytes that the `ssh` of a host wrote to stderr.
    pub fn take_of_host(&mut self, host: usize, bytes: &[u8]) {
        self.sources[2 * self.ranks + host].take(bytes, self.share, &mut self.sink);
    }

    /// The pipes to read now, by index.
    pub fn pipes(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        let room = self.has_room();
        let open = self.sources.iter().enumerate().filter(move |_| room);
        open.filter_map(|(number, source)| Some((number, source.pipe.as_ref()?.as_fd())))
    }

    /// Reads once from a pipe, without blocking; returns the number of bytes read.
    pub fn read(&mut self, number: usize) -> usize {
        let source = &mut self.sources[number];
        let Some(pipe) = &source.pipe else { return 0 };
        match rustix::io::read(pipe, &mut self.buffer[..]) {
            Ok(0) => {
                source.pipe = None;
                source.complete(&mut self.sink);
                0
            }
            Ok(read) => {
                source.take(&self.buffer[..read], self.share, &mut self.sink);
                read
            }
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(error) => {
                tracing::warn!(rank = ?source.rank, %error, "a rank's output cannot be read any more");
                source.pipe = None;
                source.complete(&mut self.sink);
                0
            }
        }
    }

    /// Reads the rest of the output of a rank that ended, and completes its last line. Processes that the rank left
    /// behind may still write to its pipes; the launcher forwards that output but does not wait for it.
    pub fn finish(&mut self, rank: Rank) {
        for number in [2 * rank, 2 * rank + 1] {
            let there = self.sources[number].pipe.as_ref().map(rustix::io::ioctl_fionread);
            let mut left = there.and_then(Result::ok).unwrap_or(0) as usize;
            while left > 0 {
                match self.read(number) {
                    0 => break,
                    read => left = left.saturating_sub(read),
                }
            }
            self.sources[number].complete(&mut self.sink);
        }
    }

    /// Time at which [`keep_time`](Self::keep_time) has to be called.
    pub fn next_time(&self) -> Option<Instant> {
        match &self.sink {
            Sink::Kept(_) => None,
            Sink::Forwarded(queue) => queue.repeats.next_time(),
        }
    }

    /// Queues repeated lines whose time is over.
    pub fn keep_time(&mut self, now: Instant) {
        if let Sink::Forwarded(queue) = &mut self.sink {
            let lines = queue.repeats.over(now);
            queue.push_joined(lines);
        }
    }

    /// Stops reading; to be called when no rank is left. Processes that ranks left behind may keep the pipes open.
    pub fn close(&mut self) {
        for rank in 0..self.ranks {
            self.finish(rank);
        }
        for source in &mut self.sources {
            source.pipe = None;
            source.complete(&mut self.sink);
            source.close_file();
        }
        if let Sink::Forwarded(queue) = &mut self.sink {
            let lines = queue.repeats.all();
            queue.push_joined(lines);
        }
    }

    /// The error of a file that could not be written, once.
    pub fn file_error(&mut self) -> Option<io::Error> {
        self.sources.iter_mut().find_map(|source| source.file_error.take())
    }

    /// Queues a line of the launcher's own for stderr, behind the lines of ranks that are held back.
    pub fn say(&mut self, line: &str) {
        if let Sink::Forwarded(queue) = &mut self.sink {
            let lines = queue.repeats.all();
            queue.push_joined(lines);
            queue.push(Stream::Stderr, &[format!("transom: {line}\n").as_bytes()]);
        }
    }

    /// The descriptor that must become writable before more can be written; `None` if the queue is empty.
    pub fn awaited(&self) -> Option<BorrowedFd<'_>> {
        match &self.sink {
            Sink::Kept(_) => None,
            Sink::Forwarded(queue) => queue.lines.front().and_then(|(stream, _)| queue.outlet(*stream)),
        }
    }

    /// Writes as much as possible without blocking. An error is always one of stdout, which is then closed.
    pub fn write(&mut self) -> io::Result<()> {
        match &mut self.sink {
            Sink::Kept(_) => Ok(()),
            Sink::Forwarded(queue) => queue.write(),
        }
    }

    /// The captured output of each rank.
    pub fn kept(self) -> Vec<Vec<u8>> {
        match self.sink {
            Sink::Kept(kept) => kept,
            Sink::Forwarded(_) => Vec::new(),
        }
    }
}

impl Source {
    fn take(&mut self, bytes: &[u8], share: usize, sink: &mut Sink) {
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let (ended, rest) = bytes.split_at(whole);
        if !ended.is_empty() {
            self.line.extend_from_slice(ended);
            self.pass_on(sink);
        }
        self.line.extend_from_slice(rest);
        if self.line.len() > share {
            self.pass_on(sink);
        }
    }

    fn complete(&mut self, sink: &mut Sink) {
        if self.begun || !self.line.is_empty() {
            self.line.push(b'\n');
            self.pass_on(sink);
        }
    }

    /// Returns whether the same line of several ranks is written once, with the numbers of the ranks.
    fn joins(&self) -> bool {
        self.stream == Stream::Stderr && !self.prefix.is_empty() && !self.timestamps
    }

    /// Closes the file. A file system on the network may report only then that it has no room.
    fn close_file(&mut self) {
        if let Some((path, file)) = self.file.take()
            && let Err(error) = nix::unistd::close(file)
        {
            self.file_error = Some(of_file(&path, &error.into()));
        }
    }

    fn pass_on(&mut self, sink: &mut Sink) {
        let stamp = if self.timestamps { stamp::now() } else { String::new() };
        if let Some((path, file)) = &mut self.file
            && let Err(error) = file.write_all(&marked(&self.line, stamp.as_bytes(), self.begun).concat())
        {
            self.file_error = Some(of_file(path, &error));
            self.file = None;
        }
        let lead = stamp + &self.prefix;
        let lines = marked(&self.line, lead.as_bytes(), self.begun);
        match sink {
            Sink::Forwarded(queue) if self.joins() => queue.push_tagged(self.rank, &lead, &self.line, self.begun),
            Sink::Kept(kept) => {
                let kept = self.rank.and_then(|rank| kept.get_mut(rank));
                kept.into_iter().for_each(|kept| lines.iter().for_each(|line| kept.extend_from_slice(line)));
            }
            Sink::Forwarded(queue) => queue.push(self.stream, &lines),
        }
        self.begun = self.line.last() != Some(&b'\n');
        self.line.clear();
        self.line.shrink_to(READ);
    }
}

/// The error of a file, with its path.
fn of_file(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The parts of these lines, with `lead` before each line, except the first if it has `begun` before.
fn marked<'a>(lines: &'a [u8], lead: &'a [u8], begun: bool) -> Vec<&'a [u8]> {
    match lead {
        [] => vec![lines],
        lead => {
            let lines = lines.split_inclusive(|byte| *byte == b'\n');
            lines.flat_map(|line| [lead, line]).skip(begun.into()).collect()
        }
    }
}

impl Queue {
    fn new() -> io::Result<Self> {
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

    fn outlet(&self, stream: Stream) -> Option<BorrowedFd<'_>> {
        self.outlets[stream as usize].as_ref().map(OwnedFd::as_fd)
    }

    fn push(&mut self, stream: Stream, parts: &[&[u8]]) {
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
    fn push_tagged(&mut self, rank: Option<Rank>, lead: &str, lines: &[u8], begun: bool) {
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

    fn push_joined(&mut self, lines: Vec<Vec<u8>>) {
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

    fn write(&mut self) -> io::Result<()> {
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
