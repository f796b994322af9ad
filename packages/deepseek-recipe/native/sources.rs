//! Where images come from.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use recipe::model::{self, ImageData, ImageDetail};

/// Where an image comes from.
#[pyclass(frozen, subclass, module = "deepseek_recipe._recipe")]
#[derive(Clone)]
pub struct ImageSource {
    pub inner: model::ImageSource,
}

#[pymethods]
impl ImageSource {
    #[getter]
    fn kind(&self) -> &'static str {
        match self.inner.data {
            ImageData::DataUrl(_) => "data_url",
            ImageData::Url(_) => "url",
            ImageData::Bytes(_) => "bytes",
        }
    }

    #[getter]
    fn detail(&self) -> &'static str {
        self.inner.detail.as_str()
    }

    #[getter]
    fn data_url(&self) -> Option<&str> {
        match &self.inner.data {
            ImageData::DataUrl(url) => Some(url),
            _ => None,
        }
    }

    #[getter]
    fn url(&self) -> Option<&str> {
        match &self.inner.data {
            ImageData::Url(url) => Some(url),
            _ => None,
        }
    }

    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        match &self.inner.data {
            ImageData::Bytes(bytes) => Some(PyBytes::new(py, bytes)),
            _ => None,
        }
    }

    #[getter]
    fn path(&self) -> &str {
        &self.inner.path
    }

    fn __repr__(&self) -> String {
        let (detail, path) = (self.detail(), &self.inner.path);
        match &self.inner.data {
            ImageData::DataUrl(url) => {
                format!("DataUrlImageSource({url:?}, detail={detail:?}, path={path:?})")
            }
            ImageData::Url(url) => {
                format!("UrlImageSource({url:?}, detail={detail:?}, path={path:?})")
            }
            ImageData::Bytes(bytes) => {
                format!(
                    "BytesImageSource(<{} bytes>, detail={detail:?}, path={path:?})",
                    bytes.len()
                )
            }
        }
    }
}

fn image_source(data: ImageData, detail: &str, path: &str) -> PyResult<ImageSource> {
    let Some(detail) = ImageDetail::from_word(detail) else {
        return Err(PyValueError::new_err(format!(
            "invalid detail {detail:?}; expected \"low\", \"high\", \"original\", or \"auto\""
        )));
    };
    Ok(ImageSource {
        inner: model::ImageSource {
            data,
            detail,
            path: path.into(),
        },
    })
}

macro_rules! image_class {
    ($(#[$meta:meta])* $name:ident, $argument:ident: $kind:ty, $make:expr) => {
        $(#[$meta])*
        #[pyclass(frozen, extends = ImageSource, module = "deepseek_recipe._recipe")]
        pub struct $name;

        #[pymethods]
        impl $name {
            #[new]
            #[pyo3(signature = ($argument, detail="high", *, path=""))]
            fn new($argument: $kind, detail: &str, path: &str) -> PyResult<PyClassInitializer<Self>> {
                let base = image_source(($make)($argument), detail, path)?;
                Ok(PyClassInitializer::from(base).add_subclass($name))
            }
        }
    };
}

image_class! {
    /// An image in a base64 data URL.
    DataUrlImageSource, data_url: String, |url: String| ImageData::DataUrl(url.into())
}
image_class! {
    /// An image at an http or https URL.
    UrlImageSource, url: String, |url: String| ImageData::Url(url.into())
}
image_class! {
    /// An encoded image file.
    BytesImageSource, data: Vec<u8>, |bytes: Vec<u8>| ImageData::Bytes(bytes.into())
}

fn image_to_python(py: Python<'_>, source: &model::ImageSource) -> PyResult<Py<PyAny>> {
    let base = PyClassInitializer::from(ImageSource {
        inner: source.clone(),
    });
    Ok(match source.data {
        ImageData::DataUrl(_) => Py::new(py, base.add_subclass(DataUrlImageSource))?.into_any(),
        ImageData::Url(_) => Py::new(py, base.add_subclass(UrlImageSource))?.into_any(),
        ImageData::Bytes(_) => Py::new(py, base.add_subclass(BytesImageSource))?.into_any(),
    })
}

pub fn images_to_python<'py>(
    py: Python<'py>,
    sources: &[model::ImageSource],
) -> PyResult<Bound<'py, PyList>> {
    let images = sources
        .iter()
        .map(|source| image_to_python(py, source))
        .collect::<PyResult<Vec<_>>>()?;
    PyList::new(py, images)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ImageSource>()?;
    module.add_class::<DataUrlImageSource>()?;
    module.add_class::<UrlImageSource>()?;
    module.add_class::<BytesImageSource>()
}
