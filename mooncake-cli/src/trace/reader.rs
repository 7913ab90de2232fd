//! Reads a trace, one line at a time.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use super::Request;

/// Why a trace could not be read, and where.
#[derive(Debug, thiserror::Error)]
#[error("{file}, line {line}: {kind}")]
pub struct TraceError {
    /// The file, as the caller named it.
    pub file: String,
    /// The line, from 1; 0 when the file could not be opened.
    pub line: u64,
    /// What is wrong there.
    #[source]
    pub kind: TraceErrorKind,
}

/// What can be wrong with a trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceErrorKind {
    /// The number of blocks does not fit the length of the prompt.
    #[error("{found} hash_ids, but an input_length of {input_length} tokens makes {expected}")]
    Blocks {
        /// Tokens of the prompt.
        input_length: u64,
        /// Blocks that many tokens make.
        expected: u64,
        /// Blocks that the line lists.
        found: u64,
    },
    /// The line is no request: broken JSON, or a field is missing or of the wrong type.
    #[error("not a request: {what} (column {column})")]
    Line {
        /// What the parser expected.
        what: String,
        /// Where in the line, from 1.
        column: usize,
    },
    /// The file could not be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// An iterator over the requests of a trace. It ends after the first error.
#[derive(Debug)]
pub struct TraceReader<R> {
    lines: R,
    file: String,
    line: u64,
    text: String,
    over: bool,
}

impl TraceReader<BufReader<File>> {
    /// Opens the trace at `path`.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let file = path.display().to_string();
        match File::open(path) {
            Ok(opened) => Ok(Self::new(BufReader::with_capacity(1 << 16, opened), file)),
            Err(error) => Err(TraceError {
                file,
                line: 0,
                kind: error.into(),
            }),
        }
    }
}

impl<R: BufRead> TraceReader<R> {
    /// Reads a trace from `lines`; errors call it `file`.
    pub fn new(lines: R, file: impl Into<String>) -> Self {
        Self {
            lines,
            file: file.into(),
            line: 0,
            text: String::new(),
            over: false,
        }
    }

    fn request(&mut self) -> Result<Option<Request>, TraceErrorKind> {
        loop {
            self.text.clear();
            self.line += 1;
            if self.lines.read_line(&mut self.text)? == 0 {
                return Ok(None);
            }
            let text = self.text.trim();
            if !text.is_empty() {
                return parse(text).map(Some);
            }
        }
    }
}

impl<R: BufRead> Iterator for TraceReader<R> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let read = self.request();
        self.over = !matches!(read, Ok(Some(_)));
        read.map_err(|kind| TraceError {
            file: self.file.clone(),
            line: self.line,
            kind,
        })
        .transpose()
    }
}

fn parse(text: &str) -> Result<Request, TraceErrorKind> {
    let request: Request = serde_json::from_str(text).map_err(|error| {
        // The parser counts lines too, but it only ever sees one.
        let what = error.to_string();
        let what = what
            .rsplit_once(" at line ")
            .map_or(what.as_str(), |(what, _)| what);
        TraceErrorKind::Line {
            what: what.to_owned(),
            column: error.column(),
        }
    })?;
    let (expected, found) = (
        Request::blocks_for(request.input_length),
        request.hash_ids.len() as u64,
    );
    if expected != found {
        return Err(TraceErrorKind::Blocks {
            input_length: request.input_length,
            expected,
            found,
        });
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        r#"{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [0, 1]}"#;

    fn complaint(line: &str) -> String {
        let text = format!("{GOOD}\n\n{line}\n{GOOD}\n");
        let mut reader = TraceReader::new(text.as_bytes(), "some.jsonl");
        assert!(reader.next().unwrap().is_ok());
        let error = reader.next().unwrap().unwrap_err();
        assert!(reader.next().is_none(), "the reader stops at an error");
        error.to_string()
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (line, expected) in [
            (
                "{",
                "line 3: not a request: EOF while parsing an object (column 1)",
            ),
            (
                r#"{"timestamp": 0, "input_length": 1, "output_length": 1}"#,
                "missing field `hash_ids`",
            ),
            (
                &GOOD.replace("513", "\"513\""),
                "invalid type: string \"513\", expected u64",
            ),
            (
                &GOOD.replace("513", "-1"),
                "invalid value: integer `-1`, expected u64",
            ),
            (
                &GOOD.replace("513", "512"),
                "line 3: 2 hash_ids, but an input_length of 512 tokens makes 1",
            ),
            (
                &GOOD.replace("513", "1025"),
                "2 hash_ids, but an input_length of 1025 tokens makes 3",
            ),
            (&format!("{GOOD} {GOOD}"), "trailing characters"),
        ] {
            let complaint = complaint(line);
            assert!(complaint.starts_with("some.jsonl, line 3: "), "{complaint}");
            assert!(complaint.contains(expected), "{complaint}");
        }
    }

    #[test]
    fn fields_of_a_later_format_and_blank_lines_are_skipped() {
        let text = format!(
            "\n{}\n\r\n",
            GOOD.replace("{\"t", "{\"tenant\": \"a\", \"t")
        );
        let requests: Result<Vec<_>, _> = TraceReader::new(text.as_bytes(), "").collect();
        assert_eq!(requests.unwrap().len(), 1);
    }

    #[test]
    fn bytes_that_are_no_text_are_an_error() {
        let error = TraceReader::new(&b"\xff\xfe\n"[..], "x")
            .next()
            .unwrap()
            .unwrap_err();
        assert!(
            error.to_string().starts_with("x, line 1: cannot be read"),
            "{error}"
        );
    }
}
