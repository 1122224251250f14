//! A progress bar on stderr, if that is a terminal.

use super::text;
use crate::complain;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io;

pub struct Progress(ProgressBar);

impl Progress {
    pub fn new(steps: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} (left: {eta}) {msg}") {
            bar.set_style(style);
        }
        Progress(bar)
    }

    pub fn now(&self, what: String) {
        self.0.set_message(what);
        self.0.tick();
    }

    pub fn step(&self, steps: usize) {
        self.0.inc(steps as u64);
    }

    /// Prints to stdout while the bar is hidden.
    pub fn print(&self, text: &str) -> io::Result<()> {
        self.0.suspend(|| text::print(text))
    }

    pub fn warn(&self, text: &str) {
        self.0.suspend(|| complain(text));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
