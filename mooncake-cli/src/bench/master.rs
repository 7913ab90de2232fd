//! The master measured: calls a second, at what processor time of both sides, and what it takes to
//! hold many objects, to start and to do nothing.
//!
//! The master is a process of its own. Clients are threads of this process, each with a session or
//! connection and a runtime of its own. The *limit* of a row is a plain echo between two processes:
//! messages of the same length, as many under way, over as many connections, and nobody looks into
//! them.

mod caller;
mod case;
mod echo;
mod figure;
mod fixture;
mod keys;
mod lifecycle;
mod load;
mod objects;
mod plan;
mod rows;
mod suite;
mod unary;

pub use case::Case;
pub use echo::serve_echo;
pub(in crate::bench) use figure::table;
pub use figure::{Direction, Figure, Goal};
pub use rows::MasterSide;
pub use suite::{MasterReport, Suite};
