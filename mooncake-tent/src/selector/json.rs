//! Policies as JSON, in the form that configurations of the engine in C++ have.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{
        self, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer,
        value::SeqAccessDeserializer,
    },
};
use serde_json::{Map, Value};

use super::{Order, Policy, SegmentKind};
use crate::{
    json::{Given, Object},
    qos::{DeviceSet, Intent, Priority},
};

/// All fields, once: each is read strictly and written only if it is there.
macro_rules! form {
    ($($field:ident: $kind:ty,)*) => {
        #[derive(Default, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        struct Form {
            $($field: Given<$kind>,)*
        }

        impl From<Form> for Policy {
            fn from(form: Form) -> Self {
                Self { $($field: form.$field.0,)* }
            }
        }

        impl Serialize for Policy {
            fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
                let mut fields = Map::new();
                $(if let Some(value) = &self.$field {
                    let value = serde_json::to_value(value).map_err(serde::ser::Error::custom)?;
                    fields.insert(stringify!($field).to_owned(), value);
                })*
                Value::Object(fields).serialize(into)
            }
        }
    };
}

form! {
    name: String,
    segment_type: SegmentKind,
    same_machine: bool,
    local_memory: String,
    remote_memory: String,
    min_size: u64,
    max_size: u64,
    priority: Priority,
    intent_type: Intent,
    tenant: String,

    devices: DeviceSet,
    transports: Vec<String>,
    order: Order,
    qp_pool: String,
    service_level: u8,
    traffic_class: u8,
}

/// An object whose field `policy` is the list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    policy: Vec<Object<Form>>,
}

/// The list itself, or the section with it.
struct Document(Vec<Object<Form>>);

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Either)
    }
}

struct Either;

impl<'de> Visitor<'de> for Either {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of policies, or an object with the field `policy`")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Document, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(Document)
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<Document, A::Error> {
        let section = Section::deserialize(MapAccessDeserializer::new(object))?;
        Ok(Document(section.policy))
    }
}

pub(super) fn decode(text: &str) -> serde_json::Result<Vec<Policy>> {
    let Document(list) = serde_json::from_str(text)?;
    Ok(list.into_iter().map(|Object(form)| form.into()).collect())
}

pub(super) fn encode(list: &[Policy]) -> String {
    serde_json::to_string_pretty(list).expect("text, numbers and lists of them have a JSON form")
}

/// A word, read by `FromStr`.
struct Word<T>(PhantomData<T>);

impl<T: std::str::FromStr<Err = String>> Visitor<'_> for Word<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a word")
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<T, E> {
        word.parse().map_err(E::custom)
    }
}

/// Reads and writes types that have a name as that name.
macro_rules! by_name {
    ($($kind:ty)*) => {$(
        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_str(Word(PhantomData))
            }
        }

        impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
                into.serialize_str(self.name())
            }
        }
    )*};
}

by_name! { Intent Order SegmentKind }

impl Serialize for Priority {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        into.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Priority {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(NameOrLevel)
    }
}

struct NameOrLevel;

impl Visitor<'_> for NameOrLevel {
    type Value = Priority;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("high, medium or low, or 0, 1 or 2")
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<Priority, E> {
        word.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, level: u64) -> Result<Priority, E> {
        let unknown = || E::invalid_value(de::Unexpected::Unsigned(level), &self);
        Priority::from_level(level).ok_or_else(unknown)
    }
}

impl Serialize for DeviceSet {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        into.collect_seq(self.names())
    }
}

impl<'de> Deserialize<'de> for DeviceSet {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Vec::<String>::deserialize(from).map(Self::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selector::Policies;

    #[test]
    fn a_policy_has_the_fields_that_configurations_have() {
        let text = r#"{"policy": [
            {"name": "intra", "segment_type": "memory", "same_machine": true, "local_memory": "cpu",
             "remote_memory": "*", "min_size": 1, "max_size": 1048576, "priority": 2,
             "intent_type": "FOREGROUND_GET", "tenant": "a", "devices": ["mlx5_1", "mlx5_0"],
             "transports": ["shm", "tcp"], "order": "cost", "qp_pool": "p", "service_level": 3,
             "traffic_class": 96},
            {"segment_type": "file", "priority": "high", "transports": ["gds", "io_uring"]}
        ]}"#;
        let policies = Policies::from_json(text).unwrap();
        let [first, second]: [Policy; 2] = policies
            .iter()
            .cloned()
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        let expected = Policy {
            name: Some("intra".to_owned()),
            segment_type: Some(SegmentKind::Memory),
            same_machine: Some(true),
            local_memory: Some("cpu".to_owned()),
            remote_memory: Some("*".to_owned()),
            min_size: Some(1),
            max_size: Some(1 << 20),
            priority: Some(Priority::Low),
            intent_type: Some(Intent::ForegroundGet),
            tenant: Some("a".to_owned()),
            devices: Some(DeviceSet::new(["mlx5_0", "mlx5_1"])),
            transports: Some(vec!["shm".to_owned(), "tcp".to_owned()]),
            order: Some(Order::Cost),
            qp_pool: Some("p".to_owned()),
            service_level: Some(3),
            traffic_class: Some(96),
        };
        assert_eq!(first, expected);
        assert_eq!(second.priority, Some(Priority::High));
        assert_eq!(Policies::from_json(&policies.to_json()), Ok(policies));
    }

    #[test]
    fn law_16_what_is_unknown_or_cannot_be_is_an_error_that_names_it() {
        for (text, says) in [
            (r#"[{"transport": ["tcp"]}]"#, "unknown field `transport`"),
            (r#"{"policies": []}"#, "unknown field `policies`"),
            (
                r#"[{"intent_type": "FOREGROUND"}]"#,
                "\"FOREGROUND\" is no intent",
            ),
            (r#"[{"priority": "urgent"}]"#, "\"urgent\" is no priority"),
            (r#"[{"priority": 3}]"#, "expected high, medium or low"),
            (r#"[{"devices": null}]"#, "expected a sequence"),
            (r#"[{"min_size": -1}]"#, "expected u64"),
            (r#"[{"traffic_class": 256}]"#, "expected u8"),
            (r#"[{"name": "a", "name": "b"}]"#, "duplicate field `name`"),
            (
                r#"[{"segment_type": "disk"}]"#,
                "\"disk\" is no kind of segment",
            ),
            (r#"[] []"#, "trailing characters"),
            (r#"[["a"]]"#, "invalid type: sequence, expected an object"),
            ("7", "a list of policies"),
            ("", "EOF"),
        ] {
            let error = Policies::from_json(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
            assert!(error.contains("line 1"), "{text}: {error}");
        }
        let error = Policies::from_json(r#"[{}, {"transports": []}]"#).unwrap_err();
        assert!(
            error.to_string().starts_with("policy 2: transports "),
            "{error}"
        );
    }
}
