//! A segment as a string, for whoever shall open it without looking anything up.

use std::{fmt, str::FromStr};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use mooncake_proto::tent as wire;
use prost::Message;

use super::SegmentDescriptor;
use crate::registry;

/// What every handle begins with. The number is the version of all that follows.
const PREFIX: &str = "tent1.";
/// Longer ones are not looked at.
const MOST: usize = 64 << 20;
/// The checksum before the message, little-endian.
const CHECKSUM: usize = 4;

/// All that is needed to use a segment: where its owner is, and what it offers. What is not true any
/// more is learned from the owner, as for any other segment.
///
/// In writing it is one word of letters, digits, `.`, `-` and `_`, with a checksum.
#[derive(Clone, Debug)]
pub struct SegmentHandle {
    control: String,
    descriptor: SegmentDescriptor,
}

/// Why a text is no handle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// It does not begin like one.
    #[error("it is no handle of a segment, or one of another version: they begin with {PREFIX}")]
    Kind,
    /// It was cut off or changed on the way.
    #[error("it is damaged")]
    Damaged,
    /// Whoever wrote it does not keep to the form.
    #[error("{0}")]
    Content(String),
}

impl SegmentHandle {
    /// Of what is known of a segment whose owner's control service is at `control`.
    pub(crate) fn new(control: String, descriptor: SegmentDescriptor) -> Self {
        Self {
            control,
            descriptor,
        }
    }

    /// The segment's name.
    pub fn name(&self) -> &str {
        self.descriptor.name()
    }

    /// `host:port` of its owner's control service.
    pub fn control(&self) -> &str {
        &self.control
    }

    /// What its owner offered when it was written.
    pub fn descriptor(&self) -> &SegmentDescriptor {
        &self.descriptor
    }
}

impl fmt::Display for SegmentHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = wire::SegmentHandle {
            control: self.control.clone(),
            segment: Some(self.descriptor.to_wire()),
        };
        f.write_str(&seal(&message.encode_to_vec()))
    }
}

/// A message with its checksum, in letters.
fn seal(message: &[u8]) -> String {
    let mut bytes = crc32c(message).to_le_bytes().to_vec();
    bytes.extend(message);
    format!("{PREFIX}{}", BASE64.encode(bytes))
}

#[cfg(feature = "fuzzing")]
impl SegmentHandle {
    /// What looks like a handle, whatever the message is.
    #[doc(hidden)]
    pub fn seal(message: &[u8]) -> String {
        seal(message)
    }
}

impl FromStr for SegmentHandle {
    type Err = HandleError;

    fn from_str(text: &str) -> Result<Self, HandleError> {
        let text = text.strip_prefix(PREFIX).ok_or(HandleError::Kind)?;
        if text.len() > MOST {
            return Err(HandleError::Damaged);
        }
        let bytes = BASE64.decode(text).map_err(|_| HandleError::Damaged)?;
        let (sum, message) = bytes
            .split_first_chunk::<CHECKSUM>()
            .ok_or(HandleError::Damaged)?;
        if u32::from_le_bytes(*sum) != crc32c(message) {
            return Err(HandleError::Damaged);
        }
        let content = |what: String| HandleError::Content(what);
        let message = wire::SegmentHandle::decode(message)
            .map_err(|_| content("it is no message of ours".to_owned()))?;
        if !registry::is_place(&message.control) {
            return Err(content("its control address is no host:port".to_owned()));
        }
        let segment = message
            .segment
            .ok_or_else(|| content("it has no segment".to_owned()))?;
        Ok(Self {
            control: message.control,
            descriptor: SegmentDescriptor::from_wire(segment).map_err(content)?,
        })
    }
}

/// CRC-32C, bit by bit: handles are short and rare.
fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (POLYNOMIAL * (sum & 1))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        identity::{Generation, Incarnation, RegistrationId},
        memory::Permission,
        segment::BufferDescriptor,
    };

    fn handle() -> SegmentHandle {
        let buffer = BufferDescriptor {
            registration: RegistrationId(1),
            generation: Generation(2),
            address: 4096,
            length: 64,
            permission: Permission::PeersRead,
            location: "cpu:0".into(),
            links: ["tcp".to_owned()].into(),
        };
        let descriptor = SegmentDescriptor::new(
            "node-1".to_owned(),
            Incarnation::from_u64(9).unwrap(),
            3,
            "m".to_owned(),
            vec![("tcp".to_owned(), "10.0.0.1:7".to_owned())],
            vec![buffer],
        );
        SegmentHandle::new("10.0.0.1:6".to_owned(), descriptor)
    }

    #[test]
    fn the_checksum_is_that_of_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_handle_is_read_as_it_was_written() {
        let text = handle().to_string();
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        assert!(text.chars().all(plain), "{text}");
        let read: SegmentHandle = text.parse().unwrap();
        assert_eq!((read.name(), read.control()), ("node-1", "10.0.0.1:6"));
        let (ours, theirs) = (handle(), read);
        assert!(
            theirs
                .descriptor()
                .buffers()
                .eq(ours.descriptor().buffers())
        );
        assert_eq!(theirs.descriptor().peer(), ours.descriptor().peer());
    }

    #[test]
    fn no_change_of_a_letter_goes_unnoticed() {
        let text = handle().to_string();
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).unwrap();
            assert!(changed.parse::<SegmentHandle>().is_err(), "{at}");
            assert!(text[..at].parse::<SegmentHandle>().is_err(), "cut at {at}");
        }
        let refused = |text: &str| text.parse::<SegmentHandle>().unwrap_err();
        assert_eq!(refused(&text.replacen('1', "2", 1)), HandleError::Kind);
        assert_eq!(refused(&format!("{text}AA")), HandleError::Damaged);
        let nowhere = SegmentHandle::new("x".to_owned(), handle().descriptor);
        let said = refused(&nowhere.to_string()).to_string();
        assert!(said.contains("host:port"), "{said}");
    }
}
