//! Files with the output of each rank.

use super::outcome::LaunchError;
use nix::libc::O_NONBLOCK;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
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
        // A named pipe without a reader is refused. The flag has no effect on files.
        let open = File::options().write(true).create(true).truncate(true).custom_flags(O_NONBLOCK).open(&path);
        let file = open.map_err(failed(&path))?;
        rustix::io::ioctl_fionbio(&file, false).map_err(io::Error::from).map_err(failed(&path))?;
        Ok::<_, LaunchError>((path, file))
    };
    (0..ranks).map(|rank| Ok([file(rank, "stdout")?, file(rank, "stderr")?])).collect()
}
