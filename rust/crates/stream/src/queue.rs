//! Text that has arrived and not yet been given out.

use std::collections::VecDeque;

use crate::matcher::Source;

/// An alternative at one position.
#[derive(Debug, Clone, PartialEq)]
pub struct TopLogprob {
    /// Bytes of the token.
    pub bytes: Vec<u8>,
    /// Its log probability.
    pub logprob: f64,
}

/// Log probability of one token.
#[derive(Debug, Clone, PartialEq)]
pub struct LogprobEntry {
    /// Bytes of the token.
    pub bytes: Vec<u8>,
    /// Its log probability.
    pub logprob: f64,
    /// Alternatives.
    pub top: Vec<TopLogprob>,
}

/// A chunk text: a text chunk, a run of ordinary tokens, or one added token.
#[derive(Debug, Clone)]
pub(crate) struct ChunkText {
    /// Offset of its first byte in the whole output.
    pub start: usize,
    pub text: String,
    pub source: Source,
    /// Entries with the offset in `text` at which their token begins.
    pub logprobs: Vec<(usize, LogprobEntry)>,
    /// Entries that have been given out already.
    pub claimed: usize,
}

impl ChunkText {
    pub fn end(&self) -> usize {
        self.start + self.text.len()
    }
}

/// Chunk texts in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Queue {
    pub chunks: VecDeque<ChunkText>,
    end: usize,
}

impl Queue {
    /// Offset behind the last byte.
    pub fn end(&self) -> usize {
        self.end
    }

    pub fn push(&mut self, text: String, source: Source, logprobs: Vec<(usize, LogprobEntry)>) {
        let start = self.end;
        self.end += text.len();
        self.chunks.push_back(ChunkText {
            start,
            text,
            source,
            logprobs,
            claimed: 0,
        });
    }

    /// Index of the chunk that holds the byte at `offset`.
    pub fn index_of(&self, offset: usize) -> usize {
        // The byte is nearly always in the last chunk.
        self.chunks
            .iter()
            .rposition(|chunk| chunk.start <= offset)
            .unwrap_or(0)
    }
}
