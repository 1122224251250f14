//! Connections that do not know the secret, and members that send malformed frames.

use super::*;

#[test]
fn stranger_learns_and_changes_nothing() {
    let job = Job::start(2);
    let zero = job.join(0);

    let answer_to = |said: &[u8]| {
        let mut connection = job.connection();
        let _ = connection.write_all(said);
        let _ = connection.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = connection.read_to_end(&mut answer);
        answer
    };
    // The hub closes connections that send garbage of any length.
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; HELLO + 100], &[255; 100_000]] {
        assert_eq!(answer_to(garbage), b"", "{} bytes of garbage", garbage.len());
    }
    // A rank or a size that does not exist in this job.
    for (rank, size) in [(2, 2), (u32::MAX as usize - 1, 2), (0, 3)] {
        assert_eq!(answer_to(&hello(rank, size).say(&job.secret).unwrap().0), b"");
    }
    // A valid message under the wrong secret.
    let wrong = Secret::fresh().unwrap();
    let refused = greet(&job.address(), hello(1, 2), &wrong).map(drop).unwrap_err();
    assert!(refused.to_string().contains("does not know the secret"), "{refused}");
    assert_eq!(answer_to(&hello(1, 2).say(&wrong).unwrap().0), b"");
    // A replay of a rank's first message, without the keys to continue.
    let (said, _) = hello(1, 2).say(&job.secret).unwrap();
    assert_eq!(answer_to(&said).len(), ANSWER);
    assert_eq!(answer_to(&[&said[..], &[7; 500]].concat()).len(), ANSWER);
    // The hub's own answer, reflected.
    let mut connection = job.connection();
    connection.write_all(&said).unwrap();
    let mut answer = [0; ANSWER];
    connection.read_exact(&mut answer).unwrap();
    connection.write_all(&answer).unwrap();
    let mut more = Vec::new();
    let _ = connection.read_to_end(&mut more);
    assert_eq!(more, b"");

    // Rank 1 can still join, once.
    let one = job.join(1);
    let twice = Hello { process: process(17), ..hello(1, 2) };
    let refused = greet(&job.address(), twice, &job.secret).unwrap();
    assert!(matches!(refused, Answer::Refused(by) if by == process(1)), "the refusal names the process that joined");
    assert!(zero.lost().is_none() && one.lost().is_none());
    on_all(vec![zero, one], |rank| rank.barrier().unwrap());
}

/// A third party relays and records all bytes between a rank and the hub.
#[test]
fn replayed_session_is_refused() {
    let job = Job::start(2);
    let between = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, to_hub) = (between.local_addr().unwrap(), job.connection());
    let listening = std::thread::spawn(move || {
        let (from_rank, _) = between.accept().unwrap();
        let (mut answers, mut back) = (to_hub.try_clone().unwrap(), from_rank.try_clone().unwrap());
        let passing = std::thread::spawn(move || std::io::copy(&mut answers, &mut back));
        let (mut from_rank, mut to_hub, mut heard, mut chunk) = (from_rank, to_hub, Vec::new(), [0; 4096]);
        while let Ok(read @ 1..) = from_rank.read(&mut chunk) {
            heard.extend_from_slice(&chunk[..read]);
            to_hub.write_all(&chunk[..read]).unwrap();
        }
        to_hub.shutdown(Shutdown::Both).unwrap();
        let _ = passing.join();
        heard
    });
    let zero = join(0, 2, address, &job.secret, HubAt::Launcher);
    let one = job.join(1);
    on_all(vec![zero, one], |rank| rank.all_gather(b"said").unwrap());
    let heard = within(|| listening.join().unwrap());
    assert!(
        heard.len() > HELLO && !heard.windows(4).any(|said| said == b"said"),
        "the recording is complete and encrypted"
    );

    let again = Job::with(2, job.secret.clone());
    let one = again.join(1);
    let mut connection = again.connection();
    let _ = connection.write_all(&heard);
    let mut answer = Vec::new();
    let _ = connection.read_to_end(&mut answer);
    assert!(answer.len() <= ANSWER, "the hub sent {} bytes to a replay", answer.len());
    let zero = again.join(0); // the replay did not take its place
    on_all(vec![zero, one], |rank| rank.barrier().unwrap());
}

#[test]
fn silent_connections_do_not_block_joining() {
    let job = Job::start(2);
    let silent: Vec<_> = (0..400).map(|_| job.connection()).collect();
    let halves = silent.iter().take(100).map(|mut connection| connection.write_all(b"transom"));
    halves.for_each(drop);
    let ranks = within(move || {
        let ranks = job.all();
        (on_all(ranks, |rank| rank.barrier().unwrap()), job).1
    });
    // The hub closes each silent connection eventually.
    within(move || {
        for mut connection in silent {
            assert!(matches!(connection.read(&mut [0; 8]), Ok(0) | Err(_)));
        }
    });
    drop(ranks);
}

/// A run of ranks in a list of members.
fn run(first: u32, step: u32, count: u32) -> Vec<u8> {
    [first, step, count].map(u32::to_le_bytes).concat()
}

/// A member that sends a malformed frame dies; the other ranks stay alive.
#[test]
fn member_with_malformed_frame_dies() {
    type Wrong = fn(&mut Sealer) -> Vec<u8>;
    let wrongs: [Wrong; 17] = [
        |_| vec![255; 70_000],             // length beyond the limit
        |to| frame(to, 99, JOB, &[]),      // unknown kind
        |to| frame(to, WELCOME, JOB, &[]), // a kind that only the hub sends
        |to| frame(to, PART, 7, b"a team that nobody formed"),
        |to| frame(to, PART, JOB, &vec![0; LONGEST as usize + 1]), // too long
        |to| [frame(to, PART, JOB, &[]), frame(to, PART, JOB, &[])].concat(), // two parts in one round
        |to| frame(to, ASK, JOB, &run(9, 0, 1)),                   // question about a rank beyond the job,
        |to| frame(to, RUNS, JOB, &[]),                            // answer without a rank,
        |to| frame(to, FORM, 1, &[]),                              // team without members,
        |to| frame(to, FORM, 2, &run(0, 0, 1)),                    // without its sender,
        |to| frame(to, FORM, 3, &run(1, 1, 2)),                    // with ranks beyond the job,
        |to| frame(to, FORM, 4, &run(1, 0, 2)),                    // with a duplicate
        |to| frame(to, HOST, JOB, &[]),                            // no host,
        |to| frame(to, HOST, JOB, &[7; LONGEST_HOST + 1]),         // a host with too long an identity
        |to| {
            let mut frame = frame(to, PART, JOB, b"changed");
            frame[20] ^= 1;
            frame
        },
        |to| {
            let mut frame = frame(to, PART, JOB, &[0; 5000]);
            frame[4000] ^= 1;
            frame
        },
        |to| {
            frame(to, PART, JOB, &[]); // a frame is left out
            frame(to, PART, JOB, &[])
        },
    ];
    for (number, wrong) in wrongs.into_iter().enumerate() {
        let job = Job::start(2);
        let zero = job.join(0);
        let (mut stream, mut to, _from) = raw(&job, 1);
        let _ = stream.write_all(&wrong(&mut to));
        until(|| zero.first_death() == Some(1));
        let told = within(move || zero.barrier());
        assert!(matches!(told, Err(FabricError::PeerDied { rank: 1 })), "{number}: {told:?}");
    }
}
