//! Compare-and-swaps and additions take two steps, and a put in between is lost, as adapters permit. The lock mixes puts
//! and atomics on no word at one time, so every property holds.

use super::{all, attempt, check, check_all, exclusive, mixes, shared, until, with_deadlines};
use std::time::Instant;
use transom_locks::Mode::{Exclusive, Shared};
use transom_locks::model::{Call, Delivery::Torn, Mix};

fn check_mixes<const C: u32>(what: &str, mixes: impl IntoIterator<Item = Vec<Vec<Call>>>) {
    let (begun, mut states) = (Instant::now(), 0);
    for mix in mixes {
        let verdict = check(Mix::<C>::new(mix.clone()).sim().with_delivery(Torn));
        assert_eq!(verdict.wrong, None, "{mix:?}");
        states += verdict.states;
    }
    println!("{what}, Torn: {states} states, {:.1?}", begun.elapsed());
}

#[test]
fn torn_atomics_hold_properties() {
    check_all::<16>("2 ranks x 2", Torn, mixes(2, 2));
    check_all::<16>("3 ranks x 1", Torn, mixes(3, 1));
    check_all::<3>("2 ranks x 2, counts of 3 bits", Torn, mixes(2, 2));
    let others = [exclusive(0), exclusive(1), shared(1), all()];
    check_all::<16>("2 ranks, one takes all locks", Torn, others.into_iter().map(|row| vec![row, all()]));
    let rows = [shared(0), exclusive(0), until(Shared), until(Exclusive), attempt(Shared), attempt(Exclusive)];
    let twice = rows.iter().flat_map(|first| rows.iter().map(|second| [first.clone(), second.clone()].concat()));
    check_mixes::<16>("deadlines and attempts, 2 and 1", twice.map(|twice| vec![twice, exclusive(0)]));
    let three = rows[2..4].iter().map(|row| vec![exclusive(0), row.clone(), exclusive(0)]);
    check_mixes::<16>("deadlines, 3 ranks x 1", three);
}

#[test]
#[ignore = "long: `tests/full` runs it"]
fn torn_atomics_hold_properties_at_length() {
    check_all::<16>("2 ranks x 3", Torn, mixes(2, 3));
    check_all::<3>("3 ranks x 1, counts of 3 bits", Torn, mixes(3, 1));
    let rows = [shared(0), exclusive(0), until(Shared), until(Exclusive)];
    check_mixes::<16>("deadlines, 3 ranks x 1", with_deadlines(&rows, 3));
    let again = |first: &[Call], second: &[Call]| [&first[..2], second].concat();
    let twice: Vec<_> = rows.iter().flat_map(|first| rows.iter().map(|second| again(first, second))).collect();
    check_mixes::<16>("deadlines, 2 ranks x 2", with_deadlines(&twice, 2));
}
