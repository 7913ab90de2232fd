//! What every measurement shares: contenders that take turns, and a table of rows beside a limit.
//!
//! A machine that others use drifts within seconds, so a figure alone says little. Each row is
//! measured beside the *limit* of its pattern, and perhaps beside other systems, in rounds that take
//! turns; what is quoted is the median of the rounds, and a ratio is the median of the ratios of one
//! round each.

pub mod bucket;
mod child;
pub mod cpp;
mod cpu;
mod figures;
pub mod master;
pub mod plain;
pub mod redis;
mod rounds;
mod row;
pub mod store;
pub mod transfer;

pub use cpu::{ProcessCpu, own_cpu};
pub use figures::{Figures, Sample};
pub use rounds::{Contender, Rounds, Turns};
pub use row::{Bar, Ceiling, Other, Report, Row, Yardstick};
