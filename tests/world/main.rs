//! Worlds and teams, the facade, and programs that must not compile. Each file is one behaviour.

#[path = "../ranks/mod.rs"]
mod ranks;

mod compile_fail;
mod facade;
mod pages;
mod question_mark;
mod teams;
mod teams_by_list;
