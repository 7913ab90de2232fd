//! Everything that a request may ask of its way.

use std::sync::Arc;

use super::{DeviceSet, Hint, Intent, Priority};

/// What requests of one kind ask of their way. A copy is cheap: what is named is shared.
///
/// ```
/// use mooncake_tent::{Hint, Intent, Priority, Qos};
///
/// let saved = Qos::new()
///     .with_priority(Priority::Low)
///     .with_intent(Intent::Checkpoint)
///     .with_tenant("training")
///     .with_hint(Hint::soft("rdma"));
/// assert_eq!(saved.priority(), Priority::Low);
/// assert_eq!(saved.tenant(), Some("training"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Qos {
    priority: Option<Priority>,
    intent: Intent,
    /// Absent for the most part, so that a request without it allocates nothing.
    named: Option<Arc<Named>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Named {
    hint: Option<Hint>,
    devices: Option<DeviceSet>,
    policy: Option<Box<str>>,
    pool: Option<Box<str>>,
    tenant: Option<Box<str>>,
}

impl Qos {
    /// Nothing special.
    pub fn new() -> Self {
        Self::default()
    }

    /// How urgent it is. What does not say is as urgent as its tenant's contract lets it be.
    #[must_use]
    pub fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority);
        self
    }

    /// What it is for.
    #[must_use]
    pub fn with_intent(mut self, intent: Intent) -> Self {
        self.intent = intent;
        self
    }

    /// The link that should carry it.
    #[must_use]
    pub fn with_hint(mut self, hint: Hint) -> Self {
        self.named_mut().hint = Some(hint);
        self
    }

    /// The devices that may carry it. A link that cannot keep to them is not used.
    #[must_use]
    pub fn with_devices(mut self, devices: DeviceSet) -> Self {
        self.named_mut().devices = Some(devices);
        self
    }

    /// The policy that counts for it, whatever that policy's filters say.
    #[must_use]
    pub fn with_policy(mut self, name: impl Into<Box<str>>) -> Self {
        self.named_mut().policy = Some(name.into());
        self
    }

    /// The pool of connections that it goes through, where a link has pools.
    #[must_use]
    pub fn with_pool(mut self, name: impl Into<Box<str>>) -> Self {
        self.named_mut().pool = Some(name.into());
        self
    }

    /// Whose it is.
    #[must_use]
    pub fn with_tenant(mut self, name: impl Into<Box<str>>) -> Self {
        self.named_mut().tenant = Some(name.into());
        self
    }

    /// How urgent it is.
    pub fn priority(&self) -> Priority {
        self.priority.unwrap_or_default()
    }

    /// What it is for.
    pub fn intent(&self) -> Intent {
        self.intent
    }

    /// The link that should carry it.
    pub fn hint(&self) -> Option<&Hint> {
        self.named.as_ref()?.hint.as_ref()
    }

    /// The devices that may carry it.
    pub fn devices(&self) -> Option<&DeviceSet> {
        self.named.as_ref()?.devices.as_ref()
    }

    /// The policy that counts for it.
    pub fn policy(&self) -> Option<&str> {
        self.named.as_ref()?.policy.as_deref()
    }

    /// The pool of connections that it goes through.
    pub fn pool(&self) -> Option<&str> {
        self.named.as_ref()?.pool.as_deref()
    }

    /// Whose it is.
    pub fn tenant(&self) -> Option<&str> {
        self.named.as_ref()?.tenant.as_deref()
    }

    /// What the caller said of urgency.
    pub(crate) fn said_priority(&self) -> Option<Priority> {
        self.priority
    }

    /// It names nothing.
    pub(crate) fn is_nameless(&self) -> bool {
        self.named.is_none()
    }

    /// They ask for the same, as far as that is known without reading names.
    pub(crate) fn is_alike(&self, other: &Self) -> bool {
        let same = match (&self.named, &other.named) {
            (None, None) => true,
            (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            _ => false,
        };
        same && self.priority == other.priority && self.intent == other.intent
    }

    fn named_mut(&mut self) -> &mut Named {
        Arc::make_mut(self.named.get_or_insert_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_shared_until_one_of_two_names_more() {
        let one = Qos::new().with_tenant("a");
        let same = one.clone();
        assert!(one.is_alike(&same) && one == same);
        let more = same.with_pool("p");
        assert!(!one.is_alike(&more));
        assert_eq!((one.pool(), more.pool()), (None, Some("p")));
        assert_eq!(more.tenant(), Some("a"));
        assert_eq!(Qos::new().priority(), Priority::High);
    }
}
