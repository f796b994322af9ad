//! From chunks of model output to events.

use std::fmt;
use std::sync::Arc;

use recipe_stream::{
    Delta, DeltaKind, LogprobCount, Machine, MalformedCall, ParsingOptions, TokenLogprob,
    TokenReader,
};
use recipe_tokenizer::Tokenizer;

use crate::events::{ChunkGenerator, End, FinishReason, Usage};

/// Prompt counts as the engine reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PromptUsage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Of these, found in the prefix cache.
    pub prompt_cache_hit_tokens: u64,
}

/// Why the engine stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InferenceFinishReason {
    /// The model ended its turn.
    Stop,
    /// The bound on generated tokens.
    Length,
    /// A content filter.
    ContentFilter,
}

/// One step of inference.
#[derive(Debug, Clone, PartialEq)]
pub enum Chunk {
    /// The prompt has been read.
    Ready {
        /// Prompt counts.
        prompt_usage: Option<PromptUsage>,
        /// Identifies the serving configuration.
        system_fingerprint: Option<String>,
    },
    /// Generated text.
    Text {
        /// The text.
        content: String,
        /// Number of tokens it stands for.
        token_count: u64,
    },
    /// Generated token ids.
    Tokens {
        /// The ids.
        token_ids: Vec<u32>,
        /// One log probability per id, with alternatives.
        logprobs: Option<Vec<TokenLogprob>>,
    },
    /// The end.
    Finish(InferenceFinishReason),
}

/// Errors of a stream. The first two are about use, the others close the processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamError {
    /// Pushed after the end.
    Finished,
    /// Used after it was closed.
    Closed,
    /// Token ids without a tokenizer.
    NoTokenizer,
    /// Log probabilities that do not fit the ids.
    Logprobs(LogprobCount),
}

impl fmt::Display for StreamError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamError::Finished => formatter.write_str("stream processor has finished"),
            StreamError::Closed => formatter.write_str("stream processor is closed"),
            StreamError::NoTokenizer => {
                formatter.write_str("token chunk received without a tokenizer")
            }
            StreamError::Logprobs(count) => count.fmt(formatter),
        }
    }
}

impl std::error::Error for StreamError {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing has been pushed.
    Fresh,
    /// The opening events have been given, or wait for the first text.
    Running,
    Finished,
    Closed,
}

/// Parses output and lets a generator turn it into events.
#[derive(Debug, Clone)]
pub struct StreamProcessor<G: ChunkGenerator> {
    generator: G,
    machine: Machine,
    reader: Option<TokenReader>,
    official: bool,
    phase: Phase,
    is_started: bool,
    prompt: PromptUsage,
    fingerprint: Option<String>,
    completion_tokens: u64,
    reasoning: ReasoningCount,
    valid_calls: usize,
    calls: usize,
    deltas: Vec<Delta>,
}

/// Counts the tokens of reasoning.
#[derive(Debug, Clone, Default)]
struct ReasoningCount {
    /// Wanted at all: a thinking stage is set.
    is_wanted: bool,
    /// The text, kept only where a tokenizer can count it.
    text: String,
    /// Without a tokenizer: tokens by the state in which their text was read.
    by_state: u64,
    has_counts: bool,
}

impl<G: ChunkGenerator> StreamProcessor<G> {
    /// A processor at the start of output.
    pub fn new(generator: G, options: ParsingOptions, tokenizer: Option<Arc<Tokenizer>>) -> Self {
        let official = generator.is_official();
        let is_wanted = options.thinking_initial_stage.is_some();
        StreamProcessor {
            machine: Machine::new(options, official),
            reader: tokenizer.map(|tokenizer| TokenReader::new(tokenizer, official)),
            generator,
            official,
            phase: Phase::Fresh,
            is_started: false,
            prompt: PromptUsage::default(),
            fingerprint: None,
            completion_tokens: 0,
            reasoning: ReasoningCount {
                is_wanted,
                ..ReasoningCount::default()
            },
            valid_calls: 0,
            calls: 0,
            deltas: Vec::new(),
        }
    }

    /// Whether the end has been seen.
    pub fn is_finished(&self) -> bool {
        self.phase == Phase::Finished
    }

    /// Malformed calls so far.
    pub fn malformed_calls(&self) -> &[MalformedCall] {
        self.machine.malformed_calls()
    }

    /// Makes every further use an error.
    pub fn close(&mut self) {
        self.phase = Phase::Closed;
    }

    /// Takes a chunk, gives its events.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn push(&mut self, chunk: &Chunk) -> Result<Vec<G::Event>, StreamError> {
        match self.phase {
            Phase::Finished => return Err(StreamError::Finished),
            Phase::Closed => return Err(StreamError::Closed),
            Phase::Fresh | Phase::Running => {}
        }
        let is_first = self.phase == Phase::Fresh;
        self.phase = Phase::Running;
        let mut events = Vec::new();
        match chunk {
            Chunk::Ready {
                prompt_usage,
                system_fingerprint,
            } => {
                if is_first {
                    self.prompt = prompt_usage.unwrap_or_default();
                    self.fingerprint.clone_from(system_fingerprint);
                }
                self.start(&mut events);
            }
            Chunk::Text {
                content,
                token_count,
            } => self.text(content, *token_count, &mut events),
            Chunk::Tokens {
                token_ids,
                logprobs,
            } => {
                if let Err(error) = self.tokens(token_ids, logprobs.clone(), &mut events) {
                    self.phase = Phase::Closed;
                    return Err(error);
                }
            }
            Chunk::Finish(reason) => self.end(Some(*reason), &mut events),
        }
        Ok(events)
    }

    /// Ends the stream if no finish chunk did; gives nothing the second time.
    ///
    /// # Errors
    /// A closed processor.
    pub fn finish(&mut self) -> Result<Vec<G::Event>, StreamError> {
        let mut events = Vec::new();
        match self.phase {
            Phase::Closed => return Err(StreamError::Closed),
            Phase::Finished => {}
            Phase::Fresh | Phase::Running => self.end(None, &mut events),
        }
        Ok(events)
    }

    fn start(&mut self, events: &mut Vec<G::Event>) {
        if !self.is_started {
            self.is_started = true;
            self.generator
                .start(self.prompt, self.fingerprint.take(), events);
        }
    }

    fn text(&mut self, content: &str, token_count: u64, events: &mut Vec<G::Event>) {
        self.start(events);
        let was_reasoning = self.machine.is_reasoning();
        let mut deltas = std::mem::take(&mut self.deltas);
        if let Some(reader) = self.reader.as_mut().filter(|_| !self.official) {
            // Text behind an incomplete character: the character cannot be completed any more.
            self.completion_tokens += reader.flush(&mut self.machine, &mut deltas) as u64;
        }
        self.machine.feed_text(content, &mut deltas);
        self.machine.release(&mut deltas);
        self.completion_tokens += token_count;
        if self.reader.is_none() && self.reasoning.is_wanted && token_count > 0 {
            self.reasoning.has_counts = true;
            self.reasoning.by_state += match (was_reasoning, self.machine.is_reasoning()) {
                (true, true) => token_count,
                (true, false) => share(&deltas, content.len(), token_count),
                _ => 0,
            };
        }
        self.give(&mut deltas, events);
        self.deltas = deltas;
    }

    fn tokens(
        &mut self,
        ids: &[u32],
        logprobs: Option<Vec<TokenLogprob>>,
        events: &mut Vec<G::Event>,
    ) -> Result<(), StreamError> {
        let Some(reader) = &mut self.reader else {
            return Err(StreamError::NoTokenizer);
        };
        let mut deltas = Vec::new();
        let consumed = reader
            .feed(&mut self.machine, ids, logprobs, &mut deltas)
            .map_err(StreamError::Logprobs)?;
        self.machine.release(&mut deltas);
        if self.official && consumed == 0 {
            // The original gives not even its opening events for a chunk that it holds.
            return Ok(());
        }
        self.completion_tokens += consumed as u64;
        self.start(events);
        self.give(&mut deltas, events);
        Ok(())
    }

    fn give(&mut self, deltas: &mut Vec<Delta>, events: &mut Vec<G::Event>) {
        for delta in deltas.drain(..) {
            match &delta.kind {
                DeltaKind::Reasoning(text) if self.reader.is_some() && self.reasoning.is_wanted => {
                    self.reasoning.text.push_str(text);
                }
                DeltaKind::CallStart { .. } => self.calls += 1,
                DeltaKind::CallEnd => self.valid_calls += 1,
                DeltaKind::Stopped { sequence } => {
                    let reason = FinishReason::StopSequence(sequence.clone());
                    self.close_stream(reason, events);
                    return;
                }
                _ => {}
            }
            self.generator.delta(delta, events);
        }
    }

    fn end(&mut self, reason: Option<InferenceFinishReason>, events: &mut Vec<G::Event>) {
        self.start(events);
        let mut deltas = Vec::new();
        if let Some(reader) = &mut self.reader {
            self.completion_tokens += reader.flush(&mut self.machine, &mut deltas) as u64;
        }
        self.machine.finish(&mut deltas);
        self.give(&mut deltas, events);
        if self.phase == Phase::Finished {
            return;
        }
        let has_calls = if self.official {
            self.calls > 0
        } else {
            self.valid_calls > 0
        };
        let reason = match reason {
            Some(InferenceFinishReason::Length) => FinishReason::Length,
            Some(InferenceFinishReason::ContentFilter) => FinishReason::ContentFilter,
            // The original reports calls only with a finish chunk.
            None if self.official => FinishReason::Stop,
            _ if has_calls => FinishReason::ToolCalls,
            _ => FinishReason::Stop,
        };
        self.close_stream(reason, events);
    }

    fn close_stream(&mut self, reason: FinishReason, events: &mut Vec<G::Event>) {
        self.phase = Phase::Finished;
        let usage = Usage {
            prompt: self.prompt,
            completion_tokens: self.completion_tokens,
            reasoning_tokens: self.reasoning_tokens(),
        };
        let malformed = self.machine.malformed_calls().to_vec();
        let logprobs = self.machine.take_unclaimed();
        self.generator.end(
            End {
                reason,
                usage,
                malformed,
                logprobs,
            },
            events,
        );
    }

    fn reasoning_tokens(&self) -> Option<u64> {
        if !self.reasoning.is_wanted {
            return None;
        }
        match &self.reader {
            Some(reader) => Some(reader.tokenizer().encode(&self.reasoning.text).len() as u64),
            None if !self.official && self.reasoning.has_counts => Some(self.reasoning.by_state),
            None => None,
        }
    }
}

/// The part of a chunk's tokens that belongs to the reasoning in it.
fn share(deltas: &[Delta], length: usize, token_count: u64) -> u64 {
    let reasoning: usize = deltas
        .iter()
        .map(|delta| match &delta.kind {
            DeltaKind::Reasoning(text) => text.len(),
            _ => 0,
        })
        .sum();
    match length {
        0 => 0,
        length => token_count * reasoning.min(length) as u64 / length as u64,
    }
}
