//! The directory that the log is in.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, Write as _},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

use super::LogError;

/// What the log needs of a disk.
pub(crate) trait Files: fmt::Debug + Send + Sync + 'static {
    /// The names of all files.
    fn list(&self) -> io::Result<Vec<String>>;
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;
    /// A new, empty file, in the place of one that there may be.
    fn create(&self, name: &str) -> io::Result<Box<dyn Out>>;
    /// Gives a file another name, in place of whatever has it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Cuts a file after so many bytes, durably.
    fn cut(&self, name: &str, len: u64) -> io::Result<()>;
    /// Makes durable which names there are.
    fn sync(&self) -> io::Result<()>;
    /// Lets others use them.
    fn unlock(&self) {}
}

/// A file that grows.
pub(crate) trait Out: fmt::Debug + Send {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes durable what was appended.
    fn sync(&mut self) -> io::Result<()>;
}

const LOCK: &str = "LOCK";

/// A directory of the machine, which nobody else uses as long as this exists.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    lock: File,
}

impl Directory {
    /// Takes the directory, which is made if there is none.
    pub(crate) fn open(path: &Path) -> Result<Self, LogError> {
        let name = path.display().to_string();
        // Those whose names may be new in their parents.
        let new = path.ancestors().take_while(|at| !at.exists()).count();
        fs::create_dir_all(path).map_err(LogError::io("make", &name))?;
        let mut options = OpenOptions::new();
        let lock = path.join(LOCK);
        let mut lock = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock)
            .map_err(LogError::io("open", &lock.display().to_string()))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                let told = lock.read_to_string(&mut holder);
                if told.is_err() || holder.is_empty() {
                    holder = "another process".to_owned();
                }
                let directory = name;
                return Err(LogError::InUse { directory, holder });
            }
            Err(error) => return Err(LogError::io("lock", &name)(error.into())),
        }
        let words = format!("the master of process {}", std::process::id());
        let told = lock
            .set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| lock.write_all(words.as_bytes()));
        // The lock is the kernel's; a full disk only costs others the holder's name.
        if let Err(error) = told {
            tracing::debug!(%error, "the lock file does not say who holds it");
        }
        let directory = Self {
            path: path.to_owned(),
            lock,
        };
        for made in path.ancestors().take(new.max(1)) {
            let parent = made
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            File::open(parent.unwrap_or_else(|| Path::new(".")))
                .and_then(|parent| parent.sync_all())
                .map_err(LogError::io("sync the parent of", &name))?;
        }
        Ok(directory)
    }
}

impl Files for Directory {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != LOCK {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path.join(name))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Out>> {
        Ok(Box::new(File::create(self.path.join(name))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn cut(&self, name: &str, len: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.path.join(name))?;
        file.set_len(len)?;
        file.sync_all()
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn unlock(&self) {
        if let Err(error) = flock(&self.lock, FlockOperation::Unlock) {
            tracing::debug!(%error, "the state directory stays locked while the process lives");
        }
    }
}

impl Out for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}
