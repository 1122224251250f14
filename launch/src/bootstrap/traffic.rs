//! Bytes that the start of a job and a team move through the hub, for ranks behind the agents of their hosts.

use super::host::Host;
use super::*;
use crate::tcp::Uplink;

/// Bytes through the hub, until the ranks of a job have joined and made a team of them all. Rank `r` is on host
/// `r % hosts`. The exchanges between are those of a start over TCP: providers, memory of hosts, contacts, listeners.
fn start_and_team(ranks: usize, hosts: usize) -> u64 {
    assert!(descriptors::make_room(26 * ranks + 70 * hosts).is_ok(), "the ranks are threads of this process");
    let secret = Secret::fresh().unwrap();
    let hub = Hub::start(ranks, secret.clone()).unwrap();
    let addresses = vec![([127, 0, 0, 1], hub.port()).into()];
    let contact = Contact { via: None, addresses, secret };
    let uplink = |host: usize| Uplink::start(contact.clone(), ranks, (host..ranks).step_by(hosts).collect()).unwrap();
    let uplinks: Vec<_> = (0..hosts).map(uplink).collect();
    let rank = |rank: Rank| {
        let contact = Contact { via: Some(uplinks[rank % hosts].address()), addresses: vec![], ..contact.clone() };
        let run = move || {
            let host = Host::labelled(&format!("node{}", rank % hosts));
            let process = ProcessId::new("host", rank as u32);
            let tcp = Tcp::join(rank, ranks, process, &contact, HubAt::Launcher).unwrap();
            let Ok(Joined::Apart(Apart { tcp, local, hosts: found })) = on_hosts(tcp, &host) else {
                panic!("there are several hosts")
            };
            assert_eq!((found.names.len(), local.size()), (hosts, ranks / hosts));
            assert!(found.of.iter().enumerate().all(|(rank, host)| *host == rank % hosts));
            for bytes in [12, 1, 60, 1] {
                let mine = vec![rank as u8; bytes];
                let all = tcp.all_gather(&mine).unwrap();
                assert!(all.iter().enumerate().all(|(rank, said)| said[..] == vec![rank as u8; bytes]));
            }
            // Programs exchange the number of a team by messages.
            let members: Vec<_> = (0..ranks).collect();
            let team = tcp.team(&members, &mut |mine| Ok(vec![vec![7; mine.len()]; ranks])).unwrap();
            let here: Vec<_> = (0..local.size()).collect();
            let memory = local.team(&here, &mut |mine| local.all_gather(mine)).unwrap();
            team.pass_on_through(&memory, rank % hosts).unwrap();
            assert_eq!(
                team.all_gather(&[rank as u8]).unwrap(),
                (0..ranks).map(|rank| [rank as u8]).collect::<Vec<_>>()
            );
            // All ranks are here before the first leaves.
            (tcp, local, team, memory)
        };
        std::thread::Builder::new().stack_size(256 << 10).spawn(run).unwrap()
    };
    let running: Vec<_> = (0..ranks).map(rank).collect();
    let joined: Vec<_> = running.into_iter().map(|rank| rank.join().unwrap()).collect();
    assert_eq!(hub.connections(), hosts as u64);
    let traffic = hub.traffic();
    drop(joined);
    traffic
}

/// A thousand ranks would take more descriptors in one process than most users may open. A quarter of the ranks on a
/// quarter of the hosts move at least a sixteenth of the bytes: results grow with hosts times ranks, all else with
/// ranks.
#[test]
fn start_of_a_thousand_ranks_moves_few_bytes() {
    let bytes = start_and_team(256, 16);
    println!("256 ranks on 16 hosts: {bytes} bytes through the hub");
    assert!(16 * bytes < 20_000_000, "{bytes} bytes");
}
