//! From image sources to processed images.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use recipe::image;
use recipe::model::ImageData;

use super::{quota_error, source_error, ImageInfo, ImageQuota, MultiModalData, PreprocessOptions};
use crate::errors::{image_error, ImageError};
use crate::sources::ImageSource;

/// Largest side of an image in full and in low detail, in pixels.
const MAX_DIMENSION_PX: u32 = 8192;
const LOW_DETAIL_MAX_DIMENSION_PX: u32 = 512;

/// Resolves image sources with a fetcher and a preprocessor.
#[pyclass(frozen, module = "deepseek_recipe._recipe")]
pub struct ImageResolver {
    fetcher: Py<PyAny>,
    preprocessor: Py<PyAny>,
}

#[pymethods]
impl ImageResolver {
    #[new]
    fn new(fetcher: Py<PyAny>, preprocessor: Py<PyAny>) -> Self {
        ImageResolver {
            fetcher,
            preprocessor,
        }
    }

    /// The processed images of `sources`, counted against `quota`.
    fn resolve(
        &self,
        py: Python<'_>,
        sources: Vec<PyRef<'_, ImageSource>>,
        quota: &mut ImageQuota,
    ) -> PyResult<MultiModalData> {
        quota
            .inner
            .add_images(sources.len())
            .map_err(|error| quota_error(py, &error))?;
        let mut images = Vec::with_capacity(sources.len());
        for (index, source) in sources.iter().enumerate() {
            let image = self.one(py, source, quota).map_err(|error| {
                located(py, error, &format!("{}.image[{index}]", source.inner.path))
            })?;
            images.push(image);
        }
        Ok(MultiModalData { images })
    }
}

impl ImageResolver {
    fn one(
        &self,
        py: Python<'_>,
        source: &ImageSource,
        quota: &mut ImageQuota,
    ) -> PyResult<ImageInfo> {
        let bytes = match &source.inner.data {
            ImageData::Bytes(bytes) => bytes.to_vec(),
            ImageData::DataUrl(url) => {
                image::decode_data_url(url).map_err(|error| source_error(py, &error))?
            }
            ImageData::Url(url) => self
                .fetcher
                .call_method1(py, "fetch", (&**url,))?
                .extract(py)?,
        };
        image::check_bytes(&bytes).map_err(|error| source_error(py, &error))?;
        quota
            .inner
            .add_bytes(bytes.len())
            .map_err(|error| quota_error(py, &error))?;
        let options = PreprocessOptions {
            detail: source.inner.detail,
            max_dimension_px: MAX_DIMENSION_PX,
            low_detail_max_dimension_px: LOW_DETAIL_MAX_DIMENSION_PX,
        };
        let arguments = (PyBytes::new(py, &bytes), options);
        let processed = self
            .preprocessor
            .call_method1(py, "preprocess", arguments)?;
        let processed = processed.bind(py).cast::<ImageInfo>()?;
        Ok(processed.get().clone())
    }
}

/// Puts the place of an image in front of its error.
fn located(py: Python<'_>, error: PyErr, place: &str) -> PyErr {
    if !error.is_instance_of::<ImageError>(py) {
        return error;
    }
    let value = error.value(py);
    let kind = value
        .getattr("kind")
        .and_then(|kind| kind.extract::<String>())
        .unwrap_or_default();
    let is_retryable = value
        .getattr("is_retryable")
        .and_then(|flag| flag.extract())
        .unwrap_or(false);
    let text = value
        .getattr("args")
        .and_then(|arguments| arguments.cast_into::<PyTuple>().map_err(Into::into))
        .and_then(|arguments| arguments.get_item(0))
        .and_then(|text| text.extract::<String>())
        .unwrap_or_default();
    image_error(py, format!("{place}: {text}"), &kind, is_retryable)
}
