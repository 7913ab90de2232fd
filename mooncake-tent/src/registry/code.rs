//! The form that entries have in a registry: one line of JSON, so that operators can read them.

use serde::{Deserialize, Serialize};

use super::{Entry, is_place};
use crate::{identity::Incarnation, json::Object};

/// The newest form that we read, and the one that we write.
const SCHEMA: u32 = 1;
/// Nothing that is longer is one of ours.
const MOST: usize = 4096;

#[derive(Deserialize, Serialize)]
struct Written {
    schema: u32,
    /// In hexadecimal: not all readers of JSON have numbers of 64 bits.
    incarnation: String,
    control: String,
}

impl Entry {
    /// As registries keep it.
    pub fn to_json(&self) -> String {
        let written = Written {
            schema: SCHEMA,
            incarnation: self.incarnation.to_string(),
            control: self.control.clone(),
        };
        serde_json::to_string(&written).expect("text and numbers can always be written")
    }

    /// As registries keep it; the error says what does not make sense. Fields that we do not know
    /// are left alone.
    pub fn from_json(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > MOST {
            return Err(format!("{} bytes are too many", bytes.len()));
        }
        let Object(written) = serde_json::from_slice::<Object<Written>>(bytes)
            .map_err(|error| format!("it is no entry: {error}"))?;
        if written.schema != SCHEMA {
            return Err(format!(
                "it has schema {}, we read {SCHEMA}",
                written.schema
            ));
        }
        let digits = written.incarnation.as_bytes();
        let incarnation = (digits.len() == 16 && digits.iter().all(u8::is_ascii_hexdigit))
            .then(|| u64::from_str_radix(&written.incarnation, 16).ok())
            .flatten()
            .and_then(Incarnation::from_u64)
            .ok_or("its incarnation is none")?;
        if !is_place(&written.control) {
            return Err("its control address is no host:port".to_owned());
        }
        Ok(Self {
            control: written.control,
            incarnation,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_as_it_was_written_and_nonsense_is_refused_with_the_reason() {
        let entry = Entry {
            control: "[::1]:4000".to_owned(),
            incarnation: Incarnation::from_u64(0xab).unwrap(),
        };
        let written = entry.to_json();
        assert_eq!(
            written,
            r#"{"schema":1,"incarnation":"00000000000000ab","control":"[::1]:4000"}"#
        );
        assert_eq!(Entry::from_json(written.as_bytes()), Ok(entry));
        let more = written.replace("{", r#"{"later": [1], "#);
        assert!(Entry::from_json(more.as_bytes()).is_ok());

        for (from, to, said) in [
            ("1,", "2,", "schema 2"),
            ("00ab", "0000", "incarnation"),
            ("00ab", "+0ab", "incarnation"),
            ("00ab", "ab", "incarnation"),
            (":4000", ":0", "host:port"),
            (":4000", "", "host:port"),
            ("[::1]", "a b", "host:port"),
            ("[::1]", "", "host:port"),
            ("{", "", "no entry"),
        ] {
            let broken = written.replacen(from, to, 1);
            let refused = Entry::from_json(broken.as_bytes()).unwrap_err();
            assert!(refused.contains(said), "{broken}: {refused}");
        }
        let long = vec![b' '; MOST + 1];
        assert!(Entry::from_json(&long).unwrap_err().contains("too many"));
    }
}
