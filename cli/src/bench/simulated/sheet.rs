//! A table of simulated results: for people, as JSON, and as curves over time.

use super::super::text::{Table, number};
use serde::Serialize;

/// The content of a cell.
#[derive(Serialize, Clone, Debug)]
#[serde(untagged)]
pub enum Cell {
    Text(String),
    Number(f64),
}

impl From<f64> for Cell {
    fn from(value: f64) -> Cell {
        Cell::Number(value)
    }
}

impl From<u64> for Cell {
    fn from(value: u64) -> Cell {
        Cell::Number(value as f64)
    }
}

impl From<u32> for Cell {
    fn from(value: u32) -> Cell {
        Cell::Number(value.into())
    }
}

impl From<usize> for Cell {
    fn from(value: usize) -> Cell {
        Cell::Number(value as f64)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

/// Converts values to a row of cells.
macro_rules! cells {
    ($($cell:expr),* $(,)?) => { vec![$($crate::bench::simulated::sheet::Cell::from($cell)),*] };
}
pub(super) use cells;

#[derive(Serialize, Debug)]
pub struct Sheet {
    pub head: Vec<String>,
    pub rows: Vec<Vec<Cell>>,
    /// True if the first column is milliseconds, and the others are MB/s.
    pub over_time: bool,
}

impl Sheet {
    pub fn new(head: &[&str]) -> Sheet {
        Sheet { head: head.iter().map(|&title| title.to_owned()).collect(), rows: Vec::new(), over_time: false }
    }

    pub fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// A sheet of curves with one value per interval of `each` ms.
    pub fn over_time(each: f64, curves: &[(&str, Vec<f64>)]) -> Sheet {
        let head: Vec<_> = ["from ms"].into_iter().chain(curves.iter().map(|(name, _)| *name)).collect();
        let mut sheet = Sheet { over_time: true, ..Sheet::new(&head) };
        for at in 0..curves[0].1.len() {
            let first = Cell::from(at as f64 * each);
            sheet.row([first].into_iter().chain(curves.iter().map(|(_, points)| points[at].into())).collect());
        }
        sheet
    }

    /// The curves by name, as points.
    pub fn curves(&self) -> Vec<(String, Vec<(f64, f64)>)> {
        let number = |cell: &Cell| if let Cell::Number(value) = cell { *value } else { 0.0 };
        let curve = |at: usize| self.rows.iter().map(|row| (number(&row[0]), number(&row[at]))).collect();
        (1..self.head.len()).map(|at| (self.head[at].clone(), curve(at))).collect()
    }
}

impl std::fmt::Display for Sheet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words = |row: &Vec<Cell>| row.iter().take_while(|cell| matches!(cell, Cell::Text(_))).count();
        let left = self.rows.iter().map(words).min().unwrap_or(0);
        let head: Vec<&str> = self.head.iter().map(String::as_str).collect();
        let mut table = Table::new(left, &head);
        for row in &self.rows {
            let text = |cell: &Cell| match cell {
                Cell::Text(text) => text.clone(),
                Cell::Number(count) if count.fract() == 0.0 && *count < 100.0 => format!("{count}"),
                Cell::Number(value) => number(*value),
            };
            table.row(row.iter().map(text).collect());
        }
        write!(f, "{table}")
    }
}
