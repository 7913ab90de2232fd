//! Settings: what they are, where they come from, and which source wins.
//!
//! Each role of the binary has one struct, [`MasterSettings`], [`NodeSettings`],
//! [`MetadataSettings`] and [`ClientSettings`]. Its fields are the flags, the environment variables and the file's settings,
//! and its docs are their help. A flag beats the environment, which beats the file, which beats the
//! default; an unknown setting is refused wherever it stands.

mod effective;
mod env;
mod error;
mod file;
mod flags;
mod nearest;
mod page;
mod roles;
mod setting;
mod units;
mod value;

pub use effective::{Effective, Origin, Sources, Value as EffectiveValue};
pub use error::ConfigError;
pub use file::ConfigFile;
pub use flags::Flags;
pub use page::page;
pub use roles::{ClientSettings, MasterSettings, MetadataSettings, NodeSettings};
pub use setting::{Setting, Settings};
pub use units::{duration_text, parse_duration, parse_size, size_text};
pub use value::{Address, Ratio, SettingValue, Size};
