//! Carries frames to and from one peer, without blocking.

use crate::frame;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A carrier of frames between this rank and one peer, in order and without loss. A socket is the first one. No call
/// blocks.
pub trait Carrier: Send + 'static {
    /// The frames that wait to be sent.
    fn outgoing(&mut self) -> &mut Outgoing;

    /// Sends a frame, given in parts, behind all queued ones, and queues the rest of it.
    ///
    /// # Errors
    /// The connection is broken; the same holds for the other calls.
    fn send(&mut self, parts: &[&[u8]]) -> io::Result<()>;

    /// Sends as much of the queue as the network accepts now.
    fn push(&mut self) -> io::Result<()>;

    /// Receives bytes that have arrived.
    fn receive(&mut self) -> io::Result<Received>;

    /// Passes the next whole frame, without its length, to `handle`. Returns false if there is none.
    fn take(&mut self, handle: &mut dyn FnMut(&[u8], &mut Outgoing) -> io::Result<()>) -> io::Result<bool>;

    /// Begins the next frame if it is the data of a get: returns their number. [`rest`](Self::rest) must take them before
    /// any other frame is taken.
    fn data(&mut self) -> io::Result<Option<usize>>;

    /// Takes bytes of the frame that has begun, straight from the network unless they were received already. Returns their
    /// number; 0 if none have arrived.
    fn rest(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// The descriptor that is readable when bytes have arrived, and writable when [`push`](Self::push) can go on.
    fn descriptor(&self) -> &Arc<OwnedFd>;
}

/// Result of a receive. An immediate second receive after [`Received::All`] finds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    Nothing,
    /// All bytes that had arrived.
    All,
    /// The buffer is full; more bytes may have arrived.
    Part,
}

/// Frames that wait to be sent: `sent..end` of `bytes`. The bytes behind are space for more.
#[derive(Default)]
pub struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    end: usize,
}

impl Outgoing {
    pub fn queue(&mut self, head: &[u8], data: &[u8]) {
        let (to_head, to_data) = self.space(head.len() + data.len()).split_at_mut(head.len());
        to_head.copy_from_slice(head);
        to_data.copy_from_slice(data);
        self.end += head.len() + data.len();
    }

    /// Queues a frame of `len` bytes behind its head, which `fill` writes. Queues nothing if that fails.
    pub fn queue_filled<E>(
        &mut self,
        head: &[u8],
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (to_head, to_data) = self.space(head.len() + len).split_at_mut(head.len());
        fill(to_data)?;
        to_head.copy_from_slice(head);
        self.end += head.len() + len;
        Ok(())
    }

    /// The next `len` bytes of space.
    fn space(&mut self, len: usize) -> &mut [u8] {
        if self.bytes.len() < self.end + len {
            self.bytes.resize(self.end + len, 0);
        }
        &mut self.bytes[self.end..][..len]
    }

    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.end - self.sent
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn advance(&mut self, by: usize) {
        self.sent += by;
        if self.is_empty() {
            (self.sent, self.end) = (0, 0);
            self.bytes.truncate(KEPT);
            self.bytes.shrink_to(KEPT);
        } else if self.sent > self.end / 2 {
            self.bytes.copy_within(self.sent..self.end, 0);
            (self.sent, self.end) = (0, self.len());
        }
    }
}

/// Most bytes of an empty queue's allocation that are kept.
const KEPT: usize = 128 << 10;
/// Bytes of a receive buffer at first, and once a long frame has arrived.
const SHORT: usize = 8 << 10;
const LONG: usize = 2 * (frame::PREFIX + frame::MOST);

/// A stream socket as a carrier.
pub struct Socket {
    descriptor: Arc<OwnedFd>,
    out: Outgoing,
    /// Received bytes: `start..end` of `buffer`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Socket {
    pub fn new(descriptor: OwnedFd) -> Socket {
        let descriptor = Arc::new(descriptor);
        Socket { descriptor, out: Outgoing::default(), buffer: Vec::new(), start: 0, end: 0 }
    }

    /// The length of the frame that begins at `start`, if its prefix has arrived.
    fn next_length(&self) -> io::Result<Option<usize>> {
        let Some(prefix) = self.buffer[self.start..self.end].first_chunk() else { return Ok(None) };
        frame::length(*prefix).map(Some).map_err(malformed)
    }

    /// Makes room behind the received bytes, for the whole next frame at least.
    fn make_room(&mut self) -> io::Result<()> {
        let waiting = self.end - self.start;
        // The data of a reply need no room here: they are taken as soon as their head is there.
        let head = frame::PREFIX + frame::REPLY;
        let needed = self.next_length()?.filter(|_| waiting >= head).map_or(head, |length| frame::PREFIX + length);
        let size = if needed > SHORT { LONG } else { SHORT };
        if waiting == 0 {
            (self.start, self.end) = (0, 0);
        }
        if self.buffer.len() < size {
            self.buffer.resize(size, 0);
        }
        if self.start + needed > self.buffer.len() || self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, waiting);
        }
        Ok(())
    }
}

/// The error of a connection whose peer sent a frame that no rank sends.
pub fn malformed(_: frame::Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the peer sent a malformed frame; do all ranks run the same version?")
}

#[cfg(test)]
thread_local!(static CALLS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });

/// Number of system calls of this thread.
#[cfg(test)]
pub fn calls() -> u64 {
    CALLS.get()
}

/// Returns `None` where the call would block.
fn unless_busy(result: Result<usize, Errno>) -> io::Result<Option<usize>> {
    #[cfg(test)]
    CALLS.set(calls() + 1);
    match result {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Most parts of a frame.
const PARTS: usize = 4;

fn send(to: &OwnedFd, parts: &[&[u8]]) -> io::Result<Option<usize>> {
    let mut slices = [IoSlice::new(&[]); PARTS];
    parts.iter().zip(&mut slices).for_each(|(part, slice)| *slice = IoSlice::new(part));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    unless_busy(rustix::net::sendmsg(to, &slices[..parts.len()], &mut SendAncillaryBuffer::default(), flags))
}

fn receive(from: &OwnedFd, into: &mut [u8]) -> io::Result<Option<usize>> {
    match unless_busy(rustix::net::recv(from, into, RecvFlags::DONTWAIT).map(|(_, bytes)| bytes))? {
        Some(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer closed the connection")),
        received => Ok(received),
    }
}

impl Socket {
    /// Sends the head of a write behind all frames, and as many of its bytes as the network accepts now. Returns their
    /// number. The rest of the head is queued.
    pub fn offer(&mut self, head: &[u8], bytes: &[u8]) -> io::Result<usize> {
        self.push()?;
        let sent = if self.out.is_empty() { send(&self.descriptor, &[head, bytes])?.unwrap_or(0) } else { 0 };
        self.out.queue(&head[sent.min(head.len())..], &[]);
        Ok(sent.saturating_sub(head.len()))
    }

    /// Takes bytes of a frame that has begun, of those that were received. Returns their number.
    pub fn take_bytes(&mut self, into: &mut [u8]) -> usize {
        let taken = into.len().min(self.end - self.start);
        into[..taken].copy_from_slice(&self.buffer[self.start..][..taken]);
        self.start += taken;
        taken
    }

    /// Receives bytes of such a frame into their place, once [`take_bytes`](Self::take_bytes) has taken all. Returns their
    /// number; 0 if none have arrived.
    pub fn receive_into(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(receive(&self.descriptor, into)?.unwrap_or(0))
    }
}

impl Carrier for Socket {
    fn outgoing(&mut self) -> &mut Outgoing {
        &mut self.out
    }

    fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        self.push()?;
        let mut sent = if self.out.is_empty() { send(&self.descriptor, parts)?.unwrap_or(0) } else { 0 };
        for part in parts {
            let skipped = sent.min(part.len());
            sent -= skipped;
            self.out.queue(&part[skipped..], &[]);
        }
        Ok(())
    }

    fn push(&mut self) -> io::Result<()> {
        while !self.out.is_empty() {
            match send(&self.descriptor, &[&self.out.bytes[self.out.sent..self.out.end]])? {
                Some(sent) => self.out.advance(sent),
                None => break,
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<Received> {
        self.make_room()?;
        let Some(bytes) = receive(&self.descriptor, &mut self.buffer[self.end..])? else {
            return Ok(Received::Nothing);
        };
        self.end += bytes;
        Ok(if self.end < self.buffer.len() { Received::All } else { Received::Part })
    }

    fn take(&mut self, handle: &mut dyn FnMut(&[u8], &mut Outgoing) -> io::Result<()>) -> io::Result<bool> {
        let Some(length) = self.next_length()? else { return Ok(false) };
        let (from, to) = (self.start + frame::PREFIX, self.start + frame::PREFIX + length);
        if to > self.end {
            return Ok(false);
        }
        self.start = to;
        handle(&self.buffer[from..to], &mut self.out)?;
        Ok(true)
    }

    fn data(&mut self) -> io::Result<Option<usize>> {
        let length = frame::data_length(&self.buffer[self.start..self.end]).map_err(malformed)?;
        if length.is_some() {
            self.start += frame::PREFIX + frame::REPLY;
        }
        Ok(length)
    }

    fn rest(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.take_bytes(into) {
            0 => self.receive_into(into),
            taken => Ok(taken),
        }
    }

    fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.descriptor
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{At, Request};
    use std::os::unix::net::UnixStream;

    fn pair() -> (Socket, UnixStream) {
        let (mine, theirs) = UnixStream::pair().unwrap();
        (Socket::new(mine.into()), theirs)
    }

    fn taken(socket: &mut Socket) -> io::Result<Option<Vec<u8>>> {
        let mut found = None;
        socket.take(&mut |frame, _| {
            found = Some(frame.to_vec());
            Ok(())
        })?;
        Ok(found)
    }

    fn put(data: &[u8]) -> Vec<u8> {
        let (head, data) = Request::Put { at: At { region: 1, offset: 2 }, data }.encode();
        [head.bytes(), data].concat()
    }

    #[test]
    fn frames_in_fragments_of_a_byte_arrive_whole() {
        use std::io::Write;
        let (mut socket, mut peer) = pair();
        let frames = [put(b"abc"), put(&[]), put(&[7; 20_000])];
        for (number, frame) in frames.iter().enumerate() {
            for (at, byte) in frame.iter().enumerate() {
                peer.write_all(&[*byte]).unwrap();
                assert_eq!(socket.receive().unwrap(), Received::All);
                let found = taken(&mut socket).unwrap();
                assert_eq!(found.is_some(), at + 1 == frame.len(), "byte {at} of frame {number}");
                assert!(found.is_none_or(|found| found == frame[frame::PREFIX..]));
            }
        }
        assert_eq!(socket.receive().unwrap(), Received::Nothing);
    }

    #[test]
    fn full_socket_queues_and_pushes_in_order() {
        let (mine, theirs) = UnixStream::pair().unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&mine, 1).unwrap();
        let (mut sender, mut receiver) = (Socket::new(mine.into()), Socket::new(theirs.into()));
        let frames: Vec<Vec<u8>> = (0..40).map(|number| put(&vec![number; 1000 * number as usize])).collect();
        for frame in &frames {
            sender.send(&[&frame[..9], &[], &frame[9..20], &frame[20..]]).unwrap();
        }
        assert!(sender.outgoing().len() > 100_000, "the test's buffer is too large");
        for frame in &frames {
            let found = loop {
                if let Some(found) = taken(&mut receiver).unwrap() {
                    break found;
                }
                sender.push().unwrap();
                receiver.receive().unwrap();
            };
            assert!(found == frame[frame::PREFIX..]);
        }
        assert!(sender.outgoing().is_empty());
    }

    #[test]
    fn split_head_of_data_keeps_the_buffer_short() {
        use std::io::Write;
        let (mut socket, mut peer) = pair();
        let head = frame::Reply::data_head(frame::LONGEST);
        for byte in head.bytes() {
            assert_eq!(socket.data().unwrap(), None);
            peer.write_all(&[*byte]).unwrap();
            socket.receive().unwrap();
        }
        assert_eq!((socket.data().unwrap(), socket.buffer.len()), (Some(frame::LONGEST), SHORT));
    }

    #[test]
    fn oversized_length_ends_the_connection() {
        use std::io::Write;
        let (mut socket, mut peer) = pair();
        peer.write_all(&(frame::MOST as u32 + 1).to_le_bytes()).unwrap();
        assert_eq!(socket.receive().unwrap(), Received::All);
        assert_eq!(taken(&mut socket).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(socket.receive().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn end_of_stream_is_an_error() {
        let (mut socket, peer) = pair();
        drop(peer);
        assert_eq!(socket.receive().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
