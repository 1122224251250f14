//! Messages: `cargo bench --bench messages`. Callgrind (needs valgrind) counts the instructions of the short path,
//! which have a bound. The time of a message between two processes is printed beside a bare crossing of two lines of
//! shared memory in the same run.

mod callgrind;
mod crossing;

use callgrind::collected;
use crossing::{crossing, shortest};
use std::hint::black_box;
use std::time::Duration;
use transom::messages::{Request, Tag};
use transom::{Error, Launch, World};

const SHORT: Tag<u64> = Tag::new(1);
const BYTES: Tag<u8> = Tag::new(2);

/// Instructions of a send and a receive.
const PAIR: f64 = 790.0;

/// Bytes of a message that uses rendezvous.
const LONG: usize = 65_536;
const ANNOUNCED: &str = "isend of 64 KiB, recv_into, wait; without the copy";

type Call = fn(&World, usize) -> Result<(), Error>;

/// Each call, done `times` times, of a rank with itself, with an open ring; and its bound of instructions.
const CALLS: &[(&str, f64, Call)] = &[
    ("send 8 B, recv_into what is there", PAIR, |world, times| {
        let mut got = [0];
        (0..times).try_for_each(|i| {
            world.send(0, SHORT, &[i as u64])?;
            world.recv_into(0, SHORT, &mut got)?;
            black_box(got);
            Ok(())
        })
    }),
    ("the same twice: two sends, then two receives", 2.02 * PAIR, |world, times| {
        let mut got = [0];
        (0..times).try_for_each(|i| {
            world.send(0, SHORT, &[i as u64])?;
            world.send(0, SHORT, &[i as u64])?;
            world.recv_into(0, SHORT, &mut got)?;
            world.recv_into(0, SHORT, &mut got)?;
            Ok(())
        })
    }),
    ("send 8 B, recv what is there", 1140.0, |world, times| {
        (0..times).try_for_each(|i| {
            world.send(0, SHORT, &[i as u64])?;
            black_box(world.recv(0, SHORT)?);
            Ok(())
        })
    }),
    ("sendrecv 8 B", 800.0, |world, times| {
        let mut got = [0];
        (0..times).try_for_each(|i| {
            world.sendrecv(0, SHORT, &[i as u64], 0, SHORT, &mut got)?;
            black_box(got);
            Ok(())
        })
    }),
    ("isend of a vector, irecv of what is there, both waited for", 1600.0, |world, times| {
        (0..times).try_for_each(|i| {
            let sent = world.isend(0, SHORT, vec![i as u64]);
            black_box(world.irecv(0, SHORT).wait()?);
            sent.wait().map(drop).map_err(Error::from)
        })
    }),
    ("irecv, isend, both waited for; 20 at a time", 2500.0, |world, times| at_once(world, times, First::Receives)),
    ("isend, irecv of what is there; 20 at a time", 1500.0, |world, times| at_once(world, times, First::Sends)),
    ("isend, progress, irecv; 20 at a time", 5600.0, |world, times| at_once(world, times, First::Messages)),
    (ANNOUNCED, 8_450.0, announced),
    ("progress, nothing there", 660.0, |world, times| (0..times).try_for_each(|_| Ok(world.progress()?))),
];

/// Rendezvous messages that the receiver reads.
fn announced(world: &World, times: usize) -> Result<(), Error> {
    let (sent, mut got) = (vec![1; LONG], vec![0; LONG]);
    (0..times).try_for_each(|_| {
        world.scope(|scope| {
            let sent = scope.isend(0, BYTES, &sent);
            world.recv_into(0, BYTES, &mut got)?;
            sent.wait()?;
            Ok(())
        })
    })
}

/// State before the measurement: posted receives, or messages in the ring or taken out of it.
#[derive(PartialEq)]
enum First {
    Receives,
    Sends,
    Messages,
}

/// Messages by requests; the count is that of one message.
fn at_once(world: &World, times: usize, first: First) -> Result<(), Error> {
    let (sent, mut got) = ([7], [0; 20]);
    for _ in 0..times / 20 {
        world.scope(|scope| {
            let sends = || (0..20).map(|_| scope.isend(0, SHORT, &sent)).collect::<Vec<_>>();
            let receives = |got| <[u64]>::chunks_mut(got, 1).map(|got| scope.irecv(0, SHORT, got)).collect::<Vec<_>>();
            let (sends, receives) = if first == First::Receives {
                let receives = receives(&mut got);
                (sends(), receives)
            } else {
                let sends = sends();
                if first == First::Messages {
                    world.progress()?;
                }
                (sends, receives(&mut got))
            };
            Request::wait_all(sends)?;
            Request::wait_all(receives)?;
            Ok::<_, Error>(())
        })?;
        black_box(got);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<_> = std::env::args().collect();
    match &args[1..] {
        [role] if role == "rank" => return Ok(rank(&transom::init()?)?),
        [call, times] if !call.starts_with("--") => {
            let call = CALLS.iter().find(|(name, ..)| name == call).expect("a call of the table").2;
            let world = transom::init()?;
            (CALLS[0].2)(&world, 100)?; // opens the ring
            return Ok(call(&world, times.parse()?)?);
        }
        _ => {}
    }
    println!("{:<48} {:>12} {:>8}", "", "instructions", "at most");
    let mut beyond: Vec<&str> = Vec::new();
    for (call, most, _) in CALLS {
        let thousand = collected(&[], &[call, "2000"])? - collected(&[], &[call, "1000"])?;
        // Each byte of a long copy counts as one.
        let copied = if *call == ANNOUNCED { LONG } else { 0 };
        let each = thousand as f64 / 1000.0 - copied as f64;
        println!("{call:<48} {each:>12.1} {most:>8}");
        beyond.extend((each > *most).then_some(*call));
    }
    if !beyond.is_empty() {
        return Err(format!("more instructions than they may take: {beyond:?}").into());
    }
    for _ in 0..3 {
        let outcome =
            Launch::new(std::env::current_exe()?, 2).args(["rank"]).deadline(Duration::from_secs(60)).run()?;
        if !outcome.success() {
            return Err(outcome.to_string().into());
        }
    }
    Ok(())
}

fn rank(world: &World) -> Result<(), Error> {
    let (me, other) = (world.rank(), 1 - world.rank());
    let mut report = vec![format!("crossing {:.0} ns", crossing(world)?)];
    let lengths = [8, 1024, 8192, 65_536, 1 << 20, 4 << 20].map(|len| (len, false));
    for (len, in_buffers) in lengths.into_iter().chain([65_536, 1 << 20, 4 << 20].map(|len| (len, true))) {
        let rounds = (4_000_000 / (len + 2000)).clamp(4, 2000);
        let (mut data, mut got) = (vec![1_u8; len], vec![0_u8; len]);
        let (mut buffer, mut other_buffer) = (world.buffer(len)?, world.buffer(len)?);
        let (data, got) =
            if in_buffers { (&mut buffer[..], &mut other_buffer[..]) } else { (&mut data[..], &mut got[..]) };
        data.fill(1);
        world.barrier()?;
        let round_trip = shortest(rounds, || {
            if me == 0 {
                world.send(other, BYTES, data)?;
                world.recv_into(other, BYTES, got)?;
            } else {
                world.recv_into(other, BYTES, got)?;
                world.send(other, BYTES, data)?;
            }
            Ok(())
        })?;
        let message = round_trip / 2.0;
        let into = if len < 60_000 { String::new() } else { format!(" ({:.1} GB/s)", len as f64 / message) };
        let from = if in_buffers { " in buffers" } else { "" };
        report.push(format!("{len} B{from} {message:.0} ns{into}"));
    }
    if me == 0 {
        println!("{}", report.join(", "));
        println!("  {:?}", world.counters()?);
    }
    Ok(())
}
