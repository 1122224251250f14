//! Prints the rows of a measurement as tables.

use super::catalog::{Kind, Measurement};
use super::rows::Row;
use super::text::{Table, number, size};

pub fn show(measurement: &Measurement, rows: &[Row]) -> String {
    let table =
        if measurement.kind == Kind::Figures { figures(measurement, rows) } else { latencies(measurement, rows) };
    let dropped: usize = rows
        .iter()
        .map(|row| (&row.task, row.dropped))
        .fold((None, 0), |(last, sum), (task, dropped)| {
            // The rows of one task all count the same dropped jobs.
            (Some(task), if last == Some(task) { sum } else { sum + dropped })
        })
        .1;
    let dropped = if dropped > 0 {
        format!("  ({dropped} jobs dropped, because the core placement changed)\n")
    } else {
        String::new()
    };
    format!("{}: {}\n{table}{dropped}\n", measurement.name, measurement.about)
}

/// A column that distinguishes rows, and its cell for a row.
type Title = (&'static str, fn(&Row) -> String);

fn titles(measurement: &Measurement, rows: &[Row]) -> Vec<Title> {
    let mut titles: Vec<Title> = vec![("sync", |row| row.task.sync.to_owned())];
    if rows.iter().any(|row| !row.task.config.is_empty()) {
        titles.push(("config", |row| if row.task.config.is_empty() { "-".into() } else { row.task.config.clone() }));
    }
    titles.push(("ranks", |row| row.task.ranks.to_string()));
    titles.push(("mode", |row| row.mode.to_string()));
    if measurement.sized {
        titles.push(("size", |row| size(row.task.bytes)));
    }
    titles
}

/// The number of left-aligned columns.
fn words(titles: &[Title]) -> usize {
    titles.iter().position(|(title, _)| *title == "mode").map_or(0, |mode| mode + 1)
}

/// The row to compare with: the same task and mode in the first configuration. `None` if this row has the first
/// configuration, or that mode did not occur in it.
fn first<'r>(row: &Row, rows: &'r [Row]) -> Option<&'r Row> {
    let of = |row: &Row| (row.task.sync, row.task.ranks, row.task.bytes, row.mode);
    let config = &rows.first()?.task.config;
    rows.iter().find(|other| of(other) == of(row) && other.task.config == *config && row.task.config != *config)
}

fn latencies(measurement: &Measurement, rows: &[Row]) -> Table {
    let titles = titles(measurement, rows);
    let mut head: Vec<_> = titles.iter().map(|(title, _)| *title).collect();
    let bandwidth = measurement.kind == Kind::Bandwidth;
    let several = rows.iter().any(|row| first(row, rows).is_some());
    head.extend(["ns", "min", "p90", "p99", "p99.9", "max"]);
    if bandwidth {
        head.extend(["GB/s", "million/s"]);
    }
    if several {
        head.push("x first");
    }
    let between_hosts = rows.iter().any(|row| row.asleep_ns.is_some());
    if between_hosts {
        head.push("x asleep");
    }
    head.extend(["limit ns", "x limit", "limit"]);
    let mut table = Table::new(words(&titles), &head);
    for row in rows {
        let Some(ns) = row.latency_ns else { continue };
        let mut cells: Vec<_> = titles.iter().map(|(_, of)| of(row)).collect();
        cells.extend([ns.median, ns.min, ns.p90, ns.p99, ns.p99_9, ns.max].map(number));
        if bandwidth {
            cells.extend(
                ["GB/s", "million/s"].map(|name| row.figures.get(name).map_or("-".into(), |&value| number(value))),
            );
        }
        if several {
            let first = first(row, rows).and_then(|first| first.latency_ns);
            let is_first = rows.first().is_some_and(|first| first.task.config == row.task.config);
            let alone = if is_first { "1" } else { "-" };
            cells.push(first.map_or(alone.into(), |first| number(ns.median / first.median)));
        }
        let known = |value: Option<f64>| value.map_or("-".into(), number);
        if between_hosts {
            cells.push(known(row.asleep_ns.map(|asleep| ns.median / asleep)));
        }
        cells.extend([known(row.limit_ns), known(row.times_limit), row.limit.clone().unwrap_or_default()]);
        table.row(cells);
    }
    table
}

fn figures(measurement: &Measurement, rows: &[Row]) -> Table {
    // The shares of the ranks are joined in one column.
    let names: Vec<String> = rows.first().map_or(Vec::new(), |row| row.order.clone());
    let names: Vec<_> = names.into_iter().filter(|name| !name.starts_with("share.")).collect();
    let shares = measurement.name == "contended";
    let limited = rows.iter().any(|row| row.limit.is_some());
    let spaced: Vec<_> = names.iter().map(|name| name.replace('_', " ")).collect();
    let titles = titles(measurement, rows);
    let mut head: Vec<_> = titles.iter().map(|(title, _)| *title).collect();
    head.extend(spaced.iter().map(String::as_str));
    if limited {
        head.extend(["x limit", "limit"]);
    }
    if shares {
        head.push("share of each rank, %");
    }
    let mut table = Table::new(words(&titles), &head);
    for row in rows {
        let mut cells: Vec<_> = titles.iter().map(|(_, of)| of(row)).collect();
        cells.extend(names.iter().map(|name| row.figures.get(name).map_or("-".into(), |&value| number(value))));
        if limited {
            cells.extend([row.times_limit.map_or("-".into(), number), row.limit.clone().unwrap_or_default()]);
        }
        if shares {
            let share = |rank: usize| row.figures.get(&format!("share.{rank}")).map(|share| number(share * 100.0));
            cells.push((0..row.task.ranks).filter_map(share).collect::<Vec<_>>().join(" "));
        }
        table.row(cells);
    }
    table
}
