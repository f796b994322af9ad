//! JSON values from and to Python.

use std::borrow::Cow;

use pyo3::exceptions::{PyRecursionError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use recipe::json::{self, Number, Object, Value};

use crate::errors::integer_range_error;
use crate::maybe_detached;

/// Deepest nesting of Python values; one more than in text, as in the original.
const MAX_DEPTH: usize = 128;

/// Member names that occur in every request, so that they need no allocation.
const KNOWN_KEYS: [&str; 24] = [
    "role",
    "content",
    "type",
    "text",
    "name",
    "description",
    "parameters",
    "properties",
    "function",
    "tools",
    "required",
    "items",
    "enum",
    "messages",
    "model",
    "stream",
    "tool_calls",
    "tool_call_id",
    "arguments",
    "id",
    "input",
    "input_schema",
    "url",
    "image_url",
];

/// A request body, and about how many bytes it has.
pub fn parse_body<T: Send>(
    body: &Bound<'_, PyAny>,
    read: impl FnOnce(Value<'_>) -> Result<T, recipe::protocol::ShapeError> + Send,
) -> PyResult<(T, usize)> {
    let py = body.py();
    let from_text =
        |parsed: Result<Result<T, recipe::protocol::ShapeError>, json::ParseError>| match parsed {
            Ok(Ok(request)) => Ok(request),
            Ok(Err(error)) => Err(PyValueError::new_err(error.to_string())),
            Err(error) => Err(PyValueError::new_err(format!(
                "invalid JSON request: {error}"
            ))),
        };
    if let Ok(bytes) = body.cast::<PyBytes>() {
        let bytes = bytes.as_bytes();
        let parsed = maybe_detached(py, bytes.len(), || json::parse_bytes(bytes).map(read));
        return Ok((from_text(parsed)?, bytes.len()));
    }
    if let Ok(text) = body.cast::<PyString>() {
        let text = text.to_str()?;
        let parsed = maybe_detached(py, text.len(), || json::parse(text).map(read));
        return Ok((from_text(parsed)?, text.len()));
    }
    let mut size = 0;
    let value = from_python(body, 0, &mut size)?;
    let request = maybe_detached(py, size, || read(value))
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok((request, size))
}

/// A JSON value from a Python object.
pub fn value_from_python(object: &Bound<'_, PyAny>) -> PyResult<Value<'static>> {
    from_python(object, 0, &mut 0)
}

fn from_python(
    object: &Bound<'_, PyAny>,
    depth: usize,
    size: &mut usize,
) -> PyResult<Value<'static>> {
    if let Ok(text) = object.cast::<PyString>() {
        let text = text.to_str()?;
        *size += text.len();
        return Ok(Value::String(Cow::Owned(text.to_owned())));
    }
    if let Ok(dict) = object.cast::<PyDict>() {
        check_depth(depth)?;
        let mut entries = Vec::with_capacity(dict.len());
        for (key, item) in dict {
            let key = key
                .cast::<PyString>()
                .map_err(|_| PyTypeError::new_err("JSON object keys must be str"))?;
            entries.push((
                known_key(key.to_str()?),
                from_python(&item, depth + 1, size)?,
            ));
        }
        return Ok(Value::Object(Object::from_unique(entries)));
    }
    if let Ok(list) = object.cast::<PyList>() {
        check_depth(depth)?;
        let items = list.iter().map(|item| from_python(&item, depth + 1, size));
        return Ok(Value::Array(items.collect::<PyResult<_>>()?));
    }
    if object.is_none() {
        return Ok(Value::Null);
    }
    if let Ok(flag) = object.cast::<PyBool>() {
        return Ok(Value::Bool(flag.is_true()));
    }
    if object.is_instance_of::<PyInt>() {
        return integer(object);
    }
    if let Ok(number) = object.cast::<PyFloat>() {
        let number = number.value();
        if !number.is_finite() {
            let name = if number.is_nan() { "NaN" } else { "Infinity" };
            return Err(PyValueError::new_err(format!(
                "{name} is not a finite JSON number"
            )));
        }
        return Ok(Value::Number(Number::Float(number)));
    }
    if let Ok(tuple) = object.cast::<PyTuple>() {
        check_depth(depth)?;
        let items = tuple.iter().map(|item| from_python(&item, depth + 1, size));
        return Ok(Value::Array(items.collect::<PyResult<_>>()?));
    }
    let name = object.get_type().name()?;
    Err(PyTypeError::new_err(format!("{name} is not a JSON value")))
}

fn check_depth(depth: usize) -> PyResult<()> {
    if depth >= MAX_DEPTH {
        return Err(PyRecursionError::new_err(format!(
            "JSON input exceeds the maximum nesting depth of {MAX_DEPTH}"
        )));
    }
    Ok(())
}

fn integer(object: &Bound<'_, PyAny>) -> PyResult<Value<'static>> {
    if let Ok(value) = object.extract::<u64>() {
        return Ok(Value::Number(Number::Unsigned(value)));
    }
    match object.extract::<i64>() {
        Ok(value) => Ok(Value::Number(Number::Signed(value))),
        Err(_) => Err(integer_range_error(object.py())),
    }
}

fn known_key(key: &str) -> Cow<'static, str> {
    match KNOWN_KEYS.iter().find(|known| **known == key) {
        Some(known) => Cow::Borrowed(known),
        None => Cow::Owned(key.to_owned()),
    }
}

/// A JSON value as a Python object.
pub fn value_to_python<'py>(py: Python<'py>, value: &Value<'_>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(flag) => PyBool::new(py, *flag).to_owned().into_any(),
        Value::Number(Number::Unsigned(number)) => number.into_pyobject(py)?.into_any(),
        Value::Number(Number::Signed(number)) => number.into_pyobject(py)?.into_any(),
        Value::Number(Number::Float(number)) => PyFloat::new(py, *number).into_any(),
        Value::String(text) => PyString::new(py, text).into_any(),
        Value::Array(items) => {
            let list = PyList::empty(py);
            for item in items {
                list.append(value_to_python(py, item)?)?;
            }
            list.into_any()
        }
        Value::Object(object) => {
            let dict = PyDict::new(py);
            for (key, item) in object.iter() {
                dict.set_item(key, value_to_python(py, item)?)?;
            }
            dict.into_any()
        }
    })
}
