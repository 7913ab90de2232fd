//! Which link carries a request: a pure function over what is known, with its reasons.

mod ranking;

pub use ranking::{Exclusion, LinkFacts, Ranked, Ranking, RequestFacts, TransportSelector};
