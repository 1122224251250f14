//! What is to be launched, and how.

use super::hosts::HostList;
use super::tag::Tag;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub program: PathBuf,
    pub ranks: usize,
    /// This machine if none are named.
    pub hosts: Option<HostList>,
    pub args: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub grace: Option<Duration>,
    pub deadline: Option<Duration>,
    pub tag: Option<Tag>,
    pub capture: bool,
    pub reap_orphans: bool,
    pub handle_signals: bool,
}

impl Settings {
    pub fn new(program: PathBuf, ranks: usize) -> Self {
        Settings {
            program,
            ranks,
            hosts: None,
            args: Vec::new(),
            env: Vec::new(),
            grace: None,
            deadline: None,
            tag: None,
            capture: false,
            reap_orphans: false,
            handle_signals: false,
        }
    }
}
