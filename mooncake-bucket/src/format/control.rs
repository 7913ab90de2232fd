//! Control files: who a storage is, which ids it has used, what a compaction is about to do.

use super::{FORMAT_VERSION, Fields, Flaw, checked, checksum, marked, set};

const MAGIC: [u8; 8] = *b"MCCONTRL";
const HEAD: usize = 32;
const CHECKSUM: usize = 28;

const IDENTITY: u8 = 1;
const IDS: u8 = 2;
const TRANSITION: u8 = 3;

/// The content of a control file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// Which storage this directory is, and since when (seconds since 1970).
    Identity { storage: [u8; 16], created: u64 },
    /// All ids of buckets and logs below this may have been used.
    Ids { below: u32 },
    /// A compaction from `sources` into `target`.
    Transition {
        committed: bool,
        target: u32,
        sources: Vec<u32>,
    },
}

impl Control {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Self::Identity { storage, created } => {
                (IDENTITY, [&storage[..], &created.to_le_bytes()].concat())
            }
            Self::Ids { below } => (IDS, u64::from(*below).to_le_bytes().to_vec()),
            Self::Transition {
                committed,
                target,
                sources,
            } => {
                let mut body = vec![u8::from(*committed), 0, 0, 0];
                body.extend_from_slice(&(sources.len() as u32).to_le_bytes());
                for id in std::iter::once(target).chain(sources) {
                    body.extend_from_slice(&u64::from(*id).to_le_bytes());
                }
                (TRANSITION, body)
            }
        };
        let mut bytes = vec![0; HEAD];
        set(&mut bytes, 0, MAGIC);
        bytes[8] = FORMAT_VERSION;
        bytes[9] = kind;
        set(&mut bytes, 16, (body.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&body);
        let sum = checksum(&bytes, CHECKSUM);
        set(&mut bytes, CHECKSUM, sum.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Flaw> {
        let head = marked(bytes, MAGIC, HEAD)?;
        let body = &bytes[HEAD..];
        if Fields(head).u64(16) != body.len() as u64 {
            return Err(Flaw::Short);
        }
        checked(bytes, MAGIC, bytes.len(), CHECKSUM)?;
        let id = |body: &Fields<'_>, at| u32::try_from(body.u64(at)).map_err(|_| Flaw::Header);
        let (fields, kind) = (Fields(body), head[9]);
        match (kind, body.len()) {
            (IDENTITY, 24) => Ok(Self::Identity {
                storage: fields.id(0),
                created: fields.u64(16),
            }),
            (IDS, 8) => Ok(Self::Ids {
                below: id(&fields, 0)?,
            }),
            (TRANSITION, 16..) => {
                let count = fields.u32(4) as usize;
                if body.len() != 16 + 8 * count || body[0] > 1 {
                    return Err(Flaw::Length);
                }
                let sources = (0..count).map(|i| id(&fields, 16 + 8 * i));
                Ok(Self::Transition {
                    committed: body[0] == 1,
                    target: id(&fields, 8)?,
                    sources: sources.collect::<Result<_, _>>()?,
                })
            }
            _ => Err(Flaw::Header),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn control_files_are_read_as_they_were_written() {
        let all = [
            Control::Identity {
                storage: [4; 16],
                created: 99,
            },
            Control::Ids { below: 512 },
            Control::Transition {
                committed: true,
                target: 7,
                sources: vec![1, 2, 5],
            },
            Control::Transition {
                committed: false,
                target: 7,
                sources: vec![],
            },
        ];
        for control in all {
            let bytes = control.encode();
            assert_eq!(Control::decode(&bytes), Ok(control));
            for bit in 0..bytes.len() * 8 {
                let mut bent = bytes.clone();
                bent[bit / 8] ^= 1 << (bit % 8);
                assert!(Control::decode(&bent).is_err(), "bit {bit}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut bytes = bytes;
            if bytes.len() > 9 {
                bytes[..9].copy_from_slice(b"MCCONTRL\x01");
            }
            let _any = Control::decode(&bytes);
        }
    }
}
