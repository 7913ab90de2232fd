//! A directory of the operating system, by plain calls.

use std::{
    fs::{File, OpenOptions},
    io::{self, IoSlice, IoSliceMut, Read as _, Seek, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{FileExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    fs::{FlockOperation, flock, statvfs},
    io::{Errno, preadv, pwritev},
};

use super::{Disk, DiskFile, Found, LockFailure, Read, Space, direct::DirectFile, uring::Rings};

const LOCK: &str = "lock";

/// Pieces that the kernel takes in one call.
const MOST_PIECES: usize = 1024;

/// A directory, whose files are read and written with `preadv` and `pwritev`.
#[derive(Debug)]
pub struct RealDisk {
    path: PathBuf,
    directory: File,
    reads_only: bool,
    wants_direct: bool,
    direct: AtomicBool,
    rings: Option<Rings>,
    engine: Engine,
}

/// How several reads are carried out at once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// One after the other, by plain calls, for this reason.
    Calls(String),
    /// Side by side, on rings of the kernel's.
    Uring,
}

impl RealDisk {
    /// Opens a directory, which is made if it is not there.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        make_directory(&path, &mut |parent| File::open(parent)?.sync_all())?;
        let directory = File::open(&path)?;
        Ok(Self {
            path,
            directory,
            reads_only: false,
            wants_direct: false,
            direct: AtomicBool::new(false),
            rings: None,
            engine: Engine::Calls("nothing else was asked for".into()),
        })
    }

    /// Opens a directory that is there, to look at it: whatever would change it is refused.
    pub fn read_only(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        let directory = File::open(&path)?;
        if !directory.metadata()?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Self {
            path,
            directory,
            reads_only: true,
            wants_direct: false,
            direct: AtomicBool::new(false),
            rings: None,
            engine: Engine::Calls("it is only looked at".into()),
        })
    }

    /// Who has the directory locked, in their own words; `None`: nobody, as far as the kernel tells. The lock is not
    /// touched for that, so nobody is kept from it.
    pub fn holder(&self) -> io::Result<Option<String>> {
        let path = self.path.join(LOCK);
        let inode = match std::fs::metadata(&path) {
            Ok(metadata) => metadata.ino(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let words = std::fs::read_to_string(&path)?;
        let locks = std::fs::read_to_string("/proc/locks")?;
        Ok(locks
            .lines()
            .any(|line| is_locked(line, inode))
            .then_some(words))
    }

    fn may_write(&self) -> io::Result<()> {
        match self.reads_only {
            true => Err(io::ErrorKind::ReadOnlyFilesystem.into()),
            false => Ok(()),
        }
    }

    /// Reads past the page cache, if the file system can; that is tried once the directory is locked.
    #[must_use]
    pub fn direct(mut self) -> Self {
        self.wants_direct = true;
        self
    }

    /// Has several reads carried out by io_uring, if the kernel can; [`engine`](Self::engine) tells.
    #[must_use]
    pub fn uring(mut self) -> Self {
        match Rings::new() {
            Ok(rings) => {
                self.rings = Some(rings);
                self.engine = Engine::Uring;
            }
            Err(error) => self.engine = Engine::Calls(format!("there is no io_uring: {error}")),
        }
        self
    }

    /// How several reads are carried out at once.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Whether reads go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    /// Some file systems refuse when a file is opened, some when it is read.
    fn probe(&self) {
        let file = DirectFile::open(&self.path.join(LOCK));
        match file.and_then(|file| file.read(0, &mut [0; 8], &mut [])) {
            Ok(_) => self.direct.store(true, Ordering::Relaxed),
            Err(error) => tracing::debug!(%error, "files are read through the page cache"),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, name: &str, options: &OpenOptions) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.path.join(name);
        let file = options.open(&path)?;
        let direct = self
            .is_direct()
            .then(|| DirectFile::open(&path))
            .transpose()?;
        Ok(Arc::new(RealFile { file, direct }))
    }
}

/// Whether a line of `/proc/locks` is of an exclusive lock of a whole file with this inode, see proc(5). Devices are not
/// compared: some file systems give files another one than the kernel's locks have.
fn is_locked(line: &str, inode: u64) -> bool {
    let mut words = line.split_whitespace().skip(1);
    let kind = [words.next(), words.next(), words.next()];
    let file = words.nth(1).and_then(|file| file.rsplit(':').next());
    kind == [Some("FLOCK"), Some("ADVISORY"), Some("WRITE")]
        && file.is_some_and(|number| number.parse() == Ok(inode))
}

/// Makes a directory, and those above it, each durable by a `sync` of the one that it is in.
fn make_directory(path: &Path, sync: &mut dyn FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    let above = |path: &Path| match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Some(PathBuf::from(".")),
        Some(parent) => Some(parent.to_path_buf()),
        None => None,
    };
    if path.is_dir() {
        // Whoever made it may have died before it was durable. Where we may not look up, that was somebody else.
        if let Some(parent) = std::fs::canonicalize(path)?.parent()
            && let Err(error) = sync(parent)
            && error.kind() != io::ErrorKind::PermissionDenied
        {
            return Err(error);
        }
        return Ok(());
    }
    let parent = above(path).ok_or(io::ErrorKind::NotFound)?;
    make_directory(&parent, sync)?;
    match std::fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    sync(&parent)
}

impl Disk for RealDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.may_write()?;
        let mut options = OpenOptions::new();
        self.file(name, options.read(true).write(true).create_new(true))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.file(name, OpenOptions::new().read(true).write(!self.reads_only))
    }

    fn list(&self) -> io::Result<Vec<Found>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                // A stranger's, which went while we looked.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            all.push(Found {
                name: entry.file_name().to_string_lossy().into_owned(),
                bytes: metadata.len(),
                allocated_bytes: metadata.blocks() * 512,
                is_file: metadata.is_file(),
            });
        }
        Ok(all)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.may_write()?;
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.may_write()?;
        std::fs::remove_file(self.path.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        self.directory.sync_all()
    }

    fn space(&self) -> io::Result<Space> {
        let stat = statvfs(&self.path)?;
        Ok(Space {
            total_bytes: stat.f_blocks * stat.f_frsize,
            free_bytes: stat.f_bavail * stat.f_frsize,
        })
    }

    fn read_many(&self, reads: &mut [Read<'_>], landed: &mut dyn FnMut(usize, &mut Read<'_>)) {
        // One read is done sooner without a ring.
        let rings = self.rings.as_ref().filter(|_| reads.len() > 1);
        if !rings.is_some_and(|rings| rings.read(reads, landed)) {
            for (place, read) in reads.iter_mut().enumerate() {
                read.carry_out();
                landed(place, read);
            }
        }
    }

    fn lock(&self, words: &str) -> Result<Box<dyn Send + Sync>, LockFailure> {
        self.may_write().map_err(LockFailure::Io)?;
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.path.join(LOCK))
            .map_err(LockFailure::Io)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                let _unreadable_is_unknown = file.read_to_string(&mut holder);
                return Err(LockFailure::Held(holder));
            }
            Err(error) => return Err(LockFailure::Io(error.into())),
        }
        let told = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(words.as_bytes()));
        // The lock is the kernel's; a full disk only costs others the holder's name.
        if let Err(error) = told {
            tracing::debug!(%error, "the lock file does not say who holds it");
        }
        if self.wants_direct {
            self.probe();
        }
        Ok(Box::new(file))
    }
}

#[derive(Debug)]
struct RealFile {
    file: File,
    direct: Option<DirectFile>,
}

impl DiskFile for RealFile {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        if let Some(direct) = &self.direct {
            return direct.read(at, &mut [], into);
        }
        let mut done = 0;
        while done < into.len() {
            match self.file.read_at(&mut into[done..], at + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn read_two_at(&self, at: u64, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        if let Some(direct) = &self.direct {
            return direct.read(at, first, second);
        }
        let room = first.len() + second.len();
        let mut both = [IoSliceMut::new(first), IoSliceMut::new(second)];
        let (mut slices, mut done) = (&mut both[..], 0);
        while done < room {
            match preadv(&self.file, slices, at + done as u64) {
                Ok(0) => break,
                Ok(read) => {
                    done += read;
                    IoSliceMut::advance_slices(&mut slices, read);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(done)
    }

    fn write_at(&self, at: u64, pieces: &[&[u8]]) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let (mut slices, mut at) = (&mut slices[..], at);
        // Empty pieces in front would look like a disk that takes nothing.
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            let some = &slices[..slices.len().min(MOST_PIECES)];
            match pwritev(&self.file, some, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    at += written as u64;
                    IoSlice::advance_slices(&mut slices, written);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn descriptor(&self) -> Option<(BorrowedFd<'_>, bool)> {
        Some(match &self.direct {
            Some(direct) => (direct.descriptor(), true),
            None => (self.file.as_fd(), false),
        })
    }

    fn descriptors(&self) -> usize {
        1 + usize::from(self.direct.is_some())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.metadata().map(|metadata| metadata.len())
    }

    fn allocated(&self) -> io::Result<u64> {
        self.file.metadata().map(|metadata| metadata.blocks() * 512)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_made_is_durable_with_all_that_were_made_above_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        let synced = |path: &Path| {
            let mut synced = Vec::new();
            make_directory(path, &mut |parent| {
                synced.push(std::fs::canonicalize(parent).unwrap());
                Ok(())
            })
            .unwrap();
            synced
        };
        let path = root.join("a/b/c");
        // The first one was there, and is looked after as well: its own parent says that it is.
        let above = root.parent().unwrap().to_path_buf();
        let expected = [above, root.clone(), root.join("a"), root.join("a/b")];
        assert_eq!(synced(&path), expected);
        assert!(path.is_dir());
        assert_eq!(synced(&path), [root.join("a/b")], "made by somebody else");
        assert_eq!(
            synced(&root.join("a/b/../d")),
            [root.clone(), root.join("a")]
        );
    }

    #[test]
    fn locks_are_found_by_their_inode() {
        let line = "2: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF";
        assert!(is_locked(line, 5678));
        assert!(!is_locked(line, 1234) && !is_locked("", 5678));
        // Whoever waits for it has another line.
        assert!(!is_locked(
            "2: -> FLOCK  ADVISORY  WRITE 12 fe:00:5678 0 EOF",
            5678
        ));
        assert!(!is_locked(
            "3: POSIX  ADVISORY  WRITE 1234 fe:00:5678 0 EOF",
            5678
        ));
    }

    #[test]
    fn who_looks_sees_the_holder_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let looks = RealDisk::read_only(folder.path()).unwrap();
        assert_eq!(looks.holder().unwrap(), None);
        let disk = RealDisk::open(folder.path()).unwrap();
        let held = disk.lock("this test").map_err(|_| "locked").unwrap();
        assert_eq!(looks.holder().unwrap().as_deref(), Some("this test"));
        disk.create("a").unwrap().write_at(0, &[b"abc"]).unwrap();
        assert!(looks.create("b").is_err() && looks.remove("a").is_err());
        assert!(looks.rename("a", "b").is_err() && looks.lock("x").is_err());
        let file = looks.open("a").unwrap();
        assert!(file.write_at(0, &[b"x"]).is_err() && file.set_len(0).is_err());
        assert_eq!(crate::disk::read_all(&looks, "a").unwrap(), b"abc");
        drop(held);
        assert_eq!(looks.holder().unwrap(), None);
        assert!(RealDisk::read_only(folder.path().join("a")).is_err());
    }

    #[test]
    fn a_directory_that_cannot_be_made_durable_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        let failed = make_directory(&path, &mut |_| Err(io::ErrorKind::Other.into()));
        assert!(failed.is_err());
        // A parent that is not ours to look at is no reason to refuse what is there.
        std::fs::create_dir_all(&path).unwrap();
        let denied = &mut |_: &Path| Err(io::ErrorKind::PermissionDenied.into());
        assert!(make_directory(&path, denied).is_ok());
        assert!(make_directory(&path.join("c"), denied).is_err());
    }
}
