//! Messages between processes of one host: [`BYTES`] each, integers little-endian.
//!
//! | at | request | answer |
//! |---|---|---|
//! | 0 | kind | kind |
//! | 4 | generation, or version | status |
//! | 8 | tag, or incarnation of who asks | tag, or incarnation of who answers |
//! | 16 | source, or incarnation of who is asked | place of the mark |
//! | 24 | offset in the source | edition |
//! | 32 | length | length |
//! | 40 | registration | address |
//! | 48 | offset in the registration, or address of the source | |
//! | 56 | deadline on the host's monotonic clock in ns, 0 for none | |
//!
//! A packet of a session in which writes are asked for holds up to [`TOGETHER`] of them. A write of
//! which the target's engine shall learn, or whose bytes are compared, is a receipt and, behind it in
//! the same packet, all that it consists of: pieces that follow each other at the target. It has one
//! answer, under the tag of its first piece.
//!
//! | at | receipt |
//! |---|---|
//! | 0 | kind |
//! | 4 | checksum of all bytes, CRC32C |
//! | 8 | op id |
//! | 16 | bit 0: there is an op id; bit 1: there is a checksum; no other is set |
//! | 24 | pieces, 1 at least |

use crate::{
    error::Reason,
    identity::{Generation, Incarnation, RegistrationId},
    memory::{MarkRef, Refusal},
};

/// Of each message.
pub(super) const BYTES: usize = 64;
/// Messages in one packet.
pub(super) const TOGETHER: usize = 32;
/// Of this page.
const VERSION: u32 = 2;

pub(super) type Message = [u8; BYTES];

/// What a session is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// One question at a time, each answered: [`Request::Lend`], [`Request::Admit`].
    Lend,
    /// [`Request::Offer`], [`Request::Forget`] and [`Request::Write`], of which only writes are
    /// answered.
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Hello {
        purpose: Purpose,
        initiator: Incarnation,
        target: Incarnation,
    },
    /// How is this registration reached?
    Lend {
        registration: RegistrationId,
        generation: Generation,
    },
    /// Let us read your memory through the kernel.
    Admit,
    /// Memory of ours from which writes will come. A file may come with it.
    Offer {
        source: RegistrationId,
        length: u64,
        address: u64,
    },
    /// No more writes come from there.
    Forget { source: RegistrationId },
    /// What follows belongs together, and this is asked of it.
    Receipt(Receipt),
    /// Fetch this.
    Write(Write),
}

/// What is asked of a write beside applying it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Receipt {
    pub(super) op_id: Option<u64>,
    /// CRC32C of all bytes.
    pub(super) checksum: Option<u32>,
    /// In how many messages the write follows.
    pub(super) pieces: u64,
}

/// A write with a receipt has no more pieces.
pub(super) const PIECES: usize = TOGETHER - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) tag: u64,
    pub(super) source: RegistrationId,
    pub(super) from: u64,
    pub(super) length: u64,
    pub(super) registration: RegistrationId,
    pub(super) generation: Generation,
    pub(super) offset: u64,
    pub(super) deadline: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Welcome {
        status: Status,
        target: Incarnation,
    },
    Lent {
        status: Status,
        mark: MarkRef,
        length: u64,
        address: u64,
    },
    Admitted(Status),
    Wrote {
        tag: u64,
        status: Status,
    },
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Done,
    /// Nothing was touched.
    OutOfBounds,
    Permission,
    StaleGeneration,
    UnknownRegistration,
    /// Nothing was touched: the source was not offered.
    UnknownSource,
    OtherIncarnation,
    /// No more sessions, or sources.
    Full,
    /// The deadline passed before anything was touched.
    Late,
    /// The deadline passed, or whoever asked went, in the middle of it.
    Interrupted,
    /// The source could not be read to its end.
    Unreadable,
    /// The target is shutting down. Nothing was touched.
    Stopping,
    /// Nothing was touched: there is no room to note that it arrived.
    NoRoom,
    /// All bytes were fetched and are not those that were sent.
    Corrupted,
}

const STATUSES: [Status; 14] = [
    Status::Done,
    Status::OutOfBounds,
    Status::Permission,
    Status::StaleGeneration,
    Status::UnknownRegistration,
    Status::UnknownSource,
    Status::OtherIncarnation,
    Status::Full,
    Status::Late,
    Status::Interrupted,
    Status::Unreadable,
    Status::Stopping,
    Status::NoRoom,
    Status::Corrupted,
];

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::OutOfBounds => Self::OutOfBounds,
            Refusal::Permission => Self::Permission,
            Refusal::StaleGeneration => Self::StaleGeneration,
            Refusal::UnknownRegistration => Self::UnknownRegistration,
        }
    }
}

impl Status {
    /// Why a request failed; `None`: it did not.
    pub(super) fn reason(self) -> Option<Reason> {
        Some(match self {
            Self::Done => return None,
            Self::OutOfBounds => Reason::OutOfBounds,
            Self::Permission => Reason::Permission,
            Self::StaleGeneration => Reason::StaleGeneration,
            Self::UnknownRegistration => Reason::UnknownRegistration,
            Self::UnknownSource => Reason::Unreachable("the peer cannot reach our memory".into()),
            Self::Stopping => Reason::Unreachable("the peer is shutting down".into()),
            Self::OtherIncarnation => Reason::OtherIncarnation,
            Self::Full => Reason::Unreachable("it has all the sessions that it takes".into()),
            Self::Late | Self::Interrupted => Reason::TimedOut,
            Self::NoRoom => Reason::ArrivalsFull,
            Self::Corrupted => Reason::Corrupted,
            Self::Unreadable => Reason::Broken("the peer cannot read our memory".into()),
        })
    }

    /// The target's memory is as it was.
    pub(super) fn is_untouched(self) -> bool {
        !matches!(
            self,
            Self::Done | Self::Interrupted | Self::Unreadable | Self::Corrupted
        )
    }

    fn code(self) -> u32 {
        let place = STATUSES.iter().position(|status| *status == self);
        place.expect("all are listed") as u32
    }

    fn from_code(code: u32) -> Option<Self> {
        STATUSES.get(code as usize).copied()
    }
}

/// A message that makes no sense, which ends the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message makes no sense")]
pub(super) struct Nonsense;

mod kind {
    pub(super) const HELLO_TO_LEND: u32 = 1;
    pub(super) const HELLO_TO_WRITE: u32 = 2;
    pub(super) const LEND: u32 = 3;
    pub(super) const ADMIT: u32 = 4;
    pub(super) const OFFER: u32 = 5;
    pub(super) const FORGET: u32 = 6;
    pub(super) const WRITE: u32 = 7;
    pub(super) const WELCOME: u32 = 8;
    pub(super) const LENT: u32 = 9;
    pub(super) const ADMITTED: u32 = 10;
    pub(super) const WROTE: u32 = 11;
    pub(super) const RECEIPT: u32 = 12;
}

impl Request {
    pub(super) fn encode(self) -> Message {
        match self {
            Self::Hello {
                purpose,
                initiator,
                target,
            } => {
                let kind = match purpose {
                    Purpose::Lend => kind::HELLO_TO_LEND,
                    Purpose::Write => kind::HELLO_TO_WRITE,
                };
                message(kind, VERSION, [initiator.get(), target.get()])
            }
            Self::Lend {
                registration,
                generation,
            } => message(kind::LEND, generation.0, [0, 0, 0, 0, registration.0]),
            Self::Admit => message(kind::ADMIT, 0, []),
            Self::Offer {
                source,
                length,
                address,
            } => message(kind::OFFER, 0, [0, source.0, 0, length, 0, address]),
            Self::Forget { source } => message(kind::FORGET, 0, [0, source.0]),
            Self::Receipt(receipt) => {
                let told = u64::from(receipt.op_id.is_some());
                let checked = u64::from(receipt.checksum.is_some());
                let fields = [
                    receipt.op_id.unwrap_or_default(),
                    told | checked << 1,
                    receipt.pieces,
                ];
                message(kind::RECEIPT, receipt.checksum.unwrap_or_default(), fields)
            }
            Self::Write(write) => {
                let fields = [
                    write.tag,
                    write.source.0,
                    write.from,
                    write.length,
                    write.registration.0,
                    write.offset,
                    write.deadline,
                ];
                message(kind::WRITE, write.generation.0, fields)
            }
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Nonsense> {
        let (kind, number, fields) = parts(bytes)?;
        let hello = |purpose| {
            let ids = [fields[0], fields[1]].map(Incarnation::from_u64);
            match (number, ids) {
                (VERSION, [Some(initiator), Some(target)]) => Ok(Self::Hello {
                    purpose,
                    initiator,
                    target,
                }),
                _ => Err(Nonsense),
            }
        };
        match kind {
            kind::HELLO_TO_LEND => hello(Purpose::Lend),
            kind::HELLO_TO_WRITE => hello(Purpose::Write),
            kind::LEND => Ok(Self::Lend {
                registration: RegistrationId(fields[4]),
                generation: Generation(number),
            }),
            kind::ADMIT => Ok(Self::Admit),
            kind::OFFER => Ok(Self::Offer {
                source: RegistrationId(fields[1]),
                length: fields[3],
                address: fields[5],
            }),
            kind::FORGET => Ok(Self::Forget {
                source: RegistrationId(fields[1]),
            }),
            kind::RECEIPT => {
                let (op_id, flags, pieces) = (fields[0], fields[1], fields[2]);
                if flags > 3 || pieces == 0 || pieces > PIECES as u64 {
                    return Err(Nonsense);
                }
                Ok(Self::Receipt(Receipt {
                    op_id: (flags & 1 == 1).then_some(op_id),
                    checksum: (flags & 2 == 2).then_some(number),
                    pieces,
                }))
            }
            kind::WRITE => Ok(Self::Write(Write {
                tag: fields[0],
                source: RegistrationId(fields[1]),
                from: fields[2],
                length: fields[3],
                registration: RegistrationId(fields[4]),
                generation: Generation(number),
                offset: fields[5],
                deadline: fields[6],
            })),
            _ => Err(Nonsense),
        }
    }
}

impl Answer {
    pub(super) fn encode(self) -> Message {
        match self {
            Self::Welcome { status, target } => {
                message(kind::WELCOME, status.code(), [target.get()])
            }
            Self::Lent {
                status,
                mark,
                length,
                address,
            } => {
                let fields = [0, mark.place.into(), mark.edition, length, address];
                message(kind::LENT, status.code(), fields)
            }
            Self::Admitted(status) => message(kind::ADMITTED, status.code(), []),
            Self::Wrote { tag, status } => message(kind::WROTE, status.code(), [tag]),
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Nonsense> {
        let (kind, number, fields) = parts(bytes)?;
        let status = Status::from_code(number).ok_or(Nonsense)?;
        match kind {
            kind::WELCOME => Ok(Self::Welcome {
                status,
                target: Incarnation::from_u64(fields[0]).ok_or(Nonsense)?,
            }),
            kind::LENT => Ok(Self::Lent {
                status,
                mark: MarkRef {
                    place: u32::try_from(fields[1]).map_err(|_| Nonsense)?,
                    edition: fields[2],
                },
                length: fields[3],
                address: fields[4],
            }),
            kind::ADMITTED => Ok(Self::Admitted(status)),
            kind::WROTE => Ok(Self::Wrote {
                tag: fields[0],
                status,
            }),
            _ => Err(Nonsense),
        }
    }
}

fn message<const N: usize>(kind: u32, number: u32, fields: [u64; N]) -> Message {
    let mut bytes = [0; BYTES];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[4..8].copy_from_slice(&number.to_le_bytes());
    for (place, field) in bytes[8..].chunks_exact_mut(8).zip(fields) {
        place.copy_from_slice(&field.to_le_bytes());
    }
    bytes
}

fn parts(bytes: &[u8]) -> Result<(u32, u32, [u64; 7]), Nonsense> {
    let bytes: &Message = bytes.try_into().map_err(|_| Nonsense)?;
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let mut fields = [0; 7];
    for (field, place) in fields.iter_mut().zip(bytes[8..].chunks_exact(8)) {
        *field = u64::from_le_bytes(place.try_into().expect("8 bytes"));
    }
    Ok((number(0), number(4), fields))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_message_comes_back_as_it_went() {
        let (initiator, target) = (Incarnation::random(), Incarnation::random());
        let requests = [
            Request::Hello {
                purpose: Purpose::Lend,
                initiator,
                target,
            },
            Request::Hello {
                purpose: Purpose::Write,
                initiator,
                target,
            },
            Request::Lend {
                registration: RegistrationId(1),
                generation: Generation(2),
            },
            Request::Admit,
            Request::Offer {
                source: RegistrationId(3),
                length: 4,
                address: 5,
            },
            Request::Forget {
                source: RegistrationId(6),
            },
            Request::Receipt(Receipt {
                op_id: Some(0),
                checksum: None,
                pieces: 1,
            }),
            Request::Receipt(Receipt {
                op_id: None,
                checksum: Some(0),
                pieces: PIECES as u64,
            }),
            Request::Receipt(Receipt {
                op_id: Some(u64::MAX),
                checksum: Some(u32::MAX),
                pieces: 2,
            }),
            Request::Write(Write {
                tag: 1,
                source: RegistrationId(2),
                from: 3,
                length: 4,
                registration: RegistrationId(5),
                generation: Generation(6),
                offset: 7,
                deadline: 8,
            }),
        ];
        for request in requests {
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
        for status in STATUSES {
            let mark = MarkRef {
                place: 9,
                edition: 10,
            };
            let answers = [
                Answer::Welcome { status, target },
                Answer::Lent {
                    status,
                    mark,
                    length: 11,
                    address: 12,
                },
                Answer::Admitted(status),
                Answer::Wrote { tag: 13, status },
            ];
            for answer in answers {
                assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
            }
        }
    }

    proptest! {
        #[test]
        fn law_04_no_bytes_are_worse_than_nonsense(
            bytes in proptest::collection::vec(any::<u8>(), 0..130),
            kind in 0..14_u8,
        ) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            let _one = Request::decode(&bytes);
            let _other = Answer::decode(&bytes);
        }
    }
}
