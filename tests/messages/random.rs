//! Random traffic of processes and threads, checked against the matching rules of the standard. `SEED=17` runs one
//! seed, `SEEDS=100` runs 100.

use crate::ranks;
use ranks::on;
use transom::World;
use transom::messages::{Cancelled, Request, Source, Tag, Tags};

const SIZES: [usize; 10] = [0, 1, 5, 40, 200, 1000, 1024, 3000, 9000, 70_000];
const TAGS: u32 = 3;
/// Messages of each pair, in each direction.
const MESSAGES: usize = 60;

/// The plan, known to every rank: tags and lengths of the messages from `from` to `to`.
fn plan(seed: u64, from: usize, to: usize) -> Vec<(u32, usize)> {
    let mut rng = fastrand::Rng::with_seed(seed << 16 | (from as u64) << 8 | to as u64);
    (0..MESSAGES).map(|_| (rng.u32(0..TAGS), SIZES[rng.usize(..SIZES.len())] + rng.usize(..3))).collect()
}

fn data(from: usize, number: usize, len: usize) -> Vec<u16> {
    (0..len).map(|i| (i * 7 + from * 1000 + number * 13) as u16).collect()
}

/// A posted receive, in order, and the message that it got: source and number in the plan.
struct Posted {
    from: Option<usize>,
    tag: Option<u32>,
    got: Option<(usize, usize)>,
}

impl Posted {
    fn takes(&self, from: usize, tag: u32) -> bool {
        self.from.is_none_or(|source| source == from) && self.tag.is_none_or(|known| known == tag)
    }
}

/// The number of the message in the plan: the first of this kind that has not arrived before. Its bytes identify it.
fn which(plans: &[Vec<(u32, usize)>], left: &mut [Vec<usize>], from: usize, tag: u32, got: &[u16]) -> (usize, usize) {
    let fits = |number: &usize| plans[from][*number] == (tag, got.len()) && data(from, *number, got.len()) == got;
    let at = left[from].iter().position(fits).unwrap_or_else(|| {
        panic!("no message of {} elements with tag {tag} from rank {from} is left in the plan", got.len())
    });
    (from, left[from].remove(at))
}

fn traffic(world: &World, seed: u64) {
    let (me, size) = (world.rank(), world.size());
    let mut rng = fastrand::Rng::with_seed(seed << 8 | me as u64);
    let plans: Vec<_> = (0..size).map(|from| plan(seed, from, me)).collect();
    let mut left: Vec<Vec<usize>> = vec![(0..MESSAGES).collect(); size];
    let mut to_send: Vec<_> = (0..size).map(|to| plan(seed, me, to).into_iter().enumerate()).collect();
    let mut sends: Vec<Request<'_, Vec<u16>>> = Vec::new();
    let mut log: Vec<Posted> = Vec::new();
    // Sends go on between receives.
    let mut send_some = |rng: &mut fastrand::Rng, sends: &mut Vec<_>, most: usize| {
        for _ in 0..rng.usize(0..=most) {
            let to = rng.usize(..size);
            let Some((number, (tag, len))) = to_send[to].next() else { continue };
            let message = data(me, number, len);
            let request = match rng.u8(..3) {
                0 => world.issend(to, Tag::new(tag), message),
                _ => world.isend(to, Tag::new(tag), message),
            };
            if rng.bool() { sends.push(request) } else { drop(request) }
        }
    };
    while left.iter().any(|left| !left.is_empty()) {
        send_some(&mut rng, &mut sends, 20);
        // Receives of one kind: as many for each selection as there are messages for it, so that none waits for ever.
        let mut all: Vec<(usize, usize)> =
            left.iter().enumerate().flat_map(|(from, left)| left.iter().map(move |number| (from, *number))).collect();
        rng.shuffle(&mut all);
        all.truncate(rng.usize(1..=12));
        let (by_source, by_tag) = (rng.bool(), rng.bool());
        let mut coming: Vec<(usize, Request<'_, Vec<u16>>)> = Vec::new();
        for (from, number) in all {
            let source = by_source.then_some(from);
            let tag = by_tag.then_some(plans[from][number].0);
            let from = source.map_or(Source::Any, Source::Rank);
            let tags = tag.map_or(Tag::any(), |tag| Tags::from(Tag::<u16>::new(tag)));
            let mut posted = Posted { from: source, tag, got: None };
            match rng.u8(..5) {
                0 if coming.is_empty() => {
                    send_all_that_is_left(&mut send_some, &mut rng, &mut sends);
                    let message = world.probe(from, tags).unwrap();
                    let status = message.status();
                    let got = message.recv().unwrap();
                    assert_eq!(got.len(), status.len);
                    posted.got = Some(which(&plans, &mut left, status.from, status.tag, &got));
                }
                // A blocking receive by source and tag, on the short path; earlier receives of the batch have ended.
                2 if coming.is_empty() => {
                    send_all_that_is_left(&mut send_some, &mut rng, &mut sends);
                    let mut got = vec![0; 70_100];
                    let status = world.recv_into(from, tags, &mut got).unwrap();
                    got.truncate(status.len);
                    posted.got = Some(which(&plans, &mut left, status.from, status.tag, &got));
                }
                1 => match world.irecv(from, tags).cancel() {
                    Cancelled::Withdrawn(_) => coming.push((log.len(), world.irecv(from, tags))),
                    Cancelled::TooLate(request) => coming.push((log.len(), request)),
                },
                _ => coming.push((log.len(), world.irecv(from, tags))),
            }
            log.push(posted);
        }
        send_all_that_is_left(&mut send_some, &mut rng, &mut sends);
        rng.shuffle(&mut coming);
        let mut ended: Vec<_> = coming.into_iter().map(|(at, request)| (at, request.wait_status().unwrap())).collect();
        // Empty messages of a tag are equal: they count in the order in which they were received.
        ended.sort_by_key(|(at, _)| *at);
        for (at, (got, status)) in ended {
            log[at].got = Some(which(&plans, &mut left, status.from, status.tag, &got));
        }
    }
    send_all_that_is_left(&mut send_some, &mut rng, &mut sends);
    Request::wait_all(sends).unwrap();
    check(&plans, &log);
}

/// Sends the rest of the plan, so that no receive waits for a message that was not sent.
fn send_all_that_is_left<'a>(
    send_some: &mut impl FnMut(&mut fastrand::Rng, &mut Vec<Request<'a, Vec<u16>>>, usize),
    rng: &mut fastrand::Rng,
    sends: &mut Vec<Request<'a, Vec<u16>>>,
) {
    for _ in 0..200 {
        send_some(rng, sends, 20);
    }
}

/// If two messages of one source match a receive, this or an earlier receive got the one sent first. If two receives
/// match a message, the one posted first got this message or one sent before.
fn check(plans: &[Vec<(u32, usize)>], log: &[Posted]) {
    let mut receiver = vec![vec![usize::MAX; MESSAGES]; plans.len()];
    for (at, posted) in log.iter().enumerate() {
        let (from, number) = posted.got.expect("every receive should have ended");
        assert!(posted.takes(from, plans[from][number].0), "receive matched a message of another source or tag");
        receiver[from][number] = at;
    }
    for (at, posted) in log.iter().enumerate() {
        let (from, number) = posted.got.unwrap();
        for (earlier, (tag, _)) in plans[from][..number].iter().enumerate() {
            if posted.takes(from, *tag) {
                assert!(receiver[from][earlier] < at, "message {number} of {from} has overtaken {earlier}");
            }
        }
    }
}

#[test]
fn random_traffic_matches_by_default() {
    on(&[1, 2, 3, 4, 8], "random_traffic_matches_by_default", |world| {
        let few = if world.size() < 8 && !ranks::over_network() { 6 } else { 2 };
        of_seeds(&world, few);
    });
}

/// The same messages arrive under every configuration of TRANSOM_MESSAGES.
#[test]
#[cfg_attr(
    transom_portable_copy,
    ignore = "takes minutes under ThreadSanitizer, and shares no more memory than the other test"
)]
fn random_traffic_matches_in_any_configuration() {
    let configurations = [
        // The smallest value of each setting.
        "eager=0,ring_slots=2,ring_bytes=136,ring_after=0,window=2,budget=0,offer=no,zero_copy_from=1",
        // Rings that peers give up to each other; short messages are announced too.
        "eager=8,rings=1,ring_after=1,order=recent,window=3,credit_delay=0",
        "eager=8192,ring_slots=3,ring_bytes=1000,rings=2,order=sequential,window=1024,zero_copy_from=1,stripe_from=1",
        // No rings at all; long messages copied in packets.
        "rings=0,offer=no,budget=1000,credit_delay=1000000",
        // Between hosts by datagrams, with rings by connections beside them.
        "paths=ud,ud_lanes=2,checksum=yes,eager=500,rings=2,ring_after=3,zero_copy_from=131072",
        // Datagrams alone; long messages go into place.
        "paths=ud,rings=0,rules=MSG_SIZE < 500, UD-SR, TRUE, UD-ZCopy, TRUE, Copy-Based",
        // Datagrams to all, and connections with one peer at a time.
        "aptus,checksum=yes,connections=1,connect_after=3,rings=1,ring_after=2",
    ];
    // Connections take minutes on Soft-RoCE where packets overtake each other: guests with such a network ask for this
    // configuration.
    const NO_CONNECTIONS: &str = "paths=ud,rings=0";
    let asked = std::env::var("TRANSOM_MESSAGES").is_ok_and(|asked| asked == NO_CONNECTIONS);
    let chosen: Vec<_> = configurations.iter().filter(|one| !asked || one.starts_with(NO_CONNECTIONS)).collect();
    for configuration in ranks::each(&chosen) {
        let name = "random_traffic_matches_in_any_configuration";
        ranks::on_with(&[("TRANSOM_MESSAGES", configuration)], &[2, 4], name, |world| of_seeds(&world, 2));
    }
}

fn of_seeds(world: &World, few: u64) {
    let number = |name| std::env::var(name).ok().map(|seed: String| seed.parse::<u64>().unwrap());
    let seeds = number("SEED").map_or(0..number("SEEDS").unwrap_or(few), |seed| seed..seed + 1);
    for seed in seeds {
        traffic(world, seed);
        world.barrier().unwrap();
    }
}
