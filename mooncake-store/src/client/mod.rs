//! The client that applications hold: a trait, and the driver around the core that implements it.

mod call;
mod driver;
mod mount;
mod real;
mod scratch;
mod transfer;

pub(crate) use mount::Mount;

pub use call::{Client, GetInto, PutFrom, Value};
pub use real::{ClientOptions, RealClient};
