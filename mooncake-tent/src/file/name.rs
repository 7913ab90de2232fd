//! Names of file segments: which file, and how it is opened.

use std::{
    ffi::OsString,
    fmt::{self, Write},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use crate::error::{Error, Result};

const SCHEME: &str = "file://";

/// A file as a segment, and how to open it. What [`name`](Self::name) gives is opened by
/// [`open_segment`](crate::TransferEngine::open_segment).
///
/// ```
/// use mooncake_tent::FileSegment;
///
/// let scratch = FileSegment::new("/var/tmp/scratch").create(1 << 20).direct();
/// assert_eq!(scratch.name(), "file:///var/tmp/scratch?write&create=1048576&direct");
/// assert_eq!(FileSegment::parse(&scratch.name())?, scratch);
/// # Ok::<_, mooncake_tent::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct FileSegment {
    pub(super) path: PathBuf,
    pub(super) write: bool,
    pub(super) create: Option<u64>,
    pub(super) direct: bool,
    pub(super) sync: bool,
}

impl FileSegment {
    /// The file at this absolute path, to be read.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            write: false,
            create: None,
            direct: false,
            sync: false,
        }
    }

    /// It may be written, too.
    pub fn writable(mut self) -> Self {
        self.write = true;
        self
    }

    /// Makes the file, with so many zeroed bytes, unless there is one of that size. It may be
    /// written. Nobody sees it before it is whole, for which its file system needs hard links.
    pub fn create(mut self, bytes: u64) -> Self {
        self.create = Some(bytes);
        self.writable()
    }

    /// Past the page cache, as far as the file system allows. Blocks of 4 KiB that a request covers
    /// go straight between disk and memory, best where the memory is aligned alike; what it covers
    /// in part goes through the page cache.
    pub fn direct(mut self) -> Self {
        self.direct = true;
        self
    }

    /// A write is completed only when it is durable: bytes, and what is needed to find them, are on
    /// the disk; so is the name of a file that was [created](Self::create). Without this, a power
    /// failure may take what was completed.
    pub fn sync(mut self) -> Self {
        self.sync = true;
        self
    }

    /// As [`open_segment`](crate::TransferEngine::open_segment) takes it: `file://`, the path with
    /// `%xx` for bytes that are not plain, and what was chosen after a `?`.
    pub fn name(&self) -> String {
        let mut name = SCHEME.to_owned();
        for byte in self.path.as_os_str().as_bytes() {
            match byte {
                b'/' | b'-' | b'.' | b'_' | b'~' => name.push(char::from(*byte)),
                plain if plain.is_ascii_alphanumeric() => name.push(char::from(*byte)),
                other => write!(name, "%{other:02x}").expect("a string takes everything"),
            }
        }
        let mut chosen: Vec<String> = Vec::new();
        let mut choose = |word: &str, on: bool| {
            if on {
                chosen.push(word.to_owned());
            }
        };
        choose("write", self.write);
        if let Some(bytes) = self.create {
            choose(&format!("create={bytes}"), true);
        }
        choose("direct", self.direct);
        choose("sync", self.sync);
        if !chosen.is_empty() {
            name.push('?');
            name.push_str(&chosen.join("&"));
        }
        name
    }

    /// Whether a name is one of a file segment, sensible or not.
    pub(super) fn is_named(name: &str) -> bool {
        name.starts_with(SCHEME)
    }

    /// What a name says.
    ///
    /// # Errors
    ///
    /// It is no name of a file segment, its path is not absolute, or it has a word that is not known.
    pub fn parse(name: &str) -> Result<Self> {
        let nonsense = |what: &str| Error::Invalid(format!("segment {name}: {what}"));
        let rest = name
            .strip_prefix(SCHEME)
            .ok_or_else(|| nonsense("it does not begin with file://"))?;
        let (path, chosen) = rest.split_once('?').unwrap_or((rest, ""));
        let path = decode(path).ok_or_else(|| nonsense("% is followed by two hex digits"))?;
        let path = PathBuf::from(OsString::from_vec(path));
        if !path.is_absolute() {
            return Err(nonsense("its path is not absolute"));
        }
        let mut segment = Self::new(path);
        for word in chosen.split('&').filter(|word| !word.is_empty()) {
            segment = match word.split_once('=') {
                None if word == "write" => segment.writable(),
                None if word == "direct" => segment.direct(),
                None if word == "sync" => segment.sync(),
                Some(("create", bytes)) => {
                    let bytes = bytes.parse();
                    segment.create(bytes.map_err(|_| nonsense("create is a number of bytes"))?)
                }
                _ => {
                    let known = "write, create=BYTES, direct and sync are";
                    return Err(nonsense(&format!("{word:?} is not known; {known}")));
                }
            };
        }
        Ok(segment)
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for FileSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let byte = match byte {
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
                (high * 16 + low) as u8
            }
            plain => plain,
        };
        bytes.push(byte);
    }
    Some(bytes)
}

#[cfg(test)]
#[cfg(not(mooncake_loom))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_named_is_what_is_opened(
            path in proptest::collection::vec(any::<u8>(), 0..40),
            write: bool, create: Option<u64>, direct: bool, sync: bool,
        ) {
            let path = [b"/".as_slice(), &path].concat();
            let mut segment = FileSegment::new(OsString::from_vec(path));
            segment.write = write || create.is_some();
            segment.create = create;
            segment.direct = direct;
            segment.sync = sync;
            prop_assert!(FileSegment::is_named(&segment.name()));
            prop_assert_eq!(FileSegment::parse(&segment.name())?, segment);
        }

        #[test]
        fn no_name_makes_it_panic(name in "(file://)?[ -~]{0,30}(é%)?") {
            let _parsed = FileSegment::parse(&name);
        }
    }

    #[test]
    fn law_16_what_is_not_known_is_an_error_that_names_it() {
        for (name, what) in [
            ("file:///a?wirte", "wirte"),
            ("file:///a?create=many", "create"),
            ("file:///a?direct=1", "direct=1"),
            ("file://a/b", "not absolute"),
            ("file:///a%2", "hex"),
            ("tcp://a", "file://"),
        ] {
            let error = FileSegment::parse(name).unwrap_err().to_string();
            assert!(error.contains(what) && error.contains(name), "{error}");
        }
    }
}
