//! What of a task comes after the part that is on its way.

use std::time::Instant;

use smallvec::SmallVec;

use super::TaskSpec;
use crate::{
    memory::LocalSlice,
    qos::Qos,
    segment::{RemoteRange, Segment},
};

type Slices = SmallVec<[LocalSlice; 1]>;

/// The rest of a task that goes part by part, each when the one before is done.
#[derive(Debug)]
pub(crate) struct Rest {
    local: Slices,
    length: u64,
    /// Of each part, in bytes.
    part: u64,
    terms: RestTerms,
}

/// What the parts have in common.
#[derive(Clone, Debug)]
pub(crate) struct RestTerms {
    pub(crate) segment: Segment,
    /// A fence that came since then counts.
    pub(crate) fences: u64,
    /// When the caller stops being interested.
    pub(crate) deadline: Instant,
    /// To which link the first part went.
    pub(crate) link: usize,
}

/// A part that is to go.
#[derive(Debug)]
pub(crate) struct NextPart {
    pub(crate) bytes: u64,
    pub(crate) qos: Qos,
    pub(crate) terms: RestTerms,
}

/// Parts end at multiples of it, where they are so long: pages and blocks of files are not cut.
const GRAIN: u64 = 4096;

impl Rest {
    /// Leaves of `spec` a first part of `most` bytes at most; the parts are about equal.
    pub(crate) fn cut(spec: &mut TaskSpec, most: u64, terms: RestTerms) -> Self {
        let most = most.max(1);
        let parts = spec.length.div_ceil(most);
        let part = spec.length.div_ceil(parts);
        let part = match most >= GRAIN {
            true => part.next_multiple_of(GRAIN).min(most),
            false => part,
        };
        let mut rest = Self {
            local: std::mem::take(&mut spec.local),
            length: spec.length,
            part,
            terms,
        };
        rest.fill(spec);
        rest
    }

    /// Bytes that are not on their way yet.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    pub(crate) fn terms(&self) -> &RestTerms {
        &self.terms
    }

    /// Makes `spec`, which is done, the part that follows it.
    pub(crate) fn go_on(&mut self, spec: &mut TaskSpec) {
        spec.offset += spec.length;
        if let Some(origin) = &mut spec.origin {
            origin.resumed = true;
            match &mut origin.range {
                RemoteRange::Address(address) => *address += spec.length,
                RemoteRange::Registered { offset, .. } => *offset += spec.length,
            }
        }
        self.fill(spec);
    }

    fn fill(&mut self, spec: &mut TaskSpec) {
        spec.length = self.part.min(self.length);
        self.length -= spec.length;
        let (mut wanted, mut part, mut left) = (spec.length, Slices::new(), Slices::new());
        for slice in self.local.drain(..) {
            let taken = wanted.min(slice.len());
            wanted -= taken;
            if taken == slice.len() {
                part.push(slice);
                continue;
            }
            if taken > 0 {
                part.push(slice.part(0..taken));
            }
            left.push(slice.part(taken..slice.len()));
        }
        (spec.local, self.local) = (part, left);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        identity::{Generation, Incarnation, RegistrationId},
        memory::{LocalBuffer, Memory, Permission},
        segment::SegmentDescriptor,
        transport::{Op, Peer, Receipt},
    };

    fn segment() -> Segment {
        let life = Incarnation::random();
        let (name, nothing) = (String::new(), Vec::new());
        let described = SegmentDescriptor::new(name, life, 0, String::new(), nothing, Vec::new());
        Segment::new(String::new(), described, Arc::default())
    }

    fn spec(pieces: &[u64]) -> TaskSpec {
        let length = pieces.iter().sum::<u64>();
        let memory = Memory::from_vec(vec![0; length as usize]).unwrap();
        let permission = Permission::Local;
        let buffer = LocalBuffer::new(RegistrationId(1), memory, permission, "*".to_owned());
        let buffer = Arc::new(buffer);
        let mut at = 0;
        let local = pieces.iter().map(|piece| {
            at += piece;
            LocalSlice::new(buffer.lease(None).unwrap(), at - piece..at).unwrap()
        });
        TaskSpec {
            op: Op::Write,
            local: local.collect(),
            peer: Arc::new(Peer::new(Incarnation::random(), Vec::new())),
            registration: RegistrationId(2),
            generation: Generation(1),
            offset: 7,
            length,
            deadline: None,
            receipt: Receipt::default(),
            qos: Qos::new(),
            terms: None,
            meter: crate::metrics::MeterId::NONE,
            origin: None,
        }
    }

    proptest! {
        #[test]
        fn parts_tile_the_task_and_none_is_larger_than_may_be(
            pieces in proptest::collection::vec(1..20_000_u64, 1..6),
            most in 1..30_000_u64,
        ) {
            let mut spec = spec(&pieces);
            let length = spec.length;
            let most = most.max(length / 500);
            let terms = RestTerms {
                segment: segment(),
                fences: 0,
                deadline: Instant::now(),
                link: 0,
            };
            let mut rest = Rest::cut(&mut spec, most, terms);
            let (mut done, mut parts) = (0, 0);
            loop {
                prop_assert!((1..=most).contains(&spec.length));
                prop_assert_eq!(spec.offset, 7 + done);
                let mut at = done;
                for slice in &spec.local {
                    prop_assert_eq!(slice.address() - slice.buffer().memory().address(), at);
                    at += slice.len();
                }
                done += spec.length;
                prop_assert_eq!(at, done);
                prop_assert_eq!(rest.length(), length - done);
                parts += 1;
                if rest.length() == 0 {
                    break;
                }
                rest.go_on(&mut spec);
            }
            prop_assert_eq!(done, length);
            prop_assert!(parts <= length.div_ceil(most));
        }
    }
}
