//! Channels: the one connection of a host's agent to the hub carries the connections of the host's ranks. It is a
//! sequence of frames, after the agent's [handshake](super::wire). Numbers are lengths in bytes:
//!
//! ```text
//!     each frame     kind 1, channel 4, number 4
//!     agent -> hub   OPEN     a rank has connected. Its channel has the next number, from 0
//!     both           DATA     `number` bytes of the rank's connection follow
//!     agent -> hub   CREDIT   the rank has taken `number` bytes more
//!     both           END      the rank's connection has ended
//! ```
//!
//! The data are those of a connection of its own: rank and hub authenticate each other, and encrypt them. The agent
//! forwards them unread. It has the job's secret, so it is trusted as the launcher is. Frames of this protocol are not authenticated: a third party that changes them can end connections,
//! as it can without them.
//!
//! The hub sends a rank at most [`CREDIT`] bytes that the rank has not taken. The agent therefore always reads from the hub,
//! whichever ranks read nothing, and its memory is bounded. The hub always reads from the agent.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};

/// Most bytes on the way from the hub to a rank that the rank has not taken.
pub(super) const CREDIT: usize = 256 << 10;
/// Most bytes in a frame.
pub(super) const LONGEST_DATA: usize = 64 << 10;
const HEAD: usize = 9;

/// Kinds of frames.
const OPEN: u8 = 1;
const DATA: u8 = 2;
const GRANT: u8 = 3;
const END: u8 = 4;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ChannelFrame {
    Open,
    Data(Vec<u8>),
    Credit(usize),
    End,
}

/// Frames to be sent.
#[derive(Debug, Default)]
pub(super) struct Outgoing(VecDeque<u8>);

impl Outgoing {
    fn head(&mut self, kind: u8, channel: u32, number: usize) {
        self.0.push_back(kind);
        self.0.extend(channel.to_le_bytes());
        self.0.extend((number as u32).to_le_bytes());
    }

    pub fn open(&mut self, channel: u32) {
        self.head(OPEN, channel, 0);
    }

    pub fn credit(&mut self, channel: u32, bytes: usize) {
        self.head(GRANT, channel, bytes);
    }

    pub fn end(&mut self, channel: u32) {
        self.head(END, channel, 0);
    }

    /// Adds a frame with up to `most` bytes of the slices. Returns their number.
    pub fn data(&mut self, channel: u32, slices: &[IoSlice<'_>], most: usize) -> usize {
        let len = slices.iter().map(|slice| slice.len()).sum::<usize>().min(most).min(LONGEST_DATA);
        self.head(DATA, channel, len);
        let mut left = len;
        for slice in slices {
            let part = &slice[..slice.len().min(left)];
            self.0.extend(part);
            left -= part.len();
        }
        len
    }

    /// Adds bytes that belong to no channel.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    pub fn append(&mut self, mut other: Outgoing) {
        self.0.append(&mut other.0);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes as much as possible without blocking. Returns the number of bytes written.
    pub fn write_to(&mut self, stream: &mut impl Write) -> io::Result<usize> {
        write_queue(&mut self.0, stream)
    }
}

/// Writes as much of a queue as possible without blocking. Returns the number of bytes written.
pub(super) fn write_queue(queue: &mut VecDeque<u8>, stream: &mut impl Write) -> io::Result<usize> {
    let mut written = 0;
    while !queue.is_empty() {
        let (first, second) = queue.as_slices();
        match stream.write_vectored(&[IoSlice::new(first), IoSlice::new(second)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(more) => {
                queue.drain(..more);
                written += more;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}

/// Received frames.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    received: Vec<u8>,
    /// Number of bytes at the start of `received` that are already taken.
    taken: usize,
}

impl Incoming {
    pub fn take_in(&mut self, bytes: &[u8]) {
        self.received.drain(..std::mem::take(&mut self.taken));
        self.received.extend_from_slice(bytes);
    }

    /// The next complete frame, and its channel. After an error the connection is unusable.
    pub fn next(&mut self) -> Result<Option<(u32, ChannelFrame)>, &'static str> {
        let Some((head, rest)) = self.received[self.taken..].split_first_chunk::<HEAD>() else { return Ok(None) };
        let [kind, a, b, c, d, number @ ..] = *head;
        let (channel, number) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes(number) as usize);
        let (frame, len) = match (kind, number) {
            (OPEN, 0) => (ChannelFrame::Open, 0),
            (END, 0) => (ChannelFrame::End, 0),
            (GRANT, 1..=CREDIT) => (ChannelFrame::Credit(number), 0),
            (DATA, 1..=LONGEST_DATA) => match rest.get(..number) {
                Some(bytes) => (ChannelFrame::Data(bytes.to_vec()), number),
                None => return Ok(None),
            },
            _ => return Err("it sent a malformed frame of a channel"),
        };
        self.taken += HEAD + len;
        Ok(Some((channel, frame)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(mut outgoing: Outgoing) -> Vec<u8> {
        let mut bytes = Vec::new();
        outgoing.write_to(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn frames_arrive_in_order_however_cut() {
        let mut outgoing = Outgoing::default();
        outgoing.open(7);
        let slices = [IoSlice::new(b"abc"), IoSlice::new(b""), IoSlice::new(b"de")];
        assert_eq!(outgoing.data(7, &slices, 4), 4);
        outgoing.credit(1 << 31, CREDIT);
        outgoing.end(0);
        let long = vec![3; LONGEST_DATA + 1];
        assert_eq!(outgoing.data(9, &[IoSlice::new(&long)], usize::MAX), LONGEST_DATA);
        let bytes = bytes(outgoing);
        assert_eq!(&bytes[..31], b"\x01\x07\0\0\0\0\0\0\0\x02\x07\0\0\0\x04\0\0\0abcd\x03\0\0\0\x80\0\0\x04\0");
        let expected = [
            (7, ChannelFrame::Open),
            (7, ChannelFrame::Data(b"abcd".into())),
            (1 << 31, ChannelFrame::Credit(CREDIT)),
            (0, ChannelFrame::End),
            (9, ChannelFrame::Data(vec![3; LONGEST_DATA])),
        ];
        for part in [1, 8, 10, bytes.len()] {
            let (mut incoming, mut frames) = (Incoming::default(), Vec::new());
            for part in bytes.chunks(part) {
                incoming.take_in(part);
                frames.extend(std::iter::from_fn(|| incoming.next().unwrap()));
            }
            assert!(frames == expected, "in parts of {part} bytes");
        }
    }

    #[test]
    fn malformed_frames_are_refused() {
        let head = |kind: u8, number: u32| [&[kind, 1, 0, 0, 0][..], &number.to_le_bytes()].concat();
        let (credit, data) = (CREDIT as u32, LONGEST_DATA as u32);
        for (kind, number) in
            [(0, 0), (5, 0), (OPEN, 1), (END, 1), (GRANT, 0), (GRANT, credit + 1), (DATA, 0), (DATA, data + 1)]
        {
            let mut incoming = Incoming::default();
            incoming.take_in(&head(kind, number));
            assert!(incoming.next().is_err(), "{kind} {number}");
        }
    }
}
