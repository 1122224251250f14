//! Ranks as threads around a hub of their own, and connections that do not know the secret.

use super::frames::{FORM, JOB, LONGEST, PART, WELCOME};
use super::wire::{ANSWER, Answer, Body, HELLO, Hello, Opener, Sealer, greet};
use super::*;
use crate::job::process::ProcessId;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use transom_locks::{Awaited, Rank};
use transom_windows::{Exchange, FabricError};

const LIMIT: Duration = Duration::from_secs(30);

struct Job {
    hub: Hub,
    secret: Secret,
    size: usize,
    /// This machine's address, as another network has it.
    seen_from: std::sync::Mutex<Option<[u8; 4]>>,
}

impl Job {
    fn start(size: usize) -> Self {
        Self::with(size, Secret::fresh().unwrap())
    }

    fn with(size: usize, secret: Secret) -> Self {
        Job { hub: Hub::start(size, secret.clone()).unwrap(), secret, size, seen_from: Default::default() }
    }

    fn address(&self) -> SocketAddr {
        (self.seen_from.lock().unwrap().unwrap_or([127, 0, 0, 1]), self.hub.port()).into()
    }

    fn join(&self, rank: Rank) -> Tcp {
        join(rank, self.size, self.address(), &self.secret, HubAt::Launcher)
    }

    fn all(&self) -> Vec<Tcp> {
        (0..self.size).map(|rank| self.join(rank)).collect()
    }

    fn connection(&self) -> TcpStream {
        let connection = TcpStream::connect(self.address()).unwrap();
        connection.set_read_timeout(Some(LIMIT)).unwrap();
        connection
    }
}

fn process(rank: Rank) -> ProcessId {
    ProcessId::new("host", rank as u32)
}

fn hello(rank: Rank, size: usize) -> Hello {
    Hello { rank, size, process: process(rank) }
}

fn contact(address: SocketAddr, secret: &Secret) -> Contact {
    Contact { addresses: vec![address], secret: secret.clone() }
}

fn join(rank: Rank, size: usize, address: SocketAddr, secret: &Secret, hub: HubAt) -> Tcp {
    Tcp::join(rank, size, process(rank), &contact(address, secret), hub).unwrap()
}

/// Runs it on a thread, and fails if it takes too long.
fn within<R: Send + 'static>(body: impl FnOnce() -> R + Send + 'static) -> R {
    let (send, receive) = mpsc::channel();
    let thread: JoinHandle<()> = std::thread::spawn(move || drop(send.send(body())));
    match receive.recv_timeout(LIMIT) {
        Ok(returned) => returned,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it takes longer than {LIMIT:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => std::panic::resume_unwind(thread.join().unwrap_err()),
    }
}

/// Runs it on all ranks, each a thread.
fn on_all<R: Send + 'static>(ranks: Vec<Tcp>, body: impl Fn(Tcp) -> R + Send + Sync + Clone + 'static) -> Vec<R> {
    let run = |rank| {
        let body = body.clone();
        std::thread::spawn(move || body(rank))
    };
    let running: Vec<_> = ranks.into_iter().map(run).collect();
    within(move || running.into_iter().map(|rank| rank.join().unwrap()).collect())
}

/// Waits until it is so.
fn until(mut so: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !so() {
        assert!(Instant::now() < until, "not so after {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn everyone_gets_what_everyone_says() {
    for size in [1, 2, 3, 4, 8] {
        let job = Job::start(size);
        let say =
            |rank: usize, round: usize| vec![(rank + round) as u8; [0, 1, 100, 70_000, 3 << 20][(rank + round) % 5]];
        on_all(job.all(), move |rank| {
            for round in 0..10 {
                let expected: Vec<_> = (0..size).map(|rank| say(rank, round)).collect();
                assert!(rank.all_gather(&say(rank.rank(), round)).unwrap() == expected, "round {round}");
                rank.barrier().unwrap();
            }
        });
        within(|| job.hub.linger());
    }
}

#[test]
fn messages_have_a_limit_that_all_learn_of() {
    let job = Job::start(3);
    on_all(job.all(), |rank| {
        let mine = vec![7; if rank.rank() == 1 { LONGEST as usize + 1 } else { 5 }];
        let error = rank.all_gather(&mine).unwrap_err();
        assert!(matches!(error, FabricError::Misuse { .. }), "{error}");
        assert!(error.to_string().starts_with("rank 1 announces 16777217 bytes"), "{error}");
        assert_eq!(rank.all_gather(b"on").unwrap(), [b"on"; 3]);
    });
}

#[test]
fn a_connection_that_ends_is_a_death_told_to_all() {
    let job = Job::start(4);
    let mut ranks = job.all();
    let dead = ranks.remove(2);
    let others: Vec<_> = ranks.to_vec();
    let waiting = std::thread::spawn(move || on_all(others, |rank| rank.barrier()));
    dead.cut();
    for told in within(|| waiting.join().unwrap()) {
        assert!(matches!(told, Err(FabricError::PeerDied { rank: 2 })), "{told:?}");
    }
    for rank in &ranks {
        assert!(matches!(rank.lost(), Some(FabricError::PeerDied { rank: 2 })));
        assert!(matches!(rank.check_peers(Awaited::Rank(0)), Err(FabricError::PeerDied { rank: 2 })));
        assert!(matches!(rank.all_gather(&[]), Err(FabricError::PeerDied { rank: 2 })));
        assert_eq!(rank.first_death(), Some(2));
    }
    assert_eq!(job.hub.first_death(), Some(2));
}

#[test]
fn a_panic_and_a_failure_are_deaths() {
    let job = Job::start(3);
    let mut ranks = job.all();
    let panicking = ranks.pop().unwrap();
    std::thread::spawn(move || {
        let _held = panicking;
        panic!("as it should");
    });
    until(|| ranks.iter().all(|rank| rank.first_death() == Some(2)));
    ranks[1].fail(); // the first death stays the cause
    assert!(matches!(ranks[1].barrier(), Err(FabricError::PeerDied { rank: 2 })));

    let job = Job::start(2);
    let ranks = job.all();
    ranks[0].fail();
    until(|| ranks.iter().all(|rank| rank.first_death() == Some(0)));
}

#[test]
fn leaving_is_no_death() {
    let job = Job::start(3);
    let mut ranks = job.all();
    let others: Vec<_> = ranks.drain(1..).collect();
    let waiting = std::thread::spawn(move || {
        on_all(others, |rank| {
            let told = rank.barrier();
            assert!(rank.check_peers(Awaited::Rank(3 - rank.rank())).is_ok());
            (told, rank)
        })
    });
    within(move || ranks.clear());
    let (told, others): (Vec<_>, Vec<_>) = within(|| waiting.join().unwrap()).into_iter().unzip();
    for told in told {
        assert!(matches!(told, Err(FabricError::PeerLeft { rank: 0 })), "{told:?}");
    }
    assert!(
        others.iter().all(|rank| matches!(rank.check_peers(Awaited::Rank(0)), Err(FabricError::PeerLeft { rank: 0 })))
    );
    assert!(others.iter().all(|rank| rank.first_death().is_none()));
    // Of a wait that anyone may end the last other decides.
    assert!(others.iter().all(|rank| rank.check_peers(Awaited::Anyone).is_ok()));
    let one = others.into_iter().next().unwrap();
    until(|| matches!(one.check_peers(Awaited::Anyone), Err(FabricError::PeerLeft { rank: 0 })));
    assert!(matches!(one.check_peers(Awaited::Behind(2)), Err(FabricError::PeerLeft { rank: 0 })));
    within(move || drop(one));
    within(|| job.hub.linger());
}

#[test]
fn rank_0_with_the_hub_stays_until_all_have_left() {
    let Job { hub, secret, size, .. } = Job::start(3);
    let address = ([127, 0, 0, 1], hub.port()).into();
    let (send, receive) = mpsc::channel();
    let zero = join(0, size, address, &secret, HubAt::Rank0(Some(hub)));
    let mut others: Vec<_> = [1, 2].map(|rank| join(rank, size, address, &secret, HubAt::Rank0(None))).into();
    let leaving = std::thread::spawn(move || {
        drop(zero);
        send.send(()).unwrap();
    });
    until(|| others.iter().all(|rank| matches!(rank.lost(), Some(FabricError::PeerLeft { rank: 0 }))));
    drop(others.pop());
    // The hub still tells, so rank 0 is still there.
    until(|| matches!(others[0].check_peers(Awaited::Rank(2)), Err(FabricError::PeerLeft { rank: 2 })));
    assert!(receive.try_recv().is_err());
    drop(others);
    within(|| leaving.join().unwrap());
}

#[test]
fn rank_0_with_the_hub_gives_up_who_never_comes() {
    let job = || {
        let Job { hub, secret, size, .. } = Job::start(3);
        let address = ([127, 0, 0, 1], hub.port()).into();
        let zero = join(0, size, address, &secret, HubAt::Rank0(Some(hub)));
        (zero, join(1, size, address, &secret, HubAt::Rank0(None)))
    };
    // While they wait,
    let (zero, one) = job();
    let hub = zero.clone();
    let waiting = std::thread::spawn(move || on_all(vec![zero, one], |rank| rank.barrier()));
    hub.all_by(Instant::now());
    for told in within(|| waiting.join().unwrap()) {
        assert!(matches!(told, Err(FabricError::PeerDied { rank: 2 })), "{told:?}");
    }
    // and when they leave before.
    let (zero, one) = job();
    zero.all_by(Instant::now() + Duration::from_millis(200));
    within(move || drop((one, zero)));
}

#[test]
fn the_end_of_the_hub_is_an_error() {
    let job = Job::start(2);
    let ranks = job.all();
    drop(job);
    for told in on_all(ranks, |rank| rank.barrier()) {
        assert!(matches!(&told, Err(FabricError::System { what, .. }) if what.contains("launcher")), "{told:?}");
    }
    let Job { hub, secret, size, .. } = Job::start(2);
    let address = ([127, 0, 0, 1], hub.port()).into();
    let one = join(1, size, address, &secret, HubAt::Rank0(None));
    drop(hub);
    let told = within(move || one.barrier());
    assert!(matches!(told, Err(FabricError::PeerDied { rank: 0 })), "{told:?}");
}

#[test]
fn a_rank_that_never_comes_is_waited_for_until_its_process_ends() {
    let job = Job::start(3);
    let ranks = vec![job.join(0), job.join(1)];
    let waiting = std::thread::spawn(move || on_all(ranks, |rank| rank.barrier()));
    job.hub.ended(2, false);
    for told in within(|| waiting.join().unwrap()) {
        assert!(matches!(told, Err(FabricError::PeerDied { rank: 2 })), "{told:?}");
    }
    // One that ends well without ever joining has left; who comes later learns of it.
    let job = Job::start(2);
    job.hub.ended(1, true);
    job.hub.ended(7, true); // no such rank
    let zero = job.join(0);
    until(|| matches!(zero.lost(), Some(FabricError::PeerLeft { rank: 1 })));
}

#[test]
fn who_does_not_know_the_secret_learns_and_changes_nothing() {
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
    // Garbage, of any length, is answered by an end.
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; HELLO + 100], &[255; 100_000]] {
        assert_eq!(answer_to(garbage), b"", "{} bytes of garbage", garbage.len());
    }
    // A rank or a job that is not.
    for (rank, size) in [(2, 2), (u32::MAX as usize, 2), (0, 3)] {
        assert_eq!(answer_to(&hello(rank, size).say(&job.secret).unwrap().0), b"");
    }
    // The right words and the wrong secret.
    let wrong = Secret::fresh().unwrap();
    let refused = greet(&job.address(), hello(1, 2), &wrong).map(drop).unwrap_err();
    assert!(refused.to_string().contains("does not know the secret"), "{refused}");
    assert_eq!(answer_to(&hello(1, 2).say(&wrong).unwrap().0), b"");
    // What a rank said, said again by one who cannot go on.
    let (said, _) = hello(1, 2).say(&job.secret).unwrap();
    assert_eq!(answer_to(&said).len(), ANSWER);
    assert_eq!(answer_to(&[&said[..], &[7; 500]].concat()).len(), ANSWER);
    // And what the hub itself said, said back.
    let mut connection = job.connection();
    connection.write_all(&said).unwrap();
    let mut answer = [0; ANSWER];
    connection.read_exact(&mut answer).unwrap();
    connection.write_all(&answer).unwrap();
    let mut more = Vec::new();
    let _ = connection.read_to_end(&mut more);
    assert_eq!(more, b"");

    // The place of rank 1 is free as before, and taken once.
    let one = job.join(1);
    let twice = Hello { process: process(17), ..hello(1, 2) };
    let refused = greet(&job.address(), twice, &job.secret).unwrap();
    assert!(matches!(refused, Answer::Refused(by) if by == process(1)), "it is told which process has joined");
    assert!(zero.lost().is_none() && one.lost().is_none());
    on_all(vec![zero, one], |rank| rank.barrier().unwrap());
}

/// One between a rank and the hub, who passes on what both say and keeps it.
#[test]
fn what_was_said_once_is_of_no_use_again() {
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
    assert!(heard.len() > HELLO && !heard.windows(4).any(|said| said == b"said"), "it heard all, and nothing of it");

    let again = Job::with(2, job.secret.clone());
    let one = again.join(1);
    let mut connection = again.connection();
    let _ = connection.write_all(&heard);
    let mut answer = Vec::new();
    let _ = connection.read_to_end(&mut answer);
    assert!(answer.len() <= ANSWER, "the hub said {} bytes to one who only repeats", answer.len());
    let zero = again.join(0); // its place is free
    on_all(vec![zero, one], |rank| rank.barrier().unwrap());
}

#[test]
fn silent_connections_keep_no_rank_out() {
    let job = Job::start(2);
    let silent: Vec<_> = (0..400).map(|_| job.connection()).collect();
    let halves = silent.iter().take(100).map(|mut connection| connection.write_all(b"transom"));
    halves.for_each(drop);
    let ranks = within(move || {
        let ranks = job.all();
        (on_all(ranks, |rank| rank.barrier().unwrap()), job).1
    });
    // Each is sent away after a while.
    within(move || {
        for mut connection in silent {
            assert!(matches!(connection.read(&mut [0; 8]), Ok(0) | Err(_)));
        }
    });
    drop(ranks);
}

/// The connection of a rank, without the thread that reads it.
fn raw(job: &Job, rank: Rank) -> (TcpStream, Sealer, Opener) {
    match greet(&job.address(), hello(rank, job.size), &job.secret).unwrap() {
        Answer::Welcome(stream, to, from) => (stream, to, from),
        Answer::Refused(_) => panic!("refused"),
    }
}

fn frame(to: &mut Sealer, kind: u8, group: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    to.frame(kind, group, &Body::new(body.to_vec()).unwrap()).write_to(&mut bytes).unwrap();
    bytes
}

/// A member whose frames are not what they should be dies of it, and nobody else.
#[test]
fn a_member_that_says_nonsense_has_died() {
    type Wrong = fn(&mut Sealer) -> Vec<u8>;
    let wrongs: [Wrong; 13] = [
        |_| vec![255; 70_000],             // a length beyond all
        |to| frame(to, 99, JOB, &[]),      // a kind that is not
        |to| frame(to, WELCOME, JOB, &[]), // the hub's own
        |to| frame(to, PART, 7, b"a team that nobody formed"),
        |to| frame(to, PART, JOB, &vec![0; LONGEST as usize + 1]), // too long
        |to| [frame(to, PART, JOB, &[]), frame(to, PART, JOB, &[])].concat(), // twice in a round
        |to| frame(to, FORM, 1, &[]),                              // teams without members,
        |to| frame(to, FORM, 2, b"\0\0\0\0"),                      // without oneself,
        |to| frame(to, FORM, 3, b"\x01\0\0\0\x02\0\0\0"),          // with others than there are,
        |to| frame(to, FORM, 4, b"\x01\0\0\0\x01\0\0\0"),          // with one twice
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
            frame(to, PART, JOB, &[]); // left out
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

/// As one that is stopped does, whatever was sent to it. What the hub keeps for it has a limit.
#[test]
fn a_rank_that_reads_nothing_for_a_while_is_alive() {
    const PATIENCE: Duration = Duration::from_secs(14); // longer than any limit of the kernel or of the hub
    let job = Job::start(3);
    let message = vec![7; LONGEST as usize];
    let (mut stopped, mut to, mut from) = raw(&job, 2);
    stopped.write_all(&frame(&mut to, PART, JOB, &message)).unwrap();
    let ranks = vec![job.join(0), job.join(1)];
    let said = message.clone();
    let ranks = on_all(ranks, move |rank| {
        assert!(rank.all_gather(&said).unwrap()[2] == said);
        rank
    });
    std::thread::sleep(PATIENCE);
    assert!(ranks.iter().all(|rank| rank.first_death().is_none()));
    let mut chunk = vec![0; 1 << 20];
    stopped.set_read_timeout(Some(LIMIT)).unwrap();
    let round = loop {
        match from.next(u64::MAX).unwrap() {
            Some(frame) => break frame.body,
            None => {
                let read = stopped.read(&mut chunk).unwrap();
                assert!(read > 0, "the connection has ended");
                from.take_in(&chunk[..read]);
            }
        }
    };
    assert_eq!(round.len(), 3 * (8 + message.len()));
    stopped.write_all(&frame(&mut to, PART, JOB, &[])).unwrap();
    on_all(ranks.clone(), |rank| rank.barrier().unwrap());
    // One that takes part in the next round has got all of the last, or does not keep to the rules.
    stopped.write_all(&frame(&mut to, PART, JOB, &message)).unwrap();
    on_all(ranks.clone(), move |rank| drop(rank.all_gather(&message).unwrap()));
    stopped.write_all(&frame(&mut to, PART, JOB, &[])).unwrap();
    until(|| ranks.iter().all(|rank| rank.first_death() == Some(2)));
}

#[test]
fn of_several_deaths_each_is_named() {
    let job = Job::start(6);
    let ranks = job.all();
    ranks[3].cut();
    until(|| ranks[0].first_death() == Some(3));
    ranks[2].cut();
    let died = |of: Awaited| match ranks[0].check_peers(of) {
        Err(FabricError::PeerDied { rank }) => Some(rank),
        _ => None,
    };
    until(|| died(Awaited::Rank(2)) == Some(2));
    assert_eq!(died(Awaited::Behind(2)), Some(2));
    assert_eq!([Awaited::Rank(3), Awaited::Rank(1), Awaited::Behind(1), Awaited::Anyone].map(died), [Some(3); 4]);
    assert_eq!(job.hub.first_death(), Some(3));
}

#[test]
fn teams_are_exchanges_of_their_own() {
    let job = Job::start(5);
    on_all(job.all(), |rank| {
        let (me, odd) = (rank.rank(), rank.rank() % 2);
        // Rank 4 stays out; the others by parity, the highest first.
        let team = rank.split((me < 4).then_some(odd as u64), 10 - me as u64).unwrap();
        let Some(team) = team else {
            assert_eq!(me, 4);
            return rank.barrier().unwrap();
        };
        assert_eq!((team.rank(), team.size()), (1 - me / 2, 2));
        for round in 0..10_usize {
            let said = team.all_gather(&[me as u8; 100][..round * (odd + 1)]).unwrap();
            assert_eq!(said, [vec![odd as u8 + 2; round * (odd + 1)], vec![odd as u8; round * (odd + 1)]]);
        }
        let alone = team.split(Some(me as u64), 0).unwrap().unwrap();
        assert_eq!(alone.all_gather(b"x").unwrap(), [b"x"]);
        rank.barrier().unwrap();
    });
}

#[test]
fn teams_end_with_their_members() {
    let job = Job::start(4);
    on_all(job.all(), |rank| {
        let me = rank.rank();
        let pair = rank.split(Some(me as u64 / 2), 0).unwrap().unwrap();
        let all = rank.split(Some(7), 0).unwrap().unwrap();
        rank.barrier().unwrap();
        if me == 0 {
            drop(pair); // of the pair only
            assert_eq!(all.all_gather(&[]).unwrap().len(), 4);
            return rank.barrier().unwrap();
        }
        if me == 1 {
            assert!(matches!(pair.barrier(), Err(FabricError::PeerLeft { rank: 0 })));
        }
        all.barrier().unwrap();
        rank.barrier().unwrap();
        if me == 2 {
            rank.cut();
        } else if me == 3 {
            assert!(matches!(pair.barrier(), Err(FabricError::PeerDied { rank: 0 })));
            let told = all.barrier().unwrap_err(); // rank 0 may have left before
            assert!(matches!(told, FabricError::PeerDied { rank: 2 } | FabricError::PeerLeft { .. }), "{told}");
        }
    });
}

#[test]
fn a_job_is_left_while_a_team_of_it_goes_on() {
    let job = Job::start(2);
    on_all(job.all(), |rank| {
        let team = rank.split(Some(0), 0).unwrap().unwrap();
        if rank.rank() == 0 {
            drop(rank);
            team.barrier().unwrap();
            team.leave();
        } else {
            assert!(matches!(rank.barrier(), Err(FabricError::PeerLeft { rank: 0 })));
            team.barrier().unwrap();
            assert!(matches!(team.barrier(), Err(FabricError::PeerLeft { rank: 0 })));
        }
    });
    within(|| job.hub.linger());
}

/// A rank's own children may ask after all ranks have left.
#[test]
fn the_hub_of_a_launcher_answers_until_the_launcher_ends() {
    let job = Job::start(1);
    drop(job.join(0));
    let answer = greet(&job.address(), Hello { process: process(17), ..hello(0, 1) }, &job.secret).unwrap();
    assert!(matches!(answer, Answer::Refused(by) if by == process(0)));
    let job = Job::start(1);
    job.hub.ended(0, true);
    let answer = greet(&job.address(), hello(0, 1), &job.secret).unwrap();
    assert!(matches!(answer, Answer::Refused(by) if by == ProcessId::default()), "nobody has joined");
}

#[test]
fn a_hub_that_answers_little_by_little_is_given_up() {
    let slow = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = slow.local_addr().unwrap();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = slow.accept().unwrap();
        while stream.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_secs(1));
        }
    });
    within(move || assert!(greet(&address, hello(0, 1), &Secret::fresh().unwrap()).is_err()));
    within(|| answering.join().unwrap());
}

#[test]
fn a_hub_that_welcomes_late_is_waited_for() {
    // Who gave up after the hub had let it in would be refused when it tried again, and told dead to the others.
    let job = Job::start(1);
    let (between, hub) = (std::net::TcpListener::bind("127.0.0.1:0").unwrap(), job.address());
    let (address, secret) = (between.local_addr().unwrap(), job.secret.clone());
    let passing_on = std::thread::spawn(move || {
        let (rank, _) = between.accept().unwrap();
        drop(between);
        let hub = TcpStream::connect(hub).unwrap();
        let (mut from_rank, mut to_hub) = (rank.try_clone().unwrap(), hub.try_clone().unwrap());
        let back = std::thread::spawn(move || _ = io::copy(&mut from_rank, &mut to_hub));
        let (mut from_hub, mut to_rank) = (hub, rank);
        let mut answer = [0; ANSWER];
        from_hub.read_exact(&mut answer).unwrap();
        to_rank.write_all(&answer).unwrap();
        std::thread::sleep(Duration::from_secs(7));
        let _ = io::copy(&mut from_hub, &mut to_rank);
        let _ = to_rank.shutdown(Shutdown::Both);
        back.join().unwrap();
    });
    let joined = within(move || join(0, 1, address, &secret, HubAt::Launcher));
    assert_eq!(joined.all_gather(b"late").unwrap(), [b"late"]);
    drop(joined);
    within(|| passing_on.join().unwrap());
}

#[test]
fn a_hub_that_is_not_there_or_another_is_said() {
    // Nobody there: `join` goes on for a minute; one attempt says why.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert!(greet(&nobody, hello(0, 1), &Secret::fresh().unwrap()).is_err());
    let nowhere = Contact { addresses: vec![], secret: Secret::fresh().unwrap() };
    match Tcp::join(0, 1, process(0), &nowhere, HubAt::Launcher) {
        Err(JoinError::Fabric(error)) => assert!(error.to_string().contains("cannot reach the hub"), "{error}"),
        other => panic!("{:?}", other.map(drop)),
    }
    // The first address leads to another job, the second to ours.
    let (other, job) = (Job::start(1), Job::start(1));
    let both = Contact { addresses: vec![other.address(), job.address()], secret: job.secret.clone() };
    let joined = Tcp::join(0, 1, process(0), &both, HubAt::Launcher).unwrap();
    assert_eq!(joined.all_gather(b"here").unwrap(), [b"here"]);
}

/// A second network on this machine, joined to it by a cable of its own. Both are a process's, which ends with this one.
struct Network {
    process: std::process::Child,
    /// The third number of its addresses.
    third: u8,
}

impl Network {
    fn new() -> Option<Self> {
        let mut unshare = std::process::Command::new("unshare");
        unshare.args(["-n", "sh", "-c", "echo there; read end"]).stderr(std::process::Stdio::null());
        let process = unshare.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().ok()?;
        let third = process.id() as u8;
        let mut network = Network { process, third };
        let mut there = [0; 6];
        network.process.stdout.as_mut()?.read_exact(&mut there).ok()?;
        let (third, name) = (network.third, format!("transom{}", network.process.id()));
        let made = run(&format!("ip link add {name} type veth peer name cable netns {}", network.process.id()))
            && run(&format!("ip addr add 198.18.{third}.1/24 dev {name}"))
            && run(&format!("ip link set {name} up"))
            && network.run(&format!("ip addr add 198.18.{third}.2/24 dev cable"))
            && network.run("ip link set cable up");
        made.then_some(network)
    }

    /// Runs it on a thread that is in this network, where the job is at another address.
    fn visit<R: Send>(&self, job: &Job, body: impl FnOnce(&Job) -> R + Send) -> R {
        let there = std::fs::File::open(format!("/proc/{}/ns/net", self.process.id())).unwrap();
        let visit = || {
            let network = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&there), network).unwrap();
            body(job)
        };
        job.seen_from.lock().unwrap().replace([198, 18, self.third, 1]);
        let visited = std::thread::scope(|scope| scope.spawn(visit).join().unwrap());
        job.seen_from.lock().unwrap().take();
        visited
    }

    fn run(&self, words: &str) -> bool {
        run(&format!("nsenter -n -t {} {words}", self.process.id()))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.run("ip link del cable");
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn run(words: &str) -> bool {
    let mut words = words.split(' ');
    let mut command = std::process::Command::new(words.next().unwrap());
    command.args(words).stderr(std::process::Stdio::null()).status().is_ok_and(|status| status.success())
}

fn not_run() {
    // Past the capture of a test's output.
    let said = "\n*** NOT RUN: a host that vanishes needs root, `unshare`, `nsenter` and `ip` ***\n";
    io::stderr().write_all(said.as_bytes()).unwrap();
}

#[test]
fn a_host_that_vanishes_has_died() {
    let Some(network) = Network::new() else { return not_run() };
    let job = Job::start(2);
    let (zero, one) = (job.join(0), network.visit(&job, |job| job.join(1)));
    let ranks = on_all(vec![zero, one], |rank| rank.barrier().map(|()| rank).unwrap());
    assert!(network.run("ip link set cable down"));
    let told = on_all(ranks, |rank| (rank.rank(), rank.barrier()));
    assert!(matches!(told[0], (0, Err(FabricError::PeerDied { rank: 1 }))), "{told:?}");
    assert!(matches!(told[1], (1, Err(FabricError::System { .. }))), "{told:?}");
}

/// Also if it had said before that it has no room for more.
#[test]
fn a_host_that_vanishes_with_much_unread_has_died() {
    let Some(network) = Network::new() else { return not_run() };
    let job = Job::start(2);
    let (zero, (_stream, ..)) = (
        job.join(0),
        network.visit(&job, |job| {
            let (mut stream, mut to, from) = raw(job, 1);
            stream.write_all(&frame(&mut to, PART, JOB, &vec![0; LONGEST as usize])).unwrap();
            (stream, to, from)
        }),
    );
    let zero = on_all(vec![zero], |rank| rank.all_gather(&[]).map(|_| rank).unwrap()).remove(0);
    std::thread::sleep(Duration::from_secs(3));
    assert!(zero.first_death().is_none() && network.run("ip link set cable down"));
    let told = within(move || zero.barrier());
    assert!(matches!(told, Err(FabricError::PeerDied { rank: 1 })), "{told:?}");
}

/// What the thread that runs a hub has used of a processor.
fn processor_time(hub: &Hub) -> Duration {
    let name = format!("hub {}\n", hub.port());
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|thread| thread.path());
    let named = |path: &std::path::PathBuf| std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm == name);
    let path = threads.into_iter().find(named).expect("the hub has a thread");
    let used = std::fs::read_to_string(path.join("schedstat")).unwrap();
    Duration::from_nanos(used.split(' ').next().unwrap().parse().unwrap())
}

/// Time of a processor that the hub takes is counted: it is the one for all, while ranks have processors of their own.
/// `cargo test --release --lib a_thousand -- --nocapture` prints it.
#[test]
fn a_thousand_ranks() {
    const RANKS: usize = 1000;
    const RECORD: usize = 100;
    let job = Job::start(RANKS);
    let said = |what: &str, begun: Instant, used: Duration| {
        let used = processor_time(&job.hub) - used;
        println!("{what}: {:?}, of the hub {used:?}", begun.elapsed());
        used
    };
    let begun = Instant::now();
    let ranks: Vec<Tcp> = std::thread::scope(|scope| {
        let job = &job;
        let join = move |part| (part * 250..(part + 1) * 250).map(|rank| job.join(rank)).collect::<Vec<_>>();
        let part = |part| scope.spawn(move || join(part));
        let parts: Vec<_> = (0..RANKS / 250).map(part).collect();
        parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
    });
    let joining = said("joining", begun, Duration::ZERO);
    assert!(joining < Duration::from_secs(1), "{joining:?}");

    let call = |what, body: fn(&Tcp) -> bool| {
        let (begun, used) = (Instant::now(), processor_time(&job.hub));
        let call = |rank: &Tcp| {
            let rank = rank.clone();
            std::thread::Builder::new().stack_size(128 << 10).spawn(move || body(&rank)).unwrap()
        };
        let running: Vec<_> = ranks.iter().map(call).collect();
        assert!(running.into_iter().all(|rank| rank.join().unwrap()));
        said(what, begun, used)
    };
    let exchange = |rank: &Tcp| {
        let all = rank.all_gather(&[rank.rank() as u8; RECORD]).unwrap_or_default();
        all.len() == RANKS && all.iter().enumerate().all(|(of, said)| said == &[of as u8; RECORD])
    };
    let exchange = [(); 3].map(|()| call("exchange", exchange)).into_iter().min().unwrap();
    assert!(exchange < Duration::from_millis(100), "{exchange:?}");
    call("barrier", |rank| rank.barrier().is_ok());

    let dead = [703, 12, 999];
    for rank in dead {
        let (begun, used) = (Instant::now(), processor_time(&job.hub));
        ranks[rank].cut();
        let others = || ranks.iter().filter(|other| !dead.contains(&other.rank()));
        let told = |other: &Tcp| match other.check_peers(Awaited::Rank(rank)) {
            Err(FabricError::PeerDied { rank: died }) => died == rank,
            _ => false,
        };
        until(|| others().all(told));
        said("a death", begun, used);
        assert!(others().all(|other| other.first_death() == Some(dead[0])));
    }
    let (begun, used) = (Instant::now(), processor_time(&job.hub));
    within(move || drop(ranks));
    let leaving = said("leaving", begun, used);
    assert!(leaving < Duration::from_secs(2), "{leaving:?}");
}
