//! The tokenizer.

use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use recipe::tokenizer;

use crate::maybe_detached;

/// A byte-level byte-pair tokenizer with added tokens.
#[pyclass(frozen, module = "deepseek_recipe._recipe")]
#[derive(Clone)]
pub struct Tokenizer {
    pub inner: Arc<tokenizer::Tokenizer>,
}

impl Tokenizer {
    fn load(py: Python<'_>, text: &str) -> PyResult<Self> {
        let loaded = py.detach(|| tokenizer::Tokenizer::from_json(text));
        match loaded {
            Ok(tokenizer) => Ok(Tokenizer {
                inner: Arc::new(tokenizer),
            }),
            Err(error) => Err(PyRuntimeError::new_err(format!(
                "failed to load tokenizer: {error}"
            ))),
        }
    }
}

#[pymethods]
impl Tokenizer {
    /// Reads a `tokenizer.json`.
    #[staticmethod]
    fn from_file(py: Python<'_>, path: std::path::PathBuf) -> PyResult<Self> {
        let text = py
            .detach(|| std::fs::read_to_string(&path))
            .map_err(|error| {
                PyRuntimeError::new_err(format!(
                    "failed to load tokenizer: {}: {error}",
                    path.display()
                ))
            })?;
        Self::load(py, &text)
    }

    /// Reads the text of a `tokenizer.json`.
    #[staticmethod]
    fn from_str(py: Python<'_>, json: &str) -> PyResult<Self> {
        Self::load(py, json)
    }

    /// Downloads the `tokenizer.json` of a Hugging Face repository; needs the package `huggingface_hub`.
    #[staticmethod]
    #[pyo3(signature = (identifier, revision=None, token=None))]
    fn from_pretrained(
        py: Python<'_>,
        identifier: &str,
        revision: Option<&str>,
        token: Option<&str>,
    ) -> PyResult<Self> {
        let download = py
            .import("deepseek_recipe._hub")
            .and_then(|module| module.getattr("tokenizer_file"))?;
        let path: std::path::PathBuf = download.call1((identifier, revision, token))?.extract()?;
        Self::from_file(py, path)
    }

    /// Ids of a text; spellings of added tokens become their ids.
    fn encode(&self, py: Python<'_>, text: &str) -> Vec<u32> {
        maybe_detached(py, 8 * text.len(), || self.inner.encode(text))
    }

    /// Text of token ids; bytes that form no character become U+FFFD.
    fn decode(&self, py: Python<'_>, token_ids: Vec<u32>) -> String {
        maybe_detached(py, 4 * token_ids.len(), || {
            let bytes: Vec<u8> = token_ids
                .iter()
                .flat_map(|id| self.inner.token_bytes(*id).unwrap_or_default())
                .copied()
                .collect();
            String::from_utf8(bytes)
                .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
        })
    }

    /// Id of an added token by its spelling, or `None`.
    fn added_token_id(&self, token: &str) -> Option<u32> {
        self.inner.added_id(token)
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("IMAGE_SPECIAL_TOKEN_ID", 129_264)?;
    module.add_class::<Tokenizer>()
}
