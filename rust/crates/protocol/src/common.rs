//! Rules that the three protocols share.

use std::collections::HashSet;
use std::sync::Arc;

use recipe_json::Value;
use recipe_model::{Conversation, Effort, Message, ResponseFormat, ToolChoice, ToolDefinition};
use recipe_stream::{ParsingOptions, ThinkingInitialStage};

use crate::error::{refuse, ConversionError, ShapeError};
use crate::options::{ConversionOptions, ModelVersion, ReasoningContentBehavior};
use crate::request::{InferenceOptions, OutputConstraint};
use crate::schema;
use crate::shape::{text, unknown, wrong, Shape};

pub(crate) type Rule<T> = Result<T, ConversionError>;

/// `reasoning_effort` as requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EffortWord {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
    Ultra,
    Max,
}

const EFFORTS: [(&str, EffortWord); 8] = [
    ("none", EffortWord::None),
    ("minimal", EffortWord::Minimal),
    ("low", EffortWord::Low),
    ("medium", EffortWord::Medium),
    ("high", EffortWord::High),
    ("xhigh", EffortWord::Xhigh),
    ("ultra", EffortWord::Ultra),
    ("max", EffortWord::Max),
];

impl EffortWord {
    pub fn read(key: &str, value: Value<'_>) -> Shape<Self> {
        let word = text(key, value)?;
        match EFFORTS.iter().find(|(name, _)| *name == word) {
            Some((_, effort)) => Ok(*effort),
            None => unknown(key, &word, &EFFORTS.map(|(name, _)| name)),
        }
    }

    pub fn as_str(self) -> &'static str {
        EFFORTS
            .iter()
            .find(|(_, effort)| *effort == self)
            .map_or("", |(name, _)| name)
    }

    fn effort(self) -> Effort {
        match self {
            EffortWord::Minimal | EffortWord::Low => Effort::Low,
            EffortWord::None | EffortWord::Medium | EffortWord::High => Effort::High,
            EffortWord::Xhigh => Effort::Xhigh,
            EffortWord::Ultra | EffortWord::Max => Effort::Max,
        }
    }
}

/// `thinking.type` of Chat and Messages: whether it turns thinking on.
pub(crate) fn read_thinking(key: &str, value: Value<'_>) -> Shape<bool> {
    let mut members = crate::shape::Members::new(crate::shape::object(key, value)?);
    let on = members.required("type", |key, value| match &*text(key, value)? {
        "enabled" | "adaptive" => Ok(true),
        "disabled" => Ok(false),
        other => unknown("thinking.type", other, &["adaptive", "enabled", "disabled"]),
    })?;
    members.optional("budget_tokens", crate::shape::u64_value)?;
    Ok(on)
}

/// Thinking mode and effort from the explicit switch and the effort word.
pub(crate) fn thinking(
    explicit: Option<bool>,
    effort: Option<EffortWord>,
    options: &ConversionOptions,
) -> Option<Effort> {
    let on = explicit.unwrap_or(match effort {
        Some(EffortWord::None) => false,
        Some(_) => true,
        None => options.default_thinking_mode,
    });
    on.then(|| effort.map_or(Effort::High, EffortWord::effort))
}

/// Looks the model up.
pub(crate) fn model_version(model: &str, options: &ConversionOptions) -> Rule<ModelVersion> {
    let table = &options.model_versions_by_name;
    match table.iter().find(|(name, _)| name == model) {
        Some((_, version)) => Ok(*version),
        None => {
            let names: Vec<&str> = table.iter().map(|(name, _)| name.as_str()).collect();
            refuse(format!(
                "The supported API model names are {}, but you passed {model}.",
                names.join(", ")
            ))
        }
    }
}

/// Sampling members as requested.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sampling {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub max_tokens: Option<u32>,
    pub logprobs: bool,
    pub top_logprobs: Option<u8>,
    pub seed: Option<u64>,
}

pub(crate) fn check_temperature(temperature: Option<f32>) -> Rule<()> {
    match temperature {
        Some(value) if !(0.0..=2.0).contains(&value) => {
            refuse("Invalid temperature value, the valid range of temperature is [0, 2]")
        }
        _ => Ok(()),
    }
}

pub(crate) fn check_top_p(top_p: Option<f32>) -> Rule<()> {
    match top_p {
        Some(value) if !(value > 0.0 && value <= 1.0) => {
            refuse("Invalid top_p value, the valid range of top_p is (0, 1.0]")
        }
        _ => Ok(()),
    }
}

pub(crate) fn check_top_logprobs(top_logprobs: Option<u8>) -> Rule<()> {
    match top_logprobs {
        Some(value) if value > 20 => {
            refuse("Invalid top_logprobs value, the valid range of top_logprobs is [0, 20].")
        }
        _ => Ok(()),
    }
}

pub(crate) fn check_max_tokens(
    max_tokens: Option<u32>,
    thinking: bool,
    lower: bool,
    options: &ConversionOptions,
) -> Rule<Option<u32>> {
    let bound = if thinking {
        options.thinking_max_tokens_upper_bound
    } else {
        options.non_thinking_max_tokens_upper_bound
    };
    match max_tokens {
        Some(value) if value > bound && lower => Ok(Some(bound)),
        Some(value) if value == 0 || value > bound => refuse(format!(
            "Invalid max_tokens value, the valid range of max_tokens is [1, {bound}]"
        )),
        value => Ok(value),
    }
}

/// Effective sampling values; the model is trained for fixed ones in most modes.
pub(crate) fn inference_options(
    sampling: &Sampling,
    conversation: &Conversation,
    version: ModelVersion,
) -> InferenceOptions {
    let thinking = conversation.thinking_mode;
    let top_p = match (version, thinking) {
        (ModelVersion::DeepseekV4Pro, true) if !conversation.tools.is_empty() => 0.95,
        (ModelVersion::DeepseekV4Pro, true) | (ModelVersion::DeepseekV41Flash, false) => 1.0,
        (ModelVersion::DeepseekV4Pro, false) => sampling.top_p.unwrap_or(1.0),
        (ModelVersion::DeepseekV41Flash, true) => sampling.top_p.unwrap_or(1.0).max(0.95),
    };
    InferenceOptions {
        max_tokens: sampling.max_tokens,
        temperature: if thinking {
            1.0
        } else {
            sampling.temperature.unwrap_or(1.0)
        },
        top_p,
        logprobs: sampling.logprobs,
        top_logprobs: sampling.top_logprobs,
        seed: sampling.seed,
        n: 1,
        parallel_tool_calls: None,
        output_constraint: None,
    }
}

/// `stop` or `stop_sequences`; `is_scalar` when it was a single string.
pub(crate) fn check_stop(stop: &[String], is_scalar: bool) -> Rule<()> {
    if stop.len() > 16 {
        return refuse(format!("Stop string array too long: {}", stop.len()));
    }
    match stop.iter().position(String::is_empty) {
        Some(index) => {
            let name = if is_scalar {
                "stop".to_owned()
            } else {
                format!("stop[{index}]")
            };
            refuse(empty_string(&name))
        }
        None => Ok(()),
    }
}

pub(crate) fn empty_string(path: &str) -> String {
    format!(
        "Invalid '{path}': empty string. Expected a string with minimum length 1, but got an empty string instead."
    )
}

/// Checks a tool name found at `path`.
pub(crate) fn check_tool_name(name: &str, path: &str) -> Rule<()> {
    if name.is_empty() {
        return refuse(empty_string(path));
    }
    if name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
    {
        return Ok(());
    }
    refuse(format!(
        "Invalid '{path}': string does not match pattern. Expected a string that matches the pattern \
         '^[a-zA-Z0-9_-]+$'."
    ))
}

/// A tool as declared, before its schema is checked.
#[derive(Debug, Clone)]
pub(crate) struct DeclaredTool {
    pub name: String,
    pub description: Option<String>,
    pub parameters: Option<Arc<Value<'static>>>,
    pub strict: Option<bool>,
    pub defer_loading: bool,
    /// Whether missing parameters are an error.
    pub needs_parameters: bool,
}

impl DeclaredTool {
    /// The tool as declared, for messages that name it before it is checked.
    pub fn unchecked(&self) -> ToolDefinition {
        ToolDefinition {
            name: self.name.clone(),
            description: self.description.clone(),
            parameters: self.parameters.clone(),
            strict: self.strict,
            defer_loading: self.defer_loading,
        }
    }

    /// Checks the schema, or normalises it if the tool is strict.
    pub fn define(self, options: &ConversionOptions) -> Rule<ToolDefinition> {
        let is_strict = self.strict == Some(true);
        let parameters = match self.parameters {
            Some(parameters) if is_strict => {
                Arc::new(schema::normalize_parameters(&parameters, options)?)
            }
            Some(parameters) => {
                schema::check_parameters(&self.name, &parameters, options)?;
                parameters
            }
            None if self.needs_parameters => {
                schema::check_parameters(&self.name, &Value::Null, options)?;
                schema::empty_parameters()
            }
            None if is_strict => schema::empty_strict_parameters(),
            None => schema::empty_parameters(),
        };
        Ok(ToolDefinition {
            name: self.name,
            description: self.description,
            parameters: Some(parameters),
            strict: self.strict,
            defer_loading: self.defer_loading,
        })
    }
}

pub(crate) fn check_strict_mix(tools: &[ToolDefinition]) -> Rule<()> {
    let strict = tools
        .iter()
        .filter(|tool| tool.strict == Some(true))
        .count();
    if strict != 0 && strict != tools.len() {
        return refuse("Cannot use strict tool with non-strict tool in the same request");
    }
    Ok(())
}

/// `tool_choice` as requested.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum RequestedChoice {
    #[default]
    Auto,
    None,
    Required,
    Named(String),
}

/// Applies the choice to the declared tools, then checks and defines those that are left.
pub(crate) fn choose_tools(
    tools: Vec<DeclaredTool>,
    choice: RequestedChoice,
    thinking: bool,
    options: &ConversionOptions,
) -> Rule<(Vec<ToolDefinition>, ToolChoice)> {
    if choice == RequestedChoice::None {
        return Ok((Vec::new(), ToolChoice::None));
    }
    if tools.is_empty() {
        return Ok((Vec::new(), ToolChoice::Auto));
    }
    let mut names = HashSet::with_capacity(tools.len());
    let mut defined = Vec::with_capacity(tools.len());
    for tool in tools {
        if !names.insert(tool.name.clone()) {
            return refuse("Tool names must be unique.");
        }
        defined.push(tool.define(options)?);
    }
    let (tools, choice) = selected(defined, choice, thinking)?;
    Ok((tools, choice))
}

fn selected(
    tools: Vec<ToolDefinition>,
    choice: RequestedChoice,
    thinking: bool,
) -> Rule<(Vec<ToolDefinition>, ToolChoice)> {
    let (tools, choice) = match choice {
        RequestedChoice::Auto | RequestedChoice::None => return Ok((tools, ToolChoice::Auto)),
        RequestedChoice::Required => (tools, ToolChoice::Required),
        RequestedChoice::Named(name) => {
            let named: Vec<ToolDefinition> =
                tools.into_iter().filter(|tool| tool.name == name).collect();
            if named.is_empty() {
                return refuse(format!(
                    "Invalid value for 'tool_call': no function named '{name}' was specified in the 'tools' \
                     parameter."
                ));
            }
            (named, ToolChoice::Required)
        }
    };
    if thinking {
        return refuse("Thinking mode does not support this tool_choice");
    }
    Ok((tools, choice))
}

/// `response_format` or `text.format` as requested.
#[derive(Debug, Clone, Default)]
pub(crate) enum RequestedFormat {
    #[default]
    Text,
    JsonObject,
    JsonSchema {
        schema: Arc<Value<'static>>,
        strict: bool,
    },
    Regex(String),
}

/// What a format means for prompt and decoder.
pub(crate) struct CheckedFormat {
    pub format: ResponseFormat,
    pub constraint: Option<OutputConstraint>,
}

impl RequestedFormat {
    pub fn check(self, options: &ConversionOptions) -> Rule<CheckedFormat> {
        let (format, constraint) = match self {
            RequestedFormat::Text => (ResponseFormat::Text, None),
            RequestedFormat::JsonObject => (
                ResponseFormat::JsonObject,
                Some(OutputConstraint::Json { schema: None }),
            ),
            RequestedFormat::Regex(pattern) => (
                ResponseFormat::Regex(pattern.clone()),
                Some(OutputConstraint::Regex { pattern }),
            ),
            RequestedFormat::JsonSchema { schema, strict } => {
                let constrained = if strict {
                    Arc::new(schema::normalize_response_schema(&schema, options)?)
                } else {
                    schema::check_response_schema(&schema, options)?;
                    schema.clone()
                };
                let constraint = OutputConstraint::Json {
                    schema: Some(constrained),
                };
                (ResponseFormat::JsonSchema(schema), Some(constraint))
            }
        };
        Ok(CheckedFormat { format, constraint })
    }
}

/// Whether any message text contains `json` in any case.
pub(crate) fn mentions_json(messages: &[Message]) -> bool {
    messages.iter().any(|message| {
        message
            .text()
            .as_bytes()
            .windows(4)
            .any(|window| window.eq_ignore_ascii_case(b"json"))
    })
}

/// The constraint of a request: tools beat a response format.
pub(crate) fn output_constraint(
    format: Option<OutputConstraint>,
    conversation: &Conversation,
    parallel: Option<bool>,
) -> Rule<Option<OutputConstraint>> {
    if conversation.tools.is_empty() {
        return Ok(format);
    }
    if format.is_some()
        && conversation
            .tools
            .iter()
            .any(|tool| tool.strict == Some(true))
    {
        return refuse("response_format should not be used with tools");
    }
    Ok(Some(OutputConstraint::ToolCalls {
        required: conversation.tool_choice == ToolChoice::Required,
        parallel: parallel != Some(false),
        tools: conversation.tools.clone(),
    }))
}

/// How the output of `conversation` is parsed.
pub(crate) fn parsing_options(
    conversation: &Conversation,
    stop_sequences: Vec<String>,
    options: &ConversionOptions,
) -> ParsingOptions {
    let has_tools = !conversation.tools.is_empty();
    let stage = conversation
        .thinking_mode
        .then(|| match conversation.messages.last() {
            Some(Message::Assistant(message)) if message.prefix => {
                let has_reasoning = message
                    .reasoning_content
                    .as_ref()
                    .is_some_and(|text| !text.is_empty());
                if !message.content.is_empty() {
                    ThinkingInitialStage::ContentContinuation
                } else if has_reasoning {
                    ThinkingInitialStage::ReasoningContinuation
                } else {
                    ThinkingInitialStage::ReasoningStart
                }
            }
            _ => ThinkingInitialStage::ReasoningStart,
        });
    ParsingOptions {
        parse_tool_calls: has_tools,
        starts_in_tool_calls: has_tools && conversation.tool_choice == ToolChoice::Required,
        parse_json_output: conversation.response_format == ResponseFormat::JsonObject,
        thinking_initial_stage: stage,
        stop_sequences,
        special_tokens: options.special_tokens.clone(),
        keep_text_after_tools: options.extras.keep_text_after_tools,
        strict_json_output: options.extras.strict_json_output,
        repair_tool_calls: options.extras.repair_tool_calls,
        tool_names: options.extras.validate_tool_names.then(|| {
            conversation
                .tools
                .iter()
                .map(|tool| tool.name.clone())
                .collect()
        }),
    }
}

/// Checks and completes the reasoning of assistant messages, which so far is as it was sent.
///
/// `member` is the name of the member that should have carried it. In the current turn, reasoning must come with
/// calls, and with every message if tools were declared, unless a call id says that there was none.
pub(crate) fn complete_reasoning(
    messages: &mut [Message],
    thinking: bool,
    declares_tools: bool,
    member: &str,
    options: &ConversionOptions,
) -> Rule<()> {
    if thinking && options.reasoning_content_behavior == ReasoningContentBehavior::Reject {
        let last_user = messages
            .iter()
            .rposition(|message| matches!(message, Message::User(_)));
        for message in &messages[last_user.map_or(0, |index| index + 1)..] {
            let Message::Assistant(message) = message else {
                continue;
            };
            let calls = message.tool_calls.as_deref().unwrap_or_default();
            let is_needed = declares_tools || !calls.is_empty();
            let is_marked = calls
                .iter()
                .any(|call| marks_empty_reasoning(&call.id, options.is_official()));
            if is_needed && message.reasoning_content.is_none() && !is_marked {
                return refuse(format!(
                    "The `{member}` in the thinking mode must be passed back to the API."
                ));
            }
        }
    }
    for message in messages {
        if let Message::Assistant(message) = message {
            match (&mut message.reasoning_content, thinking) {
                (reasoning, false) => *reasoning = None,
                (reasoning @ None, true) => *reasoning = Some(String::new()),
                (Some(_), true) => {}
            }
        }
    }
    Ok(())
}

/// Stands for an image in prompts of a model that sees none.
pub(crate) const UNSUPPORTED_IMAGE: &str = "[Unsupported Image]";

/// Whether the model sees images, loads tools late and has system messages at any place.
pub(crate) fn is_flash(version: ModelVersion) -> bool {
    version == ModelVersion::DeepseekV41Flash
}

/// Whether a call id says that the call was made with empty reasoning: `call_NN_ET_...`.
pub(crate) fn marks_empty_reasoning(id: &str, official: bool) -> bool {
    let Some(rest) = id.strip_prefix("call_") else {
        return false;
    };
    let Some((index, _)) = rest.split_once("_ET_") else {
        return false;
    };
    if official {
        // Two characters of any kind; none at all also passes.
        let count = index.chars().count();
        return count == 2 || count == 0;
    }
    !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit())
}

pub(crate) fn check_count(
    what: &str,
    count: usize,
    limit: usize,
    options: &ConversionOptions,
) -> Rule<()> {
    if !options.is_official() && count > limit {
        return refuse(format!("{what}: {count}, the limit is {limit}"));
    }
    Ok(())
}

/// The shape that only the default mode accepts, kept until the mode is known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Deferred {
    /// First shape that the original rejects.
    official: Option<ShapeError>,
    /// First wrong shape in a member that the original ignores.
    default: Option<ShapeError>,
}

impl Deferred {
    pub fn only_default(&mut self, detail: impl Into<String>) {
        self.official.get_or_insert_with(|| ShapeError::new(detail));
    }

    /// Takes the value of a member that the original ignores.
    pub fn ignored_officially<T>(&mut self, value: Shape<Option<T>>) -> Option<T> {
        value.unwrap_or_else(|error| {
            self.default.get_or_insert(error);
            None
        })
    }

    pub fn check(&self, options: &ConversionOptions) -> Shape<()> {
        let error = if options.is_official() {
            &self.official
        } else {
            &self.default
        };
        match error {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }
}

/// Number from 1 to 100 in place of an effort word.
pub(crate) fn effort_value(key: &str, value: Value<'_>) -> Shape<u8> {
    match crate::shape::u8_value(key, value.clone()) {
        Ok(level @ 1..=100) => Ok(level),
        _ => wrong(key, "an integer from 1 to 100", &value),
    }
}
