//! Skeletons of programs at 64 ranks: the channels that they open under Aptus's rules, and that these cost no
//! time. At 512 ranks, beside the figures of the slides: `transom bench channels mix --ranks 512`.

use transom_channel::sim::skeletons::{ALL, Skeleton, run};

/// Channels of a rank on average, counted on paper.
#[test]
fn channel_counts_match_communication_patterns() {
    for (name, expected) in [
        // Eight consecutive ranks form a host. Partners of reductions at distances 1, 2 and 4 are on it;
        // those at 8, 16 and 32 are not. The square is transposed with another host, except on its diagonal
        // of 8.
        ("CG", [3.0, 3.0 + 0.875, 0.875, 0.875]),
        ("EP", [3.0, 3.0, 0.0, 0.0]),
        ("FT", [7.0, 56.0, 16.0, 8.0]),
        // 8 x 8 ranks: along a row 14 neighbours of 8 ranks, 8 of them at distance 1 as in reductions; across
        // as many, at distance 8.
        ("LU", [3.75, 3.75, 1.75, 1.75]),
    ] {
        let skeleton = ALL.iter().find(|skeleton| skeleton.name == name).unwrap();
        let [rc, ud, aptus] = ["rc", "ud", "aptus"].map(|text| run(skeleton, 64, text));
        let channels = [
            aptus.average(|channels| channels.near),
            aptus.average(|channels| channels.datagrams),
            aptus.average(|channels| channels.connections),
            aptus.average(|channels| channels.rings),
        ];
        assert_eq!(channels, expected, "{name}");
        assert!(aptus.channels.iter().all(|channels| channels.connections <= 16 && channels.rings <= 8));
        let better = rc.took.min(ud.took);
        assert!(
            aptus.took * 100 <= better * 102,
            "{name}: aptus took {} ns, the better of rc and ud {better} ns",
            aptus.took
        );
    }
}

/// Both sides of a pair write to each other: answers use datagrams and do not wait behind the writes.
#[test]
fn replies_do_not_wait_behind_rdma_writes() {
    let mg = ALL.iter().find(|skeleton| skeleton.name == "MG").unwrap();
    let mg = Skeleton { iterations: 12, ..*mg };
    let [rc, ud, aptus] = ["rc", "ud", "aptus"].map(|text| run(&mg, 64, text).took);
    assert!(aptus * 100 <= rc.min(ud) * 102, "aptus took {aptus} ns, rc {rc} ns, ud {ud} ns");
}
