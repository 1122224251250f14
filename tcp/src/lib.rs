#![doc = include_str!("../README.md")]
#![doc(html_root_url = "https://docs.rs/transom-tcp/0.1.0")]

mod address;
mod carrier;
mod endpoint;
mod error;
mod execute;
mod frame;
mod greet;
mod lane;
mod listen;
mod mail;
mod member;
mod messages;
mod network;
mod regions;
mod replies;
mod serve;
#[cfg(test)]
mod tests;
pub mod variables;

pub use error::TcpError;
pub use network::{Pending, Region, Remote, Tcp, Transfer};
