//! Strangers at the port of a rank.

use super::on_hosts;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use transom_windows::{OobExchange, Op, Window};

fn works(world: &transom_network::Hybrid<crate::Tcp>) {
    let mut window = Window::<u64, _>::allocate(world, 0, 1).unwrap();
    let other = 1 - world.rank();
    let epoch = window.lock_all().unwrap();
    assert_eq!(epoch.target(other).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap(), 0);
    epoch.unlock().unwrap();
    window.fence().unwrap();
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Bytes of any kind from a stranger: the connection ends, the rank goes on.
#[test]
fn strangers_are_refused_and_ranks_go_on() {
    on_hosts(&[0, 1], |world| {
        let address = world.network().address();
        let mut random = fastrand::Rng::with_seed(6);
        for round in 0..20 {
            let mut stream = connect(address);
            let mut bytes = b"transom\x82\x02\0\0\0".to_vec();
            bytes.truncate(if round % 2 == 0 { 0 } else { 12 });
            let named =
                if round % 4 == 1 { [1 - world.rank() as u32, world.rank() as u32] } else { [random.u32(..), 1] };
            bytes.extend(named.map(u32::to_le_bytes).concat());
            bytes.extend((0..100).map(|_| random.u8(..3)));
            // The rank may have closed the connection already.
            let _ = stream.write_all(&bytes);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            assert!(answer.is_empty(), "an answer of {} bytes", answer.len());
        }
        works(&world);
    });
}

/// Connections that say nothing: the oldest of too many are closed, and ranks connect all the same.
#[test]
fn silent_strangers_do_not_keep_ranks_out() {
    on_hosts(&[0, 1], |world| {
        let address = world.network().address();
        let mut silent: Vec<_> = (0..100).map(|_| connect(address)).collect();
        works(&world);
        // 64, and two for each of the two ranks, may be open.
        let mut byte = [0];
        assert_eq!(silent[0].read(&mut byte).unwrap(), 0, "the oldest was closed");
        silent.truncate(1);
    });
}
