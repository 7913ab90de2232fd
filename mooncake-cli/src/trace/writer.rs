//! Writes a trace, one request a line.

use std::io::{self, Write};

use super::Request;

/// Writes requests as lines; give it a buffered sink.
#[derive(Debug)]
pub struct TraceWriter<W> {
    sink: W,
}

impl<W: Write> TraceWriter<W> {
    /// Writes to `sink`.
    pub fn new(sink: W) -> Self {
        Self { sink }
    }

    /// Appends one request.
    ///
    /// # Errors
    ///
    /// When the sink refuses the bytes.
    pub fn write(&mut self, request: &Request) -> io::Result<()> {
        serde_json::to_writer(&mut self.sink, request)?;
        self.sink.write_all(b"\n")
    }

    /// Flushes, and gives the sink back.
    ///
    /// # Errors
    ///
    /// When the sink refuses the bytes.
    pub fn finish(mut self) -> io::Result<W> {
        self.sink.flush()?;
        Ok(self.sink)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::TraceReader;
    use super::*;

    proptest! {
        #[test]
        fn what_was_written_is_read_back(
            rows in prop::collection::vec((any::<u64>(), 0..5_000u64, any::<u64>(), any::<u64>()), 0..20),
        ) {
            let requests: Vec<_> = rows.into_iter().map(|(timestamp, input_length, output_length, id)| {
                let hash_ids = (0..Request::blocks_for(input_length)).map(|at| id.wrapping_add(at)).collect();
                Request { timestamp, input_length, output_length, hash_ids }
            }).collect();
            let mut writer = TraceWriter::new(Vec::new());
            for request in &requests {
                writer.write(request).unwrap();
            }
            let text = writer.finish().unwrap();
            let read: Result<Vec<_>, _> = TraceReader::new(&text[..], "memory").collect();
            prop_assert_eq!(read.unwrap(), requests);
        }
    }
}
