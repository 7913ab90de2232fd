//! Registered memory in the hands of its owner.

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Weak},
};

use crate::{
    error::{Error, Result},
    identity::{Generation, RegistrationId},
    memory::{LocalBuffer, LocalSlice, Memory, Permission},
};

/// How memory is registered.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RegisterOptions {
    /// What peers may do with it.
    pub permission: Permission,
    /// Where it is: `cpu:0`, or `*` for anywhere.
    pub location: String,
}

impl RegisterOptions {
    /// Memory somewhere, with this permission.
    pub fn new(permission: Permission) -> Self {
        Self {
            permission,
            location: "*".to_owned(),
        }
    }
}

/// Takes a dropped buffer out of the engine.
pub(crate) trait Registrar: Send + Sync {
    fn withdraw(&self, buffer: &Arc<LocalBuffer>);
}

/// A registered buffer. Dropping it takes it from peers at once; its memory is freed when the last
/// transfer that uses it is quiet.
pub struct Buffer {
    local: Arc<LocalBuffer>,
    registrar: Weak<dyn Registrar>,
}

impl Buffer {
    pub(crate) fn new(local: Arc<LocalBuffer>, registrar: Weak<dyn Registrar>) -> Self {
        Self { local, registrar }
    }

    pub(crate) fn local(&self) -> &Arc<LocalBuffer> {
        &self.local
    }

    /// Its name within this process.
    pub fn id(&self) -> RegistrationId {
        self.local.id()
    }

    /// Which life of the registration this is.
    pub fn generation(&self) -> Generation {
        self.local.generation()
    }

    /// Its bytes. Peers may change them at any moment, within the permission.
    pub fn memory(&self) -> &Memory {
        self.local.memory()
    }

    /// Length in bytes, at least 1.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a buffer has at least one byte"
    )]
    pub fn len(&self) -> u64 {
        self.local.memory().len() as u64
    }

    /// Slices of it that requests or callers hold now.
    pub fn leases(&self) -> u64 {
        self.local.leases()
    }

    /// A range of it, for a request.
    ///
    /// # Errors
    ///
    /// The range is empty or not within the buffer, or the buffer is being unregistered.
    pub fn slice(&self, range: Range<u64>) -> Result<LocalSlice> {
        let lease = self
            .local
            .lease(None)
            .map_err(|_| Error::Invalid(format!("buffer {} is being unregistered", self.id())))?;
        LocalSlice::new(lease, range.clone()).ok_or_else(|| {
            Error::Invalid(format!(
                "{range:?} is empty or beyond the buffer's {} bytes",
                self.len()
            ))
        })
    }

    /// All of it, for a request.
    ///
    /// # Errors
    ///
    /// The buffer is being unregistered.
    pub fn all(&self) -> Result<LocalSlice> {
        self.slice(0..self.len())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.local.close();
        if let Some(registrar) = self.registrar.upgrade() {
            registrar.withdraw(&self.local);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Buffer").field(&self.local).finish()
    }
}
