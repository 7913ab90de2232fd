//! Descriptions of machines in JSON, in the two forms that people have: that of the engine in C++,
//! with `nics` and `mems`, and the matrix of earlier ones, with two lists for each location.

use std::{collections::BTreeMap, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor},
};
use serde_json::{Map, Value, json};

use super::{MemoryPlace, MemoryPlaceKind, Nic, NicKind, PriorityMatrix, Topology, TopologyError};
use crate::json::{Given, Object};

impl Topology {
    /// A description of a machine that somebody wrote. It says nothing of nodes; of devices, the form
    /// with `nics` and `mems` says more than that of a matrix, which only has their names.
    ///
    /// ```
    /// use mooncake_tent::platform::Topology;
    ///
    /// let matrix = r#"{"cpu:0": [["mlx5_1"], ["mlx5_0"]]}"#;
    /// let topology = Topology::from_json(matrix)?;
    /// assert_eq!(topology.nics[0].name, "mlx5_1");
    ///
    /// let listed = r#"{
    ///     "nics": [{"name": "mlx5_0", "type": 0, "pci_bus_id": "0000:81:00.0", "numa_node": 1}],
    ///     "mems": [{"name": "cpu:1", "type": "host", "device_list": {"rank0": [0]}}]
    /// }"#;
    /// assert_eq!(Topology::from_json(listed)?.tiers("cpu:1").unwrap()[0], [0]);
    /// # Ok::<_, mooncake_tent::platform::TopologyError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The text is of neither form, has a field that is unknown, names something twice or ranks a
    /// device that there is not.
    pub fn from_json(text: &str) -> Result<Self, TopologyError> {
        let Document(topology) = serde_json::from_str(text).map_err(said)?;
        topology.check()?;
        Ok(topology)
    }

    /// The form with `nics` and `mems`, which leaves out what only this machine knows.
    pub fn to_json(&self) -> String {
        let nics: Vec<_> = self.nics.iter().map(nic_value).collect();
        let mems: Vec<_> = self.memories.iter().map(memory_value).collect();
        pretty(&json!({"nics": nics, "mems": mems}))
    }
}

pub(super) fn matrix(text: &str) -> Result<PriorityMatrix, TopologyError> {
    let Matrix(topology) = serde_json::from_str(text).map_err(said)?;
    topology.check()?;
    Ok(topology.priority_matrix())
}

pub(super) fn matrix_text(matrix: &PriorityMatrix) -> String {
    let rows = matrix.rows().map(|(location, preferred, available)| {
        (location.to_owned(), json!([preferred, available]))
    });
    pretty(&Value::Object(rows.collect::<Map<_, _>>()))
}

fn said(error: serde_json::Error) -> TopologyError {
    TopologyError::Json(error.to_string())
}

fn pretty(value: &Value) -> String {
    format!("{value:#}")
}

/// Either form.
struct Document(Topology);

/// The matrix alone.
struct Matrix(Topology);

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Form { listed: true }).map(Self)
    }
}

impl<'de> Deserialize<'de> for Matrix {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Form { listed: false }).map(Self)
    }
}

struct Form {
    /// `nics` and `mems` are what they are, not locations.
    listed: bool,
}

impl<'de> Visitor<'de> for Form {
    type Value = Topology;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with two lists of devices for each location")?;
        if self.listed {
            f.write_str(", or with `nics` and `mems`")?;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Topology, A::Error> {
        let mut nics: Option<Vec<Object<NicForm>>> = None;
        let mut mems: Option<Vec<Object<MemoryForm>>> = None;
        let mut matrix = MatrixForm::default();
        while let Some(field) = object.next_key::<String>()? {
            match field.as_str() {
                "nics" if self.listed && nics.is_none() => nics = Some(object.next_value()?),
                "mems" if self.listed && mems.is_none() => mems = Some(object.next_value()?),
                _ if nics.is_some() || mems.is_some() => {
                    return Err(de::Error::unknown_field(&field, &["nics", "mems"]));
                }
                _ => matrix.row(field, object.next_value()?),
            }
        }
        match (nics, mems) {
            (None, None) => Ok(matrix.topology),
            (Some(_), Some(_)) if !matrix.topology.memories.is_empty() => {
                let field = &matrix.topology.memories[0].location;
                Err(de::Error::unknown_field(field, &["nics", "mems"]))
            }
            (Some(nics), Some(mems)) => Ok(Topology {
                nodes: Vec::new(),
                nics: nics.into_iter().map(|Object(nic)| nic.into()).collect(),
                memories: mems.into_iter().map(|Object(place)| place.into()).collect(),
            }),
            (None, _) => Err(de::Error::missing_field("nics")),
            (_, None) => Err(de::Error::missing_field("mems")),
        }
    }
}

/// A matrix as it is read.
#[derive(Default)]
struct MatrixForm {
    topology: Topology,
    /// Each device's place.
    places: BTreeMap<String, usize>,
}

impl MatrixForm {
    fn row(&mut self, location: String, lists: [Vec<String>; 2]) {
        let [preferred, available] = lists.map(|names| {
            let places = names.into_iter().map(|name| self.place(name));
            places.collect()
        });
        let tiers = [preferred, Vec::new(), available];
        self.topology
            .memories
            .push(MemoryPlace::named(&location, tiers));
    }

    /// Devices count from the first one that is named.
    fn place(&mut self, name: String) -> usize {
        let nics = &mut self.topology.nics;
        *self.places.entry(name).or_insert_with_key(|name| {
            nics.push(Nic::new(name.clone(), NicKind::Unknown));
            nics.len() - 1
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NicForm {
    name: String,
    #[serde(default)]
    pci_bus_id: Given<String>,
    #[serde(rename = "type")]
    kind: Coded<NicKind>,
    #[serde(default)]
    numa_node: Given<i32>,
    #[serde(default)]
    device_attrs: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MemoryForm {
    name: String,
    #[serde(default)]
    pci_bus_id: Given<String>,
    #[serde(rename = "type")]
    kind: Coded<MemoryPlaceKind>,
    #[serde(default)]
    numa_node: Given<i32>,
    device_list: Object<Ranks>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ranks {
    #[serde(default)]
    rank0: Vec<usize>,
    #[serde(default)]
    rank1: Vec<usize>,
    #[serde(default)]
    rank2: Vec<usize>,
}

impl From<NicForm> for Nic {
    fn from(form: NicForm) -> Self {
        Self {
            pci_bus_id: form.pci_bus_id.0.filter(|id| !id.is_empty()),
            numa_node: node(form.numa_node),
            attributes: form.device_attrs,
            ..Self::new(form.name, form.kind.0)
        }
    }
}

impl From<MemoryForm> for MemoryPlace {
    fn from(form: MemoryForm) -> Self {
        let Object(Ranks {
            rank0,
            rank1,
            rank2,
        }) = form.device_list;
        Self {
            kind: form.kind.0,
            pci_bus_id: form.pci_bus_id.0.filter(|id| !id.is_empty()),
            numa_node: node(form.numa_node),
            ..Self::named(&form.name, [rank0, rank1, rank2])
        }
    }
}

/// -1: that is not known.
fn node(form: Given<i32>) -> Option<u32> {
    form.0.and_then(|node| u32::try_from(node).ok())
}

fn nic_value(nic: &Nic) -> Value {
    let mut value = json!({
        "name": nic.name,
        "pci_bus_id": nic.pci_bus_id.as_deref().unwrap_or_default(),
        "type": NicKind::CODES.iter().position(|kind| *kind == nic.kind),
        "numa_node": nic.numa_node.map_or(-1, i64::from),
    });
    if !nic.attributes.is_empty() {
        value["device_attrs"] = json!(nic.attributes);
    }
    value
}

fn memory_value(place: &MemoryPlace) -> Value {
    let [rank0, rank1, rank2] = &place.tiers;
    json!({
        "name": place.location,
        "pci_bus_id": place.pci_bus_id.as_deref().unwrap_or_default(),
        "type": MemoryPlaceKind::CODES.iter().position(|kind| *kind == place.kind),
        "numa_node": place.numa_node.map_or(-1, i64::from),
        "device_list": {"rank0": rank0, "rank1": rank1, "rank2": rank2},
    })
}

/// What has a number and a name.
trait Code: Copy + Sized + 'static {
    /// All of them, each at the place of its number.
    const CODES: &'static [Self];

    fn name(self) -> &'static str;
}

impl Code for NicKind {
    const CODES: &'static [Self] = &[Self::Rdma, Self::Tcp, Self::Unknown, Self::Ub];

    fn name(self) -> &'static str {
        self.name()
    }
}

impl Code for MemoryPlaceKind {
    const CODES: &'static [Self] = &Self::ALL;

    fn name(self) -> &'static str {
        self.name()
    }
}

/// Something that is written as its number or its name.
struct Coded<T>(T);

impl<'de, T: Code> Deserialize<'de> for Coded<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(NumberOrName(PhantomData)).map(Self)
    }
}

struct NumberOrName<T>(PhantomData<T>);

impl<T: Code> Visitor<'_> for NumberOrName<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, code) in T::CODES.iter().enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            write!(f, "{comma}{number} or {}", code.name())?;
        }
        Ok(())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        let code = usize::try_from(number)
            .ok()
            .and_then(|place| T::CODES.get(place));
        code.copied()
            .ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(number), &self))
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<T, E> {
        let code = T::CODES.iter().find(|code| code.name() == name);
        code.copied()
            .ok_or_else(|| E::invalid_value(de::Unexpected::Str(name), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = r#"{
        "nics": [
            {"name": "mlx5_0", "pci_bus_id": "0000:81:00.0", "type": 0, "numa_node": 1},
            {"name": "eth0", "pci_bus_id": "", "type": "tcp", "numa_node": -1,
             "device_attrs": {"ub.eid": "0"}}
        ],
        "mems": [
            {"name": "cuda:0", "pci_bus_id": "0000:3b:00.0", "type": 1, "numa_node": 0,
             "device_list": {"rank0": [], "rank1": [0], "rank2": [1]}},
            {"name": "*", "type": "unknown", "device_list": {}}
        ]
    }"#;

    #[test]
    fn a_list_of_devices_and_memories_is_read_and_written() {
        let topology = Topology::from_json(LISTED).unwrap();
        let [rdma, tcp] = &topology.nics[..] else {
            panic!("two devices")
        };
        assert_eq!((rdma.kind, rdma.numa_node), (NicKind::Rdma, Some(1)));
        assert_eq!((&tcp.pci_bus_id, tcp.numa_node), (&None, None));
        assert_eq!(tcp.attributes["ub.eid"], "0");
        let cuda = &topology.memories[0];
        assert_eq!(
            (cuda.kind, cuda.numa_node),
            (MemoryPlaceKind::Cuda, Some(0))
        );
        assert_eq!(topology.tiers("cuda:0"), Some(&[vec![], vec![0], vec![1]]));
        assert_eq!(Topology::from_json(&topology.to_json()), Ok(topology));
    }

    #[test]
    fn a_matrix_is_read_and_written_and_laid_over_a_machine() {
        let text = r#"{"cpu:0": [["mlx5_1"], ["mlx5_0"]], "*": [["mlx5_0", "mlx5_1"], []]}"#;
        let matrix = PriorityMatrix::from_json(text).unwrap();
        assert_eq!(
            PriorityMatrix::from_json(&matrix.to_json()),
            Ok(matrix.clone())
        );
        let alone = Topology::from_json(text).unwrap();
        assert_eq!(
            alone.nics[0].name, "mlx5_1",
            "in the order in which they are named"
        );
        assert_eq!(alone.priority_matrix(), matrix);

        let listed = r#"{"nics": [{"name": "mlx5_0", "type": 0}, {"name": "mlx5_1", "type": 0}],
            "mems": [{"name": "cpu:0", "type": 0, "device_list": {"rank0": [0], "rank2": [1]}}]}"#;
        let topology = Topology::from_json(listed).unwrap();
        let topology = topology.with_priority_matrix(&matrix).unwrap();
        assert_eq!(topology.tiers("cpu:0"), Some(&[vec![1], vec![], vec![0]]));
        assert_eq!(topology.tiers("cpu:7"), Some(&[vec![0, 1], vec![], vec![]]));

        let strange = PriorityMatrix::from_json(r#"{"cpu:0": [["mlx5_7"], []]}"#).unwrap();
        let error = topology.with_priority_matrix(&strange).unwrap_err();
        assert_eq!(error.to_string(), "cpu:0: there is no device mlx5_7");
    }

    #[test]
    fn law_16_what_is_unknown_or_cannot_be_is_an_error_that_names_it() {
        for (text, says) in [
            (r#"{"nics": []}"#, "missing field `mems`"),
            (
                r#"{"nics": [], "mems": [], "gpus": []}"#,
                "unknown field `gpus`",
            ),
            (
                r#"{"cpu:0": [[], []], "nics": [], "mems": []}"#,
                "unknown field `cpu:0`",
            ),
            (
                r#"{"nics": [{"name": "a", "type": 0, "numa": 1}], "mems": []}"#,
                "unknown field `numa`",
            ),
            (
                r#"{"nics": [{"name": "a", "type": 4}], "mems": []}"#,
                "0 or rdma, 1 or tcp",
            ),
            (
                r#"{"nics": [{"name": "a"}], "mems": []}"#,
                "missing field `type`",
            ),
            (
                r#"{"nics": [{"name": "a", "type": 0, "numa_node": null}], "mems": []}"#,
                "expected i32",
            ),
            (
                r#"{"nics": [{"name": "a", "type": 0}, {"name": "a", "type": 0}], "mems": []}"#,
                "device \"a\" is there twice",
            ),
            (
                r#"{"nics": [], "mems": [{"name": "m", "type": 0, "device_list": {"rank0": [0]}}]}"#,
                "m: there is no device number 0",
            ),
            (
                r#"{"cpu:0": [["a"], ["a"]]}"#,
                "cpu:0: device a is there twice",
            ),
            (
                r#"{"cpu:0": [["a"], []], "cpu:0": [["a"], []]}"#,
                "memory \"cpu:0\" is there twice",
            ),
            (r#"{"cpu:0": [["a"]]}"#, "expected an array of length 2"),
            (r#"{"cpu:0": [["a"], ["b"], ["c"]]}"#, "trailing characters"),
            (r#"{"nics": [["a", 0]], "mems": []}"#, "expected an object"),
            ("[]", "an object with two lists"),
            ("", "EOF"),
        ] {
            let error = Topology::from_json(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
        let error = PriorityMatrix::from_json(LISTED).unwrap_err();
        assert!(
            error.to_string().contains("invalid"),
            "a matrix is no list: {error}"
        );
    }
}
