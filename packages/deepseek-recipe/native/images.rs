//! Image classes. What touches pixels or the network needs the feature `images`, and says so without it.

use std::sync::Mutex;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use recipe::image::{self, QuotaError, SourceError};
use recipe::model::ImageDetail;

#[cfg(feature = "images")]
mod fetch;
#[cfg(feature = "images")]
mod pixels;
mod resolver;

use crate::errors::{image_error, CalcResizeError};

/// A processed image.
#[pyclass(frozen, module = "deepseek_recipe._recipe")]
#[derive(Clone)]
pub struct ImageInfo {
    pub data: Vec<u8>,
    #[pyo3(get)]
    pub width: u32,
    #[pyo3(get)]
    pub height: u32,
}

#[pymethods]
impl ImageInfo {
    #[new]
    fn new(data: Vec<u8>, width: u32, height: u32) -> Self {
        ImageInfo {
            data,
            width,
            height,
        }
    }

    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.data)
    }
}

/// The processed images of a request.
#[pyclass(frozen, module = "deepseek_recipe._recipe")]
pub struct MultiModalData {
    images: Vec<ImageInfo>,
}

#[pymethods]
impl MultiModalData {
    #[new]
    #[pyo3(signature = (images=None))]
    fn new(images: Option<Vec<PyRef<'_, ImageInfo>>>) -> Self {
        MultiModalData {
            images: images
                .into_iter()
                .flatten()
                .map(|image| image.clone())
                .collect(),
        }
    }

    #[getter]
    fn images(&self) -> Vec<ImageInfo> {
        self.images.clone()
    }

    fn is_empty(&self) -> bool {
        self.images.is_empty()
    }

    /// Tokens that the images need beyond their placeholders.
    fn image_token_adjustment(&self) -> PyResult<u64> {
        let mut sum = 0;
        for image in &self.images {
            let (width, height) = image::calc_resize(image.width, image.height)
                .map_err(|error| CalcResizeError::new_err(error.to_string()))?;
            sum += image::token_cost(width, height) - 1;
        }
        Ok(sum)
    }
}

/// Counts images and bytes of a request.
#[pyclass(module = "deepseek_recipe._recipe")]
pub struct ImageQuota {
    inner: image::ImageQuota,
}

#[pymethods]
impl ImageQuota {
    #[new]
    fn new() -> Self {
        ImageQuota {
            inner: image::ImageQuota::default(),
        }
    }

    fn image_count(&self) -> usize {
        self.inner.image_count()
    }

    fn byte_size(&self) -> usize {
        self.inner.byte_size()
    }
}

/// Bounds on the size of processed images.
#[pyclass(frozen, module = "deepseek_recipe._recipe")]
#[derive(Clone, Copy)]
pub struct PreprocessOptions {
    detail: ImageDetail,
    #[pyo3(get)]
    max_dimension_px: u32,
    #[pyo3(get)]
    low_detail_max_dimension_px: u32,
}

#[pymethods]
impl PreprocessOptions {
    #[new]
    fn new(
        detail: &str,
        max_dimension_px: u32,
        low_detail_max_dimension_px: u32,
    ) -> PyResult<Self> {
        let Some(detail) = ImageDetail::from_word(detail) else {
            return Err(PyValueError::new_err(format!(
                "invalid detail {detail:?}; expected \"low\", \"high\", \"original\", or \"auto\""
            )));
        };
        Ok(PreprocessOptions {
            detail,
            max_dimension_px,
            low_detail_max_dimension_px,
        })
    }

    #[getter]
    fn detail(&self) -> &'static str {
        self.detail.as_str()
    }
}

#[cfg(not(feature = "images"))]
const MISSING: &str = "this build of deepseek-recipe neither fetches nor preprocesses images, \
     build it with MATURIN_PEP517_ARGS=\"--features images\" set";

/// Fetches images over http and https.
#[pyclass(module = "deepseek_recipe._recipe")]
pub struct ReqwestImageFetcher {
    max_bytes: usize,
    filter: Mutex<Option<Py<PyAny>>>,
}

#[pymethods]
impl ReqwestImageFetcher {
    #[new]
    fn new() -> Self {
        Self::with_max_bytes(image::MAX_IMAGE_BYTES)
    }

    /// A fetcher that refuses larger files.
    #[staticmethod]
    fn with_max_bytes(max_bytes: usize) -> Self {
        ReqwestImageFetcher {
            max_bytes,
            filter: Mutex::new(None),
        }
    }

    /// A fetcher that asks `filter(host, address)` before it connects.
    fn with_destination_filter(&self, filter: Py<PyAny>) -> Self {
        ReqwestImageFetcher {
            max_bytes: self.max_bytes,
            filter: Mutex::new(Some(filter)),
        }
    }

    /// The bytes at a URL.
    fn fetch<'py>(&self, py: Python<'py>, url: &str) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.load(py, url)?;
        Ok(PyBytes::new(py, &bytes))
    }
}

impl ReqwestImageFetcher {
    #[cfg(feature = "images")]
    fn load(&self, py: Python<'_>, url: &str) -> PyResult<Vec<u8>> {
        let filter = self
            .filter
            .lock()
            .ok()
            .and_then(|filter| filter.as_ref().map(|one| one.clone_ref(py)));
        fetch::fetch(py, url, self.max_bytes, filter)
    }

    #[cfg(not(feature = "images"))]
    fn load(&self, py: Python<'_>, _: &str) -> PyResult<Vec<u8>> {
        let _ = (self.max_bytes, &self.filter);
        Err(image_error(py, MISSING.to_owned(), "Client", false))
    }
}

/// Decodes, scales and re-encodes images.
#[pyclass(frozen, module = "deepseek_recipe._recipe")]
pub struct OpenCvImagePreprocessor;

#[pymethods]
impl OpenCvImagePreprocessor {
    #[new]
    fn new() -> Self {
        OpenCvImagePreprocessor
    }

    /// The image as WebP in the size that the model sees.
    fn preprocess(
        &self,
        py: Python<'_>,
        data: &[u8],
        options: PyRef<'_, PreprocessOptions>,
    ) -> PyResult<ImageInfo> {
        process(py, data, *options)
    }
}

#[cfg(feature = "images")]
fn process(py: Python<'_>, data: &[u8], options: PreprocessOptions) -> PyResult<ImageInfo> {
    image::check_bytes(data).map_err(|error| source_error(py, &error))?;
    py.detach(|| pixels::process(data, options))
        .map_err(|text| {
            image_error(
                py,
                format!("image cannot be decoded: {text}"),
                "Decode",
                false,
            )
        })
}

#[cfg(not(feature = "images"))]
fn process(py: Python<'_>, data: &[u8], _: PreprocessOptions) -> PyResult<ImageInfo> {
    image::check_bytes(data).map_err(|error| source_error(py, &error))?;
    Err(image_error(py, MISSING.to_owned(), "Client", false))
}

fn source_error(py: Python<'_>, error: &SourceError) -> PyErr {
    image_error(py, error.to_string(), error.kind(), false)
}

fn quota_error(py: Python<'_>, error: &QuotaError) -> PyErr {
    let kind = match error {
        QuotaError::TooManyImages => "TooManyImages",
        QuotaError::ImageTooLarge { .. } | QuotaError::TotalTooLarge { .. } => "ImageTooLarge",
    };
    image_error(py, error.to_string(), kind, false)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ImageInfo>()?;
    module.add_class::<MultiModalData>()?;
    module.add_class::<ImageQuota>()?;
    module.add_class::<PreprocessOptions>()?;
    module.add_class::<ReqwestImageFetcher>()?;
    module.add_class::<OpenCvImagePreprocessor>()?;
    module.add_class::<resolver::ImageResolver>()
}
