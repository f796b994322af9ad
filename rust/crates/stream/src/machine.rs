//! The parser.

use std::sync::Arc;

use recipe_json::Validator;

use crate::block::Block;
use crate::call::{Call, MalformedCall, MalformedReason};
use crate::delta::{Delta, DeltaKind};
use crate::matcher::Source;
use crate::options::{ParsingOptions, ThinkingInitialStage};
use crate::queue::{ChunkText, LogprobEntry, Queue};
use crate::scanner::{Found, Scanner, Table};
use crate::state::{Action, State};
use crate::{official, strict};

/// An incremental parser of model output.
///
/// Feed chunks, take deltas; [`finish`](Machine::finish) releases what was held back. Cloning is cheap while little
/// text is held.
#[derive(Debug, Clone)]
pub struct Machine {
    pub(crate) options: Arc<ParsingOptions>,
    pub(crate) official: bool,
    pub(crate) state: State,
    tables: Vec<Option<Arc<Table>>>,
    pub(crate) scanner: Scanner,
    pub(crate) queue: Queue,
    /// Offset of the first byte that has not been given out or dropped.
    pub(crate) released: usize,
    /// Deltas of a marker that wait for the text behind it; see [`Machine::settle_deferred`].
    deferred: Option<(Vec<Delta>, usize)>,
    /// Start of a marker whose continuation is being checked by an anchored state.
    pub(crate) anchor: Option<usize>,
    pub(crate) call: Call,
    pub(crate) calls_started: usize,
    pub(crate) malformed: Vec<MalformedCall>,
    pub(crate) block: Block,
    /// Log-probability entries of text that gave no delta.
    unclaimed: Vec<LogprobEntry>,
    /// Raw JSON of a JSON answer, with the offset up to which it has been checked.
    pub(crate) json: Option<(Validator, usize)>,
    /// Something other than blanks came before the JSON.
    pub(crate) has_prose: bool,
    pub(crate) stopped: bool,
}

impl Machine {
    /// A parser at the start of output.
    pub fn new(options: ParsingOptions, official: bool) -> Self {
        let options = ParsingOptions {
            stop_sequences: options
                .stop_sequences
                .iter()
                .filter(|text| !text.is_empty())
                .cloned()
                .collect(),
            ..options
        };
        let answer = if options.parse_json_output {
            State::JsonWait
        } else {
            State::Answer
        };
        let (state, at_start) = match options.thinking_initial_stage {
            _ if options.starts_in_tool_calls => (
                if official {
                    State::Calls
                } else {
                    State::StrictCalls
                },
                false,
            ),
            Some(ThinkingInitialStage::ReasoningStart) => (State::Reason, true),
            Some(ThinkingInitialStage::ReasoningContinuation) => (State::Reason, false),
            Some(ThinkingInitialStage::ContentContinuation) => (answer, false),
            None => (answer, true),
        };
        let mut machine = Machine {
            official,
            state,
            tables: vec![None; State::COUNT],
            scanner: Scanner::new(Arc::new(Table::new(Vec::new())), at_start),
            queue: Queue::default(),
            released: 0,
            deferred: None,
            anchor: None,
            call: Call::default(),
            calls_started: 0,
            malformed: Vec::new(),
            block: Block::default(),
            unclaimed: Vec::new(),
            json: None,
            has_prose: false,
            stopped: false,
            options: Arc::new(options),
        };
        let table = machine.table(state);
        machine.scanner.enter(table, at_start, 0);
        machine
    }

    /// Whether a stop sequence has ended the output.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Whether the next byte is reasoning.
    pub fn is_reasoning(&self) -> bool {
        self.state == State::Reason
    }

    /// Calls whose header has been given.
    pub fn calls_started(&self) -> usize {
        self.calls_started
    }

    /// Malformed calls so far.
    pub fn malformed_calls(&self) -> &[MalformedCall] {
        &self.malformed
    }

    /// Takes log-probability entries of text that gave no delta.
    pub fn take_unclaimed(&mut self) -> Vec<LogprobEntry> {
        std::mem::take(&mut self.unclaimed)
    }

    /// Takes a text chunk.
    pub fn feed_text(&mut self, text: &str, out: &mut Vec<Delta>) {
        self.feed(text, Source::Text, Vec::new(), out);
    }

    /// Takes the text of a run of ordinary tokens; entries carry the offset of their token's first byte.
    pub fn feed_ordinary(
        &mut self,
        text: &str,
        logprobs: Vec<(usize, LogprobEntry)>,
        out: &mut Vec<Delta>,
    ) {
        self.scanner.mixed = true;
        self.feed(text, Source::Ordinary, logprobs, out);
    }

    /// Takes one added token.
    pub fn feed_added(
        &mut self,
        text: &str,
        logprobs: Vec<(usize, LogprobEntry)>,
        out: &mut Vec<Delta>,
    ) {
        self.scanner.mixed = true;
        self.feed(text, Source::Added, logprobs, out);
    }

    fn feed(
        &mut self,
        text: &str,
        source: Source,
        logprobs: Vec<(usize, LogprobEntry)>,
        out: &mut Vec<Delta>,
    ) {
        if self.stopped {
            return;
        }
        if text.is_empty() {
            self.unclaimed
                .extend(logprobs.into_iter().map(|(_, entry)| entry));
            return;
        }
        self.queue.push(text.to_owned(), source, logprobs);
        self.scan(out);
    }

    /// Decides what can be given out after one or more chunks; call it once per push.
    pub fn release(&mut self, out: &mut Vec<Delta>) {
        if self.stopped {
            return;
        }
        let end = self.queue.end();
        let tail = match self.anchor {
            Some(anchor) => end - anchor,
            None => self.scanner.tail(),
        };
        let mut limit = end - tail;
        self.settle_deferred(limit, out);
        if self.official && tail > 0 {
            // The original gives out a chunk only when all of it is decided.
            let decided = self
                .queue
                .chunks
                .iter()
                .map(ChunkText::end)
                .take_while(|end| *end <= limit);
            limit = decided.last().unwrap_or(self.released);
        }
        if limit > self.released {
            self.flush(limit, out);
        }
    }

    /// Ends the output: what was held back is ordinary text.
    pub fn finish(&mut self, out: &mut Vec<Delta>) {
        if self.stopped {
            return;
        }
        if self.anchor.is_some() {
            self.anchor_failed(MalformedReason::Truncated, out);
            self.scan(out);
        }
        let end = self.queue.end();
        // Half a marker inside a call is markup that was cut off, not argument text.
        let cut_off = if self.state.is_in_calls() {
            self.scanner.tail()
        } else {
            0
        };
        self.flush(end - cut_off, out);
        self.emit_deferred(out);
        if !self.official {
            self.end_of_output(cut_off > 0, out);
        }
    }

    fn scan(&mut self, out: &mut Vec<Delta>) {
        loop {
            let found = self.scanner.advance(&self.queue);
            if self.json.is_some() && self.json_ends(found, out) {
                continue;
            }
            match found {
                Found::Exhausted => return,
                Found::NoMatch => {
                    let reason = match self.state {
                        State::StrictType => MalformedReason::InvalidStringFlag,
                        State::StrictValueEnd => MalformedReason::MissingParameterCloser,
                        _ => MalformedReason::UnterminatedName,
                    };
                    self.anchor_failed(reason, out);
                }
                Found::Marker { action, start, end } => {
                    let start = self.anchor.take().unwrap_or(start);
                    self.flush(start, out);
                    self.apply(action, start, end, out);
                    if self.stopped {
                        return;
                    }
                }
            }
        }
    }

    fn table(&mut self, state: State) -> Arc<Table> {
        let slot = &mut self.tables[state as usize];
        let options = &self.options;
        let build = if self.official {
            official::table
        } else {
            strict::table
        };
        slot.get_or_insert_with(|| Arc::new(build(state, options)))
            .clone()
    }

    pub(crate) fn enter(&mut self, state: State, at_start: bool, position: usize) {
        self.state = state;
        let table = self.table(state);
        self.scanner.enter(table, at_start, position);
    }

    /// Gives out everything before `to` with the unmatched action of the current state.
    pub(crate) fn flush(&mut self, to: usize, out: &mut Vec<Delta>) {
        if to > self.released {
            self.emit_deferred(out);
        }
        while let Some(chunk) = self.queue.chunks.front_mut() {
            if chunk.start >= to {
                break;
            }
            let from = self.released.max(chunk.start) - chunk.start;
            let until = to.min(chunk.end()) - chunk.start;
            let is_whole = until == chunk.text.len();
            let text = match is_whole && from == 0 {
                true => std::mem::take(&mut chunk.text),
                false => chunk.text[from..until].to_owned(),
            };
            let given = out.len();
            if self.official {
                let logprobs = std::mem::take(&mut chunk.logprobs);
                if !text.is_empty() {
                    self.unmatched(text, out);
                }
                attach_all(&mut out[given..], &logprobs);
                if let Some(chunk) = self.queue.chunks.front_mut() {
                    chunk.logprobs = logprobs;
                }
            } else {
                claim(chunk, until, &mut self.unclaimed);
                if !text.is_empty() {
                    self.unmatched(text, out);
                }
                self.attach_unclaimed(given, out);
            }
            if !is_whole {
                break;
            }
            self.queue.chunks.pop_front();
        }
        self.released = self.released.max(to);
    }

    /// Carries out a marker's action and drops its text.
    fn apply(&mut self, action: Action, start: usize, end: usize, out: &mut Vec<Delta>) {
        self.emit_deferred(out);
        let given = out.len();
        let front = self.queue.chunks.front();
        let is_followed_in_chunk =
            front.is_some_and(|chunk| chunk.start <= start && end < chunk.end());
        let logprobs = match front {
            Some(chunk) if self.official => chunk.logprobs.clone(),
            _ => Vec::new(),
        };
        self.released = end;
        self.act(action, start, end, out);
        if self.official {
            attach_all(&mut out[given..], &logprobs);
        } else {
            self.claim_released();
            self.attach_unclaimed(given, out);
        }
        while self
            .queue
            .chunks
            .front()
            .is_some_and(|chunk| chunk.end() <= self.released)
        {
            self.queue.chunks.pop_front();
        }
        if self.official && is_followed_in_chunk && out.len() > given && !self.stopped {
            self.deferred = Some((out.split_off(given), end));
        }
    }

    /// Entries of text that has been passed go to the next delta.
    fn claim_released(&mut self) {
        let released = self.released;
        for chunk in self
            .queue
            .chunks
            .iter_mut()
            .take_while(|chunk| chunk.start < released)
        {
            let until = released.min(chunk.end()) - chunk.start;
            claim(chunk, until, &mut self.unclaimed);
        }
    }

    fn attach_unclaimed(&mut self, given: usize, out: &mut [Delta]) {
        if self.unclaimed.is_empty() {
            return;
        }
        let is_shown = |delta: &&mut Delta| {
            matches!(
                delta.kind,
                DeltaKind::Reasoning(_) | DeltaKind::Answer(_) | DeltaKind::Arguments(_)
            )
        };
        if let Some(delta) = out[given..].iter_mut().find(is_shown) {
            delta.logprobs.append(&mut self.unclaimed);
        }
    }

    /// Gives the deltas of a marker that waited.
    fn emit_deferred(&mut self, out: &mut Vec<Delta>) {
        if let Some((deltas, _)) = self.deferred.take() {
            out.extend(deltas);
        }
    }

    /// The original lets the deltas of a marker wait while undecided text begins directly behind it in its chunk.
    fn settle_deferred(&mut self, limit: usize, out: &mut Vec<Delta>) {
        let waits = match &self.deferred {
            Some((_, end)) => *end == limit && limit < self.queue.end(),
            None => return,
        };
        if !waits {
            self.emit_deferred(out);
        }
    }
}

/// The original gives every text delta all entries of its chunk text.
fn attach_all(deltas: &mut [Delta], logprobs: &[(usize, LogprobEntry)]) {
    if logprobs.is_empty() {
        return;
    }
    for delta in deltas {
        if matches!(delta.kind, DeltaKind::Reasoning(_) | DeltaKind::Answer(_)) {
            delta.logprobs = logprobs.iter().map(|(_, entry)| entry.clone()).collect();
        }
    }
}

/// Takes the entries of tokens that begin before `until` and have not been taken yet.
fn claim(chunk: &mut ChunkText, until: usize, to: &mut Vec<LogprobEntry>) {
    let count = chunk
        .logprobs
        .iter()
        .take_while(|(offset, _)| *offset < until)
        .count();
    if count > chunk.claimed {
        to.extend(
            chunk.logprobs[chunk.claimed..count]
                .iter()
                .map(|(_, entry)| entry.clone()),
        );
        chunk.claimed = count;
    }
}
