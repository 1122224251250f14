//! Targets that our results must meet by themselves, whatever the other MPI libraries reach.

use super::catalog;
use super::figures::Done;
use super::mode::Mode;
use super::rows::{Row, rows, wrong_limits};
use super::targets::Comparison;
use super::text::{Table, number, size};
use serde::Serialize;

/// A figure of ours compared with its absolute target.
#[derive(Clone, Debug, Serialize)]
pub struct Alone {
    measurement: &'static str,
    sync: &'static str,
    bytes: usize,
    ranks: usize,
    mode: Mode,
    figure: &'static str,
    ours: f64,
    target: String,
    reached: bool,
}

/// Checks the results of our jobs in a comparison against their absolute targets. Also returns complaints about wrong
/// limits: results that beat what the machine allows.
pub fn by_itself(comparison: &Comparison, millis: u64, ours: &[Done]) -> (Vec<Alone>, Vec<String>) {
    let rows = rows(&comparison.task(millis), ours);
    let of = |row: &Row| {
        let alone = comparison.own.iter().filter_map(|own| {
            let ours = own.of(row)?;
            Some(Alone {
                measurement: comparison.measurement,
                sync: comparison.sync,
                bytes: comparison.bytes,
                ranks: comparison.ranks,
                mode: row.mode,
                figure: own.figure,
                ours,
                target: own.bound.to_string(),
                reached: own.bound.holds(ours),
            })
        });
        alone.collect::<Vec<_>>()
    };
    (rows.iter().flat_map(of).collect(), wrong_limits(&rows))
}

pub fn show(alone: &[Alone]) -> String {
    let mut table = Table::new(5, &["ours alone", "sync", "ranks", "mode", "figure", "ours", "size", "target"]);
    for row in alone {
        let sized = catalog::find(row.measurement).is_some_and(|measurement| measurement.sized);
        table.row(vec![
            row.measurement.to_owned(),
            row.sync.to_owned(),
            row.ranks.to_string(),
            row.mode.to_string(),
            row.figure.replace('_', " "),
            number(row.ours),
            if sized { size(row.bytes) } else { "-".to_owned() },
            format!("{} {}", row.target, if row.reached { "reached" } else { "MISSED" }),
        ]);
    }
    if table.is_empty() { String::new() } else { format!("\n{table}") }
}
