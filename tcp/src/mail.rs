//! Connections for messages, between the service thread, which accepts them, and the wire, which drives them.

use rustix::net::{SendFlags, Shutdown, send, shutdown};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use transom_launch::lock;

/// The connections for messages of a rank.
#[derive(Default)]
pub struct Mail(Mutex<MailState>);

#[derive(Default)]
struct MailState {
    /// Connections whose handshake this rank has answered and the peer has not completed: a number, and the peer.
    expected: Vec<(u64, u32)>,
    /// Connections that peers have made and the wire has not taken, each with the peer.
    accepted: Vec<(u32, OwnedFd)>,
    /// Connections that this rank no longer uses, but peers may still receive from.
    kept: Vec<Arc<OwnedFd>>,
    /// Bytes for each connection that is accepted from now on, after which its stream ends.
    farewell: Option<Vec<u8>>,
}

impl Mail {
    /// Notes a connection whose handshake this rank is about to answer. Bytes of the peer may follow.
    pub fn expect(&self, number: u64, from: u32) {
        lock(&self.0).expected.push((number, from));
    }

    /// Forgets an expected connection, which was refused.
    pub fn forget(&self, number: u64) {
        lock(&self.0).expected.retain(|(expected, _)| *expected != number);
    }

    /// Hands an expected connection to the wire.
    pub fn deliver(&self, number: u64, from: u32, stream: OwnedFd) {
        let state = &mut *lock(&self.0);
        state.expected.retain(|(expected, _)| *expected != number);
        state.accepted.push((from, stream));
        state.dismiss();
    }

    /// Takes the connections that were delivered, each with the peer.
    pub fn take(&self) -> Vec<(u32, OwnedFd)> {
        std::mem::take(&mut lock(&self.0).accepted)
    }

    /// Returns whether a connection of a peer is expected, or was delivered and not taken.
    pub fn may_bring(&self, peer: u32) -> bool {
        let state = lock(&self.0);
        state.expected.iter().any(|(_, from)| *from == peer) || state.accepted.iter().any(|(from, _)| *from == peer)
    }

    /// Ends this rank's stream of a connection. The end tells the peer that it has received all. The connection stays open
    /// until the rank has left: a closed one with unread bytes would be reset, and the peer would lose what was sent last.
    pub fn keep(&self, connection: Arc<OwnedFd>) {
        lock(&self.0).keep(connection);
    }

    /// Ends the streams of all connections that no wire has taken, also of later ones, each after some bytes. The first
    /// call counts.
    pub fn close(&self, farewell: &[u8]) {
        let state = &mut *lock(&self.0);
        state.farewell.get_or_insert_with(|| farewell.to_vec());
        state.dismiss();
    }
}

impl MailState {
    fn keep(&mut self, connection: Arc<OwnedFd>) {
        // Not by closing it: a process that the program forked may hold the connection open.
        let _ = shutdown(&connection, Shutdown::Write);
        self.kept.push(connection);
    }

    fn dismiss(&mut self) {
        let Some(farewell) = self.farewell.take() else { return };
        for (_, stream) in std::mem::take(&mut self.accepted) {
            // The queue of a new connection has room for it.
            let _ = send(&stream, &farewell, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            self.keep(Arc::new(stream));
        }
        self.farewell = Some(farewell);
    }
}
