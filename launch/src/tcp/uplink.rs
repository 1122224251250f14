//! The one connection of a host to the hub. The host's agent accepts the connections of its ranks at a port of the loopback
//! interface, and carries them as [`channels`](super::channels). A rank connects to it as to the hub. If the agent closes
//! the connection, or answers too late, the rank connects to the hub itself.

use super::channels::{CREDIT, ChannelFrame, Incoming, LONGEST_DATA, Outgoing, write_queue};
use super::contact::Contact;
use super::silence::{self, Silence};
use super::wire::{AGENT, Answer, HELLO, Hello, Secret};
use crate::process::ProcessId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use transom_locks::Rank;

/// Most connections that have not said who they are, beside one for each rank. A further one replaces the oldest.
const MOST_STRANGERS: usize = 64;
/// Time that such a connection has.
const SAY_WITHIN: Duration = Duration::from_secs(5);
/// Length of the listen queue: all ranks of the host may connect at once.
const BACKLOG: i32 = 4096;
/// Bytes for the hub from which on the agent reads nothing from ranks.
const MOST_UNSENT: usize = 1 << 20;
/// Bytes that a rank has taken from which on the hub gets the credit back.
const RETURN_CREDIT: usize = CREDIT / 2;

/// The connection of this host to the hub, served by a thread. Dropping it ends the connections of its ranks; while the
/// thread still tries to reach the hub, once it has.
pub(crate) struct Uplink {
    address: SocketAddr,
    /// The thread ends with the other end of this stream.
    _thread: UnixStream,
}

impl Uplink {
    /// Most descriptors that the connection of a host with this number of ranks has open: each rank may have connected
    /// twice.
    pub fn descriptors(ranks: usize) -> usize {
        2 * ranks + 2 * MOST_STRANGERS + 4
    }

    /// Serves these ranks of a job of `size` ranks, which ascend.
    pub fn start(contact: Contact, size: usize, ranks: Vec<Rank>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        rustix::net::listen(&listener, BACKLOG)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (thread, stop) = UnixStream::pair()?;
        let run = move || {
            let hello = Hello { rank: AGENT, size, process: ProcessId::default() };
            let ended = match contact.reach(hello) {
                Ok(Answer::Welcome(hub, ..)) => {
                    Forwarder::new(hub, contact.secret, ranks).and_then(|mut forwarder| forwarder.run(&listener, &stop))
                }
                Ok(Answer::Refused(_)) => Err(io::Error::other("the hub refused it")),
                Err(error) => Err(error),
            };
            if let Err(error) = ended {
                // Ranks report the end of their connections.
                tracing::debug!(%error, "this host's connection to the hub has ended");
            }
        };
        std::thread::Builder::new().name("transom uplink".into()).spawn(run)?;
        Ok(Uplink { address, _thread: thread })
    }

    /// The address at which ranks of this host connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

struct Forwarder {
    hub: TcpStream,
    silence: Silence,
    /// Time of the next check whether the hub's host has vanished.
    look: Instant,
    incoming: Incoming,
    unsent: Outgoing,
    secret: Secret,
    /// In ascending order.
    ranks: Vec<Rank>,
    /// Connections that have not said who they are, in the order of their arrival.
    strangers: VecDeque<Stranger>,
    /// Number of channels opened so far.
    opened: u32,
    /// Connections of ranks, by channel.
    clients: BTreeMap<u32, Client>,
    chunk: Vec<u8>,
}

struct Stranger {
    stream: TcpStream,
    received: Vec<u8>,
    /// Time at which the connection is closed.
    until: Instant,
}

/// The connection of a rank.
struct Client {
    stream: TcpStream,
    /// Bytes from the hub that the rank has not taken; at most [`CREDIT`].
    unwritten: VecDeque<u8>,
    /// Bytes that the rank has taken without the hub being told.
    taken: usize,
    /// The hub has ended the channel: the connection ends once everything is written.
    is_ending: bool,
}

#[derive(Clone, Copy)]
enum Event {
    Stop,
    Hub,
    Accept,
    /// A stranger, by index.
    Stranger(usize),
    /// A client, by channel.
    Client(u32),
}

impl Forwarder {
    fn new(hub: TcpStream, secret: Secret, ranks: Vec<Rank>) -> io::Result<Self> {
        hub.set_nonblocking(true)?;
        Ok(Forwarder {
            hub,
            silence: Silence::default(),
            look: Instant::now() + silence::LOOK,
            incoming: Incoming::default(),
            unsent: Outgoing::default(),
            secret,
            ranks,
            strangers: VecDeque::new(),
            opened: 0,
            clients: BTreeMap::new(),
            chunk: vec![0; LONGEST_DATA],
        })
    }

    /// Serves until `stop` ends, or the connection to the hub, which is an error.
    fn run(&mut self, listener: &TcpListener, stop: &UnixStream) -> io::Result<()> {
        loop {
            // Later strangers first: removing one moves those behind it.
            for (event, flags) in self.sleep(listener, stop)?.into_iter().rev() {
                match event {
                    Event::Stop => return Ok(()),
                    Event::Hub if flags.intersects(!PollFlags::OUT) => self.receive()?,
                    Event::Hub => {}
                    Event::Accept => self.accept(listener),
                    Event::Stranger(number) => self.hear(number),
                    Event::Client(channel) => self.serve(channel, flags),
                }
            }
            let now = Instant::now();
            self.strangers.retain(|stranger| stranger.until > now);
            if self.look <= now {
                self.look = now + silence::LOOK;
                if self.silence.is_final(&self.hub) {
                    return Err(io::Error::other("the hub's host does not answer"));
                }
            }
            self.unsent.write_to(&mut self.hub)?;
        }
    }

    fn sleep(&self, listener: &TcpListener, stop: &UnixStream) -> io::Result<Vec<(Event, PollFlags)>> {
        let has_room = self.unsent.len() < MOST_UNSENT;
        let mut watched = vec![
            (Event::Stop, PollFd::new(stop, PollFlags::IN)),
            (Event::Accept, PollFd::new(listener, PollFlags::IN)),
        ];
        let out = if self.unsent.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        watched.push((Event::Hub, PollFd::new(&self.hub, PollFlags::IN | out)));
        for (number, stranger) in self.strangers.iter().enumerate() {
            watched.push((Event::Stranger(number), PollFd::new(&stranger.stream, PollFlags::IN)));
        }
        for (&channel, client) in &self.clients {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, has_room && !client.is_ending);
            flags.set(PollFlags::OUT, !client.unwritten.is_empty());
            // An ended connection would be reported at once even if nothing were asked for.
            if !flags.is_empty() {
                watched.push((Event::Client(channel), PollFd::new(&client.stream, flags)));
            }
        }
        let (events, mut fds): (Vec<Event>, Vec<PollFd<'_>>) = watched.into_iter().unzip();
        let until = self.strangers.front().map_or(self.look, |first| first.until.min(self.look));
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        match poll(&mut fds, left.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        let happened = events.into_iter().zip(&fds).map(|(event, fd)| (event, fd.revents()));
        Ok(happened.filter(|(_, flags)| !flags.is_empty()).collect())
    }

    fn accept(&mut self, listener: &TcpListener) {
        for _ in 0..MOST_STRANGERS {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if is_passing(&error) => return,
                // Avoids spinning while there are no descriptors.
                Err(_) => return std::thread::sleep(Duration::from_millis(10)),
            };
            if stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).is_err() {
                continue;
            }
            if self.strangers.len() >= self.ranks.len() + MOST_STRANGERS {
                self.strangers.pop_front();
            }
            let until = Instant::now() + SAY_WITHIN;
            self.strangers.push_back(Stranger { stream, received: Vec::new(), until });
        }
    }

    /// Reads from a connection that has not said who it is. It becomes a client if it is a rank of this host that knows the
    /// secret.
    fn hear(&mut self, number: usize) {
        let Some(stranger) = self.strangers.get_mut(number) else { return };
        let most = HELLO - stranger.received.len();
        match stranger.stream.read(&mut self.chunk[..most]) {
            Ok(read @ 1..) => stranger.received.extend_from_slice(&self.chunk[..read]),
            Err(error) if is_passing(&error) => {}
            Ok(0) | Err(_) => {
                self.strangers.remove(number);
                return;
            }
        }
        let Ok(hello) = stranger.received[..].try_into() else { return };
        let known = match Hello::read(hello, &self.secret) {
            Ok((hello, _)) if self.ranks.binary_search(&hello.rank).is_ok() => Ok(()),
            Ok(_) => Err("it is not a rank of this host"),
            Err(why) => Err(why),
        };
        let Some(Stranger { stream, received, .. }) = self.strangers.remove(number) else { return };
        if let Err(why) = known {
            tracing::warn!(why, "a connection to the host's agent was closed");
            return;
        }
        // A first message may be a copy that a third party sends. The rank then connects to the hub itself.
        if self.clients.len() >= self.ranks.len() + MOST_STRANGERS {
            tracing::warn!("a connection to the host's agent was closed: there are too many");
            return;
        }
        let channel = self.opened;
        self.opened += 1;
        self.unsent.open(channel);
        self.unsent.data(channel, &[IoSlice::new(&received)], HELLO);
        self.clients.insert(channel, Client { stream, unwritten: VecDeque::new(), taken: 0, is_ending: false });
    }

    /// Reads from the hub.
    fn receive(&mut self) -> io::Result<()> {
        match self.hub.read(&mut self.chunk) {
            Ok(0) => return Err(io::Error::other("the hub closed it")),
            Ok(read) => self.incoming.take_in(&self.chunk[..read]),
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error),
        }
        let bad = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        while let Some((channel, frame)) = self.incoming.next().map_err(bad)? {
            if channel >= self.opened {
                return Err(bad("the hub sent a frame of a channel that was never open"));
            }
            // The rank may have ended its connection meanwhile.
            let Some(client) = self.clients.get_mut(&channel) else { continue };
            match frame {
                ChannelFrame::Data(bytes) if client.unwritten.len() + bytes.len() <= CREDIT => {
                    client.unwritten.extend(bytes);
                }
                ChannelFrame::End => client.is_ending = true,
                _ => return Err(bad("the hub sent more than it has credit for, or an unexpected frame")),
            }
            self.write(channel);
        }
        Ok(())
    }

    /// Reads from a rank and writes to it, without blocking.
    fn serve(&mut self, channel: u32, flags: PollFlags) {
        if flags.contains(PollFlags::OUT) {
            self.write(channel);
        }
        let is_readable = flags.intersects(!PollFlags::OUT);
        let Some(client) = self.clients.get_mut(&channel).filter(|_| is_readable) else { return };
        match client.stream.read(&mut self.chunk) {
            Ok(read @ 1..) => _ = self.unsent.data(channel, &[IoSlice::new(&self.chunk[..read])], read),
            Err(error) if is_passing(&error) => {}
            Ok(0) | Err(_) => self.end(channel),
        }
    }

    fn write(&mut self, channel: u32) {
        let Some(client) = self.clients.get_mut(&channel) else { return };
        match write_queue(&mut client.unwritten, &mut client.stream) {
            Ok(written) => client.taken += written,
            // The rank's last frames may still be there to be read.
            Err(_) => client.unwritten.clear(),
        }
        if client.taken >= RETURN_CREDIT {
            self.unsent.credit(channel, std::mem::take(&mut client.taken));
        }
        if client.is_ending && client.unwritten.is_empty() {
            self.end(channel);
        }
    }

    /// Closes a rank's connection, and tells the hub.
    fn end(&mut self, channel: u32) {
        if self.clients.remove(&channel).is_some() {
            self.unsent.end(channel);
        }
    }
}

/// Returns whether an operation may succeed later.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
