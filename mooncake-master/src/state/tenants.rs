//! Names of tenants, as small numbers.

use std::{collections::BTreeMap, sync::Arc};

use super::{DEFAULT_TENANT, Failure, MAX_TENANT_BYTES};

/// More are a mistake: each costs memory for the master's life.
const MAX_TENANTS: usize = 65_536;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TenantId(pub(crate) u16);

#[derive(Debug, Default)]
pub(crate) struct Tenants {
    ids: BTreeMap<Arc<str>, TenantId>,
    names: Vec<Arc<str>>,
}

impl Tenants {
    pub(crate) fn find(&self, name: &str) -> Result<Option<TenantId>, Failure> {
        Ok(self.ids.get(checked(name)?).copied())
    }

    pub(crate) fn intern(&mut self, name: &str) -> Result<TenantId, Failure> {
        let name = checked(name)?;
        if let Some(&id) = self.ids.get(name) {
            return Ok(id);
        }
        if self.names.len() == MAX_TENANTS {
            let limit = MAX_TENANTS as u64;
            return Err(Failure::TooManyTenants { limit });
        }
        let id = TenantId(self.names.len() as u16);
        let name = Arc::<str>::from(name);
        self.names.push(Arc::clone(&name));
        self.ids.insert(name, id);
        Ok(id)
    }

    pub(crate) fn name(&self, id: TenantId) -> &Arc<str> {
        &self.names[id.0 as usize]
    }
}

fn checked(name: &str) -> Result<&str, Failure> {
    if name.is_empty() {
        return Ok(DEFAULT_TENANT);
    }
    let wrong = if name.len() > MAX_TENANT_BYTES {
        "is longer than 128 bytes"
    } else if name.starts_with('_') {
        "starts with an underscore"
    } else if name.bytes().any(|byte| byte.is_ascii_control()) {
        "has control bytes"
    } else {
        return Ok(name);
    };
    let shown: String = name.chars().take(32).collect();
    Err(Failure::invalid(format!(
        "the tenant name {shown:?} {wrong}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_number_and_bad_names_get_none() {
        let mut tenants = Tenants::default();
        let a = tenants.intern("a").unwrap();
        assert_eq!(
            tenants.intern("").unwrap(),
            tenants.intern(DEFAULT_TENANT).unwrap()
        );
        assert_eq!(tenants.intern("a").unwrap(), a);
        assert_eq!(tenants.find("b").unwrap(), None);
        assert_eq!(&**tenants.name(a), "a");
        let long = "x".repeat(129);
        for bad in ["_system", "a\nb", "\u{7f}", long.as_str()] {
            assert!(tenants.intern(bad).is_err(), "{bad:?}");
        }
    }
}
