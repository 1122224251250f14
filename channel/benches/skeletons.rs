//! The channels that programs have by MVAPICH-Aptus's rules, beside those of its slides, and its time beside that of connections and of
//! datagrams alone. `cargo bench -p transom-channel --bench skeletons`; `-- 128` for another number of ranks, `-- 512 CG MG` for some
//! programs, `-- 512 channels FT` without the times of the other two.

#[path = "../tests/skeletons/patterns.rs"]
mod patterns;
#[path = "../tests/skeletons/run.rs"]
mod run;

use transom_channel::Rank;

/// Of the slides: shared memory, datagrams, connections, rings.
const SLIDES: [(&str, [f64; 4]); 9] = [
    ("BT", [4.11, 20.17, 10.60, 7.88]),
    ("CG", [3.00, 6.94, 2.94, 2.94]),
    ("EP", [3.00, 6.00, 0.00, 0.00]),
    ("FT", [7.00, 504.00, 16.00, 8.00]),
    ("MG", [4.31, 9.00, 5.63, 5.63]),
    ("LU", [3.75, 7.06, 2.23, 2.23]),
    ("SP", [4.11, 20.17, 10.62, 7.88]),
    ("NAMD", [6.30, 120.80, 16.47, 8.00]),
    ("SMG2000", [4.25, 120.19, 16.34, 8.00]),
];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let ranks = words.first().and_then(|word| word.parse::<Rank>().ok()).unwrap_or(512);
    let chosen = &words[usize::from(words.first().is_some_and(|word| word.parse::<Rank>().is_ok()))..];
    let (alone, chosen) = match chosen {
        [first, rest @ ..] if first == "channels" => (true, rest),
        all => (false, all),
    };
    println!("{ranks} ranks, {} of a host; in brackets the slides, of 512", run::HOST);
    println!("| | shared memory | datagrams | connections | rings | ms: rc | ud | aptus | beside the better |");
    println!("|---|---|---|---|---|---|---|---|---|");
    for skeleton in patterns::ALL.iter().filter(|one| chosen.is_empty() || chosen.iter().any(|name| name == one.name)) {
        let aptus = run::run(skeleton, ranks, "aptus");
        let counts = [
            aptus.average(|channels| channels.near),
            aptus.average(|channels| channels.datagrams),
            aptus.average(|channels| channels.connections),
            aptus.average(|channels| channels.rings),
        ];
        let slides = SLIDES.iter().find(|(name, _)| *name == skeleton.name).expect("all are there").1;
        let cells =
            counts.iter().zip(slides).map(|(ours, theirs)| format!(" {ours:.2} ({theirs:.2}) |")).collect::<String>();
        let aptus = aptus.took as f64 / 1e6;
        if alone {
            println!("| {} |{cells} | | {aptus:.2} | |", skeleton.name);
            continue;
        }
        let [rc, ud] = ["rc", "ud"].map(|text| run::run(skeleton, ranks, text).took as f64 / 1e6);
        println!("| {} |{cells} {rc:.2} | {ud:.2} | {aptus:.2} | {:.3} |", skeleton.name, aptus / rc.min(ud));
    }
}
