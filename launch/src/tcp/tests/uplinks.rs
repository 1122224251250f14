//! Ranks whose connections to the hub are carried by the agents of their hosts.

use super::channels::{CREDIT, Outgoing};
use super::*;
use std::io::IoSlice;

#[test]
fn host_has_one_connection_for_all_its_ranks() {
    const HOSTS: usize = 4;
    let job = Job::start(64);
    let uplinks: Vec<_> = (0..HOSTS).map(|host| job.uplink((host..64).step_by(HOSTS))).collect();
    let ranks: Vec<_> = (0..64).map(|rank| job.join_via(&uplinks[rank % HOSTS], rank)).collect();
    on_all(ranks, |rank| {
        let me = rank.rank();
        for len in [1, 2000, 70_000] {
            let said = rank.all_gather(&vec![me as u8; len]).unwrap();
            assert!(said.iter().enumerate().all(|(of, said)| *said == vec![of as u8; len]), "{len}");
        }
        let team = rank.team(&(0..64).collect::<Vec<_>>(), &mut |mine| rank.all_gather(mine)).unwrap();
        team.barrier().unwrap();
    });
    assert_eq!(job.hub.connections(), HOSTS as u64);
    // The hub has noticed that all have left.
    within(move || job.hub.linger());
}

#[test]
fn dead_rank_behind_an_agent_is_named() {
    let job = Job::start(4);
    let (a, b) = (job.uplink([0, 1]), job.uplink([2, 3]));
    let ranks = [job.join_via(&a, 0), job.join_via(&a, 1), job.join_via(&b, 2), job.join_via(&b, 3)];
    let others: Vec<_> = [0, 1, 3].map(|rank| ranks[rank].clone()).into();
    let waiting = std::thread::spawn(move || on_all(others, |rank| rank.barrier()));
    ranks[2].cut();
    for told in within(|| waiting.join().unwrap()) {
        assert!(matches!(told, Err(FabricError::PeerDied { rank: 2 })), "{told:?}");
    }
    // The other rank of its host is still connected.
    ranks[3].ask_whether_running(0);
    until(|| ranks[3].seen_running(0).is_some());
}

#[test]
fn lost_agent_is_the_death_of_its_ranks() {
    let job = Job::start(3);
    let host = job.uplink([1, 2]);
    let ranks = vec![job.join(0), job.join_via(&host, 1), job.join_via(&host, 2)];
    let others = ranks.clone();
    let waiting = std::thread::spawn(move || on_all(others, |rank| rank.barrier()));
    drop(host);
    let told = within(|| waiting.join().unwrap());
    assert!(matches!(told[0], Err(FabricError::PeerDied { rank: 1 | 2 })), "{told:?}");
    assert!(told[1..].iter().all(|told| matches!(told, Err(FabricError::System { .. }))), "{told:?}");
    until(|| [1, 2].iter().all(|&rank| died(&ranks[0], rank)));
}

/// A rank whose agent has this port, and whose hub is that of the job.
fn join_past(job: &Job, via: SocketAddr, rank: Rank) -> Tcp {
    let contact = Contact { via: Some(via), ..contact(job.address(), &job.secret) };
    let size = job.size;
    within(move || Tcp::join(rank, size, process(rank), &contact, HubAt::Launcher).unwrap())
}

#[test]
fn rank_without_a_working_agent_connects_to_the_hub() {
    let job = Job::start(3);
    let agent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let via = agent.local_addr().unwrap();
    let closes = std::thread::spawn(move || drop(agent.accept().unwrap()));
    let zero = join_past(&job, via, 0);
    closes.join().unwrap();
    // The port is closed now.
    let one = join_past(&job, via, 1);
    let host = job.uplink([2]);
    let two = join_past(&job, host.address(), 2);
    on_all(vec![zero, one, two], |rank| rank.barrier().unwrap());
    assert_eq!(job.hub.connections(), 3);
}

#[test]
fn copies_of_a_first_message_do_not_end_an_agent() {
    let job = Job::start(2);
    let host = job.uplink([0, 1]);
    let zero = job.join_via(&host, 0);
    let first = hello(1, 2).say(&job.secret).unwrap().0;
    let copy = |_| {
        let mut connection = TcpStream::connect(host.address()).unwrap();
        connection.set_read_timeout(Some(LIMIT)).unwrap();
        connection.write_all(&first).unwrap();
        connection
    };
    // More than the agent carries, and more than the hub accepts from one.
    let mut copies: Vec<_> = (0..400).map(copy).collect();
    assert!(matches!(copies[399].read(&mut [0; 8]), Ok(0) | Err(_)));
    let one = join_past(&job, host.address(), 1);
    on_all(vec![zero, one], |rank| rank.barrier().unwrap());
}

fn died(asked: &Tcp, rank: Rank) -> bool {
    matches!(asked.check_peers(Awaited::Rank(rank)), Err(FabricError::PeerDied { rank: died }) if died == rank)
}

#[test]
fn stranger_at_an_agent_does_not_reach_the_hub() {
    let job = Job::start(3);
    let host = job.uplink([0, 1]);
    let zero = job.join_via(&host, 0);
    let connect = || {
        let connection = TcpStream::connect(host.address()).unwrap();
        connection.set_read_timeout(Some(LIMIT)).unwrap();
        connection
    };
    let answer_to = |said: &[u8]| {
        let mut connection = connect();
        let _ = connection.write_all(said);
        // The end of the connection would keep an answer back.
        if said.len() < HELLO {
            connection.shutdown(Shutdown::Write).unwrap();
        }
        let mut answer = Vec::new();
        let _ = connection.read_to_end(&mut answer);
        answer
    };
    let wrong = Secret::fresh().unwrap();
    let say = |hello: Hello, secret| hello.say(secret).unwrap().0;
    for said in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0; HELLO + 100],
        &say(hello(1, 3), &wrong),      // a wrong secret
        &say(hello(2, 3), &job.secret), // a rank of another host
        &say(hello(1, 2), &job.secret), // a job of another size
        &say(hello(super::wire::AGENT, 3), &job.secret),
    ] {
        assert_eq!(answer_to(said), b"", "{} bytes", said.len());
    }
    // A replay reaches the hub, which answers, and closes the connection at the first frame.
    let first = say(hello(1, 3), &job.secret);
    let mut replay = connect();
    replay.write_all(&first).unwrap();
    replay.read_exact(&mut [0; ANSWER]).unwrap();
    replay.write_all(&[7; 2000]).unwrap();
    assert!(matches!(replay.read(&mut [0; 8]), Ok(0) | Err(_)));
    let silent: Vec<_> = (0..200).map(|_| connect()).collect();
    let one = within({
        let address = host.address();
        let secret = job.secret.clone();
        move || join(1, 3, address, &secret, HubAt::Launcher)
    });
    let two = job.join(2);
    on_all(vec![zero, one, two], |rank| rank.barrier().unwrap());
    assert_eq!(job.hub.connections(), 2);
    within(move || {
        for mut connection in silent {
            assert!(matches!(connection.read(&mut [0; 8]), Ok(0) | Err(_)));
        }
    });
}

/// The hub keeps the rest of a round for a rank that does not read, beyond the credit of the rank's channel and what the
/// kernel keeps.
#[test]
fn rank_that_reads_nothing_delays_no_neighbour() {
    const LONG: usize = LONGEST as usize;
    let job = Job::start(3);
    let host = job.uplink([0, 1, 2]);
    let ranks = vec![job.join_via(&host, 0), job.join_via(&host, 1)];
    let (mut stopped, mut to, mut from) = raw_at(host.address(), &job, 2);
    let message = vec![7; LONG];
    let round = |ranks: Vec<Tcp>| {
        let message = message.clone();
        on_all(ranks, move |rank| {
            assert!(rank.all_gather(&message).unwrap()[2] == message);
            rank
        })
    };
    stopped.write_all(&frame(&mut to, PART, JOB, &message)).unwrap();
    let ranks = round(ranks);
    // The neighbours' other frames pass, too.
    ranks[0].ask_whether_running(1);
    until(|| ranks[0].seen_running(1).is_some());
    stopped.set_read_timeout(Some(LIMIT)).unwrap();
    let mut chunk = vec![0; 1 << 20];
    let read = loop {
        match from.next(u64::MAX).unwrap() {
            Some(frame) => break frame.body,
            None => {
                let read = stopped.read(&mut chunk).unwrap();
                assert!(read > 0, "the connection has ended");
                from.take_in(&chunk[..read]);
            }
        }
    };
    assert_eq!(read.len(), 3 * (8 + LONG));
    // A rank that joins the next round before it has received the last one violates the protocol.
    stopped.write_all(&frame(&mut to, PART, JOB, &message)).unwrap();
    let ranks = round(ranks);
    stopped.write_all(&frame(&mut to, PART, JOB, &[])).unwrap();
    until(|| ranks.iter().all(|rank| rank.first_death() == Some(2)));
}

/// A test in place of an agent, whose channel 0 has sent the first message of a rank, and the handshake that continues it.
fn fake_agent(job: &Job, rank: Rank) -> (TcpStream, snow::HandshakeState) {
    let (mut stream, ..) = raw(job, super::wire::AGENT);
    let mut sent = Outgoing::default();
    let (said, handshake) = hello(rank, job.size).say(&job.secret).unwrap();
    sent.open(0);
    sent.data(0, &[IoSlice::new(&said)], HELLO);
    sent.write_to(&mut stream).unwrap();
    (stream, handshake)
}

#[test]
fn agent_behind_an_agent_is_refused() {
    let job = Job::start(1);
    let (mut stream, _) = fake_agent(&job, super::wire::AGENT);
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut end = Outgoing::default();
    end.end(0);
    let (mut expected, mut answer) = (Vec::new(), [0; 9]);
    end.write_to(&mut expected).unwrap();
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..], expected);
    end.end(0);
    end.write_to(&mut stream).unwrap();
    job.join(0).barrier().unwrap();
}

/// An agent that sends a malformed frame loses its ranks; the others stay alive.
#[test]
fn agent_with_malformed_frame_loses_its_ranks() {
    type Wrong = fn(&mut Outgoing);
    let wrongs: [Wrong; 8] = [
        |to| to.raw(&[99; 9]),                                 // no kind of frame
        |to| to.open(2),                                       // out of turn
        |to| to.open(0),                                       // again
        |to| (1..10_000).for_each(|channel| to.open(channel)), // too many
        |to| _ = to.data(1, &[IoSlice::new(b"x")], 1),         // of a channel that is not open
        |to| to.end(1),                                        // the same
        |to| to.credit(0, CREDIT),                             // more than the hub has sent
        |to| (0..2).for_each(|_| _ = to.data(0, &[IoSlice::new(&[255; 70_000])], usize::MAX)), // in the rank's name
    ];
    for (number, wrong) in wrongs.into_iter().enumerate() {
        let job = Job::start(2);
        let zero = job.join(0);
        let (mut stream, handshake) = fake_agent(&job, 1);
        let mut sent = Outgoing::default();
        let mut answer = [0; 9 + ANSWER];
        stream.read_exact(&mut answer).unwrap();
        let answer = answer[9..].try_into().unwrap();
        let (mut to_hub, _) = super::wire::hear_answer(handshake, answer).unwrap();
        sent.data(0, &[IoSlice::new(&frame(&mut to_hub, HERE, JOB, &[]))], usize::MAX);
        wrong(&mut sent);
        let _ = sent.write_to(&mut stream);
        until(|| zero.first_death() == Some(1));
        assert!(died(&zero, 1) && job.hub.connections() == 2, "{number}");
    }
}

/// A test in place of a hub, the connection of a host with rank 0 to it, and a rank whose channel is open there.
fn fake_hub() -> (TcpStream, Uplink, TcpStream) {
    let secret = Secret::fresh().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = Uplink::start(contact(listener.local_addr().unwrap(), &secret), 1, vec![0]).unwrap();
    let (mut hub, _) = listener.accept().unwrap();
    let mut said = [0; HELLO];
    hub.read_exact(&mut said).unwrap();
    let (_, answer, (mut to, _)) = Hello::hear(&said, &secret).unwrap();
    hub.write_all(&[&answer[..], &frame(&mut to, WELCOME, JOB, &[])].concat()).unwrap();
    let mut rank = TcpStream::connect(host.address()).unwrap();
    rank.write_all(&hello(0, 1).say(&secret).unwrap().0).unwrap();
    hub.read_exact(&mut [0; 2 + 10 + 16 + 9 + 9 + HELLO]).unwrap(); // HERE, the channel, and the rank's first message
    (hub, host, rank)
}

#[test]
fn hub_that_exceeds_its_credit_is_left() {
    let (mut hub, _host, mut rank) = fake_hub();
    let mut sent = Outgoing::default();
    // The rank does not read. The kernel keeps some megabytes for it.
    for _ in 0..1000 {
        sent.data(0, &[IoSlice::new(&[7; 64 << 10])], usize::MAX);
    }
    within(move || {
        while sent.write_to(&mut hub).is_ok() && !sent.is_empty() {}
        // The agent has closed both connections.
        let _ = hub.read_to_end(&mut Vec::new());
        let _ = rank.read_to_end(&mut Vec::new());
    });
}

/// The kernel keeps some megabytes for either connection.
#[test]
fn agent_of_a_hub_that_reads_nothing_keeps_little() {
    let (_hub, _host, mut rank) = fake_hub();
    rank.set_nonblocking(true).unwrap();
    let (chunk, mut written, mut changed) = (vec![7; 1 << 20], 0, Instant::now());
    while written < 512 << 20 && changed.elapsed() < Duration::from_secs(2) {
        match rank.write(&chunk) {
            Ok(more) => (written, changed) = (written + more, Instant::now()),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    assert!(written < 64 << 20, "{written} bytes");
}
