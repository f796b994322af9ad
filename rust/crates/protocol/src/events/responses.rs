//! Responses events.

use std::collections::BTreeMap;
use std::sync::Arc;

use recipe_json::{escape_into, write_string};
use recipe_stream::{Delta, DeltaKind, LogprobEntry};

use super::custom::CustomInput;
use super::ids::{now, Random};
use super::json;
use super::responses_json::{Body, Fixed};
use super::{ChunkGenerator, End};
use crate::options::Compat;
use crate::processor::PromptUsage;
use crate::request::ConversationRequest;
use crate::responses::{ResponsesEcho, ResponsesState};
use crate::seal::ReasoningKey;

/// One event.
#[derive(Debug, Clone)]
pub struct ResponsesStreamEvent {
    pub(crate) sequence: u64,
    pub(crate) kind: EventKind,
}

/// Events about one item name it by id and output index.
#[derive(Debug, Clone)]
pub(crate) struct ItemRef {
    id: Arc<str>,
    index: usize,
}

#[derive(Debug, Clone)]
pub(crate) enum EventKind {
    Response {
        name: &'static str,
        body: Arc<Body>,
    },
    ItemAdded {
        index: usize,
        item: Arc<str>,
    },
    ItemDone {
        index: usize,
        item: Arc<str>,
    },
    PartAdded {
        item: ItemRef,
        is_reasoning: bool,
    },
    PartDone {
        item: ItemRef,
        part: Arc<str>,
    },
    /// A delta whose only payload is text: the event's name and the text.
    Delta {
        name: &'static str,
        has_content_index: bool,
        item: ItemRef,
        text: String,
    },
    TextDelta {
        item: ItemRef,
        text: String,
        logprobs: Vec<LogprobEntry>,
    },
    /// The whole text of an item: the event's name and the member that holds it.
    Done {
        name: &'static str,
        member: &'static str,
        has_content_index: bool,
        item: ItemRef,
        text: Arc<str>,
    },
    TextDone {
        item: ItemRef,
        text: Arc<str>,
        logprobs: Arc<str>,
    },
}

impl ResponsesStreamEvent {
    /// The event type, which is also the SSE event name.
    pub fn name(&self) -> &'static str {
        match &self.kind {
            EventKind::Response { name, .. }
            | EventKind::Delta { name, .. }
            | EventKind::Done { name, .. } => name,
            EventKind::ItemAdded { .. } => "response.output_item.added",
            EventKind::ItemDone { .. } => "response.output_item.done",
            EventKind::PartAdded { .. } => "response.content_part.added",
            EventKind::PartDone { .. } => "response.content_part.done",
            EventKind::TextDelta { .. } => "response.output_text.delta",
            EventKind::TextDone { .. } => "response.output_text.done",
        }
    }

    /// The event as JSON.
    pub fn to_json(&self) -> String {
        let text_len = match &self.kind {
            EventKind::Delta { text, .. } | EventKind::TextDelta { text, .. } => text.len(),
            EventKind::Done { text, .. } | EventKind::TextDone { text, .. } => text.len(),
            _ => 256,
        };
        let mut out = String::with_capacity(text_len + text_len / 8 + 256);
        out.push_str("{\"type\":\"");
        out.push_str(self.name());
        out.push('"');
        self.write_payload(&mut out);
        out.push_str(",\"sequence_number\":");
        json::number(&mut out, self.sequence);
        out.push('}');
        out
    }

    fn write_payload(&self, out: &mut String) {
        match &self.kind {
            EventKind::Response { body, .. } => {
                out.push_str(",\"response\":");
                body.write(out);
            }
            EventKind::ItemAdded { index, item } | EventKind::ItemDone { index, item } => {
                out.push_str(",\"item\":");
                out.push_str(item);
                out.push_str(",\"output_index\":");
                json::number(out, *index as u64);
            }
            EventKind::PartAdded { item, is_reasoning } => {
                out.push_str(",\"content_index\":0");
                item.write(out);
                out.push_str(if *is_reasoning {
                    ",\"part\":{\"type\":\"reasoning_text\",\"text\":\"\"}"
                } else {
                    ",\"part\":{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":\"\"}"
                });
            }
            EventKind::PartDone { item, part } => {
                out.push_str(",\"content_index\":0");
                item.write(out);
                out.push_str(",\"part\":");
                out.push_str(part);
            }
            EventKind::Delta {
                item,
                text,
                has_content_index,
                ..
            } => {
                write_text(out, *has_content_index, "delta", text);
                item.write(out);
            }
            EventKind::TextDelta {
                item,
                text,
                logprobs,
            } => {
                write_text(out, true, "delta", text);
                item.write(out);
                out.push_str(",\"logprobs\":");
                json::logprobs(out, logprobs);
            }
            EventKind::Done {
                item,
                text,
                member,
                has_content_index,
                ..
            } => {
                write_text(out, *has_content_index, member, text);
                item.write(out);
            }
            EventKind::TextDone {
                item,
                text,
                logprobs,
            } => {
                write_text(out, true, "text", text);
                item.write(out);
                out.push_str(",\"logprobs\":");
                out.push_str(logprobs);
            }
        }
    }
}

fn write_text(out: &mut String, has_content_index: bool, member: &str, text: &str) {
    if has_content_index {
        out.push_str(",\"content_index\":0");
    }
    out.push_str(",\"");
    out.push_str(member);
    out.push_str("\":\"");
    escape_into(out, text);
    out.push('"');
}

impl ItemRef {
    fn write(&self, out: &mut String) {
        out.push_str(",\"item_id\":");
        write_string(out, &self.id);
        out.push_str(",\"output_index\":");
        json::number(out, self.index as u64);
    }
}

/// An item that is being made.
#[derive(Debug, Clone)]
struct Open {
    item: ItemRef,
    kind: OpenKind,
    is_malformed: bool,
}

#[derive(Debug, Clone)]
enum OpenKind {
    Reasoning {
        text: String,
    },
    Message {
        text: String,
        logprobs: Vec<LogprobEntry>,
    },
    /// `head` is the item's JSON from the call id up to its arguments.
    Function {
        head: String,
        arguments: String,
    },
    Custom {
        head: String,
        input: CustomInput,
    },
}

/// Makes the events of one response.
#[derive(Debug, Clone)]
pub struct ResponsesChunkGenerator {
    id: String,
    model: String,
    state: ResponsesState,
    official: bool,
    thinking: bool,
    key: Option<ReasoningKey>,
    has_reasoning: bool,
    calls: usize,
    sequence: u64,
    open: Option<Open>,
    body: Option<Body>,
    random: Random,
}

impl ResponsesChunkGenerator {
    /// The generator for a converted request.
    pub fn new(request: &ConversationRequest, id: String, model: String) -> Self {
        let generation = &request.generation;
        ResponsesChunkGenerator {
            id,
            model,
            state: generation.responses.as_deref().cloned().unwrap_or_default(),
            official: generation.compat == Compat::Official,
            thinking: request.conversation.thinking_mode,
            key: generation.reasoning_key.clone(),
            has_reasoning: false,
            calls: 0,
            sequence: 0,
            open: None,
            body: None,
            random: Random::new(),
        }
    }

    /// Replaces the namespace and name of full tool names.
    #[must_use]
    pub fn with_namespace_tool_map(mut self, map: BTreeMap<String, (String, String)>) -> Self {
        self.state.namespaces = map;
        self
    }

    /// Replaces what is repeated of the request.
    #[must_use]
    pub fn with_echo(mut self, echo: ResponsesEcho) -> Self {
        self.state.echo = echo;
        self
    }

    fn push(&mut self, events: &mut Vec<ResponsesStreamEvent>, kind: EventKind) {
        events.push(ResponsesStreamEvent {
            sequence: self.sequence,
            kind,
        });
        self.sequence += 1;
    }

    fn next_index(&self) -> usize {
        self.body.as_ref().map_or(0, |body| body.output.len())
    }

    fn open_item(&mut self, prefix: &str, kind: OpenKind, events: &mut Vec<ResponsesStreamEvent>) {
        let index = self.next_index();
        let id: Arc<str> = format!("{prefix}_{}_{index}", self.id).into();
        let open = Open {
            item: ItemRef { id, index },
            kind,
            is_malformed: false,
        };
        let item = self.item_json(&open, "in_progress", false);
        self.push(events, EventKind::ItemAdded { index, item });
        let is_reasoning = matches!(open.kind, OpenKind::Reasoning { .. });
        if is_reasoning || matches!(open.kind, OpenKind::Message { .. }) {
            self.push(
                events,
                EventKind::PartAdded {
                    item: open.item.clone(),
                    is_reasoning,
                },
            );
        }
        self.open = Some(open);
    }

    /// The item as JSON; its content only once it is done.
    fn item_json(&self, open: &Open, status: &str, before_call: bool) -> Arc<str> {
        let is_done = status != "in_progress";
        let mut out = String::from("{\"type\":\"");
        out.push_str(match open.kind {
            OpenKind::Reasoning { .. } => "reasoning",
            OpenKind::Message { .. } => "message",
            OpenKind::Function { .. } => "function_call",
            OpenKind::Custom { .. } => "custom_tool_call",
        });
        out.push_str("\",\"id\":");
        write_string(&mut out, &open.item.id);
        out.push_str(",\"status\":\"");
        out.push_str(status);
        out.push('"');
        match &open.kind {
            OpenKind::Reasoning { text } => {
                out.push_str(",\"content\":[");
                if is_done {
                    out.push_str(&part_json(&open.kind));
                }
                out.push_str("],\"summary\":[],\"encrypted_content\":");
                write_string(&mut out, &self.encrypted(open.item.index, text, is_done));
            }
            OpenKind::Message { .. } => {
                out.push_str(",\"role\":\"assistant\",\"phase\":\"");
                out.push_str(if before_call {
                    "commentary"
                } else {
                    "final_answer"
                });
                out.push_str("\",\"content\":[");
                if is_done {
                    out.push_str(&part_json(&open.kind));
                }
                out.push(']');
            }
            OpenKind::Function { head, arguments } => {
                out.push_str(head);
                out.push_str(",\"arguments\":");
                write_string(&mut out, arguments);
            }
            OpenKind::Custom { head, input } => {
                out.push_str(head);
                out.push_str(",\"input\":");
                write_string(&mut out, &input.text);
            }
        }
        out.push('}');
        out.into()
    }

    fn encrypted(&self, index: usize, text: &str, is_done: bool) -> String {
        let sealed = self
            .key
            .as_ref()
            .filter(|_| is_done)
            .and_then(|key| key.seal(text, Random::nonce()));
        sealed.unwrap_or_else(|| format!("{}-{index}", self.id))
    }

    /// Ends the open item.
    fn close(
        &mut self,
        status: &'static str,
        before_call: bool,
        events: &mut Vec<ResponsesStreamEvent>,
    ) {
        let Some(mut open) = self.open.take() else {
            return;
        };
        let status = if open.is_malformed {
            "incomplete"
        } else {
            status
        };
        let item = open.item.clone();
        match &mut open.kind {
            OpenKind::Reasoning { text } => {
                let text: Arc<str> = text.as_str().into();
                let name = "response.reasoning_text.done";
                let done = EventKind::Done {
                    name,
                    member: "text",
                    has_content_index: true,
                    item: item.clone(),
                    text,
                };
                self.push(events, done);
            }
            OpenKind::Message { text, logprobs } => {
                let text: Arc<str> = text.as_str().into();
                let mut list = String::new();
                json::logprobs(&mut list, logprobs);
                self.push(
                    events,
                    EventKind::TextDone {
                        item: item.clone(),
                        text,
                        logprobs: list.into(),
                    },
                );
            }
            OpenKind::Function { arguments, .. } => {
                let text: Arc<str> = arguments.as_str().into();
                let name = "response.function_call_arguments.done";
                let member = "arguments";
                self.push(
                    events,
                    EventKind::Done {
                        name,
                        member,
                        has_content_index: false,
                        item,
                        text,
                    },
                );
            }
            OpenKind::Custom { input, .. } => {
                let held = input.finish();
                if !held.is_empty() {
                    self.push(events, custom_delta(item.clone(), held));
                }
                let text: Arc<str> = input.text.as_str().into();
                let name = "response.custom_tool_call_input.done";
                self.push(
                    events,
                    EventKind::Done {
                        name,
                        member: "input",
                        has_content_index: false,
                        item,
                        text,
                    },
                );
            }
        }
        if matches!(
            open.kind,
            OpenKind::Reasoning { .. } | OpenKind::Message { .. }
        ) {
            let part = part_json(&open.kind).into();
            self.push(
                events,
                EventKind::PartDone {
                    item: open.item.clone(),
                    part,
                },
            );
        }
        let item = self.item_json(&open, status, before_call);
        if let Some(body) = &mut self.body {
            body.output.push(item.clone());
        }
        self.push(
            events,
            EventKind::ItemDone {
                index: open.item.index,
                item,
            },
        );
    }

    fn open_call(&mut self, name: String, events: &mut Vec<ResponsesStreamEvent>) {
        self.close("completed", true, events);
        let call_id = self
            .random
            .call_id(self.calls, self.thinking && !self.has_reasoning);
        self.calls += 1;
        let mut head = String::from(",\"call_id\":");
        write_string(&mut head, &call_id);
        head.push_str(",\"name\":");
        if self.state.custom_tools.contains(&name) {
            write_string(&mut head, &name);
            return self.open_item(
                "ctc",
                OpenKind::Custom {
                    head,
                    input: CustomInput::new(),
                },
                events,
            );
        }
        match self.state.namespaces.get(&name) {
            Some((namespace, inner)) => {
                write_string(&mut head, inner);
                head.push_str(",\"namespace\":");
                write_string(&mut head, namespace);
            }
            None => write_string(&mut head, &name),
        }
        self.open_item(
            "fc",
            OpenKind::Function {
                head,
                arguments: String::new(),
            },
            events,
        );
    }

    fn arguments(&mut self, piece: String, events: &mut Vec<ResponsesStreamEvent>) {
        let Some(open) = &mut self.open else {
            return;
        };
        let item = open.item.clone();
        let delta = match &mut open.kind {
            OpenKind::Function { arguments, .. } => {
                arguments.push_str(&piece);
                let name = "response.function_call_arguments.delta";
                EventKind::Delta {
                    name,
                    has_content_index: false,
                    item,
                    text: piece,
                }
            }
            OpenKind::Custom { input, .. } => {
                let text = input.feed(&piece);
                if text.is_empty() {
                    return;
                }
                custom_delta(item, text)
            }
            _ => return,
        };
        self.push(events, delta);
    }
}

fn custom_delta(item: ItemRef, text: String) -> EventKind {
    let name = "response.custom_tool_call_input.delta";
    EventKind::Delta {
        name,
        has_content_index: false,
        item,
        text,
    }
}

fn part_json(kind: &OpenKind) -> String {
    let mut out = String::new();
    match kind {
        OpenKind::Reasoning { text } => {
            out.push_str("{\"type\":\"reasoning_text\",\"text\":");
            write_string(&mut out, text);
        }
        OpenKind::Message { text, logprobs } => {
            out.push_str("{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":");
            json::logprobs(&mut out, logprobs);
            out.push_str(",\"text\":");
            write_string(&mut out, text);
        }
        OpenKind::Function { .. } | OpenKind::Custom { .. } => out.push('{'),
    }
    out.push('}');
    out
}

impl ChunkGenerator for ResponsesChunkGenerator {
    type Event = ResponsesStreamEvent;

    fn is_official(&self) -> bool {
        self.official
    }

    fn start(&mut self, _: PromptUsage, _: Option<String>, events: &mut Vec<ResponsesStreamEvent>) {
        let fixed = Fixed {
            id: self.id.clone(),
            model: self.model.clone(),
            created: now(),
            state: self.state.clone(),
        };
        let body = Body::in_progress(Arc::new(fixed));
        let shared = Arc::new(body.clone());
        self.body = Some(body);
        for name in ["response.created", "response.in_progress"] {
            self.push(
                events,
                EventKind::Response {
                    name,
                    body: shared.clone(),
                },
            );
        }
    }

    fn delta(&mut self, delta: Delta, events: &mut Vec<ResponsesStreamEvent>) {
        match delta.kind {
            DeltaKind::Reasoning(piece) => {
                self.has_reasoning = true;
                if !matches!(
                    self.open,
                    Some(Open {
                        kind: OpenKind::Reasoning { .. },
                        ..
                    })
                ) {
                    self.close("completed", false, events);
                    self.open_item(
                        "rs",
                        OpenKind::Reasoning {
                            text: String::new(),
                        },
                        events,
                    );
                }
                if let Some(Open {
                    kind: OpenKind::Reasoning { text },
                    item,
                    ..
                }) = &mut self.open
                {
                    text.push_str(&piece);
                    let name = "response.reasoning_text.delta";
                    let item = item.clone();
                    self.push(
                        events,
                        EventKind::Delta {
                            name,
                            has_content_index: true,
                            item,
                            text: piece,
                        },
                    );
                }
            }
            DeltaKind::Answer(piece) => {
                if !matches!(
                    self.open,
                    Some(Open {
                        kind: OpenKind::Message { .. },
                        ..
                    })
                ) {
                    self.close("completed", false, events);
                    let kind = OpenKind::Message {
                        text: String::new(),
                        logprobs: Vec::new(),
                    };
                    self.open_item("msg", kind, events);
                }
                if let Some(Open {
                    kind: OpenKind::Message { text, logprobs },
                    item,
                    ..
                }) = &mut self.open
                {
                    text.push_str(&piece);
                    logprobs.extend_from_slice(&delta.logprobs);
                    let item = item.clone();
                    self.push(
                        events,
                        EventKind::TextDelta {
                            item,
                            text: piece,
                            logprobs: delta.logprobs,
                        },
                    );
                }
            }
            DeltaKind::CallStart { name } => self.open_call(name, events),
            DeltaKind::Arguments(piece) => self.arguments(piece, events),
            DeltaKind::CallMalformed(call) => {
                if let (Some(open), Some(_)) = (&mut self.open, call.index) {
                    open.is_malformed = true;
                }
            }
            DeltaKind::CallEnd | DeltaKind::Stopped { .. } => {}
        }
    }

    fn end(&mut self, end: End, events: &mut Vec<ResponsesStreamEvent>) {
        let Some(mut body) = self.body.clone() else {
            return;
        };
        body.end(&end.reason, now());
        self.close(body.status, false, events);
        if let Some(current) = &self.body {
            body.output.clone_from(&current.output);
        }
        body.usage = Some(end.usage);
        body.malformed = end.malformed;
        let name = match body.incomplete_reason {
            Some(_) => "response.incomplete",
            None => "response.completed",
        };
        self.push(
            events,
            EventKind::Response {
                name,
                body: Arc::new(body),
            },
        );
    }
}
