//! Reading typed members out of JSON values.

use std::borrow::Cow;
use std::sync::Arc;

use recipe_json::{Number, Object, Value};

use crate::error::ShapeError;

pub(crate) type Shape<T> = Result<T, ShapeError>;

pub(crate) fn wrong<T>(key: &str, expected: &str, value: &Value<'_>) -> Shape<T> {
    Err(ShapeError::new(format!(
        "`{key}` must be {expected}, not {}",
        value.kind()
    )))
}

pub(crate) fn missing<T>(key: &str) -> Shape<T> {
    Err(ShapeError::new(format!("missing field `{key}`")))
}

pub(crate) fn unknown<T>(key: &str, value: &str, allowed: &[&str]) -> Shape<T> {
    let allowed: Vec<String> = allowed.iter().map(|word| format!("`{word}`")).collect();
    Err(ShapeError::new(format!(
        "`{key}` is `{value}`, expected one of {}",
        allowed.join(", ")
    )))
}

/// `None` for `null`.
pub(crate) fn optional<'a, T>(
    key: &str,
    value: Value<'a>,
    read: impl FnOnce(&str, Value<'a>) -> Shape<T>,
) -> Shape<Option<T>> {
    match value {
        Value::Null => Ok(None),
        value => read(key, value).map(Some),
    }
}

pub(crate) fn boolean(key: &str, value: Value<'_>) -> Shape<bool> {
    match value {
        Value::Bool(value) => Ok(value),
        value => wrong(key, "a boolean", &value),
    }
}

pub(crate) fn string(key: &str, value: Value<'_>) -> Shape<String> {
    match value {
        Value::String(text) => Ok(text.into_owned()),
        value => wrong(key, "a string", &value),
    }
}

pub(crate) fn text<'a>(key: &str, value: Value<'a>) -> Shape<Cow<'a, str>> {
    match value {
        Value::String(text) => Ok(text),
        value => wrong(key, "a string", &value),
    }
}

/// Single precision, as in the original.
pub(crate) fn float(key: &str, value: Value<'_>) -> Shape<f32> {
    match value {
        Value::Number(number) => Ok(number.as_f64() as f32),
        value => wrong(key, "a number", &value),
    }
}

pub(crate) fn unsigned(key: &str, value: Value<'_>, largest: u64) -> Shape<u64> {
    match value {
        Value::Number(Number::Unsigned(number)) if number <= largest => Ok(number),
        value => wrong(key, &format!("an integer from 0 to {largest}"), &value),
    }
}

pub(crate) fn u32_value(key: &str, value: Value<'_>) -> Shape<u32> {
    unsigned(key, value, u64::from(u32::MAX)).map(|number| number as u32)
}

pub(crate) fn u8_value(key: &str, value: Value<'_>) -> Shape<u8> {
    unsigned(key, value, u64::from(u8::MAX)).map(|number| number as u8)
}

pub(crate) fn u64_value(key: &str, value: Value<'_>) -> Shape<u64> {
    unsigned(key, value, u64::MAX)
}

pub(crate) fn object<'a>(key: &str, value: Value<'a>) -> Shape<Object<'a>> {
    match value {
        Value::Object(object) => Ok(object),
        value => wrong(key, "an object", &value),
    }
}

pub(crate) fn list<'a>(key: &str, value: Value<'a>) -> Shape<Vec<Value<'a>>> {
    match value {
        Value::Array(items) => Ok(items),
        value => wrong(key, "a list", &value),
    }
}

pub(crate) fn list_of<'a, T>(
    key: &str,
    value: Value<'a>,
    mut read: impl FnMut(Value<'a>) -> Shape<T>,
) -> Shape<Vec<T>> {
    let items = list(key, value)?;
    let mut result = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        result.push(read(item).map_err(|error| at(error, key, index))?);
    }
    Ok(result)
}

/// Says in which element of a list an error was found.
pub(crate) fn at(error: ShapeError, key: &str, index: usize) -> ShapeError {
    ShapeError::new(format!("{}, in `{key}[{index}]`", error.detail))
}

pub(crate) fn strings(key: &str, value: Value<'_>) -> Shape<Vec<String>> {
    list_of(key, value, |item| string(key, item))
}

pub(crate) fn any(_: &str, value: Value<'_>) -> Shape<Arc<Value<'static>>> {
    Ok(Arc::new(value.into_owned()))
}

/// The value of a required member.
pub(crate) fn required<T>(key: &str, value: Option<T>) -> Shape<T> {
    match value {
        Some(value) => Ok(value),
        None => missing(key),
    }
}

/// Takes the member that names the variant of a tagged object, and the other members.
pub(crate) fn tagged<'a>(what: &str, value: Value<'a>) -> Shape<(Cow<'a, str>, Members<'a>)> {
    let members = Members::new(object(what, value)?);
    let mut members = members;
    let tag = text("type", required("type", members.take("type"))?)?;
    Ok((tag, members))
}

/// An object whose members are taken out by name; null counts as a value here.
pub(crate) struct Members<'a> {
    entries: Vec<(Cow<'a, str>, Value<'a>)>,
}

impl<'a> Members<'a> {
    pub fn new(object: Object<'a>) -> Self {
        Members {
            entries: object.into_iter().collect(),
        }
    }

    pub fn take(&mut self, key: &str) -> Option<Value<'a>> {
        let index = self.entries.iter().position(|(name, _)| name == key)?;
        Some(self.entries.swap_remove(index).1)
    }

    /// A member that may be absent or null.
    pub fn optional<T>(
        &mut self,
        key: &str,
        read: impl FnOnce(&str, Value<'a>) -> Shape<T>,
    ) -> Shape<Option<T>> {
        match self.take(key) {
            None => Ok(None),
            Some(value) => optional(key, value, read),
        }
    }

    pub fn required<T>(
        &mut self,
        key: &str,
        read: impl FnOnce(&str, Value<'a>) -> Shape<T>,
    ) -> Shape<T> {
        match self.take(key) {
            None => missing(key),
            Some(value) => read(key, value),
        }
    }

    pub fn required_string(&mut self, key: &str) -> Shape<String> {
        self.required(key, string)
    }
}
