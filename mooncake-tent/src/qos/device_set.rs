//! Which devices may carry a request.

use std::{fmt, sync::Arc};

/// Devices by name. What is not in the set is not used, so an empty one permits nothing. Names serve
/// every link alike, whatever each link counts its devices by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceSet {
    /// In order, each once.
    names: Arc<[Box<str>]>,
}

impl DeviceSet {
    /// The devices of these names.
    ///
    /// ```
    /// use mooncake_tent::DeviceSet;
    ///
    /// let devices = DeviceSet::new(["mlx5_1", "mlx5_0", "mlx5_1"]);
    /// assert!(devices.contains("mlx5_0") && !devices.contains("mlx5_2"));
    /// assert_eq!(devices.len(), 2);
    /// ```
    pub fn new<S: Into<Box<str>>>(names: impl IntoIterator<Item = S>) -> Self {
        let mut names: Vec<Box<str>> = names.into_iter().map(Into::into).collect();
        names.sort_unstable();
        names.dedup();
        Self {
            names: names.into(),
        }
    }

    /// Whether the device may be used.
    pub fn contains(&self, name: &str) -> bool {
        let found = self.names.binary_search_by(|known| (**known).cmp(name));
        found.is_ok()
    }

    /// Their names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// There is none, so nothing is permitted.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

impl fmt::Display for DeviceSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("no device");
        }
        f.write_str(&self.names.join(", "))
    }
}
