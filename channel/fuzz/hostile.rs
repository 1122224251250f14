//! Fuzz target: a hostile peer of an engine, with the body of `channel/tests/channel/hostile`.

#![no_main]

#[path = "../tests/channel/hostile/body.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| drop(body::any_bytes(data)));
