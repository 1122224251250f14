//! The target's end of a connection: executes the requests that have arrived, and sends the replies. Never blocks.

use crate::carrier::{Carrier, Received, malformed};
use crate::execute::Executor;
use std::io;

/// Length of the queue of replies, in bytes, from which no more requests of that peer are executed.
const FULL: usize = 256 << 10;
/// Length of the queue from which it is sent before the next request.
const LONG: usize = 64 << 10;
/// Requests of one peer that are executed before the other peers' turn.
const AT_ONCE: usize = 64;

/// Conditions for the next [turn](turn) of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wants {
    /// Another turn, soon: requests have arrived that were not executed yet.
    pub turn: bool,
    /// More requests.
    pub to_receive: bool,
    /// Space for replies in the network.
    pub to_send: bool,
}

/// Serves a connection: a bounded number of requests.
///
/// # Errors
/// The connection is broken, or the peer sent a malformed frame.
pub fn turn(carrier: &mut impl Carrier, executor: &mut Executor) -> io::Result<Wants> {
    carrier.push()?;
    let (mut executed, mut received) = (0, Received::Part);
    let is_idle = loop {
        if executed == AT_ONCE || carrier.outgoing().len() >= FULL {
            break false;
        }
        if carrier.take(&mut |frame, out| executor.execute(frame, out).map_err(malformed))? {
            executed += 1;
            if carrier.outgoing().len() >= LONG {
                carrier.push()?;
            }
        } else if received != Received::Part {
            break true;
        } else {
            received = carrier.receive()?;
        }
    };
    carrier.push()?;
    let waiting = carrier.outgoing().len();
    let is_full = waiting >= FULL;
    Ok(Wants { turn: !is_idle && !is_full, to_receive: !is_full, to_send: waiting > 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carrier::Socket;
    use crate::frame::{At, LONGEST, Request};
    use crate::regions::Regions;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use transom_shm_loopback::Loopback;
    use transom_windows::Fabric;

    /// A peer asks for 64 MiB and reads nothing; then it reads.
    #[test]
    fn slow_peer_gets_bounded_replies_and_then_the_rest() {
        let memory = Loopback::alone().unwrap();
        let (region, _) = memory.allocate(LONGEST).unwrap();
        let regions = Arc::<Regions>::default();
        let exposed = regions.add(region.view());
        let mut executor = Executor::new(memory, regions);
        let (mine, mut peer) = UnixStream::pair().unwrap();
        let mut socket = Socket::new(mine.into());
        let request = Request::Get { at: At { region: exposed.number(), offset: 0 }, len: LONGEST };
        let gets = request.encode().0.bytes().repeat(1000);
        peer.set_nonblocking(true).unwrap();
        let (mut sent, mut read, mut bytes) = (0, 0, vec![0; 1 << 20]);
        let mut wants = Wants { turn: false, to_receive: true, to_send: false };
        // Nothing is read, and so the target stops.
        for _ in 0..100 {
            sent += peer.write(&gets[sent..]).unwrap_or(0);
            wants = turn(&mut socket, &mut executor).unwrap();
            assert!(socket.outgoing().len() <= FULL + LONGEST + 100, "{} bytes wait", socket.outgoing().len());
        }
        assert!(!wants.to_receive && wants.to_send && !wants.turn, "{wants:?}");
        // A turn follows only if the connection wants one, or is ready for what it waits for.
        while read < 1000 * (LONGEST + 12) {
            sent += peer.write(&gets[sent..]).unwrap_or(0);
            let received = peer.read(&mut bytes).unwrap_or(0);
            read += received;
            assert!(received > 0 || wants.turn || wants.to_send || sent < gets.len() || read > 0, "{read} bytes");
            if wants.turn || wants.to_send {
                wants = turn(&mut socket, &mut executor).unwrap();
            } else if read < 1000 * (LONGEST + 12) && received == 0 {
                assert_ne!(socket.receive().unwrap(), Received::Nothing, "{read} bytes arrived, and nothing goes on");
                wants = turn(&mut socket, &mut executor).unwrap();
            }
        }
        assert_eq!(read, 1000 * (LONGEST + 12));
    }

    /// More requests than one turn executes arrive at once: the turn asks for another.
    #[test]
    fn requests_beyond_a_turn_are_executed_in_the_next() {
        let memory = Loopback::alone().unwrap();
        let mut executor = Executor::new(memory, Arc::default());
        let (mine, mut peer) = UnixStream::pair().unwrap();
        let mut socket = Socket::new(mine.into());
        let flushes = AT_ONCE + 1;
        peer.write_all(&Request::Flush.encode().0.bytes().repeat(flushes)).unwrap();
        assert!(turn(&mut socket, &mut executor).unwrap().turn);
        assert!(!turn(&mut socket, &mut executor).unwrap().turn);
        let mut replies = vec![0; 12 * flushes];
        peer.read_exact(&mut replies).unwrap();
    }
}
