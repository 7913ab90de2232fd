//! A key of a tenant. Tenants use the same keys, on purpose.

use std::fmt;

use bytes::Bytes;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) tenant: usize,
    pub(crate) key: usize,
}

impl Name {
    pub(crate) fn bytes(self) -> Bytes {
        Bytes::from(format!("key-{}", self.key))
    }

    pub(crate) fn of(tenant: usize, key: &[u8]) -> Self {
        let digits = key.strip_prefix(b"key-").unwrap_or_default();
        let key = std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| digits.parse().ok())
            .expect("only our names are used");
        Self { tenant, key }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {} of tenant {}", self.key, self.tenant)
    }
}

/// What the master calls it: the first one is the default tenant.
pub(crate) fn tenant_name(tenant: usize) -> String {
    match tenant {
        0 => String::new(),
        other => format!("tenant-{other}"),
    }
}
