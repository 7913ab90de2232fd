//! Keys for people.

/// A key as text: itself if it can be printed, else with escapes for what cannot.
#[must_use]
pub fn key(bytes: &[u8]) -> String {
    match str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cannot_be_printed_is_escaped() {
        for (bytes, expected) in [
            (&b"layer/3"[..], "layer/3"),
            ("müde 🌙".as_bytes(), "müde 🌙"),
            (b"\xff\x00a", r"\xff\x00a"),
            (b"two\nlines\x1b[2J", r"two\nlines\x1b[2J"),
        ] {
            assert_eq!(key(bytes), expected);
        }
    }
}
