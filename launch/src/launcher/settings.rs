//! The description of a job to launch.

use super::binding::BindTo;
use super::hosts::{HostList, MapBy};
use super::outcome::LaunchError;
use super::prefix::OutputPrefix;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    pub program: PathBuf,
    pub ranks: usize,
    /// Hosts for the ranks; `None` means this machine.
    pub hosts: Option<HostList>,
    pub map_by: MapBy,
    /// Path of `transom` on hosts.
    pub agent: Option<PathBuf>,
    pub args: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    /// Folder of the ranks; `None` means the current one.
    pub folder: Option<PathBuf>,
    pub grace: Option<Duration>,
    pub deadline: Option<Duration>,
    pub prefix: Option<OutputPrefix>,
    pub bind_to: BindTo,
    /// The place of each rank is reported on stderr,
    pub report_bindings: bool,
    /// and the steps of the start, too.
    pub verbose: bool,
    pub timestamps: bool,
    /// Folder for a file of each rank's output.
    pub output_folder: Option<PathBuf>,
    pub capture: bool,
    pub reap_orphans: bool,
    pub handle_signals: bool,
}

impl Settings {
    /// Checks that ranks on this machine can have the folder. A host checks it when it starts its ranks.
    pub fn check_folder(&self) -> Result<(), LaunchError> {
        let Some(folder) = self.folder.as_ref().filter(|_| self.hosts.is_none()) else { return Ok(()) };
        // The `.` requires the permission to enter the folder.
        match std::fs::metadata(folder.join(".")) {
            Ok(_) => Ok(()),
            Err(source) => Err(LaunchError::Folder { folder: folder.clone(), source }),
        }
    }

    /// The folder of ranks on hosts, as an absolute path.
    pub fn folder_on_hosts(&self) -> io::Result<PathBuf> {
        let here = std::env::current_dir()?;
        Ok(self.folder.as_ref().map_or_else(|| here.clone(), |folder| here.join(folder)))
    }
}
