//! `transom bench --hosts-local`: measurements between host names of this machine, over TCP.

use super::command::{json, succeeds, texts, transom};
use serde_json::Value;
use tempfile::TempDir;

/// The rows of a measurement. The launcher needs a shell and coreutils for hosts.
fn rows(args: &str) -> Vec<Value> {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("rows.json");
    let mut command = transom(&format!("bench {args} --quick --json {}", file.display()));
    command.env("PATH", std::env::var_os("PATH").unwrap());
    succeeds(command);
    json(&file)["rows"].as_array().unwrap().clone()
}

/// A plain TCP stream stands beside each figure, so the ranks share no memory.
#[test]
fn hosts_local_measures_beside_a_tcp_stream() {
    let rows = rows("put lock pingpong put_bw --hosts-local 2 --sizes 8 --sync flush,lock_exclusive,messages");
    let of = |measurement: &str, sync: &str| {
        rows.iter().find(|row| row["measurement"] == measurement && row["sync"] == sync).unwrap()
    };
    for (measurement, sync, limit) in [
        ("put", "flush", "TCP round trip"),
        ("lock", "lock_exclusive", "2 TCP round trips"),
        ("pingpong", "messages", "TCP one way"),
    ] {
        let row = of(measurement, sync);
        assert_eq!((&row["hosts"], &row["mode"], &row["limit"]), (&2.into(), &"alone".into(), &limit.into()));
        assert!(row["limit_ns"].as_f64().unwrap() > 500.0 && row["crossing_ns"].is_null(), "{row}");
    }
    assert!(of("put", "flush")["asleep_ns"].as_f64().unwrap() > 500.0);
    assert!(of("put_bw", "flush")["limit"].is_null());
    let time = |measurement, sync| of(measurement, sync)["limit_ns"].as_f64().unwrap();
    assert!(time("lock", "lock_exclusive") > time("pingpong", "messages"));
}

#[test]
fn hosts_local_takes_two_hosts_or_more() {
    let rows = rows("put --sync flush --sizes 8");
    assert_eq!((&rows[0]["hosts"], &rows[0]["limit"]), (&1.into(), &"atomic".into()));
    let output = transom("bench put --hosts-local 1").output().unwrap();
    let (_, err) = texts(&output);
    assert!(output.status.code() == Some(2) && err.contains("1 is not in 2..=64"), "{err}");
}
