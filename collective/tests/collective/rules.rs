//! Rules as text: the algorithms they choose, and the messages for syntax errors.

use transom_collective::{Call, Hosts, Rules, Shape, choose::best};

#[test]
fn first_rule_whose_conditions_hold_applies() {
    let rules: Rules = "# by size, ranks and hosts\n\
         all_reduce bytes>=64 bytes<=1024 = ring   # long\n\
         \n\
         all_reduce ranks=4 hosts>=2 = rabenseifner, all_reduce ranks<=5 = pairwise\n\
         broadcast hosts=1 = binomial"
        .parse()
        .unwrap();
    let hosts = Hosts::of(&[0, 0, 1, 1]);
    let by = |call, ranks, len, hosts| best(call, Shape { rank: 0, ranks, len, element: 8, hosts }, &rules).name();
    let all_reduce = Call::AllReduce { commutes: true };
    for (ranks, len, apart, expected) in [
        (4, 7, false, "pairwise"),
        (4, 8, false, "ring"),
        (4, 128, true, "ring"),
        (4, 129, true, "rabenseifner"),
        (4, 129, false, "pairwise"),
        (5, 129, false, "pairwise"),
        (6, 129, false, "recursive_doubling"), // from the table
    ] {
        let hosts = apart.then_some(&hosts);
        assert_eq!(by(all_reduce, ranks, len, hosts), expected, "{ranks} ranks, {len} elements, apart: {apart}");
    }
    // A ring needs an operation that commutes.
    assert_eq!(by(Call::AllReduce { commutes: false }, 9, 8, None), "recursive_doubling");
    assert_eq!(
        (by(Call::Broadcast { root: 0 }, 2, 1, None), by(Call::Broadcast { root: 0 }, 4, 1, Some(&hosts))),
        ("binomial", "leaders") // from the table
    );
    assert_eq!(rules.to_string().parse::<Rules>().unwrap(), rules);
    // Algorithms between leaders.
    let rules: Rules = "all_reduce bytes<=80 = leaders : ring\nall_reduce = leaders".parse().unwrap();
    assert_eq!(rules.to_string(), "all_reduce bytes<=80 = leaders:ring\nall_reduce = leaders\n");
    assert_eq!(rules.to_string().parse::<Rules>().unwrap(), rules);
    let between = |len| {
        best(all_reduce, Shape { rank: 0, ranks: 4, len, element: 8, hosts: Some(&hosts) }, &rules)
            .between()
            .map(|between| between.name())
    };
    assert_eq!((between(10), between(11)), (Some("ring"), None));
}

#[test]
fn syntax_error_names_its_position() {
    let calls = "a collective: barrier, broadcast, reduce, all_reduce, reduce_scatter, scan, gather, scatter, all_gather or all_to_all";
    let algorithms = "an algorithm: binomial, board, bruck, direct, dissemination, leaders, pairwise, rabenseifner, \
                      recursive_doubling or ring";
    let of_leaders = "an algorithm of leaders: binomial, bruck, direct, dissemination, pairwise, rabenseifner, recursive_doubling or ring";
    for (text, place, found, expected) in [
        ("ring = ring", (1, 1), "`ring`", calls),
        ("broadcast", (1, 10), "the end of the line", "bytes, ranks, hosts or ="),
        ("broadcast bytes < 8 = ring", (1, 17), "`<`", "<=, >= or ="),
        ("# börse\n  broadcast bytes<=many = ring", (2, 20), "`many`", "a whole number"),
        ("broadcast ranks<=-1 = ring", (1, 18), "`-`", "a whole number"),
        ("broadcast bytes<=99999999999999999999 = ring", (1, 18), "`99999999999999999999`", "a whole number"),
        ("broadcast = ring\n\nreduce=", (3, 8), "the end of the line", algorithms),
        ("reduce = rings", (1, 10), "`rings`", algorithms),
        ("reduce = binomial reduce = ring", (1, 19), "`reduce`", "the end of the line or a comma"),
        ("reduce = ring:bruck", (1, 14), "`:`", "the end of the line or a comma"),
        ("reduce = leaders:board", (1, 18), "`board`", of_leaders),
        ("reduce = leaders:\n", (1, 18), "the end of the line", of_leaders),
        ("größe=ring", (1, 1), "`größe`", calls),
        ("reduce=binomial,∞", (1, 17), "`∞`", calls),
    ] {
        let error = text.parse::<Rules>().unwrap_err();
        assert_eq!(((error.line, error.column), &*error.found, &*error.expected), (place, found, expected), "{text}");
    }
}
