//! Files with the output of each rank.

use super::outcome::LaunchError;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Creates the files for the stdout and stderr of each rank, `rank.2.stdout` and `rank.2.stderr`. Numbers have one width,
/// so that names sort by rank.
pub(super) fn create(folder: &Path, ranks: usize) -> Result<Vec<[(PathBuf, File); 2]>, LaunchError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| LaunchError::OutputFile { path, source }
    };
    std::fs::create_dir_all(folder).map_err(failed(folder))?;
    let width = (ranks - 1).to_string().len();
    let file = |rank: usize, stream: &str| {
        let path = folder.join(format!("rank.{rank:0width$}.{stream}"));
        let file = File::create(&path).map_err(failed(&path))?;
        Ok::<_, LaunchError>((path, file))
    };
    (0..ranks).map(|rank| Ok([file(rank, "stdout")?, file(rank, "stderr")?])).collect()
}
