//! JSON forms for types of the core and the store: times, closed sets, ordered members. Serialisation and schema are defined together, so
//! that the API description cannot differ.

use seawall_core::guard;
use seawall_core::policy::{Algorithm, Door, Mode, Severity};
use seawall_core::record::{Class, Decision, Reason};
use seawall_core::time::{Nanos, Wall};
use seawall_store::{dead, job, replay, schedule};
use serde::de::Error as _;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use utoipa::openapi::{KnownFormat, ObjectBuilder, RefOr, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

/// A time in RFC 3339 format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time(pub Wall);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        Wall::parse(&text).map(Self).ok_or_else(|| D::Error::custom("a time is like 2030-01-31T12:00:00Z"))
    }
}

impl PartialSchema for Time {
    fn schema() -> RefOr<Schema> {
        text().format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime))).examples(["2030-01-31T12:00:00.000Z"]).into()
    }
}

impl ToSchema for Time {}

/// Milliseconds for people and log lines, with at most three decimals.
#[expect(clippy::cast_precision_loss, reason = "numbers for people")]
pub(crate) fn ms(length: Nanos) -> f64 {
    (length.0 / 1000) as f64 / 1000.0
}

/// Wraps a closed set: serialised by its `as_str`, described by its `ALL`.
macro_rules! words {
    ($($(#[$meta:meta])* $name:ident($type:ty)),+ $(,)?) => { $(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct $name(pub $type);

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.0.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Cow::<str>::deserialize(deserializer)?;
                let known = <$type>::ALL.iter().find(|word| word.as_str() == text).cloned();
                known.map(Self).ok_or_else(|| {
                    let all: Vec<&str> = <$type>::ALL.iter().map(|word| word.as_str()).collect();
                    D::Error::custom(format_args!("`{text}` is not one of {}", all.join(", ")))
                })
            }
        }

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                text().enum_values(Some(<$type>::ALL.iter().map(|word| word.as_str()))).into()
            }
        }

        impl ToSchema for $name {}
    )+ };
}

words! {
    ClassWord(Class),
    ReasonWord(Reason),
    DecisionWord(Decision),
    BreakerState(guard::State),
    ForcedWord(guard::Forced),
    AlgorithmWord(Algorithm),
    ModeWord(Mode),
    DoorWord(Door),
    SeverityWord(Severity),
    JobState(job::JobState),
    LetterStatus(dead::LetterStatus),
    ReplayState(replay::ReplayState),
    SourceWord(schedule::SubjectSource),
}

/// An object whose member names are data; keeps their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Members<T>(pub Vec<(String, T)>);

impl<T> FromIterator<(String, T)> for Members<T> {
    fn from_iter<I: IntoIterator<Item = (String, T)>>(members: I) -> Self {
        Self(members.into_iter().collect())
    }
}

impl<T: Serialize> Serialize for Members<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}
