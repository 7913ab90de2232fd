//! Which devices suit which memory, as people write it.

use std::collections::BTreeMap;

#[cfg(feature = "json")]
use super::TopologyError;

/// For each location of memory the devices that are preferred, and those that are available besides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriorityMatrix {
    rows: BTreeMap<String, Row>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    preferred: Vec<String>,
    available: Vec<String>,
}

impl PriorityMatrix {
    /// Rows of location, preferred and available devices; each location once.
    pub(super) fn from_rows(
        rows: impl IntoIterator<Item = (String, Vec<String>, Vec<String>)>,
    ) -> Self {
        let rows = rows.into_iter().map(|(location, preferred, available)| {
            let row = Row {
                preferred,
                available,
            };
            (location, row)
        });
        Self {
            rows: rows.collect(),
        }
    }

    /// A matrix from its JSON form.
    ///
    /// ```
    /// use mooncake_tent::platform::PriorityMatrix;
    ///
    /// let text = r#"{"cpu:0": [["mlx5_0"], ["mlx5_1"]], "cpu:1": [["mlx5_1"], ["mlx5_0"]]}"#;
    /// let matrix = PriorityMatrix::from_json(text)?;
    /// let (preferred, available) = matrix.get("cpu:1").unwrap();
    /// assert_eq!((preferred, available), (&["mlx5_1".to_owned()][..], &["mlx5_0".to_owned()][..]));
    /// # Ok::<_, mooncake_tent::platform::TopologyError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The text is not of this form, or a location or one of its devices is there twice.
    #[cfg(feature = "json")]
    pub fn from_json(text: &str) -> Result<Self, TopologyError> {
        super::json::matrix(text)
    }

    /// The JSON form: an object with two lists for each location.
    #[cfg(feature = "json")]
    pub fn to_json(&self) -> String {
        super::json::matrix_text(self)
    }

    /// Location, preferred and available devices of each row, in the order of locations.
    pub fn rows(&self) -> impl Iterator<Item = (&str, &[String], &[String])> {
        let rows = self.rows.iter();
        rows.map(|(location, row)| (&**location, &*row.preferred, &*row.available))
    }

    /// The preferred and the available devices for memory at `location`.
    pub fn get(&self, location: &str) -> Option<(&[String], &[String])> {
        let row = self.rows.get(location)?;
        Some((&row.preferred, &row.available))
    }
}
