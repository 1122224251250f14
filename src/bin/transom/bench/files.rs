//! What is written besides what is printed.

use super::machine::Machine;
use super::usage::Usage;
use clap::Args;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

#[derive(Args, Clone, Debug, Default)]
pub struct Files {
    /// Write all figures here as JSON; percentiles (latency_ns) are of means of batches, as in the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw them here as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// The files that were asked for, open.
pub struct Open {
    pub json: Option<File>,
    pub svg: Option<File>,
}

impl Files {
    /// Finds out whether they can be written before anything is measured.
    pub fn open(&self) -> Result<Open, Usage> {
        let open = |path: &Option<PathBuf>| match path {
            Some(path) => match File::create(path) {
                Ok(file) => Ok(Some(file)),
                Err(error) => Err(Usage(format!("`{}` cannot be written: {error}", path.display()))),
            },
            None => Ok(None),
        };
        Ok(Open { json: open(&self.json)?, svg: open(&self.svg)? })
    }
}

/// Writes all figures, and what they were taken on.
pub fn write_json(mut file: File, millis: u64, rounds: usize, rows: &impl Serialize) -> io::Result<()> {
    let all = serde_json::json!({
        "transom": env!("CARGO_PKG_VERSION"),
        "machine": Machine::this(),
        "millis": millis,
        "rounds": rounds,
        "rows": rows,
    });
    serde_json::to_writer_pretty(&mut file, &all)?;
    file.write_all(b"\n")
}
