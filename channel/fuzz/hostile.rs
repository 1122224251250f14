//! A peer that does to an engine what a fuzzer finds: the body of `channel/tests/channel/hostile`.

#![no_main]

#[path = "../tests/channel/hostile/body.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| drop(body::any_bytes(data)));
