//! Request classes.

use std::cell::RefCell;
use std::collections::BTreeMap;

use pyo3::prelude::*;
use recipe::json::Value;
use recipe::protocol::{self, RequestError, ResponseStore, StoreError};

use crate::body::{parse_body, value_from_python};
use crate::errors::{consumed, request_error};
use crate::maybe_detached;
use crate::options::{ConversationRequest, ConversionOptions};
use crate::stream::{
    ChatCompletionChunkGenerator, MessagesChunkGenerator, ResponsesChunkGenerator,
};

const CONSUMED: &str = "protocol request";

/// Wraps a converted request and reports what was left out.
fn converted(
    py: Python<'_>,
    result: Result<protocol::ConversationRequest, RequestError>,
    options: &ConversionOptions,
) -> PyResult<ConversationRequest> {
    let inner = result.map_err(|error| request_error(py, error))?;
    if let Some(hook) = &options.on_warning {
        for warning in &inner.warnings {
            hook.call1(py, (&warning.path, &warning.message))?;
        }
    }
    Ok(ConversationRequest { inner })
}

/// A Chat Completions request.
#[pyclass(module = "deepseek_recipe._recipe")]
pub struct ChatCompletionRequest {
    inner: Option<protocol::ChatCompletionRequest>,
    size: usize,
}

#[pymethods]
impl ChatCompletionRequest {
    #[new]
    fn new(body: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (inner, size) = parse_body(body, protocol::ChatCompletionRequest::from_value)?;
        Ok(ChatCompletionRequest {
            inner: Some(inner),
            size,
        })
    }

    #[getter]
    fn model(&self) -> PyResult<&str> {
        Ok(self
            .inner
            .as_ref()
            .ok_or_else(|| consumed(CONSUMED))?
            .model())
    }

    /// Converts the request, which cannot be used afterwards.
    fn convert(
        &mut self,
        py: Python<'_>,
        options: PyRef<'_, ConversionOptions>,
    ) -> PyResult<ConversationRequest> {
        let request = self.inner.take().ok_or_else(|| consumed(CONSUMED))?;
        let inner = &options.inner;
        let result = maybe_detached(py, self.size, || request.convert(inner));
        converted(py, result, &options)
    }

    /// The generator of a converted request.
    #[staticmethod]
    fn chunk_generator(
        request: &ConversationRequest,
        id: String,
        model: String,
    ) -> ChatCompletionChunkGenerator {
        ChatCompletionChunkGenerator::from(protocol::ChatCompletionChunkGenerator::new(
            &request.inner,
            id,
            model,
        ))
    }

    /// One generator per choice of a request for several.
    #[staticmethod]
    fn chunk_generators(
        request: &ConversationRequest,
        id: &str,
        model: &str,
    ) -> Vec<ChatCompletionChunkGenerator> {
        protocol::ChatCompletionChunkGenerator::for_choices(&request.inner, id, model)
            .into_iter()
            .map(ChatCompletionChunkGenerator::from)
            .collect()
    }
}

/// A Messages request.
#[pyclass(module = "deepseek_recipe._recipe")]
pub struct MessagesRequest {
    inner: Option<protocol::MessagesRequest>,
    size: usize,
}

#[pymethods]
impl MessagesRequest {
    #[new]
    fn new(body: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (inner, size) = parse_body(body, protocol::MessagesRequest::from_value)?;
        Ok(MessagesRequest {
            inner: Some(inner),
            size,
        })
    }

    #[getter]
    fn model(&self) -> PyResult<&str> {
        Ok(self
            .inner
            .as_ref()
            .ok_or_else(|| consumed(CONSUMED))?
            .model())
    }

    /// Converts the request, which cannot be used afterwards.
    fn convert(
        &mut self,
        py: Python<'_>,
        options: PyRef<'_, ConversionOptions>,
    ) -> PyResult<ConversationRequest> {
        let request = self.inner.take().ok_or_else(|| consumed(CONSUMED))?;
        let inner = &options.inner;
        let result = maybe_detached(py, self.size, || request.convert(inner));
        converted(py, result, &options)
    }

    /// The generator of a converted request.
    #[staticmethod]
    fn chunk_generator(
        request: &ConversationRequest,
        id: String,
        model: String,
    ) -> MessagesChunkGenerator {
        MessagesChunkGenerator::from(protocol::MessagesChunkGenerator::for_request(
            &request.inner,
            id,
            model,
        ))
    }
}

/// A store written in Python: `load(response_id)` gives a list of items or `None`.
struct PythonStore<'py> {
    store: Bound<'py, PyAny>,
    /// What the store raised, to be raised again instead of a refusal of the request.
    raised: RefCell<Option<PyErr>>,
}

impl ResponseStore for PythonStore<'_> {
    fn load(&self, id: &str) -> Result<Option<Vec<Value<'static>>>, StoreError> {
        let failed = |error: PyErr| {
            let message = error.to_string();
            self.raised.replace(Some(error));
            StoreError { message }
        };
        let items = self.store.call_method1("load", (id,)).map_err(failed)?;
        if items.is_none() {
            return Ok(None);
        }
        match value_from_python(&items).map_err(failed)? {
            Value::Array(items) => Ok(Some(items)),
            other => Err(StoreError {
                message: format!("the store gave {} instead of a list", other.kind()),
            }),
        }
    }
}

/// A Responses request.
#[pyclass(module = "deepseek_recipe._recipe")]
pub struct ResponsesRequest {
    inner: Option<protocol::ResponsesRequest>,
    size: usize,
}

#[pymethods]
impl ResponsesRequest {
    #[new]
    fn new(body: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (inner, size) = parse_body(body, protocol::ResponsesRequest::from_value)?;
        Ok(ResponsesRequest {
            inner: Some(inner),
            size,
        })
    }

    #[getter]
    fn model(&self) -> PyResult<&str> {
        Ok(self
            .inner
            .as_ref()
            .ok_or_else(|| consumed(CONSUMED))?
            .model())
    }

    /// Converts the request, which cannot be used afterwards; `store` supplies earlier context.
    #[pyo3(signature = (options, store=None))]
    fn convert(
        &mut self,
        py: Python<'_>,
        options: PyRef<'_, ConversionOptions>,
        store: Option<Bound<'_, PyAny>>,
    ) -> PyResult<ConversationRequest> {
        let request = self.inner.take().ok_or_else(|| consumed(CONSUMED))?;
        let inner = &options.inner;
        let result = match store {
            Some(store) => {
                let store = PythonStore {
                    store,
                    raised: RefCell::default(),
                };
                let result = request.convert(inner, Some(&store));
                if let Some(error) = store.raised.take() {
                    return Err(error);
                }
                result
            }
            None => maybe_detached(py, self.size, || request.convert(inner, None)),
        };
        converted(py, result, &options)
    }

    /// Namespace and name of every namespaced tool by its full name.
    fn namespace_tool_map(
        &self,
        py: Python<'_>,
        options: PyRef<'_, ConversionOptions>,
    ) -> PyResult<BTreeMap<String, (String, String)>> {
        let request = self.inner.as_ref().ok_or_else(|| consumed(CONSUMED))?;
        request
            .namespace_tool_map(&options.inner)
            .map_err(|error| request_error(py, error))
    }

    /// What the response repeats of the request.
    fn echo(&self) -> PyResult<ResponsesEcho> {
        let request = self.inner.as_ref().ok_or_else(|| consumed(CONSUMED))?;
        Ok(ResponsesEcho {
            inner: request.echo(),
        })
    }

    /// The generator of a converted request.
    #[staticmethod]
    fn chunk_generator(
        request: &ConversationRequest,
        id: String,
        model: String,
    ) -> ResponsesChunkGenerator {
        ResponsesChunkGenerator::from(protocol::ResponsesChunkGenerator::new(
            &request.inner,
            id,
            model,
        ))
    }
}

/// Members of a Responses request that its response repeats.
#[pyclass(frozen, module = "deepseek_recipe._recipe")]
#[derive(Clone)]
pub struct ResponsesEcho {
    pub inner: protocol::ResponsesEcho,
}

#[pymethods]
impl ResponsesEcho {
    #[new]
    fn new() -> Self {
        ResponsesEcho {
            inner: protocol::ResponsesEcho::default(),
        }
    }

    #[getter]
    fn instructions(&self) -> Option<&str> {
        self.inner.instructions.as_deref()
    }

    #[getter]
    fn max_output_tokens(&self) -> Option<u32> {
        self.inner.max_output_tokens
    }

    #[getter]
    fn temperature(&self) -> f32 {
        self.inner.temperature
    }

    #[getter]
    fn top_p(&self) -> f32 {
        self.inner.top_p
    }

    #[getter]
    fn top_logprobs(&self) -> u8 {
        self.inner.top_logprobs
    }

    #[getter]
    fn user(&self) -> Option<&str> {
        self.inner.user.as_deref()
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ChatCompletionRequest>()?;
    module.add_class::<ResponsesRequest>()?;
    module.add_class::<MessagesRequest>()?;
    module.add_class::<ResponsesEcho>()
}
