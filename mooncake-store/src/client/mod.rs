//! The clients that applications hold: a trait, and the driver around the core that implements it.

mod asked;
mod attendant;
mod blocking;
mod call;
mod disk_read;
mod driver;
mod host;
mod mount;
mod real;
mod scratch;
mod transfer;

pub(crate) use mount::Mount;
pub(crate) use scratch::{Loan, Scratch};

pub use blocking::BlockingClient;
pub use call::{Client, GetInto, PutFrom, Value};
pub use real::{ClientOptions, RealClient};
