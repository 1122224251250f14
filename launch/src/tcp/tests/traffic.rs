//! Bytes that a start and a `split` of many ranks behind agents move through the hub. The ranks are connections without
//! threads and providers, so that a thousand fit into a process.

use super::*;

/// Bytes that each rank gives to the exchanges of a start over TCP: the record of its host, its providers, the memory of its
/// host, its contact, its listener.
const RECORDS: [usize; 5] = [73, 12, 1, 60, 1];
/// The place of a rank on its host, and the key of the host's memory.
const ON_HOST: [usize; 2] = [8, 30];
const IDENTITY: usize = 32;
/// A frame of a channel, and a short frame in it.
const CARRIED: usize = 9 + 2 + 10 + 16;

struct Member {
    stream: TcpStream,
    to: Sealer,
    from: Opener,
}

impl Member {
    fn say(&mut self, kind: u8, group: u64, body: &[u8]) {
        self.stream.write_all(&frame(&mut self.to, kind, group, body)).unwrap();
    }

    /// Reads the result of a round.
    fn round(&mut self) -> Vec<u8> {
        let mut chunk = [0; 64 << 10];
        loop {
            if let Some(frame) = self.from.next(u64::MAX).unwrap() {
                assert_eq!(frame.kind, GATHERED);
                return frame.body;
            }
            let read = self.stream.read(&mut chunk).unwrap();
            assert!(read > 0, "the hub has closed the connection");
            self.from.take_in(&chunk[..read]);
        }
    }
}

/// Starts `size` ranks, of which `r` is on host `r % hosts`, and makes a team of them all. Returns the bytes through the
/// hub.
fn start_and_split(size: usize, hosts: usize) -> u64 {
    assert!(descriptors::make_room(3 * size + 70 * hosts).is_ok(), "all connections are in this process");
    let (begun, job) = (Instant::now(), Job::start(size));
    let uplinks: Vec<Uplink> = (0..hosts).map(|host| job.uplink((host..size).step_by(hosts))).collect();
    let mut members: Vec<Member> = std::thread::scope(|scope| {
        let (job, uplinks) = (&job, &uplinks);
        let join = |part: usize| {
            let join = move |rank: Rank| {
                let (stream, to, from) = raw_at(uplinks[rank % hosts].address(), job, rank);
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                Member { stream, to, from }
            };
            scope.spawn(move || (part * size / 4..(part + 1) * size / 4).map(join).collect::<Vec<_>>())
        };
        let parts: Vec<_> = (0..4).map(join).collect();
        parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
    });
    println!("{size} ranks on {hosts} hosts: joined after {:?}", begun.elapsed());
    let all = [0, 1, size as u32].map(u32::to_le_bytes).concat();
    for (rank, member) in members.iter_mut().enumerate() {
        member.say(HOST, JOB, &[(rank % hosts) as u8; IDENTITY]);
    }
    let mut round = |kind: u8, group: u64, len: usize| {
        members.iter_mut().for_each(|member| member.say(kind, group, &vec![7; len]));
        for (rank, member) in members.iter_mut().enumerate() {
            let expected = match kind {
                PART if rank >= hosts => 0,
                PART => size * (8 + len),
                _ => size / hosts * (8 + len),
            };
            assert_eq!(member.round().len(), expected);
        }
    };
    ON_HOST.iter().for_each(|&len| round(PART_OF_HOST, JOB, len));
    RECORDS.iter().for_each(|&len| round(PART, JOB, len));
    members.iter_mut().for_each(|member| member.say(FORM, 7, &all));
    let mut round = |len: usize| {
        members.iter_mut().for_each(|member| member.say(PART, 7, &vec![7; len]));
        members.iter_mut().for_each(|member| _ = member.round());
    };
    round(1);
    println!("{size} ranks on {hosts} hosts: started and split after {:?}", begun.elapsed());
    assert_eq!(job.hub.connections(), hosts as u64);
    job.hub.traffic()
}

/// The bytes that the hub must move: results once for each host, all else once for each rank.
fn expected(size: usize, hosts: usize) -> u64 {
    let rounds = RECORDS.len() + 1 + ON_HOST.len();
    let parts: usize = RECORDS.iter().chain(&ON_HOST).sum();
    let of_rank = 9 + (9 + HELLO) + (9 + ANSWER) + CARRIED + (CARRIED + ProcessId::BYTES) // channel, handshake, HERE, WELCOME
        + (CARRIED + IDENTITY) + (CARRIED + 12) // HOST, FORM
        + 2 * rounds * CARRIED + parts + 1;
    let results: usize = RECORDS.iter().chain(&[1]).map(|len| size * (8 + len)).sum();
    let on_host: usize = ON_HOST.iter().map(|len| size / hosts * (8 + len)).sum();
    (size * (of_rank + on_host) + hosts * results) as u64
}

/// `cargo test --release -p transom-launch --lib tests::traffic -- --nocapture` prints the times.
#[test]
fn hub_moves_results_once_for_each_host() {
    for (size, hosts) in [(256, 16), (1024, 64)] {
        let (bytes, expected) = (start_and_split(size, hosts), expected(size, hosts));
        println!("{size} ranks on {hosts} hosts: {bytes} bytes through the hub, expected {expected}");
        assert!(bytes.abs_diff(expected) < expected / 50, "{bytes} bytes, expected {expected}");
        assert!(bytes < 20_000_000);
    }
}
