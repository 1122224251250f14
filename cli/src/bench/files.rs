//! The output files of a benchmark.

use super::machine::Machine;
use super::simulated::Simulation;
use super::text;
use super::usage::Usage;
use clap::Args;
use serde::Serialize;
use std::error::Error;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

#[derive(Args, Clone, Debug, Default)]
pub struct Files {
    /// Write all figures to this file as JSON; percentiles (latency_ns) are of means of batches, as in the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write charts to this file as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// The requested files, all found writable.
pub struct Outputs {
    json: Option<Output>,
    svg: Option<Output>,
}

impl Files {
    /// Checks that the files can be written, before anything is measured.
    pub fn check(&self) -> Result<Outputs, Usage> {
        let check = |path: &Option<PathBuf>| path.as_deref().map(Output::at).transpose();
        let (json, svg) = (check(&self.json)?, check(&self.svg)?);
        if let (Some(Output { path, .. }), Some(svg)) = (&json, &svg)
            && *path == svg.path
        {
            return Err(Usage(format!("--json and --svg name the same file, `{}`", path.display())));
        }
        Ok(Outputs { json, svg })
    }
}

impl Outputs {
    /// Decides about the result of a print. A broken pipe, as with `| head`, ends the benchmark only if no file was
    /// requested.
    pub fn or_unread(&self, printed: io::Result<()>) -> io::Result<()> {
        match printed {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe && (self.json.is_some() || self.svg.is_some()) => {
                Ok(())
            }
            printed => printed,
        }
    }

    pub fn write(
        self,
        json: impl FnOnce() -> io::Result<Vec<u8>>,
        svg: impl FnOnce() -> Result<String, Box<dyn Error>>,
    ) -> Result<(), Box<dyn Error>> {
        if let Some(output) = self.json {
            output.write(&json()?)?;
        }
        if let Some(output) = self.svg {
            output.write(svg()?.as_bytes())?;
        }
        Ok(())
    }
}

/// A file that is replaced as a whole. Until then it keeps its old content, or does not exist.
pub struct Output {
    path: PathBuf,
    /// The open file, if it cannot be replaced: it is a pipe or device, or its folder takes no new files.
    itself: Option<File>,
}

impl Output {
    /// Checks that the path can be written, without changing anything.
    pub fn at(path: &Path) -> Result<Self, Usage> {
        Self::find(path).map_err(|error| Usage(format!("cannot write `{}`: {error}", path.display())))
    }

    fn find(path: &Path) -> io::Result<Self> {
        let open = || OpenOptions::new().write(true).open(path);
        match fs::metadata(path) {
            Ok(there) if there.is_file() => {
                let itself = open()?;
                // Replaces the file that a link points to, and keeps the link.
                let path = path.canonicalize()?;
                let itself = beside(&path).is_err().then_some(itself);
                Ok(Output { path, itself })
            }
            Ok(_) => Ok(Output { path: path.to_owned(), itself: Some(open()?) }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let path = std::path::absolute(path)?;
                let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Err(error) };
                let path = folder.canonicalize()?.join(name);
                beside(&path)?;
                Ok(Output { path, itself: None })
            }
            Err(error) => Err(error),
        }
    }

    pub fn write(self, bytes: &[u8]) -> io::Result<()> {
        let Output { path, itself } = self;
        let written = match itself {
            Some(file) => over(file, bytes),
            None => anew(&path, bytes),
        };
        written.map_err(|error| text::of(&format!("`{}`", path.display()), &error))
    }
}

fn over(mut file: File, bytes: &[u8]) -> io::Result<()> {
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    file.write_all(bytes)
}

fn anew(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = beside(path)?;
    file.write_all(bytes)?;
    if let Ok(there) = fs::metadata(path) {
        file.as_file().set_permissions(there.permissions())?;
    }
    file.persist(path)?;
    Ok(())
}

/// A temporary file in the same folder, with the permissions of any new file. It is removed unless it is renamed over
/// the other.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = path.parent().unwrap_or(path);
    tempfile::Builder::new().prefix(".transom-").permissions(Permissions::from_mode(0o666)).tempfile_in(folder)
}

/// All figures as JSON, with the machine or the simulations they come from, and with the error that ended the benchmark
/// early.
pub fn json(
    millis: u64,
    rounds: usize,
    rows: &impl Serialize,
    simulated: &[Simulation],
    error: Option<String>,
) -> io::Result<Vec<u8>> {
    let all = serde_json::json!({
        "transom": env!("CARGO_PKG_VERSION"),
        "machine": Machine::this(),
        "millis": millis,
        "rounds": rounds,
        "rows": rows,
        "simulated": simulated,
        "error": error,
    });
    let mut text = serde_json::to_vec_pretty(&all)?;
    text.push(b'\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn output_keeps_old_file_until_written() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link, new) = (dir.path().join("file"), dir.path().join("link"), dir.path().join("new"));
        fs::write(&file, "before, and longer").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        symlink("file", &link).unwrap();
        let (by_link, by_name) = (Output::at(&link).unwrap(), Output::at(&new).unwrap());
        assert_eq!(fs::read(&file).unwrap(), b"before, and longer");
        // No temporary file is left.
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        by_link.write(b"after").unwrap();
        by_name.write(b"new").unwrap();
        assert_eq!((&*fs::read(&file).unwrap(), &*fs::read(&new).unwrap()), (&b"after"[..], &b"new"[..]));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn json_and_svg_to_same_file_fail() {
        let dir = tempfile::tempdir().unwrap();
        let files = |json: &str, svg: &str| {
            let [json, svg] = [json, svg].map(|name| Some(dir.path().join(name)));
            Files { json, svg }.check().map(drop)
        };
        files("a", "b").unwrap();
        let why = files("a", "./a").unwrap_err().to_string();
        assert!(why.contains("--json and --svg name the same file"), "{why}");
        fs::write(dir.path().join("there"), "").unwrap();
        symlink("there", dir.path().join("link")).unwrap();
        assert!(files("there", "link").is_err());
    }
}
