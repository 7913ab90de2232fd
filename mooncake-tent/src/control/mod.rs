//! The gRPC control service of an engine, and its client. Payload never travels here.

mod client;
mod server;
mod watch;

pub(crate) use client::{ControlClient, Unanswered};
pub(crate) use server::{ControlServer, Describe};
