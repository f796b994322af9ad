//! Conversation classes.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use recipe::json::Value;
use recipe::model::{
    self, Content, Effort, ReminderMessage, ResponseFormat, SpecialToken as Token,
};

use crate::body::{value_from_python, value_to_python};
use crate::enums::SpecialToken;
use crate::sources::{images_to_python, ImageSource};

const DEFAULT_IMAGE_TOKEN: &str = "<｜image｜>";

/// Spellings of special tokens.
#[pyclass(frozen, module = "deepseek_recipe._recipe")]
#[derive(Clone)]
pub struct SpecialTokens {
    pub inner: model::SpecialTokens,
}

#[pymethods]
impl SpecialTokens {
    #[new]
    #[pyo3(signature = (*, bos=None, eos=None, thinking_start=None, thinking_end=None, system=None, user=None,
        assistant=None, latest_reminder=None, dsml=None, image=None, r#ref=None, ref_end=None, r#box=None, box_end=None,
        point=None, point_end=None, polygon=None, polygon_end=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        bos: Option<String>,
        eos: Option<String>,
        thinking_start: Option<String>,
        thinking_end: Option<String>,
        system: Option<String>,
        user: Option<String>,
        assistant: Option<String>,
        latest_reminder: Option<String>,
        dsml: Option<String>,
        image: Option<String>,
        r#ref: Option<String>,
        ref_end: Option<String>,
        r#box: Option<String>,
        box_end: Option<String>,
        point: Option<String>,
        point_end: Option<String>,
        polygon: Option<String>,
        polygon_end: Option<String>,
    ) -> Self {
        let spellings = [
            bos,
            eos,
            thinking_start,
            thinking_end,
            system,
            user,
            assistant,
            latest_reminder,
            dsml,
            image,
            r#ref,
            ref_end,
            r#box,
            box_end,
            point,
            point_end,
            polygon,
            polygon_end,
        ];
        let inner = Token::ALL.iter().zip(spellings).fold(
            model::SpecialTokens::default(),
            |tokens, (token, spelling)| match spelling {
                Some(spelling) => tokens.with(*token, spelling),
                None => tokens,
            },
        );
        SpecialTokens { inner }
    }

    /// The spelling of a token.
    fn token(&self, token: SpecialToken) -> &str {
        self.inner.get(token.into())
    }
}

/// A call that the assistant made.
#[pyclass(frozen, module = "deepseek_recipe._recipe")]
#[derive(Clone)]
pub struct ToolCall {
    inner: model::ToolCall,
}

#[pymethods]
impl ToolCall {
    #[new]
    fn new(id: String, name: String, arguments: String) -> Self {
        ToolCall {
            inner: model::ToolCall {
                id,
                name,
                arguments,
            },
        }
    }

    #[getter]
    fn id(&self) -> &str {
        &self.inner.id
    }

    #[getter]
    fn name(&self) -> &str {
        &self.inner.name
    }

    #[getter]
    fn arguments(&self) -> &str {
        &self.inner.arguments
    }

    fn __repr__(&self) -> String {
        let model::ToolCall {
            id,
            name,
            arguments,
        } = &self.inner;
        format!("ToolCall(id={id:?}, name={name:?}, arguments={arguments:?})")
    }
}

/// A function that the model may call.
#[pyclass(frozen, module = "deepseek_recipe._recipe")]
#[derive(Clone)]
pub struct ToolDefinition {
    pub inner: model::ToolDefinition,
}

#[pymethods]
impl ToolDefinition {
    #[new]
    #[pyo3(signature = (name, description=None, parameters=None, strict=None, defer_loading=false))]
    fn new(
        name: String,
        description: Option<String>,
        parameters: Option<&Bound<'_, PyAny>>,
        strict: Option<bool>,
        defer_loading: bool,
    ) -> PyResult<Self> {
        let parameters = parameters.map(value_from_python).transpose()?.map(Arc::new);
        Ok(ToolDefinition {
            inner: model::ToolDefinition {
                name,
                description,
                parameters,
                strict,
                defer_loading,
            },
        })
    }

    #[getter]
    fn name(&self) -> &str {
        &self.inner.name
    }

    #[getter]
    fn description(&self) -> Option<&str> {
        self.inner.description.as_deref()
    }

    #[getter]
    fn parameters<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.inner
            .parameters
            .as_ref()
            .map(|value| value_to_python(py, value))
            .transpose()
    }

    #[getter]
    fn strict(&self) -> Option<bool> {
        self.inner.strict
    }

    #[getter]
    fn defer_loading(&self) -> bool {
        self.inner.defer_loading
    }

    fn __repr__(&self) -> String {
        let model::ToolDefinition {
            name,
            description,
            strict,
            ..
        } = &self.inner;
        format!(
            "ToolDefinition(name={name:?}, description={}, strict={})",
            optional(description),
            flag(*strict)
        )
    }
}

fn optional(text: &Option<String>) -> String {
    text.as_ref()
        .map_or_else(|| "None".to_owned(), |text| format!("{text:?}"))
}

fn flag(value: Option<bool>) -> &'static str {
    match value {
        None => "None",
        Some(true) => "True",
        Some(false) => "False",
    }
}

/// A message; fields foreign to its role read as nothing.
#[pyclass(frozen, subclass, module = "deepseek_recipe._recipe")]
#[derive(Clone)]
pub struct Message {
    pub inner: model::Message,
}

#[pymethods]
impl Message {
    #[getter]
    fn role(&self) -> &'static str {
        self.inner.role()
    }

    #[getter]
    fn content(&self) -> &str {
        self.inner.text()
    }

    #[getter]
    fn reasoning_content(&self) -> Option<&str> {
        match &self.inner {
            model::Message::Assistant(message) => message.reasoning_content.as_deref(),
            _ => None,
        }
    }

    #[getter]
    fn tool_calls(&self) -> Option<Vec<ToolCall>> {
        match &self.inner {
            model::Message::Assistant(message) => message.tool_calls.as_ref().map(|calls| {
                calls
                    .iter()
                    .map(|call| ToolCall {
                        inner: call.clone(),
                    })
                    .collect()
            }),
            _ => None,
        }
    }

    #[getter]
    fn tool_call_id(&self) -> Option<&str> {
        match &self.inner {
            model::Message::Tool(message) => message.tool_call_id.as_deref(),
            _ => None,
        }
    }

    #[getter]
    fn image_sources<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        images_to_python(py, self.inner.images())
    }

    #[getter]
    fn prefix(&self) -> bool {
        self.inner.is_prefix()
    }

    fn __repr__(&self) -> String {
        let text = self.inner.text();
        let images = self.inner.images().len();
        match &self.inner {
            model::Message::System(_) => format!("SystemMessage({text:?})"),
            model::Message::User(_) => format!("UserMessage({text:?}, image_sources={images})"),
            model::Message::LatestReminder(_) => format!("LatestReminderMessage({text:?})"),
            model::Message::Tool(message) => format!(
                "ToolMessage({text:?}, tool_call_id={}, image_sources={images})",
                optional(&message.tool_call_id)
            ),
            model::Message::Assistant(message) => format!(
                "AssistantMessage({text:?}, reasoning_content={}, tool_calls={}, prefix={})",
                flag(Some(message.reasoning_content.is_some())),
                message.tool_calls.as_ref().map_or(0, Vec::len),
                flag(Some(message.prefix))
            ),
        }
    }
}

type Sources<'py> = Option<Vec<PyRef<'py, ImageSource>>>;

fn content(text: String, sources: Sources<'_>, image_token: Option<&str>) -> PyResult<Content> {
    let images = sources
        .into_iter()
        .flatten()
        .map(|source| source.inner.clone())
        .collect();
    Content::with_images(text, images, image_token.unwrap_or(DEFAULT_IMAGE_TOKEN))
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Instructions, possibly with tools that become available here.
#[pyclass(frozen, extends = Message, module = "deepseek_recipe._recipe")]
pub struct SystemMessage;

#[pymethods]
impl SystemMessage {
    #[new]
    #[pyo3(signature = (content, image_sources=None, tools=None, *, image_token=None))]
    fn new(
        content: String,
        image_sources: Sources<'_>,
        tools: Option<Vec<PyRef<'_, ToolDefinition>>>,
        image_token: Option<&str>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let tools = tools
            .into_iter()
            .flatten()
            .map(|tool| tool.inner.clone())
            .collect();
        let content = self::content(content, image_sources, image_token)?;
        let message = model::Message::System(model::SystemMessage { content, tools });
        Ok(PyClassInitializer::from(Message { inner: message }).add_subclass(SystemMessage))
    }

    #[getter]
    fn tools(slf: PyRef<'_, Self>) -> Vec<ToolDefinition> {
        match &slf.as_super().inner {
            model::Message::System(message) => definitions(&message.tools),
            _ => Vec::new(),
        }
    }
}

/// What the user said.
#[pyclass(frozen, extends = Message, module = "deepseek_recipe._recipe")]
pub struct UserMessage;

#[pymethods]
impl UserMessage {
    #[new]
    #[pyo3(signature = (content, image_sources=None, *, image_token=None))]
    fn new(
        content: String,
        image_sources: Sources<'_>,
        image_token: Option<&str>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let content = self::content(content, image_sources, image_token)?;
        let message = model::Message::User(model::UserMessage { content });
        Ok(PyClassInitializer::from(Message { inner: message }).add_subclass(UserMessage))
    }
}

/// What the model said.
#[pyclass(frozen, extends = Message, module = "deepseek_recipe._recipe")]
pub struct AssistantMessage;

#[pymethods]
impl AssistantMessage {
    #[new]
    #[pyo3(signature = (content, reasoning_content=None, tool_calls=None, prefix=false))]
    fn new(
        content: String,
        reasoning_content: Option<String>,
        tool_calls: Option<Vec<PyRef<'_, ToolCall>>>,
        prefix: bool,
    ) -> PyClassInitializer<Self> {
        let tool_calls =
            tool_calls.map(|calls| calls.iter().map(|call| call.inner.clone()).collect());
        let message = model::AssistantMessage {
            content,
            reasoning_content,
            tool_calls,
            prefix,
        };
        let base = Message {
            inner: model::Message::Assistant(message),
        };
        PyClassInitializer::from(base).add_subclass(AssistantMessage)
    }
}

/// The result of a call.
#[pyclass(frozen, extends = Message, module = "deepseek_recipe._recipe")]
pub struct ToolMessage;

#[pymethods]
impl ToolMessage {
    #[new]
    #[pyo3(signature = (content, tool_call_id=None, image_sources=None, *, image_token=None))]
    fn new(
        content: String,
        tool_call_id: Option<String>,
        image_sources: Sources<'_>,
        image_token: Option<&str>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let content = self::content(content, image_sources, image_token)?;
        let message = model::Message::Tool(model::ToolMessage {
            content,
            tool_call_id,
        });
        Ok(PyClassInitializer::from(Message { inner: message }).add_subclass(ToolMessage))
    }
}

/// A short note that stays in the model's view.
#[pyclass(frozen, extends = Message, module = "deepseek_recipe._recipe")]
pub struct LatestReminderMessage;

#[pymethods]
impl LatestReminderMessage {
    #[new]
    fn new(content: String) -> PyClassInitializer<Self> {
        let message = model::Message::LatestReminder(ReminderMessage { content });
        PyClassInitializer::from(Message { inner: message }).add_subclass(LatestReminderMessage)
    }
}

fn message_to_python(py: Python<'_>, message: &model::Message) -> PyResult<Py<PyAny>> {
    let base = PyClassInitializer::from(Message {
        inner: message.clone(),
    });
    Ok(match message {
        model::Message::System(_) => Py::new(py, base.add_subclass(SystemMessage))?.into_any(),
        model::Message::User(_) => Py::new(py, base.add_subclass(UserMessage))?.into_any(),
        model::Message::Assistant(_) => {
            Py::new(py, base.add_subclass(AssistantMessage))?.into_any()
        }
        model::Message::Tool(_) => Py::new(py, base.add_subclass(ToolMessage))?.into_any(),
        model::Message::LatestReminder(_) => {
            Py::new(py, base.add_subclass(LatestReminderMessage))?.into_any()
        }
    })
}

fn definitions(tools: &[model::ToolDefinition]) -> Vec<ToolDefinition> {
    tools
        .iter()
        .map(|tool| ToolDefinition {
            inner: tool.clone(),
        })
        .collect()
}

/// Everything that a prompt is rendered from.
#[pyclass(frozen, module = "deepseek_recipe._recipe")]
#[derive(Clone)]
pub struct Conversation {
    pub inner: Arc<model::Conversation>,
}

fn invalid(name: &str, word: &str, expected: &str) -> PyErr {
    PyValueError::new_err(format!("invalid {name} {word:?}; expected {expected}"))
}

fn format_of(
    word: &str,
    schema: Option<Value<'static>>,
    regex: Option<String>,
) -> PyResult<ResponseFormat> {
    let format = match word {
        "text" => ResponseFormat::Text,
        "json_object" => ResponseFormat::JsonObject,
        other => {
            return Err(invalid(
                "response_format",
                other,
                "\"text\" or \"json_object\"",
            ))
        }
    };
    match (schema, regex) {
        (Some(_), Some(_)) => {
            Err(PyValueError::new_err("response_schema and response_regex cannot be combined"))
        }
        (None, None) => Ok(format),
        _ if format == ResponseFormat::JsonObject => Err(PyValueError::new_err(
            "response_format \"json_object\" cannot be combined with response_schema or response_regex",
        )),
        (Some(schema), None) => Ok(ResponseFormat::JsonSchema(Arc::new(schema))),
        (None, Some(regex)) => Ok(ResponseFormat::Regex(regex)),
    }
}

#[pymethods]
impl Conversation {
    #[new]
    #[pyo3(signature = (messages=None, *, thinking_mode=true, tools=None, tool_choice="auto", reasoning_effort=None,
        response_format="text", response_schema=None, response_regex=None, reasoning_effort_value=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        messages: Option<Vec<PyRef<'_, Message>>>,
        thinking_mode: bool,
        tools: Option<Vec<PyRef<'_, ToolDefinition>>>,
        tool_choice: &str,
        reasoning_effort: Option<&str>,
        response_format: &str,
        response_schema: Option<&Bound<'_, PyAny>>,
        response_regex: Option<String>,
        reasoning_effort_value: Option<u8>,
    ) -> PyResult<Self> {
        let tool_choice = model::ToolChoice::from_word(tool_choice).ok_or_else(|| {
            invalid(
                "tool_choice",
                tool_choice,
                "\"auto\", \"none\", or \"required\"",
            )
        })?;
        let reasoning_effort = match reasoning_effort {
            None => None,
            Some(word) => Some(Effort::from_word(word).ok_or_else(|| {
                invalid(
                    "reasoning_effort",
                    word,
                    "\"low\", \"high\", \"xhigh\", or \"max\"",
                )
            })?),
        };
        if reasoning_effort_value.is_some_and(|value| !(1..=100).contains(&value)) {
            return Err(PyValueError::new_err(
                "reasoning_effort_value must be from 1 to 100",
            ));
        }
        let schema = response_schema.map(value_from_python).transpose()?;
        let inner = model::Conversation {
            messages: messages
                .into_iter()
                .flatten()
                .map(|message| message.inner.clone())
                .collect(),
            thinking_mode,
            tools: tools
                .into_iter()
                .flatten()
                .map(|tool| tool.inner.clone())
                .collect(),
            tool_choice,
            reasoning_effort,
            reasoning_effort_value,
            response_format: format_of(response_format, schema, response_regex)?,
        };
        Ok(Conversation {
            inner: Arc::new(inner),
        })
    }

    #[getter]
    fn messages<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let messages = self
            .inner
            .messages
            .iter()
            .map(|message| message_to_python(py, message));
        PyList::new(py, messages.collect::<PyResult<Vec<_>>>()?)
    }

    #[getter]
    fn thinking_mode(&self) -> bool {
        self.inner.thinking_mode
    }

    #[getter]
    fn tools(&self) -> Vec<ToolDefinition> {
        definitions(&self.inner.tools)
    }

    #[getter]
    fn tool_choice(&self) -> &'static str {
        self.inner.tool_choice.as_str()
    }

    #[getter]
    fn reasoning_effort(&self) -> Option<&'static str> {
        self.inner.reasoning_effort.map(Effort::as_str)
    }

    #[getter]
    fn reasoning_effort_value(&self) -> Option<u8> {
        self.inner.reasoning_effort_value
    }

    #[getter]
    fn response_format(&self) -> &'static str {
        self.inner.response_format.as_str()
    }

    #[getter]
    fn response_schema<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match &self.inner.response_format {
            ResponseFormat::JsonSchema(schema) => value_to_python(py, schema).map(Some),
            _ => Ok(None),
        }
    }

    #[getter]
    fn response_regex(&self) -> Option<&str> {
        match &self.inner.response_format {
            ResponseFormat::Regex(pattern) => Some(pattern),
            _ => None,
        }
    }

    fn __repr__(&self) -> String {
        let inner = &self.inner;
        format!(
            "Conversation(messages={}, thinking_mode={}, tools={}, tool_choice={:?}, reasoning_effort={}, \
             response_format={:?})",
            inner.messages.len(),
            flag(Some(inner.thinking_mode)),
            inner.tools.len(),
            inner.tool_choice.as_str(),
            inner.reasoning_effort.map_or_else(|| "None".to_owned(), |effort| format!("{:?}", effort.as_str())),
            inner.response_format.as_str()
        )
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SpecialTokens>()?;
    module.add_class::<ToolCall>()?;
    module.add_class::<ToolDefinition>()?;
    module.add_class::<Message>()?;
    module.add_class::<SystemMessage>()?;
    module.add_class::<UserMessage>()?;
    module.add_class::<AssistantMessage>()?;
    module.add_class::<ToolMessage>()?;
    module.add_class::<LatestReminderMessage>()?;
    module.add_class::<Conversation>()
}
