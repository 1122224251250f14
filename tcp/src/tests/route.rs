//! A route between two ranks that holds bytes, as a slow network does.

use crate::address::Contact;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;
use transom_launch::lock;
use transom_locks::{Awaited, Rank};
use transom_network::Bootstrap;
use transom_shm_loopback::Meet;
use transom_shm_loopback::messages::ProgressHook;
use transom_windows::{FabricError, OobExchange};

/// A route over which one rank connects to another.
#[derive(Clone)]
pub struct Route {
    pub from: Rank,
    pub to: Rank,
    /// Bytes that pass towards `from`, and towards `to`; the rest is held.
    pub passing: [usize; 2],
    pub gate: Gate,
}

/// Holds bytes until it is opened.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<GateState>, Condvar)>);

#[derive(Default)]
struct GateState {
    is_open: bool,
    /// Bytes carried towards the rank that connects.
    carried: usize,
    /// Connections that were made over the route.
    streams: Vec<TcpStream>,
}

impl Gate {
    /// Carries all bytes from now on.
    pub fn open(&self) {
        lock(&self.0.0).is_open = true;
        self.0.1.notify_all();
    }

    fn wait(&self) {
        let state = self.0.1.wait_while(lock(&self.0.0), |state| !state.is_open);
        drop(state.unwrap());
    }

    /// Resets the connections, once the rank that connects has received that many bytes.
    pub fn reset_after(&self, bytes: usize) {
        let state = self.0.1.wait_while(lock(&self.0.0), |state| state.carried < bytes).unwrap();
        for stream in &state.streams {
            let _ = rustix::net::connect_unspec(stream);
        }
    }

    fn count(&self, bytes: usize) {
        lock(&self.0.0).carried += bytes;
        self.0.1.notify_all();
    }
}

impl Route {
    /// The address at which `from` reaches `to`.
    fn begin(&self, far: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, Route { passing, gate, .. }) = (listener.local_addr().unwrap(), self.clone());
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (near, Ok(far)) = (near.unwrap(), TcpStream::connect(far)) else { continue };
                let again = |stream: &TcpStream| stream.try_clone().unwrap();
                lock(&gate.0.0).streams.extend([again(&near), again(&far)]);
                let (back, gate_back) = ((again(&far), again(&near)), gate.clone());
                std::thread::spawn(move || carry(back, passing[0], &gate_back, |bytes| gate_back.count(bytes)));
                let gate = gate.clone();
                std::thread::spawn(move || carry((near, far), passing[1], &gate, |_| ()));
            }
        });
        address
    }
}

/// Carries bytes, and the end of the stream; from byte `passing` on once the gate is open.
fn carry((mut from, mut to): (TcpStream, TcpStream), passing: usize, gate: &Gate, count: impl Fn(usize)) {
    let (mut left, mut bytes) = (passing, [0; 1024]);
    loop {
        if left == 0 {
            gate.wait();
            left = usize::MAX;
        }
        let most = left.min(bytes.len());
        let Ok(received @ 1..) = from.read(&mut bytes[..most]) else { break };
        if to.write_all(&bytes[..received]).is_err() {
            break;
        }
        left -= received;
        count(received);
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// A bootstrap whose rank learns other addresses of its peers.
pub struct Rerouted {
    pub job: Arc<dyn Bootstrap>,
    pub routes: Vec<Route>,
}

impl OobExchange for Rerouted {
    fn rank(&self) -> Rank {
        self.job.rank()
    }

    fn size(&self) -> usize {
        self.job.size()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
        let mut all = self.job.all_gather(mine)?;
        for route in self.routes.iter().filter(|route| route.from == self.rank()) {
            if let Some(mut contact) = Contact::from_bytes(&all[route.to]) {
                contact.addresses = vec![route.begin(contact.addresses[0])];
                all[route.to] = contact.to_bytes();
            }
        }
        Ok(all)
    }

    fn check_peers(&self, awaited: Awaited) -> Result<(), FabricError> {
        self.job.check_peers(awaited)
    }

    fn lost(&self) -> Option<FabricError> {
        self.job.lost()
    }

    fn fail(&self) {
        self.job.fail();
    }
}

impl Bootstrap for Rerouted {
    fn team_of(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Arc<dyn Bootstrap>, FabricError> {
        self.job.team_of(members, meet)
    }

    fn leave(&self) {
        self.job.leave();
    }

    fn has_left(&self, rank: Rank) -> bool {
        self.job.has_left(rank)
    }

    fn ask_whether_running(&self, rank: Rank) {
        self.job.ask_whether_running(rank);
    }

    fn seen_running(&self, rank: Rank) -> Option<Instant> {
        self.job.seen_running(rank)
    }

    fn progress_in_waits(&self, hook: Arc<dyn ProgressHook>) {
        self.job.progress_in_waits(hook);
    }
}
