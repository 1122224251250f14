//! Reports and errors name the message that a call waits for, and the line of the program.

#![allow(clippy::unit_arg, reason = "a call is one expression")]

use crate::ranks;

use ranks::IN_TIME;
use transom::messages::{Source, Tag};
use transom::{Error, World};

const ASKED: Tag<u8> = Tag::new(5);
const SENT: Tag<u8> = Tag::new(6);

#[test]
fn waiting_calls_report_source_and_tag() {
    let ended =
        ranks::outcome_with(&[("TRANSOM_WAIT_REPORT", "0.1")], 2, "waiting_calls_report_source_and_tag", |world| {
            std::thread::spawn(|| {
                std::thread::sleep(4 * IN_TIME);
                std::process::exit(0);
            });
            if world.rank() == 1 {
                world.send(0, SENT, &[1]).unwrap();
                return drop(world.recv(0, ASKED));
            }
            let calls: [fn(&World); 6] = [
                |world| drop(world.recv(1, ASKED)),
                |world| drop(world.recv_into(Source::Any, ASKED, &mut [0])),
                |world| drop(world.irecv_into(1, ASKED, vec![0]).wait()),
                |world| drop(world.probe(1, ASKED)),
                |world| {
                    let mut into = [0];
                    let _: Result<(), Error> = world.scope(|scope| Ok(drop(scope.irecv(1, ASKED, &mut into))));
                },
                |world| drop(world.block_on(async { world.irecv(1, ASKED).await })),
            ];
            std::thread::scope(|threads| calls.iter().for_each(|call| drop(threads.spawn(|| call(&world)))));
        });
    let Some(outcome) = ended else { return };
    let said = String::from_utf8_lossy(outcome.output(0)).into_owned();
    let other = "(a message with tag 6 from rank 1 has arrived, which does not match)";
    for place in [
        &format!("in recv with tag 5 {other} for rank 1"),
        &format!("in recv with tag 5 {other}, called at "),
        &format!("in irecv with tag 5 {other} for rank 1"),
        &format!("in probe with tag 5 {other} for rank 1"),
        "in the end of a scope, for a receive with tag 5 from rank 1",
        "in block_on, for a receive with tag 5 from rank 1",
    ] {
        assert!(said.contains(place), "{place}\n{said}");
    }
}

#[test]
fn error_at_a_scope_end_shows_the_callers_line() {
    let world = transom::init().unwrap();
    world.send(0, SENT, &[1, 2]).unwrap();
    let mut into = [0];
    let (line, ended): (u32, Result<(), Error>) =
        (line!(), world.scope(|scope| Ok(drop(scope.irecv(0, SENT, &mut into)))));
    let shown = format!("{:?}", ended.unwrap_err());
    assert!(shown.contains(&format!("reports.rs:{line}")), "{shown}");
}
