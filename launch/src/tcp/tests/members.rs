//! Ranks that join, leave and die.

use super::*;

#[test]
fn all_gather_returns_every_message() {
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
fn too_long_message_fails_at_all_ranks() {
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
fn running_process_answers_through_the_hub() {
    let job = Job::start(3);
    let ranks = job.all();
    assert_eq!(ranks[0].seen_running(2), None, "it was not asked");
    let asked = Instant::now();
    ranks[0].ask_whether_running(2);
    let asking = ranks[0].clone();
    let answered = move || loop {
        match asking.seen_running(2) {
            Some(answered) => break answered,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    assert!(within(answered) >= asked);
    assert_eq!([ranks[0].seen_running(1), ranks[1].seen_running(0), ranks[2].seen_running(0)], [None; 3]);
}

/// A stopped process reads no questions. The hub passes one of each rank on until it is answered.
#[test]
fn unanswered_question_is_passed_on_once() {
    let job = Job::start(3);
    let [zero, two] = [0, 2].map(|rank| job.join(rank));
    let (mut stream, mut to_hub, mut from_hub) = raw(&job, 1);
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut answers = stream.try_clone().unwrap();
    // The hub has taken all earlier frames of a rank once a later question of it is answered.
    let ask = |asking: &Tcp, times: usize, other: Rank| {
        let before = asking.seen_running(other);
        (0..times).for_each(|_| asking.ask_whether_running(1));
        asking.ask_whether_running(other);
        until(|| asking.seen_running(other) > before);
    };
    let mut asked_by = || {
        let mut chunk = [0; 4096];
        loop {
            if let Some(frame) = from_hub.next(LONGEST).unwrap() {
                assert_eq!((frame.kind, frame.body.len()), (ASK, 12));
                return frame.body[0];
            }
            let read = stream.read(&mut chunk).unwrap();
            assert!(read > 0);
            from_hub.take_in(&chunk[..read]);
        }
    };
    ask(&zero, 1000, 2);
    ask(&two, 1, 0);
    assert_eq!([asked_by(), asked_by()], [0, 2]);
    let rank_0 = [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
    let answer = frame(&mut to_hub, RUNS, JOB, &rank_0);
    let unasked = frame(&mut to_hub, RUNS, JOB, &rank_0);
    answers.write_all(&[answer, unasked].concat()).unwrap();
    until(|| zero.seen_running(1).is_some());
    ask(&zero, 1000, 2);
    ask(&two, 1000, 0);
    // Rank 2 is still without an answer.
    ask(&zero, 1, 2);
    assert_eq!(asked_by(), 0);
    drop((zero, two));
}

#[test]
fn ended_connection_is_reported_as_death() {
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
fn panic_or_failure_of_a_rank_counts_as_death() {
    let job = Job::start(3);
    let mut ranks = job.all();
    let panicking = ranks.pop().unwrap();
    std::thread::spawn(move || {
        let _held = panicking;
        panic!("the test panics on purpose");
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
fn leaving_is_not_a_death() {
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
    // A wait that any rank may end fails only when the last other rank has left.
    assert!(others.iter().all(|rank| rank.check_peers(Awaited::Anyone).is_ok()));
    let one = others.into_iter().next().unwrap();
    until(|| matches!(one.check_peers(Awaited::Anyone), Err(FabricError::PeerLeft { rank: 0 })));
    assert!(matches!(one.check_peers(Awaited::Behind(2)), Err(FabricError::PeerLeft { rank: 0 })));
    within(move || drop(one));
    within(|| job.hub.linger());
}

#[test]
fn rank_0_with_hub_stays_until_all_left() {
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
    // The hub still notifies, so rank 0 still runs it.
    until(|| matches!(others[0].check_peers(Awaited::Rank(2)), Err(FabricError::PeerLeft { rank: 2 })));
    assert!(receive.try_recv().is_err());
    drop(others);
    within(|| leaving.join().unwrap());
}

#[test]
fn rank_0_with_hub_gives_up_absent_ranks() {
    let job = || {
        let Job { hub, secret, size, .. } = Job::start(3);
        let address = ([127, 0, 0, 1], hub.port()).into();
        let zero = join(0, size, address, &secret, HubAt::Rank0(Some(hub)));
        (zero, join(1, size, address, &secret, HubAt::Rank0(None)))
    };
    // While the others wait,
    let (zero, one) = job();
    let hub = zero.clone();
    let waiting = std::thread::spawn(move || on_all(vec![zero, one], |rank| rank.barrier()));
    hub.all_by(Instant::now());
    for told in within(|| waiting.join().unwrap()) {
        assert!(matches!(told, Err(FabricError::PeerDied { rank: 2 })), "{told:?}");
    }
    // and when they have left before.
    let (zero, one) = job();
    zero.all_by(Instant::now() + Duration::from_millis(200));
    within(move || drop((one, zero)));
}

#[test]
fn end_of_the_hub_is_an_error() {
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
fn absent_rank_dies_when_its_process_ends() {
    let job = Job::start(3);
    let ranks = vec![job.join(0), job.join(1)];
    let waiting = std::thread::spawn(move || on_all(ranks, |rank| rank.barrier()));
    job.hub.ended(2, false);
    for told in within(|| waiting.join().unwrap()) {
        assert!(matches!(told, Err(FabricError::PeerDied { rank: 2 })), "{told:?}");
    }
    // A process that exits successfully without joining has left; ranks that join later are notified.
    let job = Job::start(2);
    job.hub.ended(1, true);
    job.hub.ended(7, true); // no such rank
    let zero = job.join(0);
    until(|| matches!(zero.lost(), Some(FabricError::PeerLeft { rank: 1 })));
}

/// A stopped process reads nothing either. The hub's buffer for such a rank is bounded.
#[test]
fn rank_that_reads_nothing_is_alive() {
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
    // A rank that joins the next round before it has received the last one violates the protocol.
    stopped.write_all(&frame(&mut to, PART, JOB, &message)).unwrap();
    on_all(ranks.clone(), move |rank| drop(rank.all_gather(&message).unwrap()));
    stopped.write_all(&frame(&mut to, PART, JOB, &[])).unwrap();
    until(|| ranks.iter().all(|rank| rank.first_death() == Some(2)));
}

#[test]
fn each_of_several_deaths_is_named() {
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
