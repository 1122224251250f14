//! The description of a job to launch.

use super::hosts::HostList;
use super::prefix::OutputPrefix;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    pub program: PathBuf,
    pub ranks: usize,
    /// Hosts for the ranks; `None` means this machine.
    pub hosts: Option<HostList>,
    pub args: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub grace: Option<Duration>,
    pub deadline: Option<Duration>,
    pub prefix: Option<OutputPrefix>,
    pub capture: bool,
    pub reap_orphans: bool,
    pub handle_signals: bool,
}
