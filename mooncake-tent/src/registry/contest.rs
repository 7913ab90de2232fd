//! Who gets a name in a registry that compares and swaps: pure.

use super::{Claim, Entry, trouble};
use crate::error::{Error, Result};

/// So often somebody else may come in between.
pub(super) const ATTEMPTS: usize = 8;

/// What a claim finds under its name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It may be put there.
    Free,
    /// The claim holds it already.
    Ours,
    /// Somebody else keeps it.
    Held(Entry),
}

pub(super) fn found(place: &str, claim: &Claim<'_>, value: Option<&[u8]>) -> Result<Found> {
    let Some(value) = value else {
        return Ok(Found::Free);
    };
    let holder = Entry::from_json(value).map_err(|what| trouble(place, claim.name, what))?;
    Ok(if claim.yields_to(&holder) {
        Found::Held(holder)
    } else if holder == *claim.entry {
        Found::Ours
    } else {
        Found::Free
    })
}

/// It is what `entry` put there.
pub(super) fn is_of(entry: &Entry, value: &[u8]) -> bool {
    Entry::from_json(value).is_ok_and(|holder| holder.incarnation == entry.incarnation)
}

pub(super) fn restless(place: &str, name: &str) -> Error {
    trouble(place, name, "others change it all the time")
}
