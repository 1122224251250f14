//! The ranks' output: read from their pipes, split into lines, and written without blocking the launcher.

use super::child::Pipes;
use super::prefix::OutputPrefix;
use super::queue::{Queue, READ, Stream};
use super::stamp;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
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
            Sink::Forwarded(queue) => queue.has_room(),
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
            Sink::Forwarded(queue) => queue.awaited(),
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
