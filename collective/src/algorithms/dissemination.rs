//! Dissemination (Hensgen, Finkel, Manber 1988): in round k each rank tells the one 2^k behind it. ceil(log2 n) rounds.

use crate::plan::{Call, Plan, Shape, Span};

pub(super) fn plan(call: Call, Shape { rank, ranks, .. }: Shape<'_>) -> Option<Plan> {
    let Call::Barrier = call else { return None };
    let mut plan = Plan::default();
    for step in (0..).map(|k| 1 << k).take_while(|step| *step < ranks) {
        plan.round(|round| {
            // Without elements: not by `send`, which leaves out what is empty.
            round.sends.push(((rank + step) % ranks, Span::data(0..0)));
            round.receives.push(((rank + ranks - step) % ranks, Span::data(0..0)));
        });
    }
    Some(plan)
}
