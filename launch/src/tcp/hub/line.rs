//! The hub's end of a client's connection: a TCP connection of its own, or a channel that the agent of its host carries.

use crate::lock::lock;
use crate::tcp::channels::{CREDIT, Outgoing};
use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};

/// Neither kind blocks. Dropping it closes the connection.
pub(super) enum Line {
    Own(TcpStream),
    Carried(Channel),
}

/// Frames for agents, by the number of the agent's connection. All lines add to them during a turn of the hub.
pub(super) type Outbox = Arc<Mutex<HashMap<u64, Outgoing>>>;

/// A channel of an agent's connection.
pub(super) struct Channel {
    agent: u64,
    number: u32,
    state: SharedState,
    outbox: Outbox,
}

/// The state that a channel and the agent's connection share.
pub(super) type SharedState = Arc<Mutex<State>>;

pub(super) struct State {
    /// Bytes from the rank that the hub has not read.
    pub received: VecDeque<u8>,
    /// Bytes that the rank may be sent.
    pub credit: usize,
    /// The rank's connection to its agent has ended.
    pub has_ended: bool,
    /// The hub has ended the channel.
    pub is_closed: bool,
}

impl Channel {
    pub fn new(agent: u64, number: u32, outbox: Outbox) -> (Self, SharedState) {
        let state = State { received: VecDeque::new(), credit: CREDIT, has_ended: false, is_closed: false };
        let state = Arc::new(Mutex::new(state));
        (Channel { agent, number, state: state.clone(), outbox }, state)
    }

    /// Number of the agent's connection, and of the channel.
    pub fn place(&self) -> (u64, u32) {
        (self.agent, self.number)
    }

    /// Ends the channel once everything written has been sent.
    fn close(&self) {
        let mut state = lock(&self.state);
        if !std::mem::replace(&mut state.is_closed, true) && !state.has_ended {
            lock(&self.outbox).entry(self.agent).or_default().end(self.number);
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.close();
    }
}

impl Line {
    pub fn own(&self) -> Option<&TcpStream> {
        if let Line::Own(stream) = self { Some(stream) } else { None }
    }

    /// Returns whether a channel has bytes to read, or has ended. A connection of its own is polled instead.
    pub fn is_readable(&self) -> bool {
        let Line::Carried(channel) = self else { return false };
        let state = lock(&channel.state);
        !state.received.is_empty() || state.has_ended
    }

    /// Ends the direction to the client once everything written has been sent.
    pub fn end(&self) -> io::Result<()> {
        match self {
            Line::Own(stream) => stream.shutdown(Shutdown::Write),
            Line::Carried(channel) => {
                channel.close();
                Ok(())
            }
        }
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Line::Own(stream) => match stream.peer_addr() {
                Ok(address) => address.fmt(f),
                Err(_) => f.write_str("?"),
            },
            Line::Carried(channel) => write!(f, "channel {} of agent {}", channel.number, channel.agent),
        }
    }
}

impl Read for Line {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Line::Own(stream) => stream.read(into),
            Line::Carried(channel) => {
                let mut state = lock(&channel.state);
                if state.received.is_empty() && !state.has_ended {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                state.received.read(into)
            }
        }
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Line::Own(stream) => stream.write_vectored(slices),
            Line::Carried(channel) => {
                let mut state = lock(&channel.state);
                if state.credit == 0 {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                let mut outbox = lock(&channel.outbox);
                let outgoing = outbox.entry(channel.agent).or_default();
                let written = outgoing.data(channel.number, slices, state.credit);
                state.credit -= written;
                Ok(written)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
