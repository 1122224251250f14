//! A connection for messages: packets, and between them the bytes of writes, which go from a buffer of the sender to one
//! of the receiver without a copy.

use super::packet::{Packet, write};
use super::registered::{Registered, Source};
use crate::carrier::{Carrier, Received, Socket, malformed};
use crate::frame::Malformed;
use rustix::event::epoll;
use std::io;
use std::os::fd::OwnedFd;
use transom_channel::wire::{Key, Rank};

/// Length of a queue, in bytes, from which a connection accepts no more packets.
const FULL: usize = 256 << 10;
/// Most packets, or calls that receive bytes of a write, per poll.
pub const AT_ONCE: usize = 64;

/// A connection.
pub struct Link {
    pub peer: Rank,
    socket: Socket,
    /// The write that is being sent. No packet is sent meanwhile.
    writing: Option<Writing>,
    /// The peer's write whose bytes are arriving.
    arriving: Option<Arriving>,
    /// The set of descriptors reports when the network accepts bytes again.
    is_watched: bool,
}

/// A write whose bytes the kernel has not taken completely.
struct Writing {
    from: Source,
    sent: usize,
    token: u64,
}

/// A write whose bytes have not arrived completely.
struct Arriving {
    to: Key,
    at: u64,
    left: u64,
}

impl Link {
    pub fn new(peer: Rank, socket: Socket) -> Link {
        Link { peer, socket, writing: None, arriving: None, is_watched: false }
    }

    pub fn descriptor(&self) -> &std::sync::Arc<OwnedFd> {
        self.socket.descriptor()
    }

    /// Returns whether bytes wait to be sent.
    pub fn is_sending(&mut self) -> bool {
        self.writing.is_some() || !self.socket.outgoing().is_empty()
    }

    /// Sends a packet, in parts, or queues it. Returns false if the connection accepts none now.
    pub fn send(&mut self, parts: &[&[u8]]) -> io::Result<bool> {
        let accepts = self.writing.is_none() && self.socket.outgoing().len() < FULL;
        if accepts {
            self.socket.send(parts)?;
        }
        Ok(accepts)
    }

    /// Starts a write. Returns false if the connection accepts none now. [`push`](Self::push) goes on with it.
    ///
    /// # Safety
    /// The buffer exists until the write is complete or the link is dropped.
    pub unsafe fn write(&mut self, from: Source, to: Key, at: u64, token: u64) -> io::Result<bool> {
        let accepts = !self.is_sending();
        if accepts {
            // SAFETY: the caller's contract.
            let bytes = unsafe { from.bytes() };
            let sent = self.socket.offer(&write(to, at, bytes.len() as u64), bytes)?;
            self.writing = Some(Writing { from, sent, token });
        }
        Ok(accepts)
    }

    /// Sends what waits. Returns the token of a write that is complete.
    pub fn push(&mut self) -> io::Result<Option<u64>> {
        self.socket.push()?;
        let Some(Writing { from, sent, token }) = &mut self.writing else { return Ok(None) };
        // SAFETY: the contract of `write`.
        let bytes = unsafe { from.bytes() };
        while *sent < bytes.len() {
            match self.socket.offer(&[], &bytes[*sent..])? {
                0 => return Ok(None),
                more => *sent += more,
            }
        }
        let token = (self.socket.outgoing().is_empty()).then_some(*token);
        self.writing.take_if(|_| token.is_some());
        Ok(token)
    }

    /// Makes the set of descriptors report when the network accepts bytes, as long as any wait.
    pub fn watch(&mut self, number: u64, epoll: &OwnedFd) {
        let is_sending = self.is_sending();
        if is_sending != self.is_watched {
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, is_sending);
            // If it fails, the wire finds out by itself when it polls.
            let _ = epoll::modify(epoll, self.descriptor(), epoll::EventData::new_u64(number), flags);
            self.is_watched = is_sending;
        }
    }

    /// Receives what has arrived, a bounded amount. Calls `handle` for each packet that is no write. Returns whether
    /// bytes have arrived, and whether more may have.
    pub fn receive(
        &mut self,
        registered: &mut Registered,
        handle: &mut dyn FnMut(Packet<'_>) -> io::Result<()>,
    ) -> (bool, io::Result<bool>) {
        let (mut some, mut has_all) = (false, false);
        for _ in 0..AT_ONCE {
            let received = match &mut self.arriving {
                Some(arriving) => arriving.step(&mut self.socket, registered, has_all),
                None => match self.take(registered, handle) {
                    Ok(true) => Ok(Received::Part),
                    Ok(false) if has_all => Ok(Received::Nothing),
                    Ok(false) => self.socket.receive(),
                    Err(error) => Err(error),
                },
            };
            self.arriving.take_if(|arriving| arriving.left == 0);
            match received {
                Ok(Received::Nothing) => return (some, Ok(false)),
                Ok(received) => has_all |= received == Received::All,
                Err(error) => return (some, Err(error)),
            }
            some = true;
        }
        (some, Ok(true))
    }

    /// Handles the next whole packet. Returns false if there is none.
    fn take(
        &mut self,
        registered: &Registered,
        handle: &mut dyn FnMut(Packet<'_>) -> io::Result<()>,
    ) -> io::Result<bool> {
        let Link { peer, socket, arriving, .. } = self;
        socket.take(&mut |frame, _| match Packet::parse(frame).map_err(malformed)? {
            Packet::Write { to, at, length } if registered.admits(*peer, to, at, length) => {
                *arriving = Some(Arriving { to, at, left: length });
                Ok(())
            }
            Packet::Write { .. } => Err(malformed(Malformed)),
            packet => handle(packet),
        })
    }
}

impl Arriving {
    /// Takes bytes that were received, or else receives some, unless all that had arrived were.
    fn step(&mut self, socket: &mut Socket, registered: &mut Registered, has_all: bool) -> io::Result<Received> {
        let mut receive = |into: &mut [u8]| -> io::Result<_> {
            Ok(match socket.take_bytes(into) {
                0 if has_all => (0, Received::Nothing),
                0 => match socket.receive_into(into)? {
                    0 => (0, Received::Nothing),
                    bytes => (bytes, if bytes < into.len() { Received::All } else { Received::Part }),
                },
                bytes => (bytes, Received::Part),
            })
        };
        let received = match registered.with(self.to, self.at, self.left, &mut receive) {
            Some(received) => received,
            // The receive has ended meanwhile.
            None => {
                let mut ignored = [0; 4096];
                let most = ignored.len().min(self.left as usize);
                receive(&mut ignored[..most])
            }
        };
        let (bytes, received) = received?;
        (self.at, self.left) = (self.at + bytes as u64, self.left - bytes as u64);
        Ok(received)
    }
}

#[cfg(test)]
mod tests {
    use super::super::packet::head;
    use super::*;
    use crate::carrier::calls;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;
    use transom_channel::wire::Part;
    use transom_shm_loopback::messages::Bytes;

    fn pair() -> [Link; 2] {
        let (one, other) = UnixStream::pair().unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&one, 1).unwrap();
        [(1, one), (0, other)].map(|(peer, stream)| Link::new(peer, Socket::new(stream.into())))
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
    }

    fn buffer(bytes: Vec<u8>) -> Bytes {
        Bytes::owned(bytes.into_boxed_slice())
    }

    fn content(buffer: Bytes) -> Vec<u8> {
        buffer.into_owner::<Box<[u8]>>().unwrap().into()
    }

    /// The packets that arrive; whether bytes arrived.
    fn receive(link: &mut Link, registered: &mut Registered, sent: &mut Vec<Vec<u8>>) -> io::Result<bool> {
        let (some, more) = link.receive(registered, &mut |packet| {
            match packet {
                Packet::Send(packet) => sent.push(packet.to_vec()),
                other => panic!("{other:?}"),
            }
            Ok(())
        });
        more.map(|_| some)
    }

    fn send(link: &mut Link, packet: &[u8]) -> bool {
        let (head, used) = head(None, packet.len());
        link.send(&[&head[..used], packet]).unwrap()
    }

    /// Each write goes behind earlier packets and before later ones, through buffers that hold a part of it.
    #[test]
    fn writes_and_packets_keep_their_order() {
        let [mut sender, mut receiver] = pair();
        let mut registered = Registered::default();
        let mut packets = Vec::new();
        for len in [0, 1, 5000, 300_000, 2_000_000] {
            let (from, into) = (buffer(bytes(len)), buffer(vec![0; len + 3]));
            let to = registered.add(&into, receiver.peer).unwrap();
            assert!(send(&mut sender, b"before"));
            while sender.is_sending() {
                sender.push().unwrap();
                receive(&mut receiver, &mut registered, &mut packets).unwrap();
            }
            let source = Source::of(Part { memory: &from, at: 0, length: len }).unwrap();
            // SAFETY: `from` lives until the write is complete.
            assert!(unsafe { sender.write(source, to, 2, 7) }.unwrap());
            assert!(!send(&mut sender, b"too early"), "a packet in the middle of a write");
            let written = loop {
                if let Some(token) = sender.push().unwrap() {
                    break token;
                }
                receive(&mut receiver, &mut registered, &mut packets).unwrap();
            };
            assert_eq!(written, 7);
            assert!(send(&mut sender, b"after"));
            while packets.len() < 2 {
                receive(&mut receiver, &mut registered, &mut packets).unwrap();
                sender.push().unwrap();
            }
            assert_eq!(std::mem::take(&mut packets), [&b"before"[..], b"after"]);
            registered.remove(to);
            let all = [&[0, 0][..], &bytes(len), &[0]].concat();
            assert!(content(into) == all && content(from) == bytes(len), "{len} bytes");
        }
    }

    #[test]
    fn write_in_fragments_of_a_byte_arrives_whole() {
        let (mine, mut peer) = UnixStream::pair().unwrap();
        let (mut link, mut registered) = (Link::new(3, Socket::new(mine.into())), Registered::default());
        let into = buffer(vec![0; 40]);
        let to = registered.add(&into, 3).unwrap();
        let (head, used) = head(None, 4);
        let stream = [&write(to, 0, 40)[..], &bytes(40), &head[..used], b"next"].concat();
        let mut packets = Vec::new();
        for byte in stream {
            assert!(packets.is_empty());
            peer.write_all(&[byte]).unwrap();
            assert!(receive(&mut link, &mut registered, &mut packets).unwrap());
        }
        assert_eq!(packets, [b"next"]);
        registered.remove(to);
        assert_eq!(content(into), bytes(40));
    }

    #[test]
    fn write_to_released_memory_is_skipped() {
        let (mine, mut peer) = UnixStream::pair().unwrap();
        let (mut link, mut registered) = (Link::new(3, Socket::new(mine.into())), Registered::default());
        let into = buffer(vec![0; 20_000]);
        let to = registered.add(&into, 3).unwrap();
        peer.write_all(&[&write(to, 0, 20_000)[..], &[1; 10_000]].concat()).unwrap();
        let mut packets = Vec::new();
        while receive(&mut link, &mut registered, &mut packets).unwrap() {}
        registered.remove(to);
        let (head, used) = head(None, 4);
        peer.write_all(&[&[2; 10_000][..], &head[..used], b"next"].concat()).unwrap();
        while packets.is_empty() {
            receive(&mut link, &mut registered, &mut packets).unwrap();
        }
        assert_eq!(packets, [b"next"]);
        assert_eq!(content(into), [[1; 10_000], [0; 10_000]].concat());
    }

    #[test]
    fn write_that_is_not_admitted_ends_the_link() {
        let (mine, mut peer) = UnixStream::pair().unwrap();
        let (mut link, mut registered) = (Link::new(3, Socket::new(mine.into())), Registered::default());
        let into = buffer(vec![0; 8]);
        let to = registered.add(&into, 3).unwrap();
        peer.write_all(&write(to, 1, 8)).unwrap();
        let error = receive(&mut link, &mut registered, &mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    /// A message takes one call at each end, however many parts and packets there are.
    #[test]
    fn packets_and_writes_cost_one_call_at_each_end() {
        let (one, other) = UnixStream::pair().unwrap();
        let [mut sender, mut receiver] = [one, other].map(|stream| Link::new(0, Socket::new(stream.into())));
        let (mut registered, mut packets) = (Registered::default(), Vec::new());
        let cost = |act: &mut dyn FnMut()| {
            let before = calls();
            act();
            calls() - before
        };
        assert_eq!(cost(&mut || assert!(send(&mut sender, b"a packet"))), 1);
        assert_eq!(cost(&mut || assert!(receive(&mut receiver, &mut registered, &mut packets).unwrap())), 1);
        let (from, into) = (buffer(bytes(50_000)), buffer(vec![0; 50_000]));
        let to = registered.add(&into, 0).unwrap();
        let write = &mut || {
            let source = Source::of(Part { memory: &from, at: 0, length: 50_000 }).unwrap();
            // SAFETY: `from` lives until the write is complete.
            assert!(unsafe { sender.write(source, to, 0, 7) }.unwrap());
            assert_eq!(sender.push().unwrap(), Some(7));
        };
        assert_eq!(cost(write), 1);
        assert_eq!(cost(&mut || assert!(send(&mut sender, b"behind"))), 1);
        // One for the head and the bytes with it, one for the rest, which goes into its place, and one for the packet.
        assert_eq!(cost(&mut || assert!(receive(&mut receiver, &mut registered, &mut packets).unwrap())), 3);
        assert_eq!(packets, [&b"a packet"[..], b"behind"]);
        registered.remove(to);
        assert_eq!(content(into), bytes(50_000));
    }
}
