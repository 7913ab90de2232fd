//! What every measurement shares: contenders that take turns, and a table of rows beside a limit.
//!
//! A machine that others use drifts within seconds, so a figure alone says little. Each row is
//! measured beside the *limit* of its pattern, and perhaps beside other systems, in rounds that take
//! turns; what is quoted is the median of the rounds, and a ratio is the median of the ratios of one
//! round each.

mod cpu;
mod figures;
pub mod master;
mod rounds;
mod row;

pub use cpu::{ProcessCpu, own_cpu};
pub use figures::{Figures, Sample};
pub use rounds::{Contender, Rounds, Turns};
pub use row::{Bar, Other, Report, Row, Yardstick};
