//! The clients that applications hold: a trait, and the driver around the core that implements it.

mod asked;
mod attendant;
mod blocking;
mod call;
mod driver;
mod host;
mod mount;
mod real;
mod scratch;
mod transfer;

pub(crate) use mount::Mount;

pub use blocking::BlockingClient;
pub use call::{Client, GetInto, PutFrom, Value};
pub use real::{ClientOptions, RealClient};
