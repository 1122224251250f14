//! A description of the machine, for readers of the figures.

use super::cores;
use crate::complain;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use transom::variables::{SetBy, TABLE};

#[derive(Serialize)]
pub struct Machine {
    /// The number of cores that this program may use.
    cores: usize,
    processor: String,
    kernel: String,
    /// The load average of the last minute, this program included.
    load: Option<f64>,
    /// The TRANSOM_ variables that are set. Jobs inherit them unless a row's configuration overrides one.
    variables: BTreeMap<&'static str, String>,
}

impl Machine {
    pub fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(Path::new(path)).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Machine {
            cores: cores::allowed().len(),
            processor: model.map_or("unknown", |(_, name)| name.trim()).to_owned(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load: read("/proc/loadavg").split_whitespace().next().and_then(|load| load.parse().ok()),
            variables: variables(),
        }
    }
}

/// The variables that users set. TRANSOM_SSH is omitted: jobs on this machine do not use it, and it may contain a
/// secret.
fn variables() -> BTreeMap<&'static str, String> {
    let names = TABLE.iter().filter(|row| row.set_by == SetBy::User && row.name != "TRANSOM_SSH").map(|row| row.name);
    names.filter_map(|name| Some((name, std::env::var_os(name)?.to_string_lossy().into_owned()))).collect()
}

/// Warns on stderr if the machine is busy or this is a debug build, because the figures would mislead.
pub fn warn_of_circumstances() {
    if cfg!(debug_assertions) {
        complain("this is a debug build, whose figures are meaningless; use `cargo run --release`");
    }
    let Machine { cores, load, .. } = Machine::this();
    if let Some(load) = load.filter(|&load| load > 0.5 * cores as f64) {
        let busy = format!(
            "this machine is busy (load {load} on {cores} cores): operations that need several ranks will appear slow"
        );
        complain(&busy);
    }
}
