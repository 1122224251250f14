//! Selection of the algorithm for a collective.

use crate::algorithms::Algorithm;
use crate::plan::{Call, Shape};
use crate::rules::Rules;
use std::sync::LazyLock;

static TABLE: LazyLock<Rules> = LazyLock::new(|| include_str!("table.rules").parse().expect("table.rules is valid"));

/// Selects the algorithm for a call: the first of `rules` that supports it, else the first of the built-in table
/// `table.rules`. All ranks must pass the same rules.
///
/// # Examples
/// ```
/// use transom_collective::{Call, Rules, Shape, choose::best};
/// let shape = Shape { rank: 0, ranks: 100, len: 1 << 20, element: 8, hosts: None };
/// let by = |rules: &str| best(Call::AllGather, shape, &rules.parse().unwrap()).name();
/// assert_eq!(by(""), "ring");
/// assert_eq!(by("all_gather = bruck"), "bruck");
/// assert_eq!(by("all_gather = rabenseifner"), "ring"); // does not support the call
/// ```
pub fn best(call: Call, shape: Shape<'_>, rules: &Rules) -> Algorithm {
    let mut all = rules.of(call, shape).chain(TABLE.of(call, shape));
    all.find(|algorithm| algorithm.can(call, shape)).expect("the table's last rule for a call supports every shape")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::Hosts;

    const CALLS: [Call; 10] = [
        Call::Barrier,
        Call::Broadcast { root: 0 },
        Call::Reduce { root: 0, commutes: false },
        Call::AllReduce { commutes: false },
        Call::ReduceScatter,
        Call::Scan { exclusive: true },
        Call::Gather { root: 0 },
        Call::Scatter { root: 0 },
        Call::AllGather,
        Call::AllToAll,
    ];

    #[test]
    fn table_has_an_algorithm_for_every_call() {
        assert_eq!(CALLS.map(|call| call.name()), Call::NAMES);
        for (call, ranks, len) in CALLS.iter().flat_map(|call| [(*call, 1, 0), (*call, 2, 1), (*call, 100, 1 << 30)]) {
            best(call, Shape { rank: 0, ranks, len, element: 8, hosts: None }, &Rules::default());
        }
    }

    #[test]
    fn shared_hosts_select_leaders() {
        let by = |hosts: [u32; 4], call| {
            let hosts = Some(&Hosts::of(&hosts));
            best(call, Shape { rank: 3, ranks: 4, len: 10, element: 8, hosts }, &Rules::default()).name()
        };
        assert_eq!(CALLS.map(|call| by([0, 0, 1, 1], call)), ["leaders"; 10]);
        assert!(CALLS.iter().all(|call| by([0, 1, 2, 3], *call) != "leaders"), "each rank is alone on its host");
        assert_ne!(by([0, 1, 0, 1], Call::AllReduce { commutes: false }), "leaders", "hosts are not in rank order");
    }
}
