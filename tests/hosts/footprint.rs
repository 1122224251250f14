//! Descriptors, threads and memory of a rank over TCP, by formula.

use crate::ranks;
use ranks::{SIZES, on, over_network};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use transom::messages::Tag;
use transom::{Op, World};

const TAG: Tag<u64> = Tag::new(1);

/// TCP connections of this process.
fn connections() -> usize {
    const ESTABLISHED: &str = "01";
    let link = |entry: std::io::Result<std::fs::DirEntry>| std::fs::read_link(entry.ok()?.path()).ok();
    let mine: BTreeSet<PathBuf> = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(link).collect();
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    let tables = tables.map(|table| std::fs::read_to_string(table).unwrap_or_default());
    let is_mine = |row: &&str| {
        let fields: Vec<&str> = row.split_whitespace().collect();
        let socket = fields.get(9).map(|inode| PathBuf::from(format!("socket:[{inode}]")));
        fields.get(3) == Some(&ESTABLISHED) && socket.is_some_and(|socket| mine.contains(&socket))
    };
    tables.iter().flat_map(|table| table.lines()).filter(is_mine).count()
}

/// Open descriptors, without the one that reads.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count() - 1
}

/// Names of the threads.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks.map(|task| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default()).collect()
}

/// Private memory of this process that is in use, in bytes.
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    anonymous.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
}

/// Most memory for each rank on another host: buffers of 8 KiB for each end of 4 connections, the records of the channel,
/// and the kept stack of a thread that has connected. Most memory beside that: heaps of such threads.
const OF_A_RANK: usize = 64 << 10;
const BESIDE: usize = 2 << 20;

/// Two connections for each rank on another host whose memory is used both ways, and one or two for messages with it.
/// Nothing else grows with the number of ranks. One thread serves them all.
#[test]
fn footprint_of_a_rank_follows_its_formula() {
    on(&SIZES, "footprint_of_a_rank_follows_its_formula", |world: World| {
        if !over_network() {
            return;
        }
        let hosts = world.hosts();
        let (me, host) = (world.rank(), hosts.host(world.rank()));
        let far: Vec<usize> = (0..world.size()).filter(|&rank| hosts.host(rank) != host).collect();
        let of_tcp = || threads().iter().filter(|name| name.starts_with("transom tcp")).count();
        // A thread has its name once it runs.
        let since = Instant::now();
        while of_tcp() == 0 {
            assert!(since.elapsed() < Duration::from_secs(20), "{:?}", threads());
        }
        assert_eq!(of_tcp(), 1, "{:?}", threads());
        let (connected, open, threaded, used) = (connections(), descriptors(), threads(), memory());
        let mut window = world.allocate::<u64>(1).unwrap();
        let epoch = window.lock_all().unwrap();
        for &rank in &far {
            epoch.target(rank).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
        }
        epoch.unlock().unwrap();
        window.fence().unwrap();
        for &rank in &far {
            world.sendrecv(rank, TAG, &[me as u64], rank, TAG, &mut [0]).unwrap();
        }
        world.barrier().unwrap();
        // A thread that has connected messages may be about to end.
        let since = Instant::now();
        while threads().len() > threaded.len() {
            assert!(since.elapsed() < Duration::from_secs(20), "{:?}, {threaded:?} before", threads());
        }
        let (more, most) = (connections() - connected, 4 * far.len());
        assert!(more >= 3 * far.len() && more <= most, "{more} connections with {} ranks", far.len());
        assert!(descriptors() <= open + most, "{} descriptors, {open} before", descriptors());
        let more = memory().saturating_sub(used);
        assert!(more <= BESIDE + far.len() * OF_A_RANK, "{more} bytes more with {} ranks", far.len());
        world.barrier().unwrap();
    });
}
