//! A launcher's hub; hubs that answer late, slowly, or not at all.

use super::*;

/// Children of a rank may connect after all ranks have left.
#[test]
fn launchers_hub_answers_after_all_left() {
    let job = Job::start(1);
    drop(job.join(0));
    let answer = greet(&job.address(), Hello { process: process(17), ..hello(0, 1) }, &job.secret).unwrap();
    assert!(matches!(answer, Answer::Refused(by) if by == process(0)));
    let job = Job::start(1);
    job.hub.ended(0, true);
    let answer = greet(&job.address(), hello(0, 1), &job.secret).unwrap();
    assert!(matches!(answer, Answer::Refused(by) if by == ProcessId::default()), "no process has joined");
}

#[test]
fn trickling_hub_times_out() {
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
fn late_welcome_is_awaited() {
    // A rank that gave up after the hub admitted it would be refused at its next attempt, and reported dead to the
    // others.
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
fn unreachable_hub_is_named_and_wrong_one_skipped() {
    // No listener: `join` retries for a minute, while one attempt fails at once.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert!(greet(&nobody, hello(0, 1), &Secret::fresh().unwrap()).is_err());
    let nowhere = Contact { via: None, addresses: vec![], secret: Secret::fresh().unwrap() };
    match Tcp::join(0, 1, process(0), &nowhere, HubAt::Launcher) {
        Err(JoinError::Fabric(error)) => assert!(error.to_string().contains("cannot reach the hub"), "{error}"),
        other => panic!("{:?}", other.map(drop)),
    }
    // The first address leads to another job, the second to ours.
    let (other, job) = (Job::start(1), Job::start(1));
    let both = Contact { via: None, addresses: vec![other.address(), job.address()], secret: job.secret.clone() };
    let joined = Tcp::join(0, 1, process(0), &both, HubAt::Launcher).unwrap();
    assert_eq!(joined.all_gather(b"here").unwrap(), [b"here"]);
}
