//! Dissemination barrier (Hensgen, Finkel, Manber 1988): in round k each rank sends to the rank 2^k after it. ceil(log2
//! n) rounds.

use crate::plan::{Call, Plan, Shape, Span};

pub(super) fn plan(call: Call, Shape { rank, ranks, .. }: Shape<'_>) -> Option<Plan> {
    let Call::Barrier = call else { return None };
    let mut plan = Plan::default();
    for step in (0..).map(|k| 1 << k).take_while(|step| *step < ranks) {
        plan.round(|round| {
            // Pushed directly, because `send` skips empty spans.
            round.sends.push(((rank + step) % ranks, Span::data(0..0)));
            round.receives.push(((rank + ranks - step) % ranks, Span::data(0..0)));
        });
    }
    Some(plan)
}
