//! What markers and unmatched text do, state by state.

use recipe_json::{escape_into, parse, Validator, MAX_DEPTH};

use crate::call::{Call, MalformedCall, MalformedReason};
use crate::delta::{Delta, DeltaKind};
use crate::machine::Machine;
use crate::scanner::Found;
use crate::state::{Action, State};

/// Longest name of a tool or parameter that the strict grammar accepts, in bytes.
const MAX_NAME_BYTES: usize = 4096;

impl Machine {
    /// Text that is no marker.
    pub(crate) fn unmatched(&mut self, text: String, out: &mut Vec<Delta>) {
        match self.state {
            State::Reason => out.push(DeltaKind::Reasoning(text).into()),
            State::Answer | State::Json => out.push(DeltaKind::Answer(text).into()),
            State::JsonWait | State::AfterJson if self.official => {
                out.push(DeltaKind::Answer(" ".to_owned()).into());
            }
            State::JsonWait => self.has_prose |= !is_blank(&text),
            State::Name => self.call.name.push_str(&text),
            State::Key | State::RawValue => out.push(DeltaKind::Arguments(text).into()),
            State::StringValue => out.push(DeltaKind::Arguments(escaped(&text)).into()),
            State::StrictName => {
                if self.call.name.len() + text.len() > MAX_NAME_BYTES {
                    self.mark(MalformedReason::TooLarge);
                } else {
                    self.call.name.push_str(&text);
                }
            }
            State::StrictCalls if !is_blank(&text) => self.stray_text(),
            State::StrictArgs if !is_blank(&text) => self.mark(MalformedReason::UnexpectedText),
            State::StrictKey => {
                self.call.key_bytes += text.len();
                if self.call.key_bytes > MAX_NAME_BYTES {
                    self.mark(MalformedReason::TooLarge);
                }
                self.arguments(escaped(&text), out);
            }
            State::StrictStringValue => self.arguments(escaped(&text), out),
            State::StrictRawValue => self.raw_value(text, out),
            _ => {}
        }
    }

    /// A complete marker. `released` already stands behind it; actions that look at it again move it back.
    pub(crate) fn act(&mut self, action: Action, start: usize, end: usize, out: &mut Vec<Delta>) {
        match action {
            Action::SkipNewline => self.enter(self.state, true, end),
            Action::EndReasoning => self.enter(self.answer_state(), true, end),
            Action::SkipEndReasoning => self.enter(self.answer_state(), false, end),
            Action::Stop(index) => {
                self.stopped = true;
                let sequence = self.options.stop_sequences[index].clone();
                out.push(DeltaKind::Stopped { sequence }.into());
            }
            Action::OpenFence => self.enter(State::Json, false, end),
            Action::OpenBracket => self.open_bracket(start, end, out),
            Action::CloseFence => self.enter(State::AfterJson, false, end),
            _ if self.official => self.act_official(action, end, out),
            _ => self.act_strict(action, start, end, out),
        }
    }

    fn answer_state(&self) -> State {
        if self.options.parse_json_output {
            State::JsonWait
        } else {
            State::Answer
        }
    }

    fn open_bracket(&mut self, start: usize, end: usize, out: &mut Vec<Delta>) {
        if self.options.strict_json_output && !self.official {
            if self.has_prose {
                return self.enter(State::JsonWait, false, end);
            }
            self.json = Some((Validator::new(), start));
            self.released = start;
            return self.enter(State::Json, false, start);
        }
        let bracket = self
            .queue
            .chunks
            .front()
            .and_then(|chunk| chunk.text.get(start - chunk.start..end - chunk.start));
        out.push(DeltaKind::Answer(bracket.unwrap_or_default().to_owned()).into());
        self.enter(State::Json, false, end);
    }

    /// Follows raw JSON to its end; true if it ended before what the scanner found.
    pub(crate) fn json_ends(&mut self, found: Found, out: &mut Vec<Delta>) -> bool {
        let limit = match found {
            Found::Marker { start, .. } => start,
            _ => self.queue.end() - self.scanner.tail(),
        };
        let Some((mut validator, mut position)) = self.json.take() else {
            return false;
        };
        let mut closed = false;
        for chunk in &self.queue.chunks {
            let from = position.clamp(chunk.start, chunk.end()) - chunk.start;
            let until = limit.clamp(chunk.start, chunk.end()) - chunk.start;
            for byte in chunk.text.as_bytes().get(from..until).unwrap_or_default() {
                if validator.feed(std::slice::from_ref(byte)).is_err() {
                    return false;
                }
                position += 1;
                closed = validator.is_closed();
                if closed {
                    break;
                }
            }
            if closed {
                break;
            }
        }
        if closed {
            self.flush(position, out);
            self.enter(State::AfterJson, false, position);
        } else {
            self.json = Some((validator, position));
        }
        closed
    }

    fn act_official(&mut self, action: Action, end: usize, out: &mut Vec<Delta>) {
        let mut literal = |text: &str| out.push(DeltaKind::Arguments(text.to_owned()).into());
        let next = match action {
            Action::OpenCalls => State::Calls,
            Action::OpenName => {
                self.call = Call::default();
                State::Name
            }
            Action::CloseCalls => State::Ended,
            Action::CloseName => {
                self.calls_started += 1;
                let name = std::mem::take(&mut self.call.name);
                out.push(DeltaKind::CallStart { name }.into());
                State::Args
            }
            Action::OpenKey => {
                literal(if self.call.has_arguments { ", " } else { "{" });
                self.call.has_arguments = true;
                State::Key
            }
            Action::CloseInvoke => {
                literal(if self.call.has_arguments { "}" } else { "{}" });
                State::Calls
            }
            Action::CloseKey => {
                literal(": ");
                State::Type
            }
            Action::FlagTrue => {
                literal("\"");
                State::StringValue
            }
            Action::FlagFalse => State::RawValue,
            _ => {
                if self.state == State::StringValue {
                    literal("\"");
                }
                State::Args
            }
        };
        self.enter(next, false, end);
    }

    fn act_strict(&mut self, action: Action, start: usize, end: usize, out: &mut Vec<Delta>) {
        match (self.state, action) {
            (State::StrictCalls, Action::OpenName) => {
                self.report_stray_text(out);
                self.open_name(end);
            }
            (State::StrictCalls, Action::CloseCalls) => {
                self.report_stray_text(out);
                self.close_block(end);
            }
            (State::StrictName, Action::CloseName) => {
                self.check_next(State::StrictNameEnd, start, end)
            }
            (State::StrictName, _) => self.lose_name(MalformedReason::UnterminatedName, start, out),
            (State::StrictNameEnd, _) => self.open_call(end, out),
            (State::StrictArgs, Action::OpenKey) => {
                let opening = if self.call.has_arguments {
                    ", \""
                } else {
                    "{\""
                };
                self.arguments(opening.to_owned(), out);
                self.call.has_arguments = true;
                self.call.key_bytes = 0;
                self.enter(State::StrictKey, false, end);
            }
            (State::StrictArgs, Action::CloseInvoke) => {
                self.end_call(out);
                self.enter(State::StrictCalls, false, end);
            }
            (State::StrictArgs, Action::NextInvoke) => {
                self.end_unclosed_call(MalformedReason::MissingInvokeCloser, out);
                self.open_name(end);
            }
            (State::StrictArgs, _) => {
                self.end_unclosed_call(MalformedReason::MissingInvokeCloser, out);
                self.close_block(end);
            }
            (State::StrictKey, Action::CloseKey) => self.check_next(State::StrictType, start, end),
            (State::StrictKey, _) => {
                self.mark(MalformedReason::UnterminatedName);
                self.look_again(State::StrictArgs, start);
            }
            (State::StrictType, flag) => self.open_value(flag == Action::FlagTrue, end, out),
            (State::StrictStringValue | State::StrictRawValue, Action::CloseValue) => {
                self.check_next(State::StrictValueEnd, start, end);
            }
            (State::StrictStringValue | State::StrictRawValue, action) => {
                let can_repair = self.options.repair_tool_calls && action != Action::Interrupt;
                if can_repair {
                    self.close_value(out);
                } else {
                    self.mark(MalformedReason::MissingParameterCloser);
                }
                self.look_again(State::StrictArgs, start);
            }
            (State::StrictValueEnd, _) => {
                self.close_value(out);
                self.enter(State::StrictArgs, false, end);
            }
            _ => {
                // The block tag in reasoning or in an answer.
                self.open_block();
                self.enter(State::StrictCalls, false, end);
            }
        }
    }

    /// Enters an anchored state; until it is decided the marker stays in the queue.
    fn check_next(&mut self, state: State, start: usize, end: usize) {
        self.anchor = Some(start);
        self.released = start;
        self.enter(state, false, end);
    }

    /// Goes back to the start of a marker that ended something it should not have ended.
    fn look_again(&mut self, state: State, start: usize) {
        self.released = start;
        self.enter(state, false, start);
    }

    /// What follows a marker is not what has to follow it.
    pub(crate) fn anchor_failed(&mut self, reason: MalformedReason, out: &mut Vec<Delta>) {
        let Some(start) = self.anchor.take() else {
            return;
        };
        if self.state == State::StrictNameEnd {
            return self.lose_name(reason, start, out);
        }
        let is_value_end = self.state == State::StrictValueEnd;
        if is_value_end && self.options.repair_tool_calls {
            self.close_value(out);
        } else {
            self.mark(reason);
        }
        self.look_again(State::StrictArgs, start);
    }

    /// A call whose name does not end has no header; what follows is looked at as if between calls.
    fn lose_name(&mut self, reason: MalformedReason, start: usize, out: &mut Vec<Delta>) {
        self.report_nameless(reason, out);
        self.look_again(State::StrictCalls, start);
    }

    pub(crate) fn report_nameless(&mut self, reason: MalformedReason, out: &mut Vec<Delta>) {
        let Call {
            name, malformed, ..
        } = std::mem::take(&mut self.call);
        let call = MalformedCall {
            index: None,
            name,
            reason: malformed.unwrap_or(reason),
        };
        self.explain_stray_text();
        self.malformed.push(call.clone());
        out.push(DeltaKind::CallMalformed(call).into());
    }

    fn open_name(&mut self, end: usize) {
        self.call = Call::default();
        self.enter(State::StrictName, false, end);
    }

    fn open_call(&mut self, end: usize, out: &mut Vec<Delta>) {
        let too_long = self.call.malformed.is_some();
        if too_long {
            self.report_nameless(MalformedReason::TooLarge, out);
            return self.enter(State::StrictCalls, false, end);
        }
        self.call.is_open = true;
        self.calls_started += 1;
        out.push(
            DeltaKind::CallStart {
                name: self.call.name.clone(),
            }
            .into(),
        );
        if self
            .options
            .tool_names
            .as_ref()
            .is_some_and(|names| !names.contains(&self.call.name))
        {
            self.mark(MalformedReason::UnknownTool);
        }
        self.enter(State::StrictArgs, false, end);
    }

    fn close_block(&mut self, end: usize) {
        let next = if self.options.keep_text_after_tools {
            self.answer_state()
        } else {
            State::Ended
        };
        self.enter(next, false, end);
    }

    fn open_value(&mut self, is_string: bool, end: usize, out: &mut Vec<Delta>) {
        self.arguments(if is_string { "\": \"" } else { "\": " }.to_owned(), out);
        self.call.is_string = is_string;
        self.call.held.clear();
        self.call.checked = 0;
        // One level belongs to the object of all arguments.
        self.call.validator = Validator::with_max_depth(MAX_DEPTH - 1);
        let state = if is_string {
            State::StrictStringValue
        } else {
            State::StrictRawValue
        };
        self.enter(state, false, end);
    }

    /// A piece of a value that must be JSON: only what can still be JSON is given.
    fn raw_value(&mut self, text: String, out: &mut Vec<Delta>) {
        if self.options.repair_tool_calls {
            self.call.held.push_str(&text);
            return;
        }
        if self.call.malformed.is_some() {
            return;
        }
        match self.call.validator.feed(text.as_bytes()) {
            Ok(()) => {
                self.call.checked += text.len();
                self.arguments(text, out);
            }
            Err(error) => {
                let valid = error.offset - self.call.checked;
                self.arguments(text.get(..valid).unwrap_or_default().to_owned(), out);
                self.mark(MalformedReason::InvalidJson);
            }
        }
    }

    fn close_value(&mut self, out: &mut Vec<Delta>) {
        if self.call.is_string {
            self.arguments("\"".to_owned(), out);
        } else if self.options.repair_tool_calls {
            let held = std::mem::take(&mut self.call.held);
            let value = match parse(&held) {
                Ok(_) => held,
                Err(_) => format!("\"{}\"", escaped(&held)),
            };
            self.arguments(value, out);
        } else if !self.call.validator.is_complete() {
            self.mark(MalformedReason::InvalidJson);
        }
    }

    /// Gives argument text, unless the call is already known to be malformed.
    fn arguments(&mut self, text: String, out: &mut Vec<Delta>) {
        if self.call.malformed.is_none() && self.call.is_open && !text.is_empty() {
            self.call.has_text = true;
            out.push(DeltaKind::Arguments(text).into());
        }
    }

    fn mark(&mut self, reason: MalformedReason) {
        self.call.malformed.get_or_insert(reason);
    }

    /// Ends a call whose closer is missing.
    fn end_unclosed_call(&mut self, reason: MalformedReason, out: &mut Vec<Delta>) {
        if !self.options.repair_tool_calls {
            self.mark(reason);
        }
        self.end_call(out);
    }

    fn end_call(&mut self, out: &mut Vec<Delta>) {
        if self.call.malformed.is_none() {
            let closing = if self.call.has_arguments { "}" } else { "{}" };
            self.arguments(closing.to_owned(), out);
        }
        let Call {
            name,
            has_text,
            malformed,
            ..
        } = std::mem::take(&mut self.call);
        let Some(reason) = malformed else {
            out.push(DeltaKind::CallEnd.into());
            return;
        };
        if !has_text {
            // Some clients read empty arguments as an empty object; an open brace cannot be misread.
            out.push(DeltaKind::Arguments("{".to_owned()).into());
        }
        let call = MalformedCall {
            index: self.calls_started.checked_sub(1),
            name,
            reason,
        };
        self.malformed.push(call.clone());
        out.push(DeltaKind::CallMalformed(call).into());
    }

    /// The output is over; a call that is still open is malformed.
    pub(crate) fn end_of_output(&mut self, has_partial_tag: bool, out: &mut Vec<Delta>) {
        self.end_of_output_in_block(has_partial_tag, out);
        if matches!(self.state, State::StrictName | State::StrictNameEnd) {
            self.report_nameless(MalformedReason::Truncated, out);
        }
        if !self.call.is_open {
            return;
        }
        let in_value = matches!(self.state, State::StrictStringValue | State::StrictRawValue);
        if self.options.repair_tool_calls && in_value {
            self.close_value(out);
        } else if self.state != State::StrictArgs {
            self.mark(MalformedReason::Truncated);
        }
        self.end_unclosed_call(MalformedReason::Truncated, out);
    }
}

fn is_blank(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_whitespace())
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    escape_into(&mut out, text);
    out
}
