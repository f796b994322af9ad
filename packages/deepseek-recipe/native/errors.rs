//! Exceptions.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyOverflowError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};
use recipe::protocol::{self, RequestError};

create_exception!(
    deepseek_recipe._recipe,
    ConversionError,
    PyException,
    "A request breaks a rule of its protocol."
);
create_exception!(
    deepseek_recipe._recipe,
    ImageError,
    PyException,
    "An image cannot be fetched, decoded or accepted."
);
create_exception!(
    deepseek_recipe._recipe,
    CalcResizeError,
    PyValueError,
    "No size is found for an image."
);
create_exception!(
    deepseek_recipe._recipe,
    MarkerError,
    PyValueError,
    "Text of a conversation spells a marker, which `strict_markers` forbids."
);

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("ConversionError", py.get_type::<ConversionError>())?;
    module.add("ImageError", py.get_type::<ImageError>())?;
    module.add("CalcResizeError", py.get_type::<CalcResizeError>())?;
    module.add("MarkerError", py.get_type::<MarkerError>())?;
    module.add("IntegerRangeError", integer_range_type(py)?)
}

/// `IntegerRangeError`: the original raises `OverflowError`, its documentation names `ValueError`; this is both.
fn integer_range_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = TYPE.get_or_try_init(py, || {
        let bases = PyTuple::new(
            py,
            [
                py.get_type::<PyOverflowError>(),
                py.get_type::<PyValueError>(),
            ],
        )?;
        let members = PyDict::new(py);
        members.set_item("__module__", "deepseek_recipe._recipe")?;
        members.set_item(
            "__doc__",
            "An integer outside the 64-bit range of JSON numbers.",
        )?;
        let class = py
            .get_type::<PyType>()
            .call1(("IntegerRangeError", bases, members))?;
        Ok::<_, PyErr>(class.cast_into::<PyType>()?.unbind())
    })?;
    Ok(class.bind(py))
}

pub fn integer_range_error(py: Python<'_>) -> PyErr {
    match integer_range_type(py) {
        Ok(class) => PyErr::from_type(class.clone(), "integer is outside the JSON number range"),
        Err(error) => error,
    }
}

pub fn conversion_error(py: Python<'_>, error: &protocol::ConversionError) -> PyErr {
    let raised = ConversionError::new_err(error.message.clone());
    let value = raised.value(py);
    let set = value
        .setattr("status_code", error.status_code)
        .and_then(|()| value.setattr("body", error.body()))
        .and_then(|()| value.setattr("messages_body", error.messages_body()));
    match set {
        Ok(()) => raised,
        Err(error) => error,
    }
}

pub fn request_error(py: Python<'_>, error: RequestError) -> PyErr {
    match error {
        RequestError::Shape(error) => PyValueError::new_err(error.to_string()),
        RequestError::Content(error) => conversion_error(py, &error),
    }
}

pub fn image_error(py: Python<'_>, message: String, kind: &str, is_retryable: bool) -> PyErr {
    let raised = ImageError::new_err(message);
    let value = raised.value(py);
    match value
        .setattr("kind", kind)
        .and_then(|()| value.setattr("is_retryable", is_retryable))
    {
        Ok(()) => raised,
        Err(error) => error,
    }
}

pub fn consumed(what: &str) -> PyErr {
    PyRuntimeError::new_err(format!("{what} has been consumed"))
}
