//! The value type and its object.

use std::borrow::Cow;

use crate::number::{FloatStyle, Number};
use crate::write::{write_compact, write_spaced};

/// A JSON value whose strings may be borrowed from the text it was parsed from.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number
    Number(Number),
    /// A string
    String(Cow<'a, str>),
    /// An array
    Array(Vec<Value<'a>>),
    /// An object
    Object(Object<'a>),
}

impl<'a> Value<'a> {
    /// A string value.
    pub fn string(text: impl Into<Cow<'a, str>>) -> Self {
        Value::String(text.into())
    }

    /// The text of a string value.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The object, if it is one.
    pub fn as_object(&self) -> Option<&Object<'a>> {
        match self {
            Value::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The elements, if it is an array.
    pub fn as_array(&self) -> Option<&[Value<'a>]> {
        match self {
            Value::Array(items) => Some(items),
            _ => None,
        }
    }

    /// Whether this is `null`.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// The member `key` of an object.
    pub fn get(&self, key: &str) -> Option<&Value<'a>> {
        self.as_object().and_then(|object| object.get(key))
    }

    /// A short noun for error messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "a list",
            Value::Object(_) => "an object",
        }
    }

    /// Copies every borrowed string.
    pub fn into_owned(self) -> Value<'static> {
        match self {
            Value::Null => Value::Null,
            Value::Bool(value) => Value::Bool(value),
            Value::Number(value) => Value::Number(value),
            Value::String(text) => Value::String(Cow::Owned(text.into_owned())),
            Value::Array(items) => Value::Array(items.into_iter().map(Value::into_owned).collect()),
            Value::Object(object) => Value::Object(object.into_owned()),
        }
    }

    /// The value as JSON without blanks.
    pub fn to_compact(&self) -> String {
        let mut out = String::new();
        write_compact(&mut out, self);
        out
    }

    /// Appends the value with `, ` and `: ` separators, as it appears in prompts.
    pub fn write_spaced(&self, out: &mut String, style: FloatStyle) {
        write_spaced(out, self, style);
    }
}

/// An object that keeps the order of its members.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Object<'a> {
    entries: Vec<(Cow<'a, str>, Value<'a>)>,
}

impl<'a> Object<'a> {
    /// An empty object.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes members whose keys are already known to differ.
    pub fn from_unique(entries: Vec<(Cow<'a, str>, Value<'a>)>) -> Self {
        Object { entries }
    }

    /// Takes members in reading order: of equal keys the first position and the last value stay.
    pub fn from_entries(mut entries: Vec<(Cow<'a, str>, Value<'a>)>) -> Self {
        if has_duplicates(&entries) {
            let mut positions = std::collections::HashMap::with_capacity(entries.len());
            let mut unique: Vec<(Cow<'a, str>, Value<'a>)> = Vec::with_capacity(entries.len());
            for (key, value) in entries.drain(..) {
                match positions.get(&key) {
                    Some(&index) => {
                        let slot: &mut (Cow<'a, str>, Value<'a>) = &mut unique[index];
                        slot.1 = value;
                    }
                    None => {
                        positions.insert(key.clone(), unique.len());
                        unique.push((key, value));
                    }
                }
            }
            entries = unique;
        }
        Object { entries }
    }

    /// The member `key`.
    pub fn get(&self, key: &str) -> Option<&Value<'a>> {
        self.entries
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value)
    }

    /// Replaces or appends a member.
    pub fn insert(&mut self, key: impl Into<Cow<'a, str>>, value: Value<'a>) {
        let key = key.into();
        match self.entries.iter_mut().find(|(name, _)| *name == key) {
            Some(slot) => slot.1 = value,
            None => self.entries.push((key, value)),
        }
    }

    /// Members in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value<'a>)> {
        self.entries
            .iter()
            .map(|(key, value)| (key.as_ref(), value))
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Copies every borrowed string.
    pub fn into_owned(self) -> Object<'static> {
        Object {
            entries: self
                .entries
                .into_iter()
                .map(|(key, value)| (Cow::Owned(key.into_owned()), value.into_owned()))
                .collect(),
        }
    }
}

impl<'a> IntoIterator for Object<'a> {
    type Item = (Cow<'a, str>, Value<'a>);
    type IntoIter = std::vec::IntoIter<(Cow<'a, str>, Value<'a>)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

/// Small objects compare pairwise; large ones hash, so that a hostile body costs linear time.
fn has_duplicates(entries: &[(Cow<'_, str>, Value<'_>)]) -> bool {
    if entries.len() <= 16 {
        return entries
            .iter()
            .enumerate()
            .any(|(index, (key, _))| entries[..index].iter().any(|(earlier, _)| earlier == key));
    }
    let mut seen = std::collections::HashSet::with_capacity(entries.len());
    entries.iter().any(|(key, _)| !seen.insert(key.as_ref()))
}
