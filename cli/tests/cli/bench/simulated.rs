//! Simulations of `transom bench`: each row has its expected values, in each run.

use super::command::{json, succeeds, texts, transom};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use tempfile::TempDir;

const NAMES: [&str; 18] = [
    "rails_uneven",
    "rails_disturbed",
    "reorder",
    "rails_bus",
    "rails_latency",
    "failover",
    "channels",
    "mix",
    "volume",
    "datagram",
    "datagram_cpu",
    "many_peers",
    "ud_lanes",
    "loss",
    "pool",
    "allconn",
    "memory",
    "fanout",
];

/// A table of the JSON.
struct Sheet(Value);

impl Sheet {
    /// A column of the rows that begin with these cells; cells that are no numbers count as none.
    fn column(&self, title: &str, first: &[&str]) -> Vec<f64> {
        let at = self.0["head"].as_array().unwrap().iter().position(|head| head == title);
        let at = at.unwrap_or_else(|| panic!("no {title} in {}", self.0["head"]));
        let rows = self.0["rows"].as_array().unwrap();
        let begins = |row: &&Value| first.iter().enumerate().all(|(at, cell)| row[at] == *cell);
        let cells: Vec<_> = rows.iter().filter(begins).map(|row| row[at].as_f64().unwrap_or(f64::NAN)).collect();
        assert!(!cells.is_empty(), "no row of {first:?} in {}", self.0["name"]);
        cells
    }

    fn one(&self, title: &str, first: &[&str]) -> f64 {
        let all = self.column(title, first);
        assert_eq!(all.len(), 1, "{title} of {first:?} in {}", self.0["name"]);
        all[0]
    }
}

#[test]
fn simulated_rows_show_their_expected_effects() {
    let dir = TempDir::new().unwrap();
    let (file, picture) = (dir.path().join("all.json"), dir.path().join("all.svg"));
    let mut bench = transom("bench simulated --quick");
    bench.arg("--json").arg(&file).arg("--svg").arg(&picture);
    let (out, _) = succeeds(bench);
    let all = json(&file);
    assert!(all["rows"].as_array().unwrap().is_empty(), "a simulation reported measured rows");
    let sheets = all["simulated"].as_array().unwrap().iter();
    let sheets: BTreeMap<_, _> =
        sheets.map(|sheet| (sheet["name"].as_str().unwrap().to_owned(), Sheet(sheet.clone()))).collect();
    for name in NAMES {
        assert!(sheets.contains_key(name) && out.contains(&format!("{name} (simulated, in virtual time): ")), "{name}");
    }
    assert_eq!(sheets.len(), NAMES.len());
    let of = |name: &str| &sheets[name];

    let uneven = of("rails_uneven");
    for stripe in ["weighted", "adaptive", "pull"] {
        assert!(uneven.one("x first", &["1:1", "1 MiB", stripe]) >= 1.9, "{stripe}");
        assert!(uneven.one("x even", &["4:1", "1 MiB", stripe]) >= 2.2, "{stripe}");
    }
    let then = |stripe| uneven.one("then us", &["1:1", "1 MiB", stripe]);
    assert!(then("adaptive") <= 0.55 * then("first rail"));

    let disturbed = of("rails_disturbed");
    let (even, adaptive) = (disturbed.column("even", &[]), disturbed.column("adaptive", &[]));
    let mean = |from: usize, to: usize, of: &[f64]| of[from..to].iter().sum::<f64>() / (to - from) as f64;
    // In each 5 ms; disturbed from the ninth to the sixteenth.
    assert!(mean(9, 16, &adaptive) > 3.0 * mean(9, 16, &even), "{adaptive:?} beside {even:?}");
    assert!(
        mean(18, 24, &adaptive) > 0.95 * mean(0, 8, &adaptive),
        "the rail's bandwidth did not return: {adaptive:?}"
    );

    for rails in ["1:1", "4:1"] {
        assert_eq!(of("reorder").one("most held", &[rails, "1 KiB", "first"]), 0.0);
        assert!(
            of("reorder").one("most held", &[rails, "1 KiB", "window:16"]) <= 64.0,
            "more packets held than the window allows"
        );
    }
    let rate = |spread| of("reorder").one("messages/ms", &["1:1", "1 KiB", spread]);
    assert!(rate("round_robin") > 1.8 * rate("first"));

    // Rows have figures of SC 2004. The bus halves the rate of one rail used both ways.
    let bus = |figure, stripe| {
        let row = |row: &&Value| row[0] == figure && row[3] == stripe;
        let rows = of("rails_bus").0["rows"].as_array().unwrap().clone();
        rows.iter().find(row).unwrap_or_else(|| panic!("no {stripe} of figure {figure}"))[5].as_f64().unwrap()
    };
    let one_way = bus("7", "first rail");
    assert!(bus("8", "first rail") < 1.1 * one_way && bus("8", "even") > 1.9 * bus("8", "first rail"));
    assert!(bus("9", "binding") > 1.8 * bus("9", "first rail") && bus("9", "even") > 1.02 * bus("9", "binding"));
    assert!((0.97..1.03).contains(&(bus("10", "even") / bus("10", "binding"))));
    assert!(bus("18", "adaptive") > 0.95 * bus("18", "weights:4:1"));
    assert!(bus("19", "pull") > 1.1 * bus("19", "weights:4:1"), "the bus makes 2:1 best");
    assert!(bus("19", "adaptive") > 1.1 * bus("19", "weights:4:1"));
    let held = |second, spread| of("rails_latency").one("held %", &[second, "64 B", spread]);
    assert!(held("5 us", "round_robin") < 2.0 && held("10 us", "round_robin") > 30.0);
    assert!(3.0 * held("10 us", "window:64") < held("10 us", "window:16"));
    assert!(held("10 us", "window:16") < held("10 us", "round_robin"));

    for curve in ["adaptive, first cut", "adaptive, second cut", "pull, second cut"] {
        let came = of("failover").column(curve, &[]);
        // In each 2 ms; cut from the eleventh to the twentieth.
        assert!(mean(11, 20, &came) > 0.45 * mean(0, 10, &came), "{curve}: {came:?}");
        assert!(mean(21, 30, &came) > 0.9 * mean(0, 10, &came), "{curve}: {came:?}");
    }
    let lossy = of("failover").column("datagrams, second loses all", &[]);
    assert!(mean(25, 30, &lossy) > 0.9 * mean(0, 10, &lossy), "{lossy:?}");

    let channels = of("channels");
    assert!(channels.column("most connections", &[]).iter().all(|most| *most <= 16.0));
    assert!(channels.column("most rings", &[]).iter().all(|most| *most <= 8.0));
    assert_eq!(
        channels.column("most connections", &["FT"]),
        [8.0],
        "expected connections to the 8 ranks of the other host"
    );
    let mix = of("mix");
    for ((rc, ud), aptus) in mix.column("rc", &[]).iter().zip(mix.column("ud", &[])).zip(mix.column("aptus", &[])) {
        assert!(aptus <= 1.02 * rc.min(ud), "aptus {aptus} ms, rc {rc} ms, ud {ud} ms");
    }
    let volume = of("volume");
    for what in ["packets", "bytes"] {
        let parts = ["shm", "ud", "rc", "ring", "in place"].map(|path| volume.column(&format!("{path} {what} %"), &[]));
        (0..9).for_each(|row| assert!((parts.iter().map(|part| part[row]).sum::<f64>() - 100.0).abs() < 0.1));
    }

    let datagram = of("datagram");
    for size in ["8 B", "1 KiB", "2 KiB", "4 KiB", "1 MiB"] {
        assert!(datagram.one("us", &["ud", size]) <= 1.2 * datagram.one("us", &["rc", size]), "{size}");
        assert!(datagram.one("MB/s", &["ud", size]) >= 0.8 * datagram.one("MB/s", &["rc", size]), "{size}");
    }
    let cpu = |size, config| of("datagram_cpu").one("us", &[config, size]);
    assert!(cpu("8 B", "ud") > 1.1 * cpu("8 B", "rc"), "a ring needs no completion");
    assert!(cpu("4 KiB", "ud") > 1.06 * cpu("4 KiB", "rc"), "two packets beside one");
    let peers = |title, path, peers| of("many_peers").one(title, &[path, peers]);
    assert!(peers("us", "rings", "1") < peers("us", "connections", "1"), "a ring needs no completion");
    assert!(peers("x 1 peer", "connections", "128") > 1.1 && peers("x 1 peer", "connections", "16") < 1.1);
    assert!(peers("x 1 peer", "rings", "128") > peers("x 1 peer", "connections", "128"), "rings are looked at");
    assert!(peers("x 1 peer", "datagrams", "128") < 1.05);
    let rate = |path, number| peers("x 1 peer (MB/s)", path, number);
    assert!(rate("connections", "128") < 0.7 && rate("datagrams", "128") > 0.95);
    let lanes = |lanes| of("ud_lanes").one("x one", &["1 MiB", lanes]);
    assert!(lanes("2") > 1.9 && lanes("4") > 2.5 && lanes("8") < 1.05 * lanes("4"));
    for size in ["1 KiB", "1 MiB"] {
        let beside = |lost| of("loss").one("x none lost", &[size, lost]);
        assert!(beside("0.1 %") > 0.9 && beside("1 %") >= 0.5 && beside("10 %") > 0.2, "{size}");
        assert_eq!(of("loss").one("sent again, of 1000 packets", &[size, "0 %"]), 0.0);
    }
    for slots in [16, 64, 256, 1024, 8192] {
        let of = |title, config| of("pool").one(title, &[config, "8", &slots.to_string()]);
        assert!(of("most taken", "rc") <= slots.into() && of("most taken", "ud") <= slots.into());
        assert_eq!(of("found none", "ud"), 0.0, "a sender that knows the slots sent more");
        assert!(slots > 64 || of("found none", "ud, slots not told") > 0.0);
    }
    let took = |config, ranks| of("allconn").one("ms", &[config, ranks]);
    assert!(took("rc", "32") > 10.0 * took("ud", "32") && took("aptus", "32") <= 1.02 * took("ud", "32"));
    assert_eq!(of("allconn").one("connections", &["rc", "32"]), 31.0);
    let memory = |title, config| of("memory").one(title, &[config, "128"]);
    assert!(memory("MiB", "ud") < 8.8 && memory("MiB", "aptus") < 8.8);
    // 127 queue pairs of 64 KiB with 24 KiB of records, and completion queues for 128 requests of each of 248 connections.
    // Connections need more than datagrams, but for these queues.
    assert_eq!(memory("of queues", "rc"), 127.0 * 88.0 / 1024.0 + 248.0 / 128.0);
    assert!(memory("MiB", "rc") > 2.0 * memory("MiB", "ud"));
    assert!(memory("MiB", "rc") - memory("of queues", "rc") < memory("MiB", "ud"));
    let caps = ["connections", "rings"].map(|of_what| of("memory").one(of_what, &["aptus", "128"]));
    assert_eq!(caps, [16.0, 8.0]);
    let once = |config| of("fanout").one("messages/ms, once", &[config, "64"]);
    assert!(once("ud") > 10.0 * once("rc") && once("aptus") > 0.95 * once("ud"));

    let picture = fs::read_to_string(picture).unwrap();
    for name in ["rails_disturbed (simulated)", "failover (simulated)", "adaptive, first cut"] {
        assert!(picture.contains(name), "{name} is not in the picture");
    }
}

#[test]
fn repeated_simulation_gives_the_same_rows() {
    let names: Vec<_> = NAMES.into_iter().filter(|name| !["channels", "mix", "volume"].contains(name)).collect();
    let run = || succeeds(transom(&format!("bench {} --quick", names.join(" ")))).0;
    assert_eq!(run(), run());
}

#[test]
fn simulations_are_listed_and_check_their_options() {
    let (out, _) = succeeds(transom("bench list"));
    for name in NAMES {
        assert!(out.lines().any(|line| line.split_whitespace().next() == Some(name)), "{name} is not in\n{out}");
    }
    assert!(succeeds(transom("bench --help")).0.contains("virtual time"));
    let (out, _) = succeeds(transom("bench datagram --quick --sizes 64 --config ud --config ud,checksum=yes"));
    assert!(out.contains("ud,checksum=yes") && !out.contains("ud, unacknowledged"), "{out}");
    for (args, says) in [
        ("loss --ranks 4", "loss is simulated without a choice of --ranks"),
        ("channels --sizes 8", "without a choice of --sizes"),
        ("channels --ranks 12", "a power of two of ranks from 16 on"),
        ("memory --ranks 1", "2 ranks or more"),
        ("loss --sync flush", "no measurement fits"),
    ] {
        let output = transom(&format!("bench {args}")).output().unwrap();
        let (_, err) = texts(&output);
        assert_eq!(output.status.code(), Some(2), "{args}\n{err}");
        assert!(err.contains(says), "{args} does not say {says:?}:\n{err}");
    }
}
