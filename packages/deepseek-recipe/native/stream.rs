//! Stream classes.

use std::collections::BTreeMap;

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use recipe::protocol::{self, Chunk, ChunkGenerator, StreamError};
use recipe::stream::{self, TokenLogprob};

use crate::enums::InferenceFinishReason;
use crate::errors::consumed;
use crate::maybe_detached;
use crate::options::{compat_of, ParsingOptions};
use crate::requests::ResponsesEcho;
use crate::tokenizer::Tokenizer;

/// Prompt counts as the engine reports them.
#[pyclass(frozen, module = "deepseek_recipe._recipe")]
#[derive(Clone)]
pub struct PromptUsage {
    inner: protocol::PromptUsage,
}

#[pymethods]
impl PromptUsage {
    #[new]
    #[pyo3(signature = (*, prompt_tokens=0, prompt_cache_hit_tokens=0))]
    fn new(prompt_tokens: u64, prompt_cache_hit_tokens: u64) -> Self {
        PromptUsage {
            inner: protocol::PromptUsage {
                prompt_tokens,
                prompt_cache_hit_tokens,
            },
        }
    }

    #[getter]
    fn prompt_tokens(&self) -> u64 {
        self.inner.prompt_tokens
    }

    #[getter]
    fn prompt_cache_hit_tokens(&self) -> u64 {
        self.inner.prompt_cache_hit_tokens
    }
}

/// One step of inference.
#[pyclass(frozen, module = "deepseek_recipe._recipe")]
pub struct InferenceChunk {
    inner: Chunk,
}

#[pymethods]
impl InferenceChunk {
    /// The prompt has been read.
    #[staticmethod]
    #[pyo3(signature = (*, prompt_usage=None, system_fingerprint=None))]
    fn ready(
        prompt_usage: Option<PyRef<'_, PromptUsage>>,
        system_fingerprint: Option<String>,
    ) -> Self {
        let prompt_usage = prompt_usage.map(|usage| usage.inner);
        InferenceChunk {
            inner: Chunk::Ready {
                prompt_usage,
                system_fingerprint,
            },
        }
    }

    /// Generated text.
    #[staticmethod]
    #[pyo3(signature = (content, token_count=0))]
    fn text(content: String, token_count: u64) -> Self {
        InferenceChunk {
            inner: Chunk::Text {
                content,
                token_count,
            },
        }
    }

    /// Generated token ids, with a pair of log probability and alternatives for each.
    #[staticmethod]
    #[pyo3(signature = (token_ids, logprobs=None))]
    fn tokens(token_ids: Vec<u32>, logprobs: Option<Vec<TokenLogprob>>) -> Self {
        InferenceChunk {
            inner: Chunk::Tokens {
                token_ids,
                logprobs,
            },
        }
    }

    /// The end.
    #[staticmethod]
    fn finish(reason: InferenceFinishReason) -> Self {
        InferenceChunk {
            inner: Chunk::Finish(reason.into()),
        }
    }

    #[getter]
    fn kind(&self) -> &'static str {
        match self.inner {
            Chunk::Ready { .. } => "ready",
            Chunk::Text { .. } => "text",
            Chunk::Tokens { .. } => "tokens",
            Chunk::Finish(_) => "finish",
        }
    }

    #[getter]
    fn content(&self) -> Option<&str> {
        match &self.inner {
            Chunk::Text { content, .. } => Some(content),
            _ => None,
        }
    }

    #[getter]
    fn token_ids(&self) -> Option<Vec<u32>> {
        match &self.inner {
            Chunk::Tokens { token_ids, .. } => Some(token_ids.clone()),
            _ => None,
        }
    }

    #[getter]
    fn finish_reason(&self) -> Option<InferenceFinishReason> {
        match self.inner {
            Chunk::Finish(reason) => Some(reason.into()),
            _ => None,
        }
    }

    #[getter]
    fn prompt_usage(&self) -> Option<PromptUsage> {
        match &self.inner {
            Chunk::Ready { prompt_usage, .. } => prompt_usage.map(|inner| PromptUsage { inner }),
            _ => None,
        }
    }

    #[getter]
    fn token_count(&self) -> Option<u64> {
        match self.inner {
            Chunk::Text { token_count, .. } => Some(token_count),
            _ => None,
        }
    }

    #[getter]
    fn system_fingerprint(&self) -> Option<&str> {
        match &self.inner {
            Chunk::Ready {
                system_fingerprint, ..
            } => system_fingerprint.as_deref(),
            _ => None,
        }
    }
}

/// A call that must not be executed.
#[pyclass(frozen, module = "deepseek_recipe._recipe")]
pub struct MalformedToolCall {
    inner: stream::MalformedCall,
}

#[pymethods]
impl MalformedToolCall {
    /// Index among the calls of the response; `None` if it had no header.
    #[getter]
    fn index(&self) -> Option<usize> {
        self.inner.index
    }

    /// Name of the tool, as far as it came.
    #[getter]
    fn name(&self) -> &str {
        &self.inner.name
    }

    /// What is wrong.
    #[getter]
    fn reason(&self) -> &'static str {
        self.inner.reason.as_str()
    }

    fn __repr__(&self) -> String {
        let stream::MalformedCall {
            index,
            name,
            reason,
        } = &self.inner;
        let index = index.map_or_else(|| "None".to_owned(), |index| index.to_string());
        format!(
            "MalformedToolCall(index={index}, name={name:?}, reason={:?})",
            reason.as_str()
        )
    }
}

fn malformed(calls: &[stream::MalformedCall]) -> Vec<MalformedToolCall> {
    calls
        .iter()
        .map(|call| MalformedToolCall {
            inner: call.clone(),
        })
        .collect()
}

macro_rules! generator_class {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[pyclass(module = "deepseek_recipe._recipe")]
        pub struct $name {
            inner: Option<protocol::$name>,
        }

        impl From<protocol::$name> for $name {
            fn from(inner: protocol::$name) -> Self {
                $name { inner: Some(inner) }
            }
        }

        impl $name {
            fn take(&mut self) -> PyResult<protocol::$name> {
                self.inner.take().ok_or_else(|| consumed("chunk generator"))
            }
        }
    };
}

generator_class! {
    /// Makes Chat Completions chunks.
    ChatCompletionChunkGenerator
}
generator_class! {
    /// Makes Responses events.
    ResponsesChunkGenerator
}
generator_class! {
    /// Makes Messages events.
    MessagesChunkGenerator
}

#[pymethods]
impl ResponsesChunkGenerator {
    /// Replaces the namespace and name of full tool names; consumes this generator.
    fn with_namespace_tool_map(
        &mut self,
        map: BTreeMap<String, (String, String)>,
    ) -> PyResult<Self> {
        Ok(Self::from(self.take()?.with_namespace_tool_map(map)))
    }

    /// Replaces what is repeated of the request; consumes this generator.
    fn with_echo(&mut self, echo: PyRef<'_, ResponsesEcho>) -> PyResult<Self> {
        Ok(Self::from(self.take()?.with_echo(echo.inner.clone())))
    }
}

#[pymethods]
impl MessagesChunkGenerator {
    #[new]
    #[pyo3(signature = (id, model, thinking_mode, *, compat="default"))]
    fn new(id: String, model: String, thinking_mode: bool, compat: &str) -> PyResult<Self> {
        let compat = compat_of(compat)?;
        Ok(Self::from(protocol::MessagesChunkGenerator::new(
            id,
            model,
            thinking_mode,
            compat,
        )))
    }

    /// Replaces the signature of the thinking block; consumes this generator.
    fn with_signature(&mut self, signature: String) -> PyResult<Self> {
        Ok(Self::from(self.take()?.with_signature(signature)))
    }
}

macro_rules! event_class {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[pyclass(module = "deepseek_recipe._recipe")]
        pub struct $name {
            inner: Option<protocol::$name>,
            /// Bytes of output that the event may carry.
            bytes: usize,
        }

        #[pymethods]
        impl $name {
            /// The event as JSON.
            fn to_json(&self, py: Python<'_>) -> PyResult<String> {
                let event = self.inner.as_ref().ok_or_else(|| consumed("protocol chunk"))?;
                Ok(maybe_detached(py, self.bytes, || event.to_json()))
            }
        }
    };
}

event_class! {
    /// A Chat Completions chunk.
    ChatCompletionChunk
}
event_class! {
    /// A Responses event.
    ResponsesStreamEvent
}
event_class! {
    /// A Messages event.
    MessagesStreamEvent
}

/// A processor of one of the protocols.
enum Processor {
    Chat(Box<protocol::StreamProcessor<protocol::ChatCompletionChunkGenerator>>),
    Responses(Box<protocol::StreamProcessor<protocol::ResponsesChunkGenerator>>),
    Messages(Box<protocol::StreamProcessor<protocol::MessagesChunkGenerator>>),
}

fn stream_error(error: StreamError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// Parses output and gives protocol events.
#[pyclass(module = "deepseek_recipe._recipe")]
pub struct StreamProcessor {
    inner: Processor,
}

/// Runs one step and wraps its events.
fn step<'py, G, E>(
    py: Python<'py>,
    bytes: usize,
    wrap: impl Fn(G::Event) -> E,
    work: impl FnOnce() -> Result<Vec<G::Event>, StreamError> + Send,
) -> PyResult<Bound<'py, PyList>>
where
    G: ChunkGenerator,
    G::Event: Send,
    E: pyo3::PyClass + Into<PyClassInitializer<E>>,
{
    let events = maybe_detached(py, bytes, work).map_err(stream_error)?;
    let objects = events
        .into_iter()
        .map(|event| Py::new(py, wrap(event)))
        .collect::<PyResult<Vec<_>>>()?;
    PyList::new(py, objects)
}

macro_rules! dispatch {
    ($processor:expr, $py:expr, $bytes:expr, |$inner:ident| $work:expr) => {
        match $processor {
            Processor::Chat($inner) => step::<protocol::ChatCompletionChunkGenerator, _>(
                $py,
                $bytes,
                |event| ChatCompletionChunk {
                    inner: Some(event),
                    bytes: $bytes,
                },
                || $work,
            ),
            Processor::Responses($inner) => step::<protocol::ResponsesChunkGenerator, _>(
                $py,
                $bytes,
                |event| ResponsesStreamEvent {
                    inner: Some(event),
                    bytes: $bytes,
                },
                || $work,
            ),
            Processor::Messages($inner) => step::<protocol::MessagesChunkGenerator, _>(
                $py,
                $bytes,
                |event| MessagesStreamEvent {
                    inner: Some(event),
                    bytes: $bytes,
                },
                || $work,
            ),
        }
    };
}

#[pymethods]
impl StreamProcessor {
    #[new]
    #[pyo3(signature = (generator, options, tokenizer=None))]
    fn new(
        generator: &Bound<'_, PyAny>,
        options: PyRef<'_, ParsingOptions>,
        tokenizer: Option<PyRef<'_, Tokenizer>>,
    ) -> PyResult<Self> {
        let options = options.inner.clone();
        let tokenizer = tokenizer.map(|tokenizer| tokenizer.inner.clone());
        let inner = if let Ok(generator) = generator.cast::<ChatCompletionChunkGenerator>() {
            let generator = generator.borrow_mut().take()?;
            Processor::Chat(Box::new(protocol::StreamProcessor::new(
                generator, options, tokenizer,
            )))
        } else if let Ok(generator) = generator.cast::<ResponsesChunkGenerator>() {
            let generator = generator.borrow_mut().take()?;
            Processor::Responses(Box::new(protocol::StreamProcessor::new(
                generator, options, tokenizer,
            )))
        } else if let Ok(generator) = generator.cast::<MessagesChunkGenerator>() {
            let generator = generator.borrow_mut().take()?;
            Processor::Messages(Box::new(protocol::StreamProcessor::new(
                generator, options, tokenizer,
            )))
        } else {
            return Err(PyTypeError::new_err("generator must be a chunk generator"));
        };
        Ok(StreamProcessor { inner })
    }

    /// Whether the end has been seen.
    #[getter]
    fn finished(&self) -> bool {
        match &self.inner {
            Processor::Chat(inner) => inner.is_finished(),
            Processor::Responses(inner) => inner.is_finished(),
            Processor::Messages(inner) => inner.is_finished(),
        }
    }

    /// Malformed calls so far.
    #[getter]
    fn malformed_tool_calls(&self) -> Vec<MalformedToolCall> {
        malformed(match &self.inner {
            Processor::Chat(inner) => inner.malformed_calls(),
            Processor::Responses(inner) => inner.malformed_calls(),
            Processor::Messages(inner) => inner.malformed_calls(),
        })
    }

    /// Takes a chunk, gives its events.
    fn push<'py>(
        &mut self,
        py: Python<'py>,
        chunk: &InferenceChunk,
    ) -> PyResult<Bound<'py, PyList>> {
        let chunk = &chunk.inner;
        let bytes = match chunk {
            Chunk::Text { content, .. } => content.len(),
            Chunk::Tokens { token_ids, .. } => 16 * token_ids.len(),
            // The end may encode all reasoning for its count.
            Chunk::Finish(_) => usize::MAX,
            Chunk::Ready { .. } => 0,
        };
        dispatch!(&mut self.inner, py, bytes, |inner| inner.push(chunk))
    }

    /// Ends the stream if no finish chunk did.
    fn finish<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        dispatch!(&mut self.inner, py, usize::MAX, |inner| inner.finish())
    }

    /// Makes every further use an error.
    fn close(&mut self) {
        match &mut self.inner {
            Processor::Chat(inner) => inner.close(),
            Processor::Responses(inner) => inner.close(),
            Processor::Messages(inner) => inner.close(),
        }
    }
}

/// Folds chunks into a Chat Completions response.
#[pyclass(module = "deepseek_recipe._recipe")]
pub struct ChatCompletionResponse {
    inner: protocol::ChatCompletionResponse,
}

#[pymethods]
impl ChatCompletionResponse {
    #[new]
    #[allow(unused_variables)]
    fn new(
        id: String,
        model: String,
        created: u64,
        prompt_tokens: u64,
        prompt_cache_hit_tokens: u64,
    ) -> Self {
        ChatCompletionResponse {
            inner: protocol::ChatCompletionResponse::new(id, model, created),
        }
    }

    /// Folds one chunk in, which cannot be used afterwards.
    fn accumulate(&mut self, chunk: &mut ChatCompletionChunk) -> PyResult<()> {
        self.inner.accumulate(
            chunk
                .inner
                .take()
                .ok_or_else(|| consumed("protocol chunk"))?,
        );
        Ok(())
    }

    /// The response as JSON.
    fn to_json(&self, py: Python<'_>) -> String {
        py.detach(|| self.inner.to_json())
    }

    /// Malformed calls of all choices.
    #[getter]
    fn malformed_tool_calls(&self) -> Vec<MalformedToolCall> {
        malformed(self.inner.malformed_calls())
    }

    /// Name of the SSE frame; these are unnamed.
    #[staticmethod]
    #[allow(unused_variables)]
    fn sse_event_name(chunk: &ChatCompletionChunk) -> Option<&'static str> {
        None
    }

    /// Data of the last SSE frame.
    #[staticmethod]
    fn sse_done_data() -> Option<&'static str> {
        Some("[DONE]")
    }
}

/// Folds events into a Responses response.
#[pyclass(module = "deepseek_recipe._recipe")]
pub struct ResponsesResponse {
    inner: protocol::ResponsesResponse,
}

#[pymethods]
impl ResponsesResponse {
    #[new]
    #[allow(unused_variables)]
    fn new(
        id: String,
        model: String,
        created: u64,
        prompt_tokens: u64,
        prompt_cache_hit_tokens: u64,
    ) -> Self {
        ResponsesResponse {
            inner: protocol::ResponsesResponse::new(id, model, created),
        }
    }

    /// Folds one event in, which cannot be used afterwards.
    fn accumulate(&mut self, chunk: &mut ResponsesStreamEvent) -> PyResult<()> {
        self.inner.accumulate(
            chunk
                .inner
                .take()
                .ok_or_else(|| consumed("protocol chunk"))?,
        );
        Ok(())
    }

    /// The response as JSON.
    fn to_json(&self, py: Python<'_>) -> String {
        py.detach(|| self.inner.to_json())
    }

    /// The output items as a JSON list, to be stored behind the input.
    fn output_json(&self, py: Python<'_>) -> String {
        py.detach(|| self.inner.output_json())
    }

    /// Malformed calls; their items have status `incomplete`.
    #[getter]
    fn malformed_tool_calls(&self) -> Vec<MalformedToolCall> {
        malformed(self.inner.malformed_calls())
    }

    /// Name of the SSE frame.
    #[staticmethod]
    fn sse_event_name(chunk: &ResponsesStreamEvent) -> PyResult<Option<&'static str>> {
        Ok(Some(
            chunk
                .inner
                .as_ref()
                .ok_or_else(|| consumed("protocol chunk"))?
                .name(),
        ))
    }

    /// Data of the last SSE frame; there is none.
    #[staticmethod]
    fn sse_done_data() -> Option<&'static str> {
        None
    }
}

/// Folds events into a Messages response.
#[pyclass(module = "deepseek_recipe._recipe")]
pub struct MessagesResponse {
    inner: protocol::MessagesResponse,
}

#[pymethods]
impl MessagesResponse {
    #[new]
    #[allow(unused_variables)]
    fn new(
        id: String,
        model: String,
        created: u64,
        prompt_tokens: u64,
        prompt_cache_hit_tokens: u64,
    ) -> Self {
        let prompt = protocol::PromptUsage {
            prompt_tokens,
            prompt_cache_hit_tokens,
        };
        MessagesResponse {
            inner: protocol::MessagesResponse::new(id, model, prompt),
        }
    }

    /// Folds one event in, which cannot be used afterwards.
    fn accumulate(&mut self, chunk: &mut MessagesStreamEvent) -> PyResult<()> {
        self.inner.accumulate(
            chunk
                .inner
                .take()
                .ok_or_else(|| consumed("protocol chunk"))?,
        );
        Ok(())
    }

    /// The response as JSON.
    fn to_json(&self, py: Python<'_>) -> String {
        py.detach(|| self.inner.to_json())
    }

    /// Malformed calls; their blocks are left out.
    #[getter]
    fn malformed_tool_calls(&self) -> Vec<MalformedToolCall> {
        malformed(self.inner.malformed_calls())
    }

    /// Name of the SSE frame.
    #[staticmethod]
    fn sse_event_name(chunk: &MessagesStreamEvent) -> PyResult<Option<&'static str>> {
        Ok(Some(
            chunk
                .inner
                .as_ref()
                .ok_or_else(|| consumed("protocol chunk"))?
                .name(),
        ))
    }

    /// Data of the last SSE frame; there is none.
    #[staticmethod]
    fn sse_done_data() -> Option<&'static str> {
        None
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PromptUsage>()?;
    module.add_class::<InferenceChunk>()?;
    module.add_class::<MalformedToolCall>()?;
    module.add_class::<ChatCompletionChunkGenerator>()?;
    module.add_class::<ResponsesChunkGenerator>()?;
    module.add_class::<MessagesChunkGenerator>()?;
    module.add_class::<ChatCompletionChunk>()?;
    module.add_class::<ResponsesStreamEvent>()?;
    module.add_class::<MessagesStreamEvent>()?;
    module.add_class::<StreamProcessor>()?;
    module.add_class::<ChatCompletionResponse>()?;
    module.add_class::<ResponsesResponse>()?;
    module.add_class::<MessagesResponse>()
}
