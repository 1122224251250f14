//! The service without its thread.

use super::*;
use crate::frame::Request;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use transom_shm_loopback::Loopback;

/// A service without its thread, and a peer's end of a connection to it.
fn without_thread() -> (Shared, UnixStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let house = House { me: 0, secrets: Arc::new([]), mail: Arc::default(), is_oversubscribed: false };
    let executor = Executor::new(Loopback::alone().unwrap(), Arc::default());
    let shared = Shared::open(listener, house, executor).unwrap();
    let (mine, peer) = UnixStream::pair().unwrap();
    peer.set_nonblocking(true).unwrap();
    let mine = OwnedFd::from(mine);
    epoll::add(&shared.epoll, &mine, epoll::EventData::new_u64(FIRST), epoll::EventFlags::IN).unwrap();
    let wants = Wants { turn: false, to_receive: true, to_send: false };
    let served = Served { carrier: Socket::new(mine), peer: 1, wants };
    let mut state = lock(&shared.state);
    state.served.insert(FIRST, served);
    state.next = FIRST + 1;
    drop(state);
    (shared, peer)
}

/// One help may end before it serves, if this thread loses its core.
#[track_caller]
fn help_until(shared: &Shared, mut ends: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !ends() {
        assert!(begun.elapsed() < Duration::from_secs(10), "the helper serves nothing");
        shared.help();
    }
}

fn is_woken(shared: &Shared) -> bool {
    rustix::io::read(&shared.wake, &mut [0; 8]).is_ok()
}

#[test]
fn helper_executes_requests_without_the_thread() {
    let (shared, mut peer) = without_thread();
    assert!(!shared.is_helped());
    peer.write_all(Request::Flush.encode().0.bytes()).unwrap();
    let mut reply = [0; 100];
    help_until(&shared, || peer.read(&mut reply).is_ok());
}

/// Requests that were received and not executed cause no event.
#[test]
fn late_step_leaves_requests_to_a_later_one() {
    let (shared, mut peer) = without_thread();
    // A turn executes 64 requests.
    peer.write_all(&Request::Flush.encode().0.bytes().repeat(65)).unwrap();
    lock(&shared.state).serve(FIRST);
    assert_eq!(lock(&shared.state).ready, [FIRST]);
    lock(&shared.state).step(&[], Some(Instant::now()));
    assert_eq!(lock(&shared.state).ready, [FIRST]);
    let mut replies = vec![0; 12 * 65];
    assert_eq!(peer.read(&mut replies).unwrap(), 12 * 64);
    // A help ends early if this thread loses its core; then it wakes the thread.
    while !lock(&shared.state).ready.is_empty() {
        shared.help();
        assert!(lock(&shared.state).ready.is_empty() || is_woken(&shared));
    }
    assert_eq!(peer.read(&mut replies).unwrap(), 12);
}

/// A stranger that sends nothing is ended at a time, without an event.
#[test]
fn stranger_that_a_helper_accepts_wakes_the_thread() {
    let (shared, _peer) = without_thread();
    let address = lock(&shared.state).listener.local_addr().unwrap();
    let _stranger = std::net::TcpStream::connect(address).unwrap();
    help_until(&shared, || !lock(&shared.state).strangers.is_empty());
    assert!(is_woken(&shared));
}

#[test]
fn helper_leaves_to_another_what_it_serves() {
    let (shared, mut peer) = without_thread();
    peer.write_all(Request::Flush.encode().0.bytes()).unwrap();
    let state = lock(&shared.state);
    shared.help();
    drop(state);
    assert!(peer.read(&mut [0]).is_err());
}

/// The oldest of too many strangers are ended.
#[test]
fn strangers_are_bounded_in_number() {
    let (shared, _peer) = without_thread();
    let address = lock(&shared.state).listener.local_addr().unwrap();
    let first = lock(&shared.state).next;
    let silent: Vec<_> = (0..STRANGERS + 10).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
    help_until(&shared, || lock(&shared.state).next == first + silent.len() as u64);
    let strangers = lock(&shared.state).strangers.len();
    assert!(strangers <= STRANGERS, "{strangers} connections have not proved their rank");
}

#[test]
fn armed_watch_notifies_once_of_what_has_arrived() {
    let (shared, mut peer) = without_thread();
    let shared = Arc::new(shared);
    let (mine, mut other) = UnixStream::pair().unwrap();
    let watch = shared.watch(Arc::new(mine.into()));
    let notified = Arc::new(AtomicU64::new(0));
    let counted = notified.clone();
    watch.notify_by(Box::new(move || _ = counted.fetch_add(1, SeqCst)));
    // Served by the same looks that would notify.
    let mut looks = |times| {
        for _ in 0..3 {
            peer.write_all(Request::Flush.encode().0.bytes()).unwrap();
            help_until(&shared, || peer.read(&mut [0; 100]).is_ok());
        }
        assert_eq!(notified.load(SeqCst), times);
    };
    other.write_all(&[1]).unwrap();
    looks(0);
    watch.arm();
    looks(1);
    watch.arm();
    looks(2);
    drop(watch);
    looks(2);
    assert!(lock(&shared.state).watched.is_empty());
}

/// The waiter of a rank owns its watch, and may be reachable from the memory that the service executes requests on.
#[test]
fn watch_does_not_keep_the_service() {
    let (shared, _peer) = without_thread();
    let shared = Arc::new(shared);
    let watch = shared.watch(Arc::new(UnixStream::pair().unwrap().0.into()));
    let kept = Arc::downgrade(&shared);
    drop(shared);
    assert!(kept.upgrade().is_none());
    watch.arm();
}
