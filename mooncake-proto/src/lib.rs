//! The messages and gRPC services of Mooncake, for clients and servers in Rust.
//!
//! [`tent`] is the control plane of the transfer engine, [`master`] the store's, and [`store`] what
//! nodes with disks give to readers. Errors of all are
//! one structured detail, [`status::ErrorDetail`], which [`Fault`] builds and reads.
//!
//! # Features
//!
//! `tent`, `master`, `store` (all on): the packages. `channel`: what a client needs to connect over HTTP/2.
//! `server`: what a server needs to listen.
//!
//! # Compatibility
//!
//! A field number is never reused and never changes its type; a removed field's number is
//! reserved. New fields must mean "as before" when absent, since an older peer leaves them out.
//! An unknown enum value is treated as the unspecified one. What breaks these rules is a new
//! package (`v2`) beside the old one.
#![forbid(unsafe_code)]

mod fault;

pub use fault::{Applied, Fault, Retry};

/// `mooncake.status.v1`: errors.
#[expect(missing_docs, reason = "generated")]
pub mod status {
    include!("generated/mooncake.status.v1.rs");
}

/// `mooncake.tent.v1`: segments of the transfer engine.
#[cfg(feature = "tent")]
#[expect(
    missing_docs,
    unused_qualifications,
    clippy::allow_attributes,
    reason = "generated"
)]
pub mod tent {
    include!("generated/mooncake.tent.v1.rs");
}

/// `mooncake.master.v1`: objects, replicas, segments, storages and the session.
#[cfg(feature = "master")]
#[expect(
    missing_docs,
    unused_qualifications,
    clippy::allow_attributes,
    reason = "generated"
)]
pub mod master {
    include!("generated/mooncake.master.v1.rs");
}

/// `mooncake.store.v1`: values on disks of nodes.
#[cfg(feature = "store")]
#[expect(
    missing_docs,
    unused_qualifications,
    clippy::allow_attributes,
    reason = "generated"
)]
pub mod store {
    include!("generated/mooncake.store.v1.rs");
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
