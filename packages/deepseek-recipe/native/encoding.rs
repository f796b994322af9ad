//! Encoders.

use std::sync::Arc;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use recipe::encoding::{self, DropThinking, PromptFormat, RenderError, RenderOptions};
use recipe::model;

use crate::errors::MarkerError;
use crate::maybe_detached;
use crate::messages::{Conversation, SpecialTokens};
use crate::sources::images_to_python;
use crate::tokenizer::Tokenizer;

/// Prompt text with the places of its special tokens.
#[pyclass(frozen, module = "deepseek_recipe._recipe")]
pub struct RenderedPrompt {
    inner: encoding::RenderedPrompt,
}

#[pymethods]
impl RenderedPrompt {
    #[getter]
    fn prompt(&self) -> &str {
        &self.inner.prompt
    }

    /// Start and end of every special token in code points.
    #[getter]
    fn special_ranges(&self) -> Vec<(usize, usize)> {
        self.inner.char_ranges()
    }

    #[getter]
    fn image_sources<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        images_to_python(py, &self.inner.image_sources)
    }

    fn __repr__(&self) -> String {
        format!(
            "RenderedPrompt(prompt=<{} characters>, image_sources={})",
            self.inner.prompt.chars().count(),
            self.inner.image_sources.len()
        )
    }
}

/// An encoder of either format.
#[derive(Clone)]
struct Encoder {
    format: PromptFormat,
    tokens: model::SpecialTokens,
    tokenizer: Option<Tokenizer>,
}

fn render_error(py: Python<'_>, error: &RenderError) -> PyErr {
    let is_marker = matches!(
        error,
        RenderError::MarkerInMessage { .. } | RenderError::MarkerInDefinition { .. }
    );
    if !is_marker {
        return PyValueError::new_err(error.to_string());
    }
    let raised = MarkerError::new_err(error.to_string());
    match raised
        .value(py)
        .setattr("message_index", error.message_index())
    {
        Ok(()) => raised,
        Err(error) => error,
    }
}

fn render_options(
    add_generation_prompt: bool,
    continue_final_message: bool,
    strict_markers: bool,
    drop_thinking: &str,
    keep_all_reminders: bool,
) -> PyResult<RenderOptions> {
    let drop_thinking = match drop_thinking {
        "without_tools" => DropThinking::WithoutTools,
        "last_user" => DropThinking::LastUser,
        other => {
            return Err(PyValueError::new_err(format!(
                "invalid drop_thinking {other:?}; expected \"without_tools\" or \"last_user\""
            )));
        }
    };
    Ok(RenderOptions {
        add_generation_prompt,
        continue_final_message,
        strict_markers,
        drop_thinking,
        keep_all_reminders,
    })
}

/// A lower bound of the prompt's bytes.
fn size(conversation: &model::Conversation) -> usize {
    conversation
        .messages
        .iter()
        .map(|message| message.text().len())
        .sum::<usize>()
        + 1024 * conversation.tools.len()
}

impl Encoder {
    fn new(format: PromptFormat) -> Self {
        Encoder {
            format,
            tokens: model::SpecialTokens::default(),
            tokenizer: None,
        }
    }

    fn render(
        &self,
        py: Python<'_>,
        conversation: &Arc<model::Conversation>,
        options: &RenderOptions,
    ) -> PyResult<encoding::RenderedPrompt> {
        let render = || encoding::render(conversation, self.format, &self.tokens, options);
        // Rendering copies about ten bytes a nanosecond; looking for markers reads each of them.
        let bytes = size(conversation) / if options.strict_markers { 1 } else { 8 };
        maybe_detached(py, bytes, render).map_err(|error| render_error(py, &error))
    }

    fn encode(
        &self,
        py: Python<'_>,
        conversation: &Arc<model::Conversation>,
        options: &RenderOptions,
    ) -> PyResult<Vec<u32>> {
        let Some(tokenizer) = &self.tokenizer else {
            return Err(PyRuntimeError::new_err(
                "no tokenizer is attached to the encoding",
            ));
        };
        let prompt = self.render(py, conversation, options)?;
        maybe_detached(py, 8 * prompt.prompt.len(), || {
            encoding::encode(&prompt, &tokenizer.inner)
        })
        .map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }
}

macro_rules! encoding_class {
    ($(#[$meta:meta])* $name:ident, $format:expr) => {
        $(#[$meta])*
        #[pyclass(frozen, module = "deepseek_recipe._recipe")]
        pub struct $name {
            inner: Encoder,
        }

        #[pymethods]
        impl $name {
            #[new]
            fn new() -> Self {
                $name { inner: Encoder::new($format) }
            }

            /// A copy that can encode.
            fn with_tokenizer(&self, tokenizer: PyRef<'_, Tokenizer>) -> Self {
                let tokenizer = Some(tokenizer.clone());
                $name { inner: Encoder { tokenizer, ..self.inner.clone() } }
            }

            /// A copy with other spellings.
            fn with_special_tokens(&self, special_tokens: PyRef<'_, SpecialTokens>) -> Self {
                let tokens = special_tokens.inner.clone();
                $name { inner: Encoder { tokens, ..self.inner.clone() } }
            }

            /// Renders a conversation as prompt text.
            #[pyo3(signature = (conversation, *, add_generation_prompt=true, continue_final_message=false,
                strict_markers=false, drop_thinking="without_tools", keep_all_reminders=false))]
            #[allow(clippy::too_many_arguments)]
            fn render_conversation(
                &self,
                py: Python<'_>,
                conversation: &Conversation,
                add_generation_prompt: bool,
                continue_final_message: bool,
                strict_markers: bool,
                drop_thinking: &str,
                keep_all_reminders: bool,
            ) -> PyResult<RenderedPrompt> {
                let options = render_options(
                    add_generation_prompt, continue_final_message, strict_markers, drop_thinking, keep_all_reminders,
                )?;
                let inner = self.inner.render(py, &conversation.inner, &options)?;
                Ok(RenderedPrompt { inner })
            }

            /// Encodes a conversation as token ids.
            #[pyo3(signature = (conversation, *, add_generation_prompt=true, continue_final_message=false,
                strict_markers=false, drop_thinking="without_tools", keep_all_reminders=false))]
            #[allow(clippy::too_many_arguments)]
            fn encode(
                &self,
                py: Python<'_>,
                conversation: &Conversation,
                add_generation_prompt: bool,
                continue_final_message: bool,
                strict_markers: bool,
                drop_thinking: &str,
                keep_all_reminders: bool,
            ) -> PyResult<Vec<u32>> {
                let options = render_options(
                    add_generation_prompt, continue_final_message, strict_markers, drop_thinking, keep_all_reminders,
                )?;
                self.inner.encode(py, &conversation.inner, &options)
            }
        }
    };
}

encoding_class! {
    /// Prompts of DeepSeek V4.
    DeepseekV4Encoding, PromptFormat::V4
}
encoding_class! {
    /// Prompts of DeepSeek V4.1.
    DeepseekV41Encoding, PromptFormat::V41
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RenderedPrompt>()?;
    module.add_class::<DeepseekV4Encoding>()?;
    module.add_class::<DeepseekV41Encoding>()
}
