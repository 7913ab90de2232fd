//! What travels on a lane. All numbers are little-endian.
//!
//! | Message | Bytes | Fields |
//! |---|---|---|
//! | hello | 48 | magic `MCTL` · version u16 · flags u16 · initiator's incarnation u64 · incarnation it looks for u64 · lane id u64 · window u32 · 0 u32 · 0 u64 |
//! | hello answer | 48 | magic `MCTL` · version u16 · status u16 · target's incarnation u64 · largest request u64 · window u32 · 0 u32 · 0 u64 · 0 u64 |
//! | request | 48 | operation u8 · flags u8 · 0 u16 · budget in µs u32 · tag u64 · registration u64 · offset u64 · length u64 · generation u32 · 0 u32, then the payload of a write |
//! | answer | 24 | status u8 · operation u8 · 0 u16 · 0 u32 · tag u64 · length u64, then the payload of a read |
//!
//! Answers come in the order of their requests. A budget of 0 means none. Flags and zeros are for
//! later versions: a receiver refuses what it does not know.

use crate::{
    error::{Stage, TransferError},
    identity::{Generation, Incarnation, PeerId, RegistrationId},
    memory::Refusal,
};

pub(super) const MAGIC: [u8; 4] = *b"MCTL";
pub(super) const VERSION: u16 = 1;
pub(super) const HELLO_BYTES: usize = 48;
pub(super) const REQUEST_BYTES: usize = 48;
pub(super) const ANSWER_BYTES: usize = 24;
/// Longest request that a target takes.
pub(super) const LARGEST_REQUEST: u64 = 1 << 40;

/// Bytes that are no message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error("it does not speak this protocol")]
    Magic,
    #[error("it speaks version {0}, we speak {VERSION}")]
    Version(u16),
    #[error("unknown {0}")]
    Unknown(&'static str),
    #[error("incarnation 0")]
    Incarnation,
}

/// The first message of an initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) initiator: Incarnation,
    pub(super) target: PeerId,
    pub(super) lane: u64,
    pub(super) window: u32,
}

/// How a target answers a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Welcome {
    Accepted,
    /// The target is another process than the one looked for.
    OtherIncarnation,
    /// The target has all the lanes it takes.
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HelloAnswer {
    pub(super) welcome: Welcome,
    pub(super) target: Incarnation,
    pub(super) largest_request: u64,
    pub(super) window: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Read,
    Write,
    /// Ends the lane whose id stands in `registration`; answered once its reader has ended.
    Fence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestHeader {
    pub(super) verb: Verb,
    pub(super) budget_us: u32,
    pub(super) tag: u64,
    pub(super) registration: RegistrationId,
    pub(super) generation: Generation,
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// How a target answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Applied,
    Refused(Refusal),
    /// The fenced lane's reader did not end within the budget.
    StillRunning,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AnswerHeader {
    pub(super) status: Status,
    pub(super) verb: Verb,
    pub(super) tag: u64,
    /// Of the payload that follows; 0 unless a read was applied.
    pub(super) length: u64,
}

/// Reads fields of a message one after the other; the message has its fixed length.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self
            .0
            .split_first_chunk()
            .expect("messages have fixed lengths");
        self.0 = rest;
        *field
    }
    fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }
    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
    fn zeros<const N: usize>(&mut self) -> Result<(), Malformed> {
        match self.take::<N>() {
            zeros if zeros == [0; N] => Ok(()),
            _ => Err(Malformed::Unknown("use of a reserved field")),
        }
    }
    fn incarnation(&mut self) -> Result<Incarnation, Malformed> {
        Incarnation::from_u64(self.u64()).ok_or(Malformed::Incarnation)
    }
    fn preamble(&mut self) -> Result<(), Malformed> {
        if self.take() != MAGIC {
            return Err(Malformed::Magic);
        }
        match self.u16() {
            VERSION => Ok(()),
            other => Err(Malformed::Version(other)),
        }
    }
}

/// Writes fields of a message one after the other.
struct Message<const N: usize> {
    bytes: [u8; N],
    filled: usize,
}

impl<const N: usize> Message<N> {
    fn new() -> Self {
        Self {
            bytes: [0; N],
            filled: 0,
        }
    }
    fn put(mut self, field: &[u8]) -> Self {
        self.bytes[self.filled..][..field.len()].copy_from_slice(field);
        self.filled += field.len();
        self
    }
    fn u32(self, field: u32) -> Self {
        self.put(&field.to_le_bytes())
    }
    fn u64(self, field: u64) -> Self {
        self.put(&field.to_le_bytes())
    }
}

impl Hello {
    pub(super) fn encode(self) -> [u8; HELLO_BYTES] {
        Message::new()
            .put(&MAGIC)
            .put(&VERSION.to_le_bytes())
            .put(&0_u16.to_le_bytes())
            .u64(self.initiator.get())
            .u64(self.target.get())
            .u64(self.lane)
            .u32(self.window)
            .bytes
    }

    pub(super) fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, Malformed> {
        let mut fields = Fields(bytes);
        fields.preamble()?;
        fields.zeros::<2>()?;
        let hello = Self {
            initiator: fields.incarnation()?,
            target: fields.incarnation()?,
            lane: fields.u64(),
            window: fields.u32(),
        };
        fields.zeros::<12>()?;
        Ok(hello)
    }
}

impl HelloAnswer {
    pub(super) fn encode(self) -> [u8; HELLO_BYTES] {
        let status: u16 = match self.welcome {
            Welcome::Accepted => 0,
            Welcome::OtherIncarnation => 1,
            Welcome::Full => 2,
        };
        Message::new()
            .put(&MAGIC)
            .put(&VERSION.to_le_bytes())
            .put(&status.to_le_bytes())
            .u64(self.target.get())
            .u64(self.largest_request)
            .u32(self.window)
            .bytes
    }

    pub(super) fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, Malformed> {
        let mut fields = Fields(bytes);
        fields.preamble()?;
        let welcome = match fields.u16() {
            0 => Welcome::Accepted,
            1 => Welcome::OtherIncarnation,
            2 => Welcome::Full,
            _ => return Err(Malformed::Unknown("answer to hello")),
        };
        let answer = Self {
            welcome,
            target: fields.incarnation()?,
            largest_request: fields.u64(),
            window: fields.u32(),
        };
        fields.zeros::<20>()?;
        Ok(answer)
    }
}

impl Verb {
    fn to_wire(self) -> u8 {
        match self {
            Self::Read => 1,
            Self::Write => 2,
            Self::Fence => 3,
        }
    }

    fn from_wire(raw: u8) -> Result<Self, Malformed> {
        match raw {
            1 => Ok(Self::Read),
            2 => Ok(Self::Write),
            3 => Ok(Self::Fence),
            _ => Err(Malformed::Unknown("operation")),
        }
    }
}

impl RequestHeader {
    pub(super) fn encode(self) -> [u8; REQUEST_BYTES] {
        Message::new()
            .put(&[self.verb.to_wire(), 0, 0, 0])
            .u32(self.budget_us)
            .u64(self.tag)
            .u64(self.registration.0)
            .u64(self.offset)
            .u64(self.length)
            .u32(self.generation.0)
            .bytes
    }

    pub(super) fn decode(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, Malformed> {
        let mut fields = Fields(bytes);
        let verb = Verb::from_wire(fields.u8())?;
        fields.zeros::<3>()?;
        let budget_us = fields.u32();
        let tag = fields.u64();
        let registration = RegistrationId(fields.u64());
        let offset = fields.u64();
        let length = fields.u64();
        let generation = Generation(fields.u32());
        fields.zeros::<4>()?;
        Ok(Self {
            verb,
            budget_us,
            tag,
            registration,
            generation,
            offset,
            length,
        })
    }
}

impl Status {
    fn to_wire(self) -> u8 {
        match self {
            Self::Applied => 0,
            Self::Refused(Refusal::OutOfBounds) => 1,
            Self::Refused(Refusal::Permission) => 2,
            Self::Refused(Refusal::StaleGeneration) => 3,
            Self::Refused(Refusal::UnknownRegistration) => 4,
            Self::StillRunning => 5,
        }
    }

    fn from_wire(raw: u8) -> Result<Self, Malformed> {
        match raw {
            0 => Ok(Self::Applied),
            1 => Ok(Self::Refused(Refusal::OutOfBounds)),
            2 => Ok(Self::Refused(Refusal::Permission)),
            3 => Ok(Self::Refused(Refusal::StaleGeneration)),
            4 => Ok(Self::Refused(Refusal::UnknownRegistration)),
            5 => Ok(Self::StillRunning),
            _ => Err(Malformed::Unknown("status")),
        }
    }
}

/// What a refusal means to the initiator: nothing was touched.
pub(super) fn refused(refusal: Refusal, peer: PeerId) -> TransferError {
    TransferError::unstarted(refusal.into(), Stage::Admit, Some(peer))
}

impl AnswerHeader {
    pub(super) fn encode(self) -> [u8; ANSWER_BYTES] {
        Message::new()
            .put(&[self.status.to_wire(), self.verb.to_wire(), 0, 0, 0, 0, 0, 0])
            .u64(self.tag)
            .u64(self.length)
            .bytes
    }

    pub(super) fn decode(bytes: &[u8; ANSWER_BYTES]) -> Result<Self, Malformed> {
        let mut fields = Fields(bytes);
        let status = Status::from_wire(fields.u8())?;
        let verb = Verb::from_wire(fields.u8())?;
        fields.zeros::<6>()?;
        Ok(Self {
            status,
            verb,
            tag: fields.u64(),
            length: fields.u64(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn life(raw: u64) -> Incarnation {
        Incarnation::from_u64(raw).unwrap()
    }

    #[test]
    fn each_message_has_these_bytes() {
        let request = RequestHeader {
            verb: Verb::Write,
            budget_us: 0x0403_0201,
            tag: 5,
            registration: RegistrationId(6),
            generation: Generation(7),
            offset: 8,
            length: 9,
        };
        let mut bytes = vec![2, 0, 0, 0, 1, 2, 3, 4];
        for number in [5_u64, 6, 8, 9] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend([7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(request.encode()[..], bytes[..]);

        let answer = AnswerHeader {
            status: Status::Refused(Refusal::StaleGeneration),
            verb: Verb::Read,
            tag: 1,
            length: 2,
        };
        let mut bytes = vec![3, 1, 0, 0, 0, 0, 0, 0];
        bytes.extend(1_u64.to_le_bytes());
        bytes.extend(2_u64.to_le_bytes());
        assert_eq!(answer.encode()[..], bytes[..]);

        let hello = Hello {
            initiator: life(1),
            target: life(2),
            lane: 3,
            window: 4,
        };
        let mut bytes = b"MCTL\x01\0\0\0".to_vec();
        for number in [1_u64, 2, 3, 4, 0] {
            bytes.extend(number.to_le_bytes());
        }
        assert_eq!(hello.encode()[..], bytes[..]);
    }

    proptest! {
        #[test]
        fn law_04_decoding_never_panics_and_what_is_decoded_encodes_alike(
            mut bytes in proptest::array::uniform32(0_u8..6),
            more in proptest::array::uniform16(0_u8..3),
        ) {
            bytes[4] &= 1;
            let mut long = [0; 48];
            long[..32].copy_from_slice(&bytes);
            long[32..].copy_from_slice(&more);
            for plausible in [false, true] {
                if plausible {
                    long[..4].copy_from_slice(&MAGIC);
                    long[4..8].copy_from_slice(&[1, 0, 0, 0]);
                }
                if let Ok(hello) = Hello::decode(&long) {
                    prop_assert_eq!(hello.encode(), long);
                }
                if let Ok(answer) = HelloAnswer::decode(&long) {
                    prop_assert_eq!(answer.encode(), long);
                }
                if let Ok(request) = RequestHeader::decode(&long) {
                    prop_assert_eq!(request.encode(), long);
                }
            }
            let short: [u8; 24] = bytes[..24].try_into().unwrap();
            if let Ok(answer) = AnswerHeader::decode(&short) {
                prop_assert_eq!(answer.encode(), short);
            }
        }
    }
}
