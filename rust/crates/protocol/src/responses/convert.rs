//! From a Responses request to a conversation.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use recipe_json::Value;
use recipe_model::{
    Content, Conversation, Message, SpecialToken, SystemMessage, ToolDefinition, UserMessage,
};

use super::apply_patch;
use super::input::{Turns, TurnsResult};
use super::request::{history_items, Input, ResponsesRequest};
use super::state::ResponsesState;
use super::store::ResponseStore;
use super::tools::{NamespaceTool, ResponsesTool};
use crate::common::{self, check_count, DeclaredTool, RequestedFormat, Rule, Sampling};
use crate::error::{refuse, RequestError};
use crate::options::{ConversionOptions, ModelVersion, WebSearchBehavior};
use crate::repeats::Repeats;
use crate::request::{ConversationRequest, Generation, Warning};

/// Tools after declaration, with what the generator has to know about their names.
#[derive(Default)]
pub(crate) struct DefinedTools {
    pub tools: Vec<DeclaredTool>,
    pub namespaces: BTreeMap<String, (String, String)>,
    pub custom: HashSet<String>,
    pub warnings: Vec<Warning>,
}

impl ResponsesRequest {
    /// Namespace and name of every namespaced tool, by full name.
    ///
    /// # Errors
    /// An unknown model.
    pub fn namespace_tool_map(
        &self,
        options: &ConversionOptions,
    ) -> Result<BTreeMap<String, (String, String)>, RequestError> {
        let version = common::model_version(&self.model, options)?;
        let mut map = BTreeMap::new();
        for tool in &self.tools {
            let ResponsesTool::Namespace {
                name: namespace,
                tools,
                ..
            } = tool
            else {
                continue;
            };
            for tool in tools {
                if let NamespaceTool::Function(tool) = tool {
                    let full_name = namespaced(namespace, &tool.name, version);
                    map.insert(full_name, (namespace.clone(), tool.name.clone()));
                }
            }
        }
        Ok(map)
    }

    /// Converts the request; `store` supplies the context of `previous_response_id` and `conversation`.
    ///
    /// # Errors
    /// A shape that only the default mode knows, under `official`; otherwise any broken rule. In the default mode a
    /// request that needs a store is refused without one.
    pub fn convert(
        mut self,
        options: &ConversionOptions,
        store: Option<&dyn ResponseStore>,
    ) -> Result<ConversationRequest, RequestError> {
        self.deferred.check(options)?;
        let official = options.is_official();
        let version = common::model_version(&self.model, options)?;
        let mut state = ResponsesState::of(&self);
        if !official {
            self.load_context(&mut state, store)?;
        }
        let effort = common::thinking(None, self.effort, options);
        let thinking = effort.is_some();
        check_count(
            "too many tools",
            self.tools.len(),
            options.limits.max_tools,
            options,
        )?;
        let is_json_object = matches!(self.text.requested, RequestedFormat::JsonObject);
        let defined = define_tools(std::mem::take(&mut self.tools), "tools", version, options)?;
        let declares_tools = !defined.tools.is_empty();
        let turns = self.turns(version, options)?;
        let mut messages = turns.messages;
        common::complete_reasoning(
            &mut messages,
            thinking,
            declares_tools,
            "reasoning_text",
            options,
        )?;
        let refuses_search = options.responses_web_search == WebSearchBehavior::Reject;
        if self.tool_choice.is_web_search && refuses_search {
            return refuse("Server tools are not supported");
        }
        let DefinedTools {
            mut tools,
            namespaces,
            custom,
            mut warnings,
        } = defined;
        warnings.extend(turns.warnings);
        tools.extend(turns.loaded.tools);
        state.namespaces = namespaces;
        state.namespaces.extend(turns.loaded.namespaces);
        state.custom_tools = custom;
        state.custom_tools.extend(turns.loaded.custom);
        check_count(
            "too many tools",
            tools.len(),
            options.limits.max_tools,
            options,
        )?;
        let requested = std::mem::take(&mut self.tool_choice.requested);
        let (tools, tool_choice) = common::choose_tools(tools, requested, thinking, options)?;
        limit_message_tools(&mut messages, &tools);
        if is_json_object && !common::mentions_json(&messages) {
            return refuse(
                "Response input messages must contain the word 'json' in some form to use 'text.format' of type \
                 'json_object'.",
            );
        }
        common::check_strict_mix(&tools)?;
        let format = std::mem::take(&mut self.text.requested).check(options)?;
        let conversation = Conversation {
            messages,
            thinking_mode: thinking,
            tools: tools.into(),
            tool_choice,
            reasoning_effort: effort,
            reasoning_effort_value: self.effort_value.filter(|_| thinking && !official),
            response_format: format.format,
        };
        let parallel = self.parallel_tool_calls.filter(|_| !official);
        state.parallel_tool_calls = parallel.unwrap_or(true);
        let constraint = common::output_constraint(format.constraint, &conversation, parallel)?;
        let sampling = self.sampling(thinking, options)?;
        let mut inference = common::inference_options(&sampling, &conversation, version);
        inference.parallel_tool_calls = parallel;
        inference.output_constraint = constraint;
        Ok(ConversationRequest {
            parsing_options: common::parsing_options(&conversation, Vec::new(), options),
            conversation: Arc::new(conversation),
            inference_options: inference,
            model_version: version,
            stream: self.stream,
            warnings,
            generation: Generation {
                compat: options.compat,
                include_usage: false,
                extras: options.extras.clone(),
                responses: Some(Arc::new(state)),
                reasoning_key: options.reasoning_key.clone().filter(|_| !official),
            },
        })
    }

    fn sampling(&self, thinking: bool, options: &ConversionOptions) -> Rule<Sampling> {
        common::check_temperature(self.temperature)?;
        common::check_top_p(self.top_p)?;
        common::check_top_logprobs(self.top_logprobs)?;
        let max_tokens =
            common::check_max_tokens(self.max_output_tokens, thinking, false, options)?;
        Ok(Sampling {
            temperature: self.temperature,
            top_p: self.top_p,
            max_tokens,
            logprobs: self.top_logprobs.is_some(),
            top_logprobs: self.top_logprobs,
            seed: None,
        })
    }

    /// Puts the stored items in front of the input.
    fn load_context(
        &mut self,
        state: &mut ResponsesState,
        store: Option<&dyn ResponseStore>,
    ) -> Result<(), RequestError> {
        let Some(store) = store else {
            let Some(member) = self.context.needs() else {
                return Ok(());
            };
            return refuse(format!(
                "`{member}` needs a response store, and this service has none: send the whole conversation in `input`"
            ));
        };
        if self.context.conversation.is_some() && self.context.previous_response_id.is_some() {
            return refuse("`previous_response_id` and `conversation` exclude each other");
        }
        let mut history: Vec<Value<'static>> = Vec::new();
        for (member, id) in [
            ("conversation", &self.context.conversation),
            ("previous_response_id", &self.context.previous_response_id),
        ] {
            let Some(id) = id else { continue };
            match store.load(id) {
                Ok(Some(items)) => history.extend(items),
                Ok(None) => return refuse(format!("`{member}` not found: {id}")),
                Err(error) => return refuse(format!("`{member}` could not be loaded: {error}")),
            }
        }
        let mut items = history_items(&history)?;
        match self.input.take() {
            Some(Input::Items(new)) => items.extend(new),
            Some(Input::Text(text)) => items.push(super::items::Item::Message {
                role: super::items::Role::User,
                content: super::items::ItemContent::Text(text),
            }),
            None => {}
        }
        if !items.is_empty() {
            self.input = Some(Input::Items(items));
        }
        if self.context.keeps_response() {
            history.append(&mut self.context.items);
            state.history = Some(Value::Array(history));
        }
        state.previous_response_id = self.context.previous_response_id.clone();
        Ok(())
    }

    fn turns(
        &mut self,
        version: ModelVersion,
        options: &ConversionOptions,
    ) -> Result<TurnsResult, RequestError> {
        let mut messages = Vec::new();
        let instructions = self.instructions.take().filter(|text| !text.is_empty());
        if self.input.is_none() && instructions.is_none() {
            return refuse("Either input or instructions must be provided");
        }
        if let Some(instructions) = instructions {
            let content = Content::text(instructions);
            messages.push(Message::System(SystemMessage {
                content,
                tools: Vec::new(),
            }));
        }
        let image_token = options.special_tokens.get(SpecialToken::Image);
        let mut turns = Turns::new(messages, version, image_token, options);
        match self.input.take() {
            None => {}
            Some(Input::Text(text)) => {
                turns.messages.push(Message::User(UserMessage {
                    content: Content::text(text),
                }));
            }
            Some(Input::Items(items)) => {
                if items.is_empty() {
                    return refuse("Input items array must not be empty");
                }
                check_count(
                    "too many input items",
                    items.len(),
                    options.limits.max_messages,
                    options,
                )?;
                turns.load_tools(&items)?;
                for (index, item) in items.into_iter().enumerate() {
                    turns.item(index, item)?;
                }
            }
        }
        turns.finish()
    }
}

/// The name under which a tool of a namespace is offered.
pub(crate) fn namespaced(namespace: &str, name: &str, version: ModelVersion) -> String {
    let separator = if common::is_flash(version) {
        "::"
    } else {
        "__"
    };
    format!("{namespace}{separator}{name}")
}

/// Messages load tools as they were defined; tools that the choice removed are not loaded.
pub(crate) fn limit_message_tools(messages: &mut Vec<Message>, tools: &[ToolDefinition]) {
    let by_name: HashMap<&str, &ToolDefinition> = tools
        .iter()
        .map(|tool| (tool.name.as_str(), tool))
        .collect();
    messages.retain_mut(|message| match message {
        Message::System(system) if !system.tools.is_empty() => {
            system.tools.retain_mut(|loaded| {
                match by_name.get(loaded.name.as_str()) {
                    Some(&tool) => {
                        // The checked and, if strict, normalised form.
                        loaded.clone_from(tool);
                        true
                    }
                    None => false,
                }
            });
            !system.tools.is_empty() || !system.content.text.is_empty()
        }
        _ => true,
    });
}

/// Defines declared tools; `path` is where they stand.
pub(crate) fn define_tools(
    declared: Vec<ResponsesTool>,
    path: &str,
    version: ModelVersion,
    options: &ConversionOptions,
) -> Rule<DefinedTools> {
    let mut defined = DefinedTools::default();
    let mut repeats = Repeats::default();
    for (index, tool) in declared.into_iter().enumerate() {
        let at = format!("{path}[{index}]");
        let mut dropped = |kind: &str| {
            defined.warnings.push(Warning {
                path: at.clone(),
                message: format!("tools of type `{kind}` are not supported and were left out"),
            });
        };
        match tool {
            ResponsesTool::Function(mut tool) => {
                tool.defer_loading &= !options.is_official() && common::is_flash(version);
                common::check_tool_name(&tool.name, &format!("{at}.name"))?;
                defined.tools.push(tool);
            }
            ResponsesTool::Namespace {
                name,
                description,
                tools,
            } => {
                let inherited = name.len() + description.as_ref().map_or(0, String::len);
                repeats.add(inherited.saturating_mul(tools.len()), options)?;
                define_namespace(
                    &mut defined,
                    (name, description, tools),
                    &at,
                    version,
                    options,
                )?;
            }
            ResponsesTool::Custom { name } if name == apply_patch::NAME => {
                defined.custom.insert(name);
                defined.tools.push(apply_patch::definition(version));
            }
            ResponsesTool::Custom { name } => {
                return refuse(format!(
                    "Unsupported custom tool: '{name}'. Only 'apply_patch' is supported."
                ));
            }
            ResponsesTool::ToolSearch {
                execution: Some("client"),
                description,
                parameters,
            } if common::is_flash(version) => {
                let tool = DeclaredTool {
                    name: "tool_search".to_owned(),
                    description,
                    parameters,
                    strict: None,
                    defer_loading: false,
                    needs_parameters: false,
                };
                defined.tools.push(tool);
            }
            ResponsesTool::ToolSearch { .. } => dropped("tool_search"),
            ResponsesTool::WebSearch { kind, .. } => match options.responses_web_search {
                WebSearchBehavior::Drop => dropped(&kind),
                WebSearchBehavior::Reject => return refuse("Server tools are not supported"),
            },
            ResponsesTool::Other { kind } => dropped(&kind),
        }
    }
    let count = defined.tools.len();
    check_count("too many tools", count, options.limits.max_tools, options)?;
    Ok(defined)
}

fn define_namespace(
    defined: &mut DefinedTools,
    (namespace, description, tools): (String, Option<String>, Vec<NamespaceTool>),
    at: &str,
    version: ModelVersion,
    options: &ConversionOptions,
) -> Rule<()> {
    common::check_tool_name(&namespace, &format!("{at}.name"))?;
    let mut names = HashSet::new();
    for (index, tool) in tools.into_iter().enumerate() {
        let mut tool = match tool {
            NamespaceTool::Function(tool) => tool,
            NamespaceTool::Custom { name } => {
                return refuse(format!(
                    "Currently custom tools are not allowed inside a namespace. Found custom tool '{name}' in \
                     {at}.tools[{index}]."
                ));
            }
        };
        common::check_tool_name(&tool.name, &format!("{at}.tools[{index}].name"))?;
        if !names.insert(tool.name.clone()) {
            return refuse("Tool names within a namespace must be unique.");
        }
        let full_name = namespaced(&namespace, &tool.name, version);
        defined
            .namespaces
            .insert(full_name.clone(), (namespace.clone(), tool.name));
        tool.name = full_name;
        tool.defer_loading &= !options.is_official() && common::is_flash(version);
        if let Some(description) = description.as_deref().filter(|text| !text.is_empty()) {
            let inner = tool.description.as_deref().unwrap_or("");
            tool.description = Some(format!("{description}\n{inner}"));
        }
        defined.tools.push(tool);
    }
    Ok(())
}
