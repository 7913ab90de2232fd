//! What callers hold: the engine, its buffers, batches and requests.

mod attempt;
mod batch;
mod buffer;
mod builder;
mod conflicts;
mod facade;
mod gauges;
mod handle;
mod lanes;
mod late;
mod links;
mod liveness;
mod loader;
mod parking;
mod parts;
mod request;
mod retries;
mod retry;
mod routing;
mod span;
mod submit;
mod tent;
mod warm_up;

pub use batch::Batch;
pub use buffer::{Buffer, RegisterOptions};
pub use builder::TentEngineBuilder;
pub use conflicts::{Conflict, Conflicts};
pub use facade::TransferEngine;
pub use gauges::Gauges;
pub use links::AbsentLink;
pub use liveness::{Liveness, Probe};
pub(crate) use loader::TransportLoader;
pub use request::Request;
pub use tent::TentEngine;
pub(crate) use tent::WeakEngine;
pub use warm_up::WarmUp;
