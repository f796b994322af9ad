//! Conversion options and what conversion gives besides the conversation.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use recipe::protocol::{self, Compat, Extras, ReasoningKey, RequestLimits};
use recipe::stream;

use crate::enums::{
    ModelVersion, ReasoningContentBehavior, ThinkingInitialStage, WebSearchBehavior,
};
use crate::errors::conversion_error;
use crate::messages::{Conversation, SpecialTokens, ToolDefinition};

pub fn compat_of(word: &str) -> PyResult<Compat> {
    match word {
        "default" => Ok(Compat::Default),
        "official" => Ok(Compat::Official),
        other => Err(PyValueError::new_err(format!(
            "invalid compat {other:?}; expected \"default\" or \"official\""
        ))),
    }
}

pub fn compat_word(compat: Compat) -> &'static str {
    match compat {
        Compat::Default => "default",
        Compat::Official => "official",
    }
}

/// How requests are converted. Objects do not change; `with_` methods give copies.
#[pyclass(frozen, module = "deepseek_recipe._recipe")]
#[derive(Clone)]
pub struct ConversionOptions {
    pub inner: protocol::ConversionOptions,
    /// Called with path and message for everything that conversion leaves out.
    pub on_warning: Option<Arc<Py<PyAny>>>,
}

impl ConversionOptions {
    fn with(&self, change: impl FnOnce(&mut protocol::ConversionOptions)) -> Self {
        let mut copy = self.clone();
        change(&mut copy.inner);
        copy
    }
}

#[pymethods]
impl ConversionOptions {
    #[new]
    #[pyo3(signature = (*, default_thinking_mode=true,
        reasoning_content_behavior=ReasoningContentBehavior::FillEmpty,
        responses_web_search=WebSearchBehavior::Drop, messages_web_search=WebSearchBehavior::Reject,
        thinking_max_tokens_upper_bound=393_216, non_thinking_max_tokens_upper_bound=393_216,
        compat="default", continue_messages_prefill=false, mark_tool_errors=false, openai_usage_chunk=false,
        validate_tool_names=false, keep_text_after_tools=false, strict_json_output=false, repair_tool_calls=false,
        reasoning_key=None, on_warning=None, max_messages=None, max_tools=None, max_schema_bytes=None,
        max_choices=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        default_thinking_mode: bool,
        reasoning_content_behavior: ReasoningContentBehavior,
        responses_web_search: WebSearchBehavior,
        messages_web_search: WebSearchBehavior,
        thinking_max_tokens_upper_bound: u32,
        non_thinking_max_tokens_upper_bound: u32,
        compat: &str,
        continue_messages_prefill: bool,
        mark_tool_errors: bool,
        openai_usage_chunk: bool,
        validate_tool_names: bool,
        keep_text_after_tools: bool,
        strict_json_output: bool,
        repair_tool_calls: bool,
        reasoning_key: Option<Vec<u8>>,
        on_warning: Option<Py<PyAny>>,
        max_messages: Option<usize>,
        max_tools: Option<usize>,
        max_schema_bytes: Option<usize>,
        max_choices: Option<u32>,
    ) -> PyResult<Self> {
        let reasoning_key = match reasoning_key {
            None => None,
            Some(bytes) => {
                let secret: [u8; 32] = bytes.as_slice().try_into().map_err(|_| {
                    PyValueError::new_err(format!(
                        "reasoning_key must have 32 bytes, not {}",
                        bytes.len()
                    ))
                })?;
                Some(ReasoningKey::new(secret))
            }
        };
        let defaults = RequestLimits::default();
        let inner = protocol::ConversionOptions {
            compat: compat_of(compat)?,
            default_thinking_mode,
            reasoning_content_behavior: reasoning_content_behavior.into(),
            responses_web_search: responses_web_search.into(),
            messages_web_search: messages_web_search.into(),
            thinking_max_tokens_upper_bound,
            non_thinking_max_tokens_upper_bound,
            extras: Extras {
                continue_messages_prefill,
                mark_tool_errors,
                openai_usage_chunk,
                validate_tool_names,
                keep_text_after_tools,
                strict_json_output,
                repair_tool_calls,
            },
            limits: RequestLimits {
                max_messages: max_messages.unwrap_or(defaults.max_messages),
                max_tools: max_tools.unwrap_or(defaults.max_tools),
                max_schema_bytes: max_schema_bytes.unwrap_or(defaults.max_schema_bytes),
                max_choices: max_choices.unwrap_or(defaults.max_choices),
            },
            reasoning_key,
            ..protocol::ConversionOptions::default()
        };
        Ok(ConversionOptions {
            inner,
            on_warning: on_warning.map(Arc::new),
        })
    }

    #[getter]
    fn compat(&self) -> &'static str {
        compat_word(self.inner.compat)
    }

    #[getter]
    fn default_thinking_mode(&self) -> bool {
        self.inner.default_thinking_mode
    }

    #[getter]
    fn reasoning_content_behavior(&self) -> ReasoningContentBehavior {
        self.inner.reasoning_content_behavior.into()
    }

    #[getter]
    fn responses_web_search(&self) -> WebSearchBehavior {
        self.inner.responses_web_search.into()
    }

    #[getter]
    fn messages_web_search(&self) -> WebSearchBehavior {
        self.inner.messages_web_search.into()
    }

    #[getter]
    fn thinking_max_tokens_upper_bound(&self) -> u32 {
        self.inner.thinking_max_tokens_upper_bound
    }

    #[getter]
    fn non_thinking_max_tokens_upper_bound(&self) -> u32 {
        self.inner.non_thinking_max_tokens_upper_bound
    }

    #[getter]
    fn special_tokens(&self) -> SpecialTokens {
        SpecialTokens {
            inner: self.inner.special_tokens.clone(),
        }
    }

    #[getter]
    fn model_versions_by_name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let table = PyDict::new(py);
        for (name, version) in &self.inner.model_versions_by_name {
            table.set_item(name, ModelVersion::from(*version))?;
        }
        Ok(table)
    }

    fn with_default_thinking_mode(&self, default_thinking_mode: bool) -> Self {
        self.with(|options| options.default_thinking_mode = default_thinking_mode)
    }

    fn with_reasoning_content_behavior(&self, behavior: ReasoningContentBehavior) -> Self {
        self.with(|options| options.reasoning_content_behavior = behavior.into())
    }

    fn with_responses_web_search(&self, behavior: WebSearchBehavior) -> Self {
        self.with(|options| options.responses_web_search = behavior.into())
    }

    fn with_messages_web_search(&self, behavior: WebSearchBehavior) -> Self {
        self.with(|options| options.messages_web_search = behavior.into())
    }

    fn with_special_tokens(&self, special_tokens: PyRef<'_, SpecialTokens>) -> Self {
        self.with(|options| options.special_tokens = special_tokens.inner.clone())
    }

    /// Accepts one more model name.
    fn with_model_alias(&self, name: String, model_version: ModelVersion) -> Self {
        self.with(|options| {
            let table = &mut options.model_versions_by_name;
            match table.iter_mut().find(|(known, _)| *known == name) {
                Some(entry) => entry.1 = model_version.into(),
                None => table.push((name, model_version.into())),
            }
        })
    }

    /// Replaces the table of model names.
    fn with_model_versions_by_name(
        &self,
        model_versions_by_name: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let mut table = Vec::with_capacity(model_versions_by_name.len());
        for (name, version) in model_versions_by_name {
            table.push((
                name.extract::<String>()?,
                version.extract::<ModelVersion>()?.into(),
            ));
        }
        Ok(self.with(|options| options.model_versions_by_name = table))
    }

    fn with_thinking_max_tokens_upper_bound(&self, bound: u32) -> Self {
        self.with(|options| options.thinking_max_tokens_upper_bound = bound)
    }

    fn with_non_thinking_max_tokens_upper_bound(&self, bound: u32) -> Self {
        self.with(|options| options.non_thinking_max_tokens_upper_bound = bound)
    }

    /// Calls `hook(path, message)` for everything that conversion leaves out.
    fn with_warning_hook(&self, hook: Py<PyAny>) -> Self {
        ConversionOptions {
            on_warning: Some(Arc::new(hook)),
            inner: self.inner.clone(),
        }
    }
}

/// What the output must match.
#[pyclass(frozen, module = "deepseek_recipe._recipe")]
#[derive(Clone)]
pub struct OutputConstraint {
    inner: protocol::OutputConstraint,
}

#[pymethods]
impl OutputConstraint {
    #[getter]
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    #[getter]
    fn schema(&self) -> String {
        self.inner.schema()
    }

    /// The tools that may be called; `None` unless this constrains calls.
    #[getter]
    fn tools(&self) -> Option<Vec<ToolDefinition>> {
        match &self.inner {
            protocol::OutputConstraint::ToolCalls { tools, .. } => Some(
                tools
                    .iter()
                    .map(|tool| ToolDefinition {
                        inner: tool.clone(),
                    })
                    .collect(),
            ),
            _ => None,
        }
    }

    /// Whether at least one call must be made.
    #[getter]
    fn is_required(&self) -> bool {
        matches!(
            self.inner,
            protocol::OutputConstraint::ToolCalls { required: true, .. }
        )
    }

    /// Whether more than one call may be made.
    #[getter]
    fn allows_parallel_calls(&self) -> bool {
        !matches!(
            self.inner,
            protocol::OutputConstraint::ToolCalls {
                parallel: false,
                ..
            }
        )
    }

    fn __repr__(&self) -> String {
        format!(
            "OutputConstraint(kind={:?}, schema={:?})",
            self.inner.kind(),
            self.inner.schema()
        )
    }
}

/// Sampling values and constraints for the engine.
#[pyclass(frozen, module = "deepseek_recipe._recipe")]
#[derive(Clone)]
pub struct InferenceOptions {
    inner: protocol::InferenceOptions,
}

#[pymethods]
impl InferenceOptions {
    #[getter]
    fn max_tokens(&self) -> Option<u32> {
        self.inner.max_tokens
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
    fn logprobs(&self) -> bool {
        self.inner.logprobs
    }

    #[getter]
    fn top_logprobs(&self) -> Option<u8> {
        self.inner.top_logprobs
    }

    #[getter]
    fn seed(&self) -> Option<u64> {
        self.inner.seed
    }

    /// Number of independent choices.
    #[getter]
    fn n(&self) -> u32 {
        self.inner.n
    }

    /// Whether several calls in one turn are allowed; `None` when the request does not say.
    #[getter]
    fn parallel_tool_calls(&self) -> Option<bool> {
        self.inner.parallel_tool_calls
    }

    #[getter]
    fn output_constraint(&self) -> Option<OutputConstraint> {
        self.inner
            .output_constraint
            .clone()
            .map(|inner| OutputConstraint { inner })
    }
}

/// How output is parsed; members can be set.
#[pyclass(module = "deepseek_recipe._recipe")]
#[derive(Clone)]
pub struct ParsingOptions {
    pub inner: stream::ParsingOptions,
}

#[pymethods]
impl ParsingOptions {
    #[new]
    #[pyo3(signature = (*, parse_tool_calls=true, starts_in_tool_calls=false, parse_json_output=false,
        thinking_initial_stage=None, stop_sequences=None, special_tokens=None, keep_text_after_tools=false,
        strict_json_output=false, repair_tool_calls=false, tool_names=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        parse_tool_calls: bool,
        starts_in_tool_calls: bool,
        parse_json_output: bool,
        thinking_initial_stage: Option<ThinkingInitialStage>,
        stop_sequences: Option<Vec<String>>,
        special_tokens: Option<PyRef<'_, SpecialTokens>>,
        keep_text_after_tools: bool,
        strict_json_output: bool,
        repair_tool_calls: bool,
        tool_names: Option<Vec<String>>,
    ) -> Self {
        ParsingOptions {
            inner: stream::ParsingOptions {
                parse_tool_calls,
                starts_in_tool_calls,
                parse_json_output,
                thinking_initial_stage: thinking_initial_stage.map(Into::into),
                stop_sequences: stop_sequences.unwrap_or_default(),
                special_tokens: special_tokens
                    .map(|tokens| tokens.inner.clone())
                    .unwrap_or_default(),
                keep_text_after_tools,
                strict_json_output,
                repair_tool_calls,
                tool_names,
            },
        }
    }

    #[getter]
    fn parse_tool_calls(&self) -> bool {
        self.inner.parse_tool_calls
    }

    #[setter]
    fn set_parse_tool_calls(&mut self, value: bool) {
        self.inner.parse_tool_calls = value;
    }

    #[getter]
    fn starts_in_tool_calls(&self) -> bool {
        self.inner.starts_in_tool_calls
    }

    #[setter]
    fn set_starts_in_tool_calls(&mut self, value: bool) {
        self.inner.starts_in_tool_calls = value;
    }

    #[getter]
    fn parse_json_output(&self) -> bool {
        self.inner.parse_json_output
    }

    #[setter]
    fn set_parse_json_output(&mut self, value: bool) {
        self.inner.parse_json_output = value;
    }

    #[getter]
    fn thinking_initial_stage(&self) -> Option<ThinkingInitialStage> {
        self.inner.thinking_initial_stage.map(Into::into)
    }

    #[setter]
    fn set_thinking_initial_stage(&mut self, value: Option<ThinkingInitialStage>) {
        self.inner.thinking_initial_stage = value.map(Into::into);
    }

    #[getter]
    fn stop_sequences(&self) -> Vec<String> {
        self.inner.stop_sequences.clone()
    }

    #[setter]
    fn set_stop_sequences(&mut self, value: Vec<String>) {
        self.inner.stop_sequences = value;
    }

    #[getter]
    fn special_tokens(&self) -> SpecialTokens {
        SpecialTokens {
            inner: self.inner.special_tokens.clone(),
        }
    }

    #[setter]
    fn set_special_tokens(&mut self, value: PyRef<'_, SpecialTokens>) {
        self.inner.special_tokens = value.inner.clone();
    }

    #[getter]
    fn keep_text_after_tools(&self) -> bool {
        self.inner.keep_text_after_tools
    }

    #[setter]
    fn set_keep_text_after_tools(&mut self, value: bool) {
        self.inner.keep_text_after_tools = value;
    }

    #[getter]
    fn strict_json_output(&self) -> bool {
        self.inner.strict_json_output
    }

    #[setter]
    fn set_strict_json_output(&mut self, value: bool) {
        self.inner.strict_json_output = value;
    }

    #[getter]
    fn repair_tool_calls(&self) -> bool {
        self.inner.repair_tool_calls
    }

    #[setter]
    fn set_repair_tool_calls(&mut self, value: bool) {
        self.inner.repair_tool_calls = value;
    }

    #[getter]
    fn tool_names(&self) -> Option<Vec<String>> {
        self.inner.tool_names.clone()
    }

    #[setter]
    fn set_tool_names(&mut self, value: Option<Vec<String>>) {
        self.inner.tool_names = value;
    }
}

/// A converted request.
#[pyclass(frozen, module = "deepseek_recipe._recipe")]
#[derive(Clone)]
pub struct ConversationRequest {
    pub inner: protocol::ConversationRequest,
}

#[pymethods]
impl ConversationRequest {
    #[new]
    #[pyo3(signature = (conversation, model_version, *, compat="default"))]
    fn new(
        conversation: &Conversation,
        model_version: ModelVersion,
        compat: &str,
    ) -> PyResult<Self> {
        let conversation = (*conversation.inner).clone();
        let mut inner =
            protocol::ConversationRequest::from_conversation(conversation, model_version.into());
        inner.generation.compat = compat_of(compat)?;
        Ok(ConversationRequest { inner })
    }

    #[getter]
    fn conversation(&self) -> Conversation {
        Conversation {
            inner: self.inner.conversation.clone(),
        }
    }

    #[getter]
    fn inference_options(&self) -> InferenceOptions {
        InferenceOptions {
            inner: self.inner.inference_options.clone(),
        }
    }

    #[getter]
    fn parsing_options(&self) -> ParsingOptions {
        ParsingOptions {
            inner: self.inner.parsing_options.clone(),
        }
    }

    #[getter]
    fn model_version(&self) -> ModelVersion {
        self.inner.model_version.into()
    }

    #[getter]
    fn stream(&self) -> bool {
        self.inner.stream
    }

    #[getter]
    fn compat(&self) -> &'static str {
        compat_word(self.inner.generation.compat)
    }

    /// Path and message of everything that conversion left out.
    #[getter]
    fn warnings(&self) -> Vec<(String, String)> {
        self.inner
            .warnings
            .iter()
            .map(|warning| (warning.path.clone(), warning.message.clone()))
            .collect()
    }

    /// Responses: the whole input as a JSON list, to be stored with the output; `None` without a store.
    fn history_json(&self) -> Option<String> {
        let state = self.inner.generation.responses.as_ref()?;
        state.history.as_ref().map(recipe::json::Value::to_compact)
    }

    /// The bound on generated tokens for a prompt in a context.
    fn resolve_max_tokens(
        &self,
        py: Python<'_>,
        prompt_tokens: u64,
        context_limit: u64,
    ) -> PyResult<u64> {
        self.inner
            .resolve_max_tokens(prompt_tokens, context_limit)
            .map_err(|error| conversion_error(py, &error))
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ConversionOptions>()?;
    module.add_class::<OutputConstraint>()?;
    module.add_class::<InferenceOptions>()?;
    module.add_class::<ParsingOptions>()?;
    module.add_class::<ConversationRequest>()
}
