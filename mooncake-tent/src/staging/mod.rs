//! Transfers by way of stage buffers, between memories that no link joins directly.
//!
//! Bytes hop from the memory here to a stage slot here, over another link to a stage slot there, and
//! from that to the memory there, or the other way round; an end in ordinary memory needs no slot.
//! The hops of a transfer's pieces overlap. Each end copies between its stage and its own memory, by
//! the [`Mover`] that it was given for memory of that kind. What is to be done at the other end is
//! asked of its control service, which checks the range, the permission and the generation of what is
//! named, as for any other access. Slots are named by registration, generation and offset: never by
//! pointer.
//!
//! Both engines have to be given a [`StagingTransport`], and a link that joins ordinary memories. The
//! selector takes it only where no other link joins the two memories.
//!
//! # Truth
//!
//! A write is completed when the peer has copied all of it to its place and said so. A slot that a
//! peer may still write is not used again before it was unregistered and is quiet. A task whose peer
//! does not say what became of a piece is quiet once the peer, or a later life of it, says that nothing
//! of it moves; or when the slot's lease has been over for as long as it was, after which the peer
//! begins no copy. An engine does not stage within its own segment, and does not stage files, nor
//! writes with an op id or a checksum: such requests are refused.

mod ask;
mod config;
mod job;
mod lane;
mod ledger;
mod link;
mod mover;
mod ring;
mod service;
mod slots;

pub use config::StagingConfig;
pub(crate) use link::Staging;
pub use link::StagingTransport;
pub use mover::{Mover, PlainMover};

/// Names the link.
pub(crate) const NAME: &str = "staging";
