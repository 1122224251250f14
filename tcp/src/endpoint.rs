//! A rank among its peers: the service thread, and the lanes to peers, each connected when it is first used.

use crate::address::{Contact, MOST};
use crate::carrier::Socket;
use crate::error::TcpError;
use crate::execute::Executor;
use crate::greet::{Hello, Secret, Use, greet};
use crate::lane::{Halt, Lane};
use crate::listen::{House, Service, Watch};
use crate::mail::Mail;
use crate::regions::Regions;
use crate::variables::LISTEN_AT;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use transom_launch::{lock, random};
use transom_network::{Bootstrap, Node};
use transom_windows::FabricError;

/// Longest attempt to connect to one address of a peer.
const ATTEMPT: Duration = Duration::from_secs(3);
/// Longest attempt to reach a peer at any of its addresses.
const REACH_WITHIN: Duration = Duration::from_secs(30);
/// Pause after all addresses have failed.
const PAUSE: Duration = Duration::from_millis(100);
/// Attempts to receive a reply before a thread sleeps, with a core for each rank of the host.
const LOOKS: u32 = 50;

/// This rank's end of all connections.
pub struct Endpoint {
    me: u32,
    pub regions: Arc<Regions>,
    peers: Box<[Peer]>,
    secrets: Arc<[Secret]>,
    pub mail: Arc<Mail>,
    looks: u32,
    /// Dropped last: it serves peers as long as the endpoint exists.
    service: Service,
}

struct Peer {
    addresses: Vec<SocketAddr>,
    lane: OnceLock<Arc<Lane<Socket>>>,
    /// Held while a thread connects the lane.
    connecting: Mutex<()>,
}

/// Returns whether the ranks of this host occupy all cores.
pub fn is_oversubscribed(ranks: usize) -> bool {
    ranks >= std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// Makes the kernel notice within a minute that the other host has vanished, also while nothing is sent. Firewalls forget
/// silent connections, which this prevents too.
pub fn keep_alive(stream: impl AsFd) {
    use rustix::net::sockopt;
    let set = sockopt::set_socket_keepalive(&stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(&stream, Duration::from_secs(30)))
        .and_then(|()| sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(5)))
        .and_then(|()| sockopt::set_tcp_keepcnt(&stream, 6));
    if let Err(error) = set {
        tracing::debug!(%error, "no keepalive on a connection");
    }
}

impl Endpoint {
    /// Listens, tells all peers, and serves them from now on. Collective.
    pub fn open(job: &Arc<dyn Bootstrap>, node: &Node) -> Result<Endpoint, TcpError> {
        let prepared = LISTEN_AT.listen().map_err(TcpError::from).and_then(|(listener, mut addresses)| {
            addresses.truncate(MOST);
            let secret = random().map_err(|source| TcpError::System { what: "drawing a secret".into(), source })?;
            Ok((listener, Contact { secret, addresses }))
        });
        // The other ranks wait for this one: an error is reported only after the exchange.
        let told = job.all_gather(&prepared.as_ref().map_or(Vec::new(), |(_, contact)| contact.to_bytes()))?;
        let (listener, _) = prepared?;
        let contacts = told.iter().enumerate();
        let contacts = contacts.map(|(rank, told)| Contact::from_bytes(told).ok_or(TcpError::Peer { rank }));
        let contacts = contacts.collect::<Result<Vec<_>, _>>()?;
        let secrets: Arc<[Secret]> = contacts.iter().map(|contact| contact.secret).collect();
        let peer = |Contact { addresses, .. }| Peer { addresses, lane: OnceLock::new(), connecting: Mutex::new(()) };
        let (me, regions, mail) = (job.rank() as u32, Arc::<Regions>::default(), Arc::<Mail>::default());
        let is_oversubscribed = is_oversubscribed(node.ranks());
        let house = House { me, secrets: secrets.clone(), mail: mail.clone(), is_oversubscribed };
        let service = Service::start(listener, house, Executor::new(node.memory().clone(), regions.clone()));
        let started = service.map_err(|source| TcpError::System { what: "starting the service thread".into(), source });
        let all = job.all_gather(&[u8::from(started.is_ok())])?;
        let service = started?;
        if let Some(rank) = all.iter().position(|started| started[..] != [1]) {
            return Err(TcpError::Peer { rank });
        }
        let looks = if is_oversubscribed { 0 } else { LOOKS };
        let peers = contacts.into_iter().map(peer).collect();
        Ok(Endpoint { me, regions, peers, secrets, mail, looks, service })
    }

    /// Returns whether the ranks of this host shared cores when the job started.
    pub fn shares_cores(&self) -> bool {
        self.looks == 0
    }

    /// Serves peers that have requests, on behalf of a thread that waits for something else.
    pub fn help(&self) {
        self.service.help();
    }

    /// Watches a descriptor for a thread that sleeps elsewhere.
    pub fn watch(&self, descriptor: Arc<OwnedFd>) -> Watch {
        self.service.watch(descriptor)
    }

    /// The lane to a peer, by its rank in the job. Connects it, if it is not. `check` fails if the peer is gone.
    #[inline]
    pub fn lane(&self, peer: u32, check: impl FnMut() -> Result<(), FabricError>) -> Result<&Arc<Lane<Socket>>, Halt> {
        match self.peers[peer as usize].lane.get() {
            Some(lane) => Ok(lane),
            None => self.connect_lane(peer, check),
        }
    }

    /// The addresses at which this rank accepts connections.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.peers[self.me as usize].addresses
    }

    /// The lane to a peer, if it is connected.
    pub fn connected(&self, peer: u32) -> Option<&Arc<Lane<Socket>>> {
        self.peers[peer as usize].lane.get()
    }

    #[cold]
    fn connect_lane(
        &self,
        peer: u32,
        check: impl FnMut() -> Result<(), FabricError>,
    ) -> Result<&Arc<Lane<Socket>>, Halt> {
        let Peer { lane, connecting, .. } = &self.peers[peer as usize];
        let _connecting = lock(connecting);
        if let Some(lane) = lane.get() {
            return Ok(lane);
        }
        let socket = Socket::new(self.connect(peer, Use::Memory, check)?);
        Ok(lane.get_or_init(|| Lane::new(socket, self.looks, self.service.helper())))
    }

    /// Connects to a peer.
    pub fn connect(
        &self,
        peer: u32,
        to_use: Use,
        mut check: impl FnMut() -> Result<(), FabricError>,
    ) -> Result<OwnedFd, Halt> {
        let until = Instant::now() + REACH_WITHIN;
        let secrets = [&self.secrets[self.me as usize], &self.secrets[peer as usize]];
        let addresses = &self.peers[peer as usize].addresses;
        let mut last = io::Error::from(io::ErrorKind::TimedOut);
        while Instant::now() < until {
            for address in addresses {
                let attempt = || {
                    let mut stream = TcpStream::connect_timeout(address, ATTEMPT)?;
                    stream.set_nodelay(true)?;
                    keep_alive(&stream);
                    let hello = Hello::new(to_use, self.me, peer)?;
                    greet(&mut stream, hello, secrets, Instant::now() + ATTEMPT)?;
                    Ok(OwnedFd::from(stream))
                };
                match attempt() {
                    Ok(stream) => {
                        tracing::debug!(peer, %address, ?to_use, "connected");
                        return Ok(stream);
                    }
                    Err(error) => {
                        let error: io::Error = error;
                        tracing::debug!(peer, %address, %error, "not reached");
                        last = io::Error::new(error.kind(), format!("{address}: {error}"));
                    }
                }
                check().map_err(Halt::Gone)?;
            }
            std::thread::sleep(PAUSE);
        }
        Err(Halt::Broken(io::Error::new(last.kind(), format!("no connection within {REACH_WITHIN:?}; {last}"))))
    }
}
