//! Deaths and deadlines, as the survivors see them. Each file is one behaviour.

#[path = "../overlap/mod.rs"]
mod overlap;
#[path = "../ranks/mod.rs"]
mod ranks;

mod collectives;
mod deadlines;
mod messages;
mod mixed;
mod traffic;
mod windows;
