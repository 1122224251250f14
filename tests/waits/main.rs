//! Waiting of ranks: spinning, sleeping, reports, progress. Each file is one behaviour.

#[path = "../ranks/mod.rs"]
mod ranks;

mod messages;
mod progress;
mod reports;
mod sleeping;
mod waiting;
