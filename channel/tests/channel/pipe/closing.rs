//! Invalid uses of pipes, and ends that are closed.

use super::*;
use transom_channel::pipe::Fault;
use transom_channel::sim::Conditions;
use transom_channel::{Config, Error};

#[test]
fn pipe_misuse_error_names_the_fault() {
    let mut sim = Sim::new(1, 2, Conditions::default(), &Config::default()).unwrap();
    let said = |result: Result<(Id, Offer), Error>| result.unwrap_err().to_string();
    let engine = sim.engine(0);
    assert_eq!(said(engine.pipe_open(2, Pipe::default())), "there is no rank 2: the job's ranks are 0 to 1");
    for config in [
        Pipe { chunk: 60, ..Pipe::default() },
        Pipe { chunk: 100, ..Pipe::default() },
        Pipe { chunks: 1, ..Pipe::default() },
        Pipe { chunk: 65_536, chunks: 17, ..Pipe::default() },
    ] {
        assert!(said(engine.pipe_open(1, config)).contains("expected 2 to 1024 chunks"));
    }
    // Ends with different configurations.
    let (one, offer) = engine.pipe_open(1, Pipe { step: Step::Basic, ..Pipe::default() }).unwrap();
    let (two, _) = sim.engine(1).pipe_open(0, Pipe::default()).unwrap();
    let differs = sim.engine(1).pipe_join(two, &offer.encode()).unwrap_err();
    assert!(matches!(differs, Error::Pipe { rank: 0, fault: Fault::Differs { .. } }));
    let text = differs.to_string();
    assert!(text.contains("step: Basic") && text.contains("step: Read"), "{text}");
    sim.engine(1).pipe_refuse(two);
    assert_eq!(sim.engine(1).pipes(), 0);
    // Puts after the end of the stream, at a closed end, and to a closed end.
    let [a, b] = joined(&mut sim, 0, 1, Pipe::default());
    sim.engine(0).pipe_end(a);
    let ended = sim.engine(0).pipe_put(a, &[1; 10]).unwrap_err();
    assert_eq!(ended, Error::Pipe { rank: 1, fault: Fault::Ended });
    sim.engine(0).pipe_close(a);
    while sim.step().is_some() {}
    let closed = sim.engine(1).pipe_put(b, &[1; 10]).unwrap_err();
    assert_eq!(closed.to_string(), "the pipe to rank 0: it has closed its end");
    sim.engine(1).pipe_start_put(b, SimMemory::pattern(1, 10), 10).unwrap();
    assert_eq!(sim.engine(1).completed().unwrap().result, Err(closed));
    assert_eq!(sim.engine(1).pipe_get(b, &mut [0; 4]), Ok(None));
    sim.engine(1).pipe_close(b);
    while sim.step().is_some() {}
    assert_eq!(sim.engine(1).pipe_put(b, &[0; 4]), Err(Error::NoPipe));
    assert_eq!((sim.engine(0).pipes(), sim.engine(1).pipes()), (1, 0));
    sim.engine(0).pipe_refuse(one);
    assert_eq!(sim.engine(0).pipes(), 0);
    // 256 pipes to one peer are the limit.
    for _ in 0..256 {
        sim.engine(0).pipe_open(1, Pipe { chunk: 64, chunks: 2, ..Pipe::default() }).unwrap();
    }
    let more = sim.engine(0).pipe_open(1, Pipe::default());
    assert!(matches!(more, Err(Error::Pipe { fault: Fault::TooMany, .. })));
}

/// A closed end fails the peer's puts in flight, and returns their buffers.
#[test]
fn closed_peer_fails_puts_in_flight() {
    for step in STEPS {
        let mut sim = Sim::new(3, 2, Conditions::default(), &Config::default()).unwrap();
        let [a, b] = joined(&mut sim, 0, 1, Pipe { step, ..Pipe::default() });
        let length = 5 << 20;
        let puts = [0, 1].map(|i| sim.engine(0).pipe_start_put(a, SimMemory::pattern(i, length), length).unwrap());
        (0..30).for_each(|_| _ = sim.step());
        sim.engine(1).pipe_close(b);
        while sim.step().is_some() {}
        for (i, put) in (0..).zip(puts) {
            let done = sim.engine(0).completed().unwrap();
            assert_eq!((done.id, done.result), (put, Err(Error::Pipe { rank: 1, fault: Fault::Closed })), "{step:?}");
            assert_eq!(done.memory.unwrap().whose(length), Some(i));
        }
        sim.engine(0).pipe_close(a);
        while sim.step().is_some() {}
        assert_eq!([0, 1].map(|rank| sim.registrations(rank)), [0, 0]);
    }
}

/// A peer that has put, ended and closed leaves its bytes and the end of the stream to be got.
#[test]
fn bytes_put_before_closing_can_still_be_got() {
    for step in STEPS {
        let mut sim = Sim::new(1, 2, Conditions::default(), &Config::default()).unwrap();
        let [a, b] = joined(&mut sim, 0, 1, Pipe { step, ..Pipe::default() });
        assert_eq!(sim.engine(0).pipe_put(a, &stretch(1, 0, 40_000)), Ok(40_000));
        sim.engine(0).pipe_end(a);
        while sim.step().is_some() {}
        sim.kill(0);
        while sim.step().is_some() {}
        let mut into = vec![0; 50_000];
        assert_eq!(sim.engine(1).pipe_get(b, &mut into), Ok(Some(40_000)));
        assert!(into[..40_000] == stretch(1, 0, 40_000));
        assert_eq!(sim.engine(1).pipe_get(b, &mut into), Ok(None));
        let get = sim.engine(1).pipe_start_get(b, SimMemory::zero(50_000), 50_000).unwrap();
        let done = sim.engine(1).completed().unwrap();
        assert_eq!((done.id, done.result.unwrap().length), (get, 0));
    }
}

/// Neither end gets the other's buffers in flight, and both close: neither waits for the other.
#[test]
fn both_ends_close_with_buffers_in_flight() {
    for step in STEPS {
        for peer in [1, 0] {
            let mut sim = Sim::new(4, 2, Conditions::default(), &Config::default()).unwrap();
            let config = Pipe { step, ..Pipe::default() };
            let ends = if peer == 0 {
                let (id, offer) = sim.engine(0).pipe_open(0, config).unwrap();
                sim.engine(0).pipe_join(id, &offer.encode()).unwrap();
                vec![(0, id)]
            } else {
                (0..2).zip(joined(&mut sim, 0, peer, config)).collect()
            };
            let length = 5 << 20;
            for (rank, id) in &ends {
                (0..2).for_each(|i| {
                    _ = sim.engine(*rank).pipe_start_put(*id, SimMemory::pattern(i, length), length).unwrap()
                });
            }
            (0..30).for_each(|_| _ = sim.step());
            for (rank, id) in &ends {
                assert_eq!(sim.engine(*rank).completed().map(|done| done.id), None, "a put completed without a get");
                sim.engine(*rank).pipe_close(*id);
                sim.wake(*rank, 0);
            }
            while sim.step().is_some() {}
            for (rank, _) in &ends {
                let registrations = sim.registrations(*rank);
                let engine = sim.engine(*rank);
                for i in 0..2 {
                    let done = engine.completed().expect("the put did not complete");
                    let closed = Error::Pipe { rank: peer - *rank, fault: Fault::Closed };
                    assert_eq!((done.result, done.memory.unwrap().whose(length)), (Err(closed), Some(i)), "{step:?}");
                }
                assert_eq!((engine.pipes(), registrations, engine.is_needed()), (0, 0, false), "{step:?}");
            }
        }
    }
}
