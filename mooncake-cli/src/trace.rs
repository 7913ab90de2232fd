//! Request traces: what clients asked a model to read, and which cache blocks each prompt is made of.
//!
//! A trace is a text file with one JSON object a line:
//!
//! ```json
//! {"timestamp": 1250, "input_length": 700, "output_length": 52, "hash_ids": [0, 7]}
//! ```
//!
//! `timestamp` is milliseconds since the start of the trace, the lengths are tokens, and each id in
//! `hash_ids` stands for [`BLOCK_TOKENS`] tokens *together with everything before them*, so equal ids
//! mean equal KV cache. The last block of a request may be partial. Fields that are not known are
//! skipped; timestamps may repeat.

mod ideal;
mod reader;
mod request;
mod writer;

pub use ideal::{Ideal, prefix_hit};
pub use reader::{TraceError, TraceErrorKind, TraceReader};
pub use request::{BLOCK_TOKENS, Request};
pub use writer::TraceWriter;
