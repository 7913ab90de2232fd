//! What travels on a lane. All numbers are little-endian.
//!
//! | Message | Bytes | Fields |
//! |---|---|---|
//! | hello | 48 | magic `MCTL` · version u16 · flags u16 (1: an errand) · initiator's incarnation u64 · incarnation it looks for u64 · lane id u64 · most requests u32 and · 0 u32 · most bytes u64 that it wants to have under way |
//! | hello answer | 48 | magic `MCTL` · version u16 · status u16 · target's incarnation u64 · largest request u64 · 0 u32 · when to come again, if it is busy, in ms u32 · bytes granted u64 · requests granted u64 |
//! | request | 48 | operation u8 · flags u8 (1: tells, 2: checked) · 0 u16 · generation u32 · tag u64 · registration u64 · offset u64 · length u64 · deadline u64, then the extension if there are flags, then the payload of a write |
//! | extension | 16 | op id u64 · CRC32C of the payload u32 · CRC32C of the request up to here u32; what the flags do not speak of is 0 |
//! | give-back | 48 | operation u8 (4) · 0 u8 · 0 u16 · 0 u32 · tag u64 · 0 u64 · requests u64 · bytes u64 · 0 u64 |
//! | answer | 40 | status u8 · operation u8 · flags u16 (1: checked) · CRC32C u32 · tag u64 · length u64 · bytes granted u64 · requests granted u64, then the payload of a read |
//!
//! A write that *tells* has its op id reported to the target's engine once it is applied. The answer to
//! a *checked* request is checked; its CRC32C is that of the answer, with 0 in its place, and the payload.
//!
//! Answers come in the order of their requests. Flags and zeros are for later versions: a receiver
//! refuses what it does not know. An errand is a lane that carries fences only and takes no seat.
//!
//! # Credit
//!
//! What a target grants counts from the begin of the lane: all the bytes that the requests of the lane
//! may ever ask for, and how many requests that may be. It only grows, but for what an initiator
//! gives back, of what it has not spent, while no request of the lane is unanswered. A request needs credit for all
//! its bytes before the first of it is sent. If it needs more than there is, it may go as soon as
//! everything before it is answered, and then costs all that is left. Fences cost nothing. A target
//! that finds a request beyond what it has granted closes the lane.
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
    credit::Credit,
    error::{Stage, TransferError},
    identity::{Generation, Incarnation, PeerId, RegistrationId},
    memory::{LocalSlice, Refusal, checksum},
};

pub(super) const MAGIC: [u8; 4] = *b"MCTL";
pub(super) const VERSION: u16 = 3;
pub(super) const HELLO_BYTES: usize = 48;
pub(super) const REQUEST_BYTES: usize = 48;
/// With its extension.
pub(super) const LONG_REQUEST_BYTES: usize = REQUEST_BYTES + 16;
pub(super) const ANSWER_BYTES: usize = 40;
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
    #[error("it was changed on the way")]
    Corrupted,
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

/// Where in an encoded request its flags are.
pub(super) const FLAGS_AT: usize = 1;
/// Where in an encoded request its tag is.
const TAG_AT: usize = 8;
/// Where in an encoded request its offset is.
const OFFSET_AT: usize = 24;
/// Where in an encoded request its length is.
const LENGTH_AT: usize = 32;
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
    /// What it wants to have under way at most.
    pub(super) most: Credit,
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
    /// When a target that is busy may have room, in ms.
    pub(super) again_ms: u32,
    pub(super) granted: Credit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Read,
    Write,
    /// Ends the lane whose id stands in `registration`; answered once its reader has ended.
    Fence,
    /// Gives back credit, as many requests as `offset` and as many bytes as `length` say; there is no
    /// answer.
    GiveBack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestHeader {
    pub(super) verb: Verb,
    pub(super) flags: Flags,
    /// In lane time; 0 for none.
    pub(super) deadline_us: u64,
    pub(super) tag: u64,
    pub(super) registration: RegistrationId,
    pub(super) generation: Generation,
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// What a request has an extension for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags {
    /// The target's engine learns of the write.
    pub(super) tells: bool,
    /// Both sides compare checksums.
    pub(super) checked: bool,
}

/// What a request with flags says beyond its header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extension {
    pub(super) op_id: u64,
    /// CRC32C of a write's payload.
    pub(super) payload: u32,
}

/// A request as it is sent; how much of it is told by [`sent_bytes`](RequestHeader::sent_bytes).
pub(super) type LongRequest = [u8; LONG_REQUEST_BYTES];

/// How a target answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Applied,
    Refused(Refusal),
    /// The fenced lane's reader did not end before the deadline.
    StillRunning,
    /// There is no room to note a write that tells. Nothing was touched.
    NoRoom,
    /// The payload of a write is not what was sent.
    Corrupted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AnswerHeader {
    pub(super) status: Status,
    pub(super) verb: Verb,
    /// CRC32C of it and its payload, if its request was checked.
    pub(super) check: Option<u32>,
    pub(super) tag: u64,
    /// Of the payload that follows; 0 unless a read was applied.
    pub(super) length: u64,
    /// Since the lane began.
    pub(super) granted: Credit,
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
    fn credit(&mut self) -> Credit {
        Credit {
            bytes: self.u64(),
            requests: self.u64(),
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
    fn credit(self, field: Credit) -> Self {
        self.u64(field.bytes).u64(field.requests)
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
            .u32(u32::try_from(self.most.requests).unwrap_or(u32::MAX))
            .u32(0)
            .u64(self.most.bytes)
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
        let (initiator, target) = (fields.incarnation()?, fields.incarnation()?);
        let lane = fields.u64();
        let requests = fields.u32().into();
        fields.zeros::<4>()?;
        let bytes = fields.u64();
        Ok(Self {
            initiator,
            target,
            lane,
            most: Credit { bytes, requests },
            errand,
        })
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
            .u32(0)
            .u32(self.again_ms)
            .credit(self.granted)
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
        let (target, largest_request) = (fields.incarnation()?, fields.u64());
        fields.zeros::<4>()?;
        Ok(Self {
            welcome,
            target,
            largest_request,
            again_ms: fields.u32(),
            granted: fields.credit(),
        })
    }
}

impl Verb {
    /// The credit that a request of so many bytes takes.
    pub(super) fn cost(self, bytes: u64) -> Credit {
        match self {
            Self::Read | Self::Write => Credit::of_request(bytes),
            Self::Fence | Self::GiveBack => Credit::default(),
        }
    }

    fn to_wire(self) -> u8 {
        match self {
            Self::Read => 1,
            Self::Write => 2,
            Self::Fence => 3,
            Self::GiveBack => 4,
        }
    }

    fn from_wire(raw: u8) -> Result<Self, Malformed> {
        match raw {
            1 => Ok(Self::Read),
            2 => Ok(Self::Write),
            3 => Ok(Self::Fence),
            4 => Ok(Self::GiveBack),
            _ => Err(Malformed::Unknown("operation")),
        }
    }
}

/// The flag of a write that tells.
const TELLS: u8 = 1;
/// The flag of a request that is checked, and of an answer.
const CHECKED: u8 = 2;
const ANSWER_CHECKED: u16 = 1;
/// Where in a request with an extension the checksum of all before it is.
const CHECK_AT: usize = LONG_REQUEST_BYTES - 4;

impl Flags {
    pub(super) fn is_empty(self) -> bool {
        self == Self::default()
    }

    fn to_wire(self) -> u8 {
        let bit = |set: bool, bit| if set { bit } else { 0 };
        bit(self.tells, TELLS) | bit(self.checked, CHECKED)
    }

    fn from_wire(raw: u8) -> Result<Self, Malformed> {
        if raw & !(TELLS | CHECKED) != 0 {
            return Err(Malformed::Unknown("flags"));
        }
        Ok(Self {
            tells: raw & TELLS != 0,
            checked: raw & CHECKED != 0,
        })
    }
}

impl RequestHeader {
    pub(super) fn encode(self) -> [u8; REQUEST_BYTES] {
        Message::new()
            .put(&[self.verb.to_wire(), self.flags.to_wire(), 0, 0])
            .u32(self.generation.0)
            .u64(self.tag)
            .u64(self.registration.0)
            .u64(self.offset)
            .u64(self.length)
            .u64(self.deadline_us)
            .bytes
    }

    /// As it is sent, with what goes with its flags.
    pub(super) fn encode_long(self, extension: Extension) -> LongRequest {
        let mut encoded = Message::new().put(&self.encode()).bytes;
        if !self.flags.is_empty() {
            encoded[REQUEST_BYTES..][..8].copy_from_slice(&extension.op_id.to_le_bytes());
            encoded[REQUEST_BYTES + 8..CHECK_AT].copy_from_slice(&extension.payload.to_le_bytes());
            seal(&mut encoded);
        }
        encoded
    }

    /// How many bytes of it are sent.
    pub(super) fn sent_bytes(self) -> usize {
        match self.flags.is_empty() {
            true => REQUEST_BYTES,
            false => LONG_REQUEST_BYTES,
        }
    }

    /// Gives an encoded request another tag.
    pub(super) fn set_tag(encoded: &mut LongRequest, tag: u64) {
        encoded[TAG_AT..][..8].copy_from_slice(&tag.to_le_bytes());
        seal(encoded);
    }

    /// The length of an encoded request.
    pub(super) fn length(encoded: &LongRequest) -> u64 {
        number(encoded, LENGTH_AT)
    }

    /// Gives an encoded request another length.
    pub(super) fn set_length(encoded: &mut LongRequest, length: u64) {
        encoded[LENGTH_AT..][..8].copy_from_slice(&length.to_le_bytes());
        seal(encoded);
    }

    /// An encoded request without flags asks for the bytes right behind those of another one, in the
    /// same way.
    pub(super) fn goes_on(before: &LongRequest, next: &LongRequest) -> bool {
        let end = number(before, OFFSET_AT).checked_add(Self::length(before));
        // Verb, flags and generation are before the tag, the registration behind it.
        matches!(Verb::from_wire(before[0]), Ok(Verb::Read | Verb::Write))
            && before[..TAG_AT] == next[..TAG_AT]
            && before[FLAGS_AT] == 0
            && before[TAG_AT + 8..OFFSET_AT] == next[TAG_AT + 8..OFFSET_AT]
            && before[DEADLINE_AT..][..8] == next[DEADLINE_AT..][..8]
            && end == Some(number(next, OFFSET_AT))
    }

    /// Gives an encoded request its deadline.
    pub(super) fn set_deadline(encoded: &mut LongRequest, deadline_us: u64) {
        encoded[DEADLINE_AT..][..8].copy_from_slice(&deadline_us.to_le_bytes());
        seal(encoded);
    }

    pub(super) fn decode(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, Malformed> {
        let mut fields = Fields(bytes);
        let verb = Verb::from_wire(fields.u8())?;
        let flags = Flags::from_wire(fields.u8())?;
        fields.zeros::<2>()?;
        let transfers = matches!(verb, Verb::Read | Verb::Write);
        if flags.tells && verb != Verb::Write || flags.checked && !transfers {
            return Err(Malformed::Unknown("flags"));
        }
        let request = Self {
            verb,
            flags,
            generation: Generation(fields.u32()),
            tag: fields.u64(),
            registration: RegistrationId(fields.u64()),
            offset: fields.u64(),
            length: fields.u64(),
            deadline_us: fields.u64(),
        };
        let pointless = (
            request.generation.0,
            request.registration.0,
            request.deadline_us,
        ) != (0, 0, 0)
            || request.given_back().is_zero();
        if verb == Verb::GiveBack && pointless {
            return Err(Malformed::Unknown("use of a reserved field"));
        }
        Ok(request)
    }

    /// A message that gives back credit.
    pub(super) fn give_back(tag: u64, unspent: Credit) -> Self {
        Self {
            verb: Verb::GiveBack,
            flags: Flags::default(),
            deadline_us: 0,
            tag,
            registration: RegistrationId(0),
            generation: Generation(0),
            offset: unspent.requests,
            length: unspent.bytes,
        }
    }

    /// What such a message gives back.
    pub(super) fn given_back(self) -> Credit {
        Credit {
            bytes: self.length,
            requests: self.offset,
        }
    }

    /// A request with flags, and what goes with them.
    pub(super) fn decode_long(bytes: &LongRequest) -> Result<(Self, Extension), Malformed> {
        let (header, extension) = bytes
            .split_first_chunk()
            .expect("it is longer than its header");
        let header = Self::decode(header)?;
        let mut fields = Fields(extension);
        let (op_id, payload, check) = (fields.u64(), fields.u32(), fields.u32());
        if header.flags.checked && check != crc32c::crc32c(&bytes[..CHECK_AT]) {
            return Err(Malformed::Corrupted);
        }
        let pointless = !header.flags.tells && op_id != 0
            || !header.flags.checked && (payload, check) != (0, 0)
            || header.verb != Verb::Write && payload != 0;
        if header.flags.is_empty() || pointless {
            return Err(Malformed::Unknown("extension"));
        }
        Ok((header, Extension { op_id, payload }))
    }
}

fn number(encoded: &LongRequest, at: usize) -> u64 {
    let number = encoded[at..].first_chunk().expect("it is longer");
    u64::from_le_bytes(*number)
}

/// Makes the checksum of a checked request right again.
fn seal(encoded: &mut LongRequest) {
    if encoded[FLAGS_AT] & CHECKED != 0 {
        let check = crc32c::crc32c(&encoded[..CHECK_AT]);
        encoded[CHECK_AT..].copy_from_slice(&check.to_le_bytes());
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
            Self::NoRoom => 6,
            Self::Corrupted => 7,
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
            6 => Ok(Self::NoRoom),
            7 => Ok(Self::Corrupted),
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
        let flags = u16::from(self.check.is_some()) * ANSWER_CHECKED;
        Message::new()
            .put(&[self.status.to_wire(), self.verb.to_wire()])
            .put(&flags.to_le_bytes())
            .u32(self.check.unwrap_or_default())
            .u64(self.tag)
            .u64(self.length)
            .credit(self.granted)
            .bytes
    }

    pub(super) fn decode(bytes: &[u8; ANSWER_BYTES]) -> Result<Self, Malformed> {
        let mut fields = Fields(bytes);
        let status = Status::from_wire(fields.u8())?;
        let verb = Verb::from_wire(fields.u8())?;
        if verb == Verb::GiveBack {
            return Err(Malformed::Unknown("operation"));
        }
        let check = match (fields.u16(), fields.u32()) {
            (0, 0) => None,
            (ANSWER_CHECKED, check) => Some(check),
            _ => return Err(Malformed::Unknown("use of a reserved field")),
        };
        Ok(Self {
            status,
            verb,
            check,
            tag: fields.u64(),
            length: fields.u64(),
            granted: fields.credit(),
        })
    }

    /// What its checksum is with this payload.
    pub(super) fn checksum(self, payload: &[LocalSlice]) -> u32 {
        let open = Self {
            check: Some(0),
            ..self
        };
        checksum(payload, crc32c::crc32c(&open.encode()))
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
            flags: Flags::default(),
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
        let mut later = request.encode_long(Extension::default());
        RequestHeader::set_deadline(&mut later, 11);
        RequestHeader::set_tag(&mut later, 12);
        let decoded = RequestHeader::decode(later.first_chunk().unwrap()).unwrap();
        assert_eq!((decoded.deadline_us, decoded.tag), (11, 12));
        assert_eq!(
            (request.sent_bytes(), later[48..].to_vec()),
            (48, vec![0; 16])
        );

        // With flags, sixteen bytes more.
        let flags = Flags {
            tells: true,
            checked: true,
        };
        let (op_id, payload) = (0x0102_0304_0506_0708, 0x0a0b_0c0d);
        let extension = Extension { op_id, payload };
        let flagged = RequestHeader { flags, ..request };
        let mut long = flagged.encode_long(extension);
        assert_eq!((flagged.sent_bytes(), &long[..4]), (64, &[2, 3, 0, 0][..]));
        assert_eq!(long[48..56], op_id.to_le_bytes());
        assert_eq!(long[56..60], payload.to_le_bytes());
        let check = crc32c::crc32c(&long[..60]).to_le_bytes();
        assert_eq!(long[60..], check);
        RequestHeader::set_tag(&mut long, 99);
        let (decoded, with) = RequestHeader::decode_long(&long).unwrap();
        assert_eq!((decoded.tag, with), (99, extension));
        for bit in 16..8 * 64 {
            let mut changed = long;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(RequestHeader::decode_long(&changed).is_err(), "bit {bit}");
        }

        let answer = AnswerHeader {
            status: Status::Refused(Refusal::StaleGeneration),
            verb: Verb::Read,
            check: None,
            tag: 1,
            length: 2,
            granted: Credit {
                bytes: 3,
                requests: 4,
            },
        };
        let mut bytes = vec![3, 1, 0, 0, 0, 0, 0, 0];
        for number in [1_u64, 2, 3, 4] {
            bytes.extend(number.to_le_bytes());
        }
        assert_eq!(answer.encode()[..], bytes[..]);
        let check = Some(0x0102_0304);
        let checked = AnswerHeader { check, ..answer };
        bytes[2] = 1;
        bytes[4..8].copy_from_slice(&[4, 3, 2, 1]);
        assert_eq!(checked.encode()[..], bytes[..]);
        bytes[4..8].fill(0);
        assert_eq!(checked.checksum(&[]), crc32c::crc32c(&bytes));

        let hello = Hello {
            initiator: life(1),
            target: life(2),
            lane: 3,
            most: Credit {
                bytes: 5,
                requests: 4,
            },
            errand: true,
        };
        let mut bytes = b"MCTL\x03\0\x01\0".to_vec();
        for number in [1_u64, 2, 3, 4, 5] {
            bytes.extend(number.to_le_bytes());
        }
        assert_eq!(hello.encode()[..], bytes[..]);

        let welcome = HelloAnswer {
            welcome: Welcome::Busy,
            target: life(1),
            largest_request: 2,
            again_ms: 3,
            granted: Credit {
                bytes: 4,
                requests: 5,
            },
        };
        let mut bytes = b"MCTL\x03\0\x03\0".to_vec();
        for number in [1_u64, 2, 3 << 32, 4, 5] {
            bytes.extend(number.to_le_bytes());
        }
        assert_eq!(welcome.encode()[..], bytes[..]);

        let unspent = Credit {
            bytes: 7,
            requests: 6,
        };
        let give_back = RequestHeader::give_back(5, unspent);
        let mut bytes = vec![4, 0, 0, 0, 0, 0, 0, 0];
        for number in [5_u64, 0, 6, 7, 0] {
            bytes.extend(number.to_le_bytes());
        }
        assert_eq!(give_back.encode()[..], bytes[..]);
        assert_eq!(give_back.given_back(), unspent);
        let nothing = RequestHeader::give_back(5, Credit::default());
        assert!(RequestHeader::decode(&nothing.encode()).is_err());
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
                    long[4..8].copy_from_slice(&[3, 0, 0, 0]);
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
            let mut longer = [0; 64];
            longer[..48].copy_from_slice(&long);
            longer[48..].copy_from_slice(&more);
            if let Ok((request, extension)) = RequestHeader::decode_long(&longer) {
                prop_assert_eq!(request.encode_long(extension), longer);
            }
            let short: [u8; ANSWER_BYTES] = long[..ANSWER_BYTES].try_into().unwrap();
            if let Ok(answer) = AnswerHeader::decode(&short) {
                prop_assert_eq!(answer.encode(), short);
            }
        }
    }
}
