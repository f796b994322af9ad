//! Chunks of token ids.

use std::fmt;
use std::sync::Arc;

use recipe_tokenizer::{Decoder, TokenText, Tokenizer};

use crate::delta::Delta;
use crate::machine::Machine;
use crate::queue::{LogprobEntry, TopLogprob};

/// Log probability of a token and of its alternatives by id.
pub type TokenLogprob = (f64, Vec<(u32, f64)>);

/// The number of log probabilities does not fit the number of ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogprobCount {
    /// Log probabilities given.
    pub logprobs: usize,
    /// Ids given.
    pub ids: usize,
}

impl fmt::Display for LogprobCount {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "invalid log probabilities: {} log probabilities for {} token IDs",
            self.logprobs, self.ids
        )
    }
}

impl std::error::Error for LogprobCount {}

/// Turns ids into text for a [`Machine`] without splitting a character.
#[derive(Debug, Clone)]
pub struct TokenReader {
    tokenizer: Arc<Tokenizer>,
    official: bool,
    held: Vec<u32>,
    held_logprobs: Vec<Option<TokenLogprob>>,
}

impl TokenReader {
    /// A reader of one output.
    pub fn new(tokenizer: Arc<Tokenizer>, official: bool) -> Self {
        TokenReader {
            tokenizer,
            official,
            held: Vec::new(),
            held_logprobs: Vec::new(),
        }
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Reads a chunk of ids; returns how many ids were consumed, held ones of earlier chunks included.
    ///
    /// # Errors
    /// Log probabilities whose number differs from that of the ids.
    pub fn feed(
        &mut self,
        machine: &mut Machine,
        ids: &[u32],
        logprobs: Option<Vec<TokenLogprob>>,
        out: &mut Vec<Delta>,
    ) -> Result<usize, LogprobCount> {
        match logprobs {
            Some(logprobs) if logprobs.len() != ids.len() => {
                return Err(LogprobCount {
                    logprobs: logprobs.len(),
                    ids: ids.len(),
                });
            }
            Some(logprobs) => self.held_logprobs.extend(logprobs.into_iter().map(Some)),
            None => self.held_logprobs.extend(ids.iter().map(|_| None)),
        }
        self.held.extend_from_slice(ids);
        let tail = match self.official {
            true => self.undecided_run(),
            false => Decoder::incomplete_tail(&self.tokenizer, &self.held),
        };
        let count = self.held.len() - tail;
        self.read(machine, count, out);
        Ok(count)
    }

    /// Gives out what was held for an incomplete character; returns the number of ids.
    pub fn flush(&mut self, machine: &mut Machine, out: &mut Vec<Delta>) -> usize {
        if self.official {
            // The original loses them.
            return 0;
        }
        let count = self.held.len();
        self.read(machine, count, out);
        count
    }

    /// The original holds the ordinary tokens behind the last added one while their text is empty or ends with a
    /// replacement character.
    fn undecided_run(&self) -> usize {
        let is_added = |id: &u32| self.tokenizer.added_text(*id).is_some();
        let start = self
            .held
            .iter()
            .rposition(is_added)
            .map_or(0, |index| index + 1);
        let run = &self.held[start..];
        match Decoder::decode(&self.tokenizer, run).last() {
            Some(TokenText::Ordinary { text, .. })
                if !text.is_empty() && !text.ends_with('\u{fffd}') =>
            {
                0
            }
            _ => run.len(),
        }
    }

    fn read(&mut self, machine: &mut Machine, count: usize, out: &mut Vec<Delta>) {
        let ids: Vec<u32> = self.held.drain(..count).collect();
        let mut logprobs: Vec<Option<TokenLogprob>> = self.held_logprobs.drain(..count).collect();
        for text in Decoder::decode(&self.tokenizer, &ids) {
            match text {
                TokenText::Ordinary { text, tokens } => {
                    let entries = tokens
                        .into_iter()
                        .filter_map(|(index, offset)| {
                            let entry = self.entry(ids[index], logprobs[index].take()?);
                            Some((offset, entry))
                        })
                        .collect();
                    machine.feed_ordinary(&text, entries, out);
                }
                TokenText::Added { text, token } => {
                    let entry = logprobs[token]
                        .take()
                        .map(|logprob| (0, self.entry(ids[token], logprob)));
                    machine.feed_added(&text, entry.into_iter().collect(), out);
                }
            }
        }
    }

    fn entry(&self, id: u32, (logprob, top): TokenLogprob) -> LogprobEntry {
        let bytes = |id: u32| self.tokenizer.token_bytes(id).unwrap_or_default().to_vec();
        LogprobEntry {
            bytes: bytes(id),
            logprob,
            top: top
                .into_iter()
                .map(|(id, logprob)| TopLogprob {
                    bytes: bytes(id),
                    logprob,
                })
                .collect(),
        }
    }
}
