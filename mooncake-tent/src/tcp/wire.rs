//! What travels on a lane. All numbers are little-endian.
//!
//! | Message | Bytes | Fields |
//! |---|---|---|
//! | hello | 48 | magic `MCTL` · version u16 · flags u16 (1: an errand) · initiator's incarnation u64 · incarnation it looks for u64 · lane id u64 · window u32 · 0 u32 · 0 u64 |
//! | hello answer | 48 | magic `MCTL` · version u16 · status u16 · target's incarnation u64 · largest request u64 · window u32 · when to come again, if it is busy, in ms u32 · 0 u64 · 0 u64 |
//! | request | 48 | operation u8 · flags u8 · 0 u16 · generation u32 · tag u64 · registration u64 · offset u64 · length u64 · deadline u64, then the payload of a write |
//! | answer | 24 | status u8 · operation u8 · 0 u16 · 0 u32 · tag u64 · length u64, then the payload of a read |
//!
//! Answers come in the order of their requests. Flags and zeros are for later versions: a receiver
//! refuses what it does not know. An errand is a lane that carries fences only and takes no seat.
//!
//! # Lane time
//!
//! A deadline is in *lane time*: µs since the initiator looked at its clock right before it sent its
//! hello; 0 means none. The target counts from when it had the hello, so its end is later than the
//! initiator's by the way of the hello. An initiator gives a lane up unless the answer to its hello
//! comes within [`connect_timeout`](super::TcpConfig::connect_timeout) after that look, so the way
//! took no longer, and replaces it after [`lane_life`](super::TcpConfig::lane_life), before two
//! clocks drift apart by more than a thousandth of that. When a deadline passes, the target drops the request, be it in the middle of its
//! payload, and closes the lane: whatever was held up on the way, nothing of a write lands later
//! than its deadline plus these two.

use std::time::{Duration, Instant};

use crate::{
    error::{Stage, TransferError},
    identity::{Generation, Incarnation, PeerId, RegistrationId},
    memory::Refusal,
};

pub(super) const MAGIC: [u8; 4] = *b"MCTL";
pub(super) const VERSION: u16 = 2;
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

/// Counts a lane's time.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneClock {
    zero: Instant,
}

impl LaneClock {
    /// The initiator starts it right before it sends its hello, the target when it has the hello.
    pub(super) fn start() -> Self {
        Self {
            zero: Instant::now(),
        }
    }

    /// As if it had been started so long ago.
    #[cfg(feature = "fuzzing")]
    pub(super) fn started(ago: Duration) -> Self {
        let now = Instant::now();
        Self {
            zero: now.checked_sub(ago).unwrap_or(now),
        }
    }

    pub(super) fn elapsed(self) -> Duration {
        self.zero.elapsed()
    }

    /// A deadline for the wire. One that was over before the lane began still is one.
    pub(super) fn to_wire(self, deadline: Option<Instant>) -> u64 {
        deadline.map_or(0, |deadline| {
            let left = deadline.saturating_duration_since(self.zero).as_micros();
            u64::try_from(left).unwrap_or(u64::MAX).max(1)
        })
    }

    /// A deadline from the wire; `None` if there is none, or none that ever comes.
    pub(super) fn to_local(self, deadline_us: u64) -> Option<Instant> {
        let deadline = Duration::from_micros(deadline_us);
        (deadline_us > 0).then(|| self.zero.checked_add(deadline))?
    }
}

/// Where in an encoded request its tag is.
const TAG_AT: usize = 8;
/// Where in an encoded request its deadline is.
const DEADLINE_AT: usize = 40;
/// The flag of a hello that opens an errand.
const ERRAND: u16 = 1;

/// The first message of an initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) initiator: Incarnation,
    pub(super) target: PeerId,
    pub(super) lane: u64,
    pub(super) window: u32,
    /// It carries fences only.
    pub(super) errand: bool,
}

/// How a target answers a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Welcome {
    Accepted,
    /// The target is another process than the one looked for.
    OtherIncarnation,
    /// The target has all the lanes it takes from this initiator.
    Full,
    /// The target has all the lanes it takes from anybody; later there may be room.
    Busy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HelloAnswer {
    pub(super) welcome: Welcome,
    pub(super) target: Incarnation,
    pub(super) largest_request: u64,
    pub(super) window: u32,
    /// When a target that is busy may have room, in ms.
    pub(super) again_ms: u32,
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
    /// In lane time; 0 for none.
    pub(super) deadline_us: u64,
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
    /// The fenced lane's reader did not end before the deadline.
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
            .put(&if self.errand { ERRAND } else { 0 }.to_le_bytes())
            .u64(self.initiator.get())
            .u64(self.target.get())
            .u64(self.lane)
            .u32(self.window)
            .bytes
    }

    pub(super) fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, Malformed> {
        let mut fields = Fields(bytes);
        fields.preamble()?;
        let errand = match fields.u16() {
            0 => false,
            ERRAND => true,
            _ => return Err(Malformed::Unknown("flags")),
        };
        let hello = Self {
            errand,
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
            Welcome::Busy => 3,
        };
        Message::new()
            .put(&MAGIC)
            .put(&VERSION.to_le_bytes())
            .put(&status.to_le_bytes())
            .u64(self.target.get())
            .u64(self.largest_request)
            .u32(self.window)
            .u32(self.again_ms)
            .bytes
    }

    pub(super) fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, Malformed> {
        let mut fields = Fields(bytes);
        fields.preamble()?;
        let welcome = match fields.u16() {
            0 => Welcome::Accepted,
            1 => Welcome::OtherIncarnation,
            2 => Welcome::Full,
            3 => Welcome::Busy,
            _ => return Err(Malformed::Unknown("answer to hello")),
        };
        let answer = Self {
            welcome,
            target: fields.incarnation()?,
            largest_request: fields.u64(),
            window: fields.u32(),
            again_ms: fields.u32(),
        };
        fields.zeros::<16>()?;
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
            .u32(self.generation.0)
            .u64(self.tag)
            .u64(self.registration.0)
            .u64(self.offset)
            .u64(self.length)
            .u64(self.deadline_us)
            .bytes
    }

    /// Gives an encoded request another tag.
    pub(super) fn set_tag(encoded: &mut [u8; REQUEST_BYTES], tag: u64) {
        encoded[TAG_AT..][..8].copy_from_slice(&tag.to_le_bytes());
    }

    /// Gives an encoded request its deadline.
    pub(super) fn set_deadline(encoded: &mut [u8; REQUEST_BYTES], deadline_us: u64) {
        encoded[DEADLINE_AT..].copy_from_slice(&deadline_us.to_le_bytes());
    }

    pub(super) fn decode(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, Malformed> {
        let mut fields = Fields(bytes);
        let verb = Verb::from_wire(fields.u8())?;
        fields.zeros::<3>()?;
        Ok(Self {
            verb,
            generation: Generation(fields.u32()),
            tag: fields.u64(),
            registration: RegistrationId(fields.u64()),
            offset: fields.u64(),
            length: fields.u64(),
            deadline_us: fields.u64(),
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
            deadline_us: 10,
            tag: 5,
            registration: RegistrationId(6),
            generation: Generation(7),
            offset: 8,
            length: 9,
        };
        let mut bytes = vec![2, 0, 0, 0, 7, 0, 0, 0];
        for number in [5_u64, 6, 8, 9, 10] {
            bytes.extend(number.to_le_bytes());
        }
        assert_eq!(request.encode()[..], bytes[..]);
        let mut later = request.encode();
        RequestHeader::set_deadline(&mut later, 11);
        RequestHeader::set_tag(&mut later, 12);
        let decoded = RequestHeader::decode(&later).unwrap();
        assert_eq!((decoded.deadline_us, decoded.tag), (11, 12));

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
            errand: true,
        };
        let mut bytes = b"MCTL\x02\0\x01\0".to_vec();
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
            bytes[4] &= 3;
            let mut long = [0; 48];
            long[..32].copy_from_slice(&bytes);
            long[32..].copy_from_slice(&more);
            for plausible in [false, true] {
                if plausible {
                    long[..4].copy_from_slice(&MAGIC);
                    long[4..8].copy_from_slice(&[2, 0, 0, 0]);
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
