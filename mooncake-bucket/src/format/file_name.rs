//! Which file of a directory is what.

/// A file of ours, by its name. That a bucket is sealed, and durably so, is said by its name alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FileName {
    /// A bucket that grows, or grew when its process ended.
    Open(u32),
    /// A bucket that never changes any more.
    Sealed(u32),
    /// A bucket that a compaction writes; what it is worth, its transition says.
    Target(u32),
    /// What a compaction into this bucket is about to do.
    Transition(u32),
    /// A log of removals.
    Tombstones(u32),
    Identity,
    Ids,
    Lock,
    /// A control file that was not finished.
    Temporary,
    /// What was found damaged and set aside.
    Quarantined,
}

pub(crate) const QUARANTINED: &str = ".quarantined";

impl FileName {
    /// `None`: the file is not ours.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name {
            "identity" => return Some(Self::Identity),
            "ids" => return Some(Self::Ids),
            "lock" => return Some(Self::Lock),
            _ => {}
        }
        if let Some(stem) = name.strip_suffix(".tmp") {
            return Self::parse(stem).map(|_| Self::Temporary);
        }
        if let Some(stem) = name.strip_suffix(QUARANTINED) {
            return Self::parse(stem).map(|_| Self::Quarantined);
        }
        let (id, kind) = name.split_once('.')?;
        let canonical = id.len() == 8 && !id.bytes().any(|b| b.is_ascii_uppercase() || b == b'+');
        let id = u32::from_str_radix(id, 16).ok();
        // Number 0 stands for all buckets.
        let id = id.filter(|id| canonical && *id > 0)?;
        match kind {
            "open" => Some(Self::Open(id)),
            "bucket" => Some(Self::Sealed(id)),
            "target" => Some(Self::Target(id)),
            "transition" => Some(Self::Transition(id)),
            "tombstones" => Some(Self::Tombstones(id)),
            _ => None,
        }
    }

    /// The name of a file that has one of its own.
    pub(crate) fn text(self) -> String {
        match self {
            Self::Open(id) => format!("{id:08x}.open"),
            Self::Sealed(id) => format!("{id:08x}.bucket"),
            Self::Target(id) => format!("{id:08x}.target"),
            Self::Transition(id) => format!("{id:08x}.transition"),
            Self::Tombstones(id) => format!("{id:08x}.tombstones"),
            Self::Identity => "identity".into(),
            Self::Ids => "ids".into(),
            Self::Lock => "lock".into(),
            Self::Temporary => "tmp".into(),
            Self::Quarantined => "quarantined".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_ours_are_known_and_others_are_not() {
        let ours = [
            FileName::Open(1),
            FileName::Sealed(0xabcd_ef01),
            FileName::Target(7),
            FileName::Transition(7),
            FileName::Tombstones(3),
            FileName::Identity,
            FileName::Ids,
            FileName::Lock,
        ];
        for name in ours {
            assert_eq!(FileName::parse(&name.text()), Some(name));
            let (tmp, bad) = (name.text() + ".tmp", name.text() + QUARANTINED);
            assert_eq!(FileName::parse(&tmp), Some(FileName::Temporary));
            assert_eq!(FileName::parse(&bad), Some(FileName::Quarantined));
        }
        for name in [
            "",
            "notes.txt",
            "1.bucket",
            "+0000001.bucket",
            "0000000A.bucket",
            "00000000.bucket",
            "00000001.meta",
            "x.tmp",
        ] {
            assert_eq!(FileName::parse(name), None, "{name}");
        }
    }
}
