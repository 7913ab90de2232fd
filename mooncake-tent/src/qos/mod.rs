//! What a request may ask of its way, beyond where its bytes go.

mod device_set;
mod hint;
mod intent;
mod priority;
mod service;

pub use device_set::DeviceSet;
pub use hint::{Hint, Strength};
pub use intent::Intent;
pub use priority::Priority;
pub use service::Qos;
