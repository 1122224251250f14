//! Hosts that vanish, simulated by a second network namespace that is cut off.

use super::*;

/// A second network namespace, connected to this one by a veth pair. Its process holds it and ends with this one.
struct Network {
    process: std::process::Child,
    /// Third octet of its addresses.
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

    /// Runs `body` on a thread inside this network, where the job has another address.
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
    // Bypasses the capture of test output.
    let said = "\n*** NOT RUN: a host that vanishes needs root, `unshare`, `nsenter` and `ip` ***\n";
    io::stderr().write_all(said.as_bytes()).unwrap();
}

#[test]
fn vanished_host_has_died() {
    let Some(network) = Network::new() else { return not_run() };
    let job = Job::start(2);
    let (zero, one) = (job.join(0), network.visit(&job, |job| job.join(1)));
    let ranks = on_all(vec![zero, one], |rank| rank.barrier().map(|()| rank).unwrap());
    assert!(network.run("ip link set cable down"));
    let told = on_all(ranks, |rank| (rank.rank(), rank.barrier()));
    assert!(matches!(told[0], (0, Err(FabricError::PeerDied { rank: 1 }))), "{told:?}");
    assert!(matches!(told[1], (1, Err(FabricError::System { .. }))), "{told:?}");
}

#[test]
fn all_ranks_of_a_vanished_host_with_an_agent_have_died() {
    let Some(network) = Network::new().filter(|network| network.run("ip link set lo up")) else { return not_run() };
    let job = Job::start(3);
    let zero = job.join(0);
    let (_uplink, one, two) = network.visit(&job, |job| {
        let uplink = job.uplink([1, 2]);
        let [one, two] = [1, 2].map(|rank| job.join_via(&uplink, rank));
        (uplink, one, two)
    });
    let ranks = on_all(vec![zero, one, two], |rank| rank.barrier().map(|()| rank).unwrap());
    assert_eq!(job.hub.connections(), 2);
    assert!(network.run("ip link set cable down"));
    let told = on_all(ranks.clone(), |rank| (rank.rank(), rank.barrier()));
    assert!(matches!(told[0], (0, Err(FabricError::PeerDied { rank: 1 | 2 }))), "{told:?}");
    assert!(told[1..].iter().all(|told| matches!(told.1, Err(FabricError::System { .. }))), "{told:?}");
    let died =
        |of| matches!(ranks[0].check_peers(Awaited::Rank(of)), Err(FabricError::PeerDied { rank }) if rank == of);
    until(|| died(1) && died(2));
}

/// The receive window of the vanished host was full.
#[test]
fn vanished_host_with_full_window_has_died() {
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

/// TCP doubles its timeout at each retransmission by default: the sixth would follow after 63 times the first timeout.
/// The kernel chooses the first one: 200 ms, or three seconds if this machine stood still during the handshake.
#[test]
fn lost_data_are_retransmitted_linearly() {
    let Some(network) = Network::new() else { return not_run() };
    let job = Job::start(1);
    let mut there = network.visit(&job, Job::connection);
    silence::prepare(&there).unwrap();
    // The network drops the data: this link-layer address does not exist.
    let lost = format!("ip neigh replace 198.18.{}.1 lladdr 02:00:00:00:00:01 dev cable nud permanent", network.third);
    assert!(network.run(&lost));
    let sent = std::time::Instant::now();
    there.write_all(&[1]).unwrap();
    let [first, sixth] = [1, 6].map(|times| {
        while nix::sys::socket::getsockopt(&there, silence::TcpInfo).unwrap().retransmits < times {
            assert!(sent.elapsed() < Duration::from_secs(100), "fewer than {times} retransmissions in 100 s");
            std::thread::sleep(Duration::from_millis(10));
        }
        sent.elapsed()
    });
    // Five seconds of tolerance for a machine that stalls.
    assert!(sixth <= 20 * first + Duration::from_secs(5), "{first:?} to the first, {sixth:?} to the sixth");
}
