//! The hub of a job, its rendezvous server. Each rank has a connection, or the agent of its host carries those of all ranks
//! there. One thread admits the ranks, sends each round of messages to one member on each host once it is complete, and
//! reports which ranks have left or died. Connections that do not know the secret get no answer. Their number and
//! lifetime are limited, so that they keep no rank out.

mod agent;
mod connections;
mod group;
mod line;
mod member;
mod order;
mod server;
mod unproven;

use super::wire::Secret;
use crate::variables::LISTEN_AT;
use connections::{Connections, Traffic};
use order::{FirstDeath, Order};
use server::Server;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;
use transom_locks::Rank;

/// A running hub of a job of `size` ranks, served by a thread. Dropping it ends the hub.
pub(crate) struct Hub {
    port: u16,
    addresses: Vec<SocketAddr>,
    orders: Sender<Order>,
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
    first_death: FirstDeath,
    traffic: Arc<Traffic>,
}

impl Hub {
    pub fn start(size: usize, secret: Secret) -> io::Result<Self> {
        let (listener, addresses) = LISTEN_AT.listen().map_err(io::Error::other)?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let (wake, woken) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        let (orders, received) = channel();
        let first_death = FirstDeath::default();
        let mut server = Server::new(size, secret, listener, woken, received, first_death.clone())?;
        let traffic = server.traffic();
        let run = move || {
            if let Err(error) = server.run() {
                tracing::error!(%error, "the hub of the job failed");
            }
        };
        let thread = Some(std::thread::Builder::new().name(format!("hub {port}")).spawn(run)?);
        Ok(Hub { port, addresses, orders, wake, thread, first_death, traffic })
    }

    /// Most descriptors that a hub of `ranks` ranks has open.
    pub fn descriptors(ranks: usize) -> usize {
        ranks + Connections::DESCRIPTORS
    }

    /// The addresses at which ranks reach the hub, loopback addresses last.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Records that a rank's process has ended. The rank counts as dead unless it said that it left, or its process
    /// exited successfully before it joined.
    pub fn ended(&self, rank: Rank, well: bool) {
        self.order(Order::Ended(rank, well));
    }

    /// Declares ranks dead that have not joined by `until`, for a hub that is not notified when processes end.
    pub fn all_by(&self, until: Instant) {
        self.order(Order::AllBy(until));
    }

    /// The first rank whose death the hub has recorded.
    pub fn first_death(&self) -> Option<Rank> {
        self.first_death.get()
    }

    /// Bytes sent and received on the connections of agents, and on those of ranks without handshakes.
    #[cfg(test)]
    pub fn traffic(&self) -> u64 {
        self.traffic.bytes.load(Relaxed)
    }

    /// TCP connections that have proved that they know the secret.
    #[cfg(test)]
    pub fn connections(&self) -> u64 {
        self.traffic.connections.load(Relaxed)
    }

    /// Waits until all ranks have left or died.
    pub fn linger(mut self) {
        self.order(Order::StopAfterAll);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    fn order(&self, order: Order) {
        let _ = self.orders.send(order);
        // A full pipe means that a wake-up is already pending.
        let _ = (&self.wake).write(&[0]);
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.order(Order::Stop);
            let _ = thread.join();
        }
        let (bytes, connections) = (self.traffic.bytes.load(Relaxed), self.traffic.connections.load(Relaxed));
        tracing::debug!(bytes, connections, "the hub has ended");
    }
}
