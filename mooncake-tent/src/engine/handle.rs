//! Segments that are handed from process to process.

use super::{TentEngine, TransferEngine};
use crate::{
    error::{Error, Result},
    registry::is_address,
    segment::{Segment, SegmentHandle},
};

impl TentEngine {
    /// A segment of this process or another one as a string, by which any engine
    /// [opens](Self::import_segment) it without looking anything up.
    ///
    /// # Errors
    ///
    /// A link provides it by itself, or its owner has no control service: then it is nothing to
    /// others.
    pub fn export_segment(&self, segment: &Segment) -> Result<String> {
        let descriptor = segment.descriptor();
        let own = descriptor.incarnation() == self.incarnation();
        let control = match own {
            true => self.control_address().map(str::to_owned),
            false => self.segments().last_place(segment),
        };
        let control = control.filter(|_| segment.provider().is_none());
        let control = control.ok_or_else(|| {
            let name = segment.name();
            Error::Invalid(format!("segment {name} is of no use to other processes"))
        })?;
        Ok(SegmentHandle::new(control, descriptor).to_string())
    }

    /// Opens a segment that somebody [exported](Self::export_segment). What has changed since is
    /// learned from its owner when it is used, or soon after.
    ///
    /// # Errors
    ///
    /// It is no such string, or was damaged on the way.
    pub fn import_segment(&self, handle: &str) -> Result<Segment> {
        let read: Result<SegmentHandle, _> = handle.parse();
        let handle = read.map_err(|why| Error::Invalid(format!("handle of a segment: {why}")))?;
        let descriptor = handle.descriptor().clone();
        if descriptor.incarnation() == self.incarnation() {
            return Ok(self.own_segment().clone());
        }
        // Whoever wrote it reached the owner there, which its own address need not be good for.
        let name = match is_address(handle.name()) {
            true => handle.control(),
            false => handle.name(),
        };
        let segments = self.segments();
        Ok(segments.learned(name, descriptor, handle.control()))
    }
}
