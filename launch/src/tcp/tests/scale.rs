//! Processor time of the hub with a thousand ranks.

use super::*;

/// Processor time that the thread of a hub has used.
fn processor_time(hub: &Hub) -> Duration {
    let name = format!("hub {}\n", hub.port());
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|thread| thread.path());
    let named = |path: &std::path::PathBuf| std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm == name);
    let path = threads.into_iter().find(named).expect("the hub has a thread");
    let used = std::fs::read_to_string(path.join("schedstat")).unwrap();
    Duration::from_nanos(used.split(' ').next().unwrap().parse().unwrap())
}

/// Counts the processor time of the hub, which serves all ranks with one thread, while ranks have their own processors.
/// `cargo test --release -p transom-launch --lib thousand_ranks -- --nocapture` prints it.
#[test]
fn hub_serves_a_thousand_ranks() {
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
    // A hub that copies each record for each rank would take seconds.
    assert!(exchange < Duration::from_millis(500), "{exchange:?}");
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
