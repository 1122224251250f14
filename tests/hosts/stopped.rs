//! A rank whose process is stopped counts as alive: its peers wait, and nothing is reported.

use crate::ranks;
use ranks::{on, over_network, told};
use rustix::process::{Pid, Signal, kill_process};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use transom::messages::Tag;
use transom::{Op, World};

const TAG: Tag<u64> = Tag::new(1);
/// Longer than an attempt to connect, and than the job's intervals between checks of a peer.
const STOPPED: Duration = Duration::from_secs(5);

fn state(of: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{of}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Rank 0 stops the last one, on the other host, and uses its memory and sends to it meanwhile.
#[test]
fn stopped_rank_is_waited_for_and_goes_on() {
    on(&[4], "stopped_rank_is_waited_for_and_goes_on", |world: World| {
        if !over_network() {
            return;
        }
        let (me, last) = (world.rank(), world.size() - 1);
        let process = told(&world, std::process::id() as i32)[last];
        let mut window = world.allocate::<u64>(1).unwrap();
        let epoch = window.lock_all().unwrap();
        if me == 0 {
            let signal = |signal| kill_process(Pid::from_raw(process).unwrap(), signal).unwrap();
            let is_continued = AtomicBool::new(false);
            signal(Signal::STOP);
            while state(process) != Some('T') {
                std::thread::yield_now();
            }
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(STOPPED);
                    is_continued.store(true, SeqCst);
                    signal(Signal::CONT);
                });
                // The first message connects.
                let sent = world.isend(last, TAG, vec![7]);
                let target = epoch.target(last).unwrap();
                target.put(0, &[40]).unwrap();
                assert_eq!(target.fetch_and_op(0, Op::Sum, 2).unwrap(), 40);
                assert!(is_continued.load(SeqCst), "the stopped rank has served a request");
                sent.wait().unwrap();
            });
        } else if me == last {
            assert_eq!(world.recv(0, TAG).unwrap().0, [7]);
        }
        world.barrier().unwrap();
        assert_eq!(epoch.target(last).unwrap().get_one(0).unwrap(), 42);
        epoch.unlock().unwrap();
        window.free().unwrap();
    });
}
