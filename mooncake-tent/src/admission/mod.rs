//! When a request may go on its way: pure decisions over windows, priorities and contracts.
//!
//! Without [`AdmissionConfig`] every request goes at once. With it, so many bytes and requests are on
//! their way at a time; the others wait, the more urgent first, and of equals the one with the earliest
//! deadline. Nobody waits for ever: whoever has waited long counts as more urgent, and in the end goes
//! before all that came later. What each tenant may ask, [`Contracts`] say.

mod config;
mod contract;
mod gate;
#[cfg(feature = "json")]
mod json;

pub use config::AdmissionConfig;
pub(crate) use contract::Bounds;
pub use contract::{Contract, ContractError, Contracts, Degraded, Tenant};
pub(crate) use gate::{Charge, Entry, Gate, Offer, Refusal};
