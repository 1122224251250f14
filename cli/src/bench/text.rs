//! Formats tables and numbers for people.

use std::io::{self, Write};

/// A table of aligned cells. The first `left` columns are left-aligned, the others, which are numbers, right-aligned.
pub struct Table {
    left: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(left: usize, head: &[&str]) -> Self {
        Table { left, rows: vec![head.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                match column < self.left {
                    true => line.push_str(&format!("  {cell:<width$}")),
                    false => line.push_str(&format!("  {cell:>width$}")),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Formats a number with three significant digits, or with all digits before the point in groups.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        size if size < 0.1 => 4,
        size if size < 1.0 => 3,
        size if size < 10.0 => 2,
        size if size < 100.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), String::new()), |(w, r)| (w, format!(".{r}")));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 && grouped != "-" {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + &rest
}

/// Formats a size such as `4 KiB`.
pub fn size(bytes: usize) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

/// Parses what [`size`] formats, and shorter forms: `8`, `64k`, `1 MiB`.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        _ => return Err(format!("unknown unit {unit:?}; expected B, KiB or MiB")),
    };
    let bytes = number.parse().ok().and_then(|number: usize| number.checked_mul(1 << shift));
    match bytes {
        Some(bytes) if bytes > 0 && bytes.is_multiple_of(8) && bytes <= 1 << 30 => Ok(bytes),
        _ => Err("expected a multiple of 8 bytes up to 1024 MiB, such as 8, 64KiB or 1MiB".into()),
    }
}

/// Prints to stdout. Fails if the reader has closed it.
pub fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|error| of("stdout", &error))
}

/// The same error, with the name of its object.
pub fn of(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formatted_sizes_parse_back() {
        for bytes in [8, 512, 1 << 10, 3 << 10, 1 << 20, 4 << 20, 1544] {
            assert_eq!(parse_size(&size(bytes)), Ok(bytes));
        }
        assert_eq!(parse_size("64k"), Ok(65_536));
        for text in ["", "0", "7", "k", "-8", "8x", "8 8", "2048MiB", "99999999999999999999m"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_print_three_digits_or_digit_groups() {
        let numbers = [0.0, 0.012_34, 0.5, 1.234, 24.56, 190.4, 1234.5, 1_234_567.0, -1234.0];
        let texts = ["0", "0.0123", "0.500", "1.23", "24.6", "190", "1,234", "1,234,567", "-1,234"];
        assert_eq!(numbers.map(number), texts);
    }
}
