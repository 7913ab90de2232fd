//! A file that is open as a segment.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{AsRawFd, RawFd},
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use rustix::{
    fs::{FallocateFlags, Mode, OFlags, fallocate, fcntl_getfl, fcntl_setfl, fstat},
    io::Errno,
};

use super::{NAME, cut::Way, name::FileSegment, slots::Slot};
use crate::{
    error::{Error, Reason, Result, Retry, Stage, TransferError},
    identity::{Generation, Incarnation, PeerId, RegistrationId},
    memory::Permission,
    platform,
    segment::{BufferDescriptor, SegmentDescriptor},
    transport::{Op, Posting},
};

/// One opening of a file. Its file descriptors live as long as tasks hold it.
#[derive(Debug)]
pub(super) struct OpenFile {
    id: PeerId,
    registration: RegistrationId,
    path: PathBuf,
    length: u64,
    write: bool,
    /// Of the file that was opened, not of whatever has its name now.
    identity: (u64, u64),
    cached: File,
    direct: Option<File>,
    /// Where rings know the two file descriptors. Before the files are closed, rings forget them.
    pub(super) slot: OnceLock<Slot>,
    _counted: Arc<()>,
}

/// There is only one life of the registration: another opening is another segment.
const FIRST: Generation = Generation(1);

impl OpenFile {
    /// Opens what `segment` says, and is counted among the clones of `all`. It blocks.
    pub(super) fn open(segment: &FileSegment, all: &Arc<()>) -> Result<Self> {
        let refused = |what: &str, source: io::Error| Error::System {
            what: format!("file {}: {what}", segment.path.display()),
            source,
        };
        let unfit =
            |what: String| Error::Invalid(format!("file {} {what}", segment.path.display()));
        let cached = open_or_create(segment).map_err(|error| refused("cannot be opened", error))?;
        let about = cached.metadata();
        let about = about.map_err(|error| refused("tells nothing of itself", error))?;
        if !about.is_file() {
            return Err(unfit("is no regular file".to_owned()));
        }
        if let Some(bytes) = segment.create.filter(|bytes| *bytes != about.len()) {
            return Err(unfit(format!("has {} bytes, not {bytes}", about.len())));
        }
        if about.len() == 0 {
            return Err(unfit("is empty".to_owned()));
        }
        let direct = segment.direct.then(|| past_the_cache(&cached, segment));
        Ok(Self {
            id: Incarnation::random(),
            registration: RegistrationId(rand::random()),
            path: segment.path.clone(),
            length: about.len(),
            write: segment.write,
            identity: (about.dev(), about.ino()),
            cached,
            direct: direct.flatten(),
            slot: OnceLock::new(),
            _counted: Arc::clone(all),
        })
    }

    /// Which opening this is.
    pub(super) fn id(&self) -> PeerId {
        self.id
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// It is read and written past the page cache.
    pub(super) fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// The file descriptors, as a table has them.
    pub(super) fn descriptors(&self) -> [RawFd; 2] {
        let direct = self.direct.as_ref();
        [
            self.cached.as_raw_fd(),
            direct.map_or(-1, AsRawFd::as_raw_fd),
        ]
    }

    /// The file descriptor for parts that go this way.
    pub(super) fn descriptor_for(&self, way: Way) -> RawFd {
        match (way, &self.direct) {
            (Way::Direct | Way::Staged, Some(direct)) => direct.as_raw_fd(),
            _ => self.cached.as_raw_fd(),
        }
    }

    /// What the segment offers: one buffer, which is the file.
    pub(super) fn describe(&self, name: &str) -> SegmentDescriptor {
        let buffer = BufferDescriptor {
            registration: self.registration,
            generation: FIRST,
            address: 0,
            length: self.length,
            permission: match self.write {
                true => Permission::PeersReadWrite,
                false => Permission::PeersRead,
            },
            location: "*".into(),
            links: [NAME.to_owned()].into(),
        };
        let endpoints = vec![(NAME.to_owned(), self.path.display().to_string())];
        let machine = platform::machine();
        SegmentDescriptor::new(
            name.to_owned(),
            self.id,
            0,
            machine,
            endpoints,
            vec![buffer],
        )
    }

    /// Checks what a task asks against what was opened (law 4).
    pub(super) fn admit(&self, asked: &Posting) -> Result<(), Reason> {
        let end = asked.offset.checked_add(asked.length);
        if asked.registration != self.registration {
            Err(Reason::UnknownRegistration)
        } else if asked.op == Op::Write && !self.write {
            Err(Reason::Permission)
        } else if asked.generation != FIRST {
            Err(Reason::StaleGeneration)
        } else if end.is_none_or(|end| end > self.length) {
            Err(Reason::OutOfBounds)
        } else {
            Ok(())
        }
    }

    /// Whether its name still leads to the file that was opened, in its full length. It is one
    /// system call, made once per submission.
    pub(super) fn check(&self) -> Result<(), TransferError> {
        let changed = |what: String| {
            let why = format!("{} {what} since it was opened", self.path.display());
            let reason = Reason::File(why.into());
            let mut error = TransferError::unstarted(reason, Stage::Admit, Some(self.id));
            // Who opens it anew sees what is there now.
            error.retry = Retry::AfterRefresh;
            Err(error)
        };
        match std::fs::metadata(&self.path) {
            Ok(now) if (now.dev(), now.ino()) != self.identity => {
                changed("was replaced by another file".to_owned())
            }
            Ok(now) if now.len() < self.length => changed(format!(
                "was truncated from {} to {} bytes",
                self.length,
                now.len()
            )),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                changed("has vanished".to_owned())
            }
            Err(error) => changed(format!("cannot be found any more ({error})")),
        }
    }

    /// What became of a part for which the kernel has `errno`.
    pub(super) fn refusal(&self, op: Op, at: u64, length: u64, errno: Errno) -> TransferError {
        let path = self.path.display();
        let why = format!("{path}: a {op} of {length} bytes at {at} failed: {errno}");
        let reason = Reason::File(why.into());
        let mut error = TransferError::unstarted(reason, Stage::Move, Some(self.id));
        if matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::NOMEM) {
            error.retry = Retry::Later(std::time::Duration::from_secs(1));
        }
        error
    }

    /// The file ends within a part, though it did not when it was opened.
    pub(super) fn ended(&self, op: Op, at: u64, length: u64, done: u64) -> TransferError {
        let path = self.path.display();
        let why = format!(
            "{path} ends at {}: a {op} of {length} bytes at {at} moved {done}",
            at + done
        );
        let reason = Reason::File(why.into());
        let mut error = TransferError::unstarted(reason, Stage::Move, Some(self.id));
        error.retry = Retry::AfterRefresh;
        error
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        // A ring that knows the descriptors would keep the file open.
        drop(self.slot.take());
    }
}

fn open_or_create(segment: &FileSegment) -> io::Result<File> {
    let file = match (open(segment), segment.create) {
        (Err(error), Some(bytes)) if error.kind() == io::ErrorKind::NotFound => {
            create(segment, bytes)?;
            open(segment)?
        }
        (opened, _) => opened?,
    };
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

fn open(segment: &FileSegment) -> io::Result<File> {
    // Opening a pipe must not wait for somebody at its other end.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | sync_flag(segment);
    OpenOptions::new()
        .read(true)
        .write(segment.write)
        .custom_flags(flags.bits().cast_signed())
        .open(&segment.path)
}

fn sync_flag(segment: &FileSegment) -> OFlags {
    if segment.sync {
        OFlags::DSYNC
    } else {
        OFlags::empty()
    }
}

/// A new file gets its name when it is whole, so that nobody opens half of one.
fn create(segment: &FileSegment, bytes: u64) -> io::Result<()> {
    let unfinished = beside(&segment.path);
    let made = || {
        let file = File::create_new(&unfinished)?;
        size(&file, bytes)?;
        if segment.sync {
            file.sync_all()?;
        }
        match std::fs::hard_link(&unfinished, &segment.path) {
            // Somebody else was faster, whose file we open then.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    };
    let made = made();
    let removed = std::fs::remove_file(&unfinished);
    made.and(removed)?;
    match segment.path.parent() {
        // Its name is to last, too (law 14).
        Some(parent) if segment.sync => File::open(parent)?.sync_all(),
        _ => Ok(()),
    }
}

/// A name in the same folder that nobody else has.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{:016x}", rand::random::<u64>()));
    path.with_file_name(name)
}

/// With room on the disk, so that no write finds it full, where the file system can promise that.
fn size(file: &File, bytes: u64) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(bytes),
        allocated => Ok(allocated?),
    }
}

/// The same file once more, past the page cache; `None` where its file system does not do that.
fn past_the_cache(cached: &File, segment: &FileSegment) -> Option<File> {
    let opened = || -> rustix::io::Result<File> {
        let access = if segment.write {
            OFlags::RDWR
        } else {
            OFlags::RDONLY
        };
        let flags = access | sync_flag(segment) | OFlags::DIRECT | OFlags::NONBLOCK;
        let direct = rustix::fs::open(&segment.path, flags | OFlags::CLOEXEC, Mode::empty())?;
        fcntl_setfl(&direct, fcntl_getfl(&direct)? - OFlags::NONBLOCK)?;
        let (one, other) = (fstat(cached)?, fstat(&direct)?);
        match (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino) {
            true => Ok(File::from(direct)),
            false => Err(Errno::STALE),
        }
    };
    match opened() {
        Ok(direct) => Some(direct),
        Err(error) => {
            let path = segment.path.display();
            tracing::debug!(%path, %error, "read and written through the page cache instead");
            None
        }
    }
}

/// Files by which tasks name them.
pub(super) type Files = rustc_hash::FxHashMap<PeerId, Arc<OpenFile>>;
