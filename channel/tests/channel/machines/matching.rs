//! Matching, compared with a linear search.

use std::collections::BTreeMap;
use transom_channel::Select;
use transom_channel::matching::{Label, Matching};

/// Matching as the standard defines it, by linear search.
#[derive(Default)]
struct Plain {
    posted: Vec<(Select, u64)>,
    unexpected: Vec<(Label, u64)>,
}

fn fits(select: Select, label: Label) -> bool {
    select.context == label.context
        && select.source.is_none_or(|source| source == label.source)
        && select.tag.is_none_or(|tag| tag == label.tag)
}

#[test]
fn matching_agrees_with_linear_search() {
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut matching, mut plain) = (Matching::default(), Plain::default());
        let mut numbers = BTreeMap::new();
        for step in 0..400u64 {
            let select = Select {
                context: rng.u32(..2),
                source: rng.bool().then(|| rng.u32(..3)),
                tag: rng.bool().then(|| rng.u32(..3)),
            };
            let label = Label { context: rng.u32(..2), source: rng.u32(..3), tag: rng.u32(..3) };
            let waiting = |plain: &Plain| plain.unexpected.iter().position(|(label, _)| fits(select, *label));
            match rng.u32(..20) {
                0..8 => {
                    assert_eq!(
                        matching.peek(select).map(|found| *found.1),
                        waiting(&plain).map(|at| plain.unexpected[at].1)
                    );
                    let took = matching.take(select);
                    assert_eq!(took, waiting(&plain).map(|at| plain.unexpected.remove(at)));
                    if took.is_none() && rng.u8(..4) > 0 {
                        numbers.insert(step, matching.post(select, step));
                        plain.posted.push((select, step));
                    }
                }
                8..17 => {
                    let at = plain.posted.iter().position(|(select, _)| fits(*select, label));
                    assert_eq!(matching.is_wanted(label), at.is_some());
                    let found = matching.arrived(label);
                    assert_eq!(found, at.map(|at| plain.posted.remove(at).1));
                    if found.is_none() {
                        matching.keep(label, step);
                        plain.unexpected.push((label, step));
                    }
                }
                17 => {
                    let keys: Vec<_> = numbers.keys().copied().collect();
                    let Some(step) = rng.choice(keys) else { continue };
                    let at = plain.posted.iter().position(|(_, is)| *is == step);
                    assert_eq!(matching.cancel(numbers[&step]), at.map(|at| plain.posted.remove(at).1));
                }
                18 if step % 5 == 0 => {
                    let gone = matching.withdraw(|select| select.source == Some(1));
                    let (out, rest) = plain.posted.iter().partition(|(select, _)| select.source == Some(1));
                    plain.posted = rest;
                    let out: Vec<(Select, u64)> = out;
                    assert_eq!(gone, out.into_iter().map(|(_, is)| is).collect::<Vec<_>>());
                }
                19 if step % 5 == 0 => {
                    let gone = matching.discard(|label, _| label.source == 2);
                    let (out, rest) = plain.unexpected.iter().partition(|(label, _)| label.source == 2);
                    plain.unexpected = rest;
                    let out: Vec<(Label, u64)> = out;
                    assert_eq!(gone, out.into_iter().map(|(_, is)| is).collect::<Vec<_>>());
                }
                _ => {}
            }
            for source in 0..3 {
                let wanted = plain.posted.iter().any(|(select, _)| select.source.is_none_or(|is| is == source));
                assert_eq!(matching.wants(source), wanted);
            }
            assert_eq!((matching.posted(), matching.unexpected()), (plain.posted.len(), plain.unexpected.len()));
        }
    }
}
