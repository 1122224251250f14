//! The hub's side of an agent's connection, which carries those of the ranks of its host.

use super::line::SharedState;
use crate::lock::lock;
use crate::ranges::ranges;
use crate::tcp::channels::{CREDIT, ChannelFrame, Incoming, Outgoing};
use crate::tcp::silence::Silence;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::TcpStream;
use transom_locks::Rank;

pub(super) struct Agent {
    pub stream: TcpStream,
    pub silence: Silence,
    /// Frames that have not been sent.
    pub unsent: Outgoing,
    /// `unsent` is not empty, and the hub polls the connection for writability.
    pub awaits_room: bool,
    incoming: Incoming,
    /// Number of channels opened so far.
    opened: u32,
    /// Channels whose rank has not ended its connection, by number.
    channels: BTreeMap<u32, (Client, SharedState)>,
}

impl std::fmt::Display for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranks = self.channels.values().filter_map(|(client, _)| match client {
            Client::Rank(rank) => Some(*rank),
            Client::Unproven(_) => None,
        });
        let mut ranks: Vec<_> = ranks.collect();
        ranks.sort_unstable();
        match self.stream.peer_addr() {
            Ok(address) => write!(f, "{address}, ranks {}", ranges(&ranks)),
            Err(_) => write!(f, "ranks {}", ranges(&ranks)),
        }
    }
}

/// The other end of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Client {
    /// Number of a connection that has not proved that it knows the secret.
    Unproven(u64),
    Rank(Rank),
}

/// A change of a channel.
pub(super) enum Change {
    Opened(u32),
    /// The client of a channel can read, write, or has ended.
    Ready(Client),
}

impl Agent {
    /// An agent that has proved itself. `welcome` is sent before its first frame.
    pub fn new(stream: TcpStream, welcome: &[u8]) -> Self {
        let mut unsent = Outgoing::default();
        unsent.raw(welcome);
        Agent {
            stream,
            silence: Silence::default(),
            unsent,
            awaits_room: false,
            incoming: Incoming::default(),
            opened: 0,
            channels: BTreeMap::new(),
        }
    }

    /// Reads once without blocking; returns the number of bytes, or `None` once the connection has ended.
    pub fn receive(&mut self, chunk: &mut [u8]) -> Option<usize> {
        match self.stream.read(chunk) {
            Ok(0) => None,
            Ok(read) => {
                self.incoming.take_in(&chunk[..read]);
                Some(read)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Some(0),
            Err(_) => None,
        }
    }

    /// The next change that the frames received make. The error is the fault of a frame.
    pub fn next(&mut self, most_channels: usize) -> Result<Option<Change>, &'static str> {
        while let Some((number, frame)) = self.incoming.next()? {
            match (frame, self.channels.get(&number)) {
                (ChannelFrame::Open, None) if number == self.opened && self.channels.len() < most_channels => {
                    self.opened += 1;
                    return Ok(Some(Change::Opened(number)));
                }
                (ChannelFrame::Open, _) => return Err("it opened a channel out of turn, or too many"),
                (_, None) => return Err("it sent a frame of a channel that is not open"),
                (ChannelFrame::Data(bytes), Some((client, state))) => {
                    let mut state = lock(state);
                    // The agent may have sent it before it received the end of the channel.
                    if !state.is_closed {
                        state.received.extend(bytes);
                        return Ok(Some(Change::Ready(*client)));
                    }
                }
                (ChannelFrame::Credit(bytes), Some((client, state))) => {
                    let mut state = lock(state);
                    if bytes > CREDIT - state.credit {
                        return Err("it returned more credit than it was sent bytes");
                    }
                    state.credit += bytes;
                    return Ok(Some(Change::Ready(*client)));
                }
                (ChannelFrame::End, Some(&(client, ref state))) => {
                    lock(state).has_ended = true;
                    self.channels.remove(&number);
                    return Ok(Some(Change::Ready(client)));
                }
            }
        }
        Ok(None)
    }

    /// Sets the client of a channel.
    pub fn set(&mut self, channel: u32, client: Client, state: SharedState) {
        self.channels.insert(channel, (client, state));
    }

    /// A client has proved itself.
    pub fn prove(&mut self, channel: u32, rank: Rank) {
        if let Some((client, _)) = self.channels.get_mut(&channel) {
            *client = Client::Rank(rank);
        }
    }

    /// Ends all channels after the connection has ended. Returns their clients.
    pub fn end(self) -> Vec<Client> {
        self.channels
            .into_values()
            .map(|(client, state)| {
                lock(&state).has_ended = true;
                client
            })
            .collect()
    }
}
