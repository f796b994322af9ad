//! The tokenizer.

use std::sync::Arc;

use crate::added::{AddedVocabulary, Stretch};
use crate::bpe::{Bpe, Scratch};
use crate::file::{read, TokenizerError};
use crate::split::Splitter;

/// A byte-level byte-pair encoder with added tokens. Immutable; share it between threads.
#[derive(Debug)]
pub struct Tokenizer {
    bpe: Bpe,
    added: AddedVocabulary,
    splitter: Splitter,
    add_prefix_space: bool,
}

impl Tokenizer {
    /// Reads the text of a `tokenizer.json`.
    ///
    /// # Errors
    /// Text that is not such a file, or one with features that V4-series files do not use.
    pub fn from_json(text: &str) -> Result<Self, TokenizerError> {
        let parts = read(text)?;
        Ok(Tokenizer {
            bpe: parts.bpe,
            added: parts.added,
            splitter: parts.splitter,
            add_prefix_space: parts.add_prefix_space,
        })
    }

    /// An encoder with its own buffers.
    pub fn encoder(&self) -> Encoder<'_> {
        Encoder {
            tokenizer: self,
            scratch: Scratch::default(),
        }
    }

    /// Ids of `text`; spellings of added tokens become their ids.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 1);
        let mut encoder = self.encoder();
        self.added.split(text, |stretch| match stretch {
            Stretch::Text(text) => encoder.encode_ordinary(text, &mut ids),
            Stretch::Added(id) => ids.push(id),
        });
        ids
    }

    /// Id of an added token by its spelling.
    pub fn added_id(&self, text: &str) -> Option<u32> {
        self.added.id(text)
    }

    /// Spelling of an added token.
    pub fn added_text(&self, id: u32) -> Option<&Arc<str>> {
        self.added.text(id)
    }

    /// Bytes of a token of the ordinary vocabulary.
    pub fn ordinary_bytes(&self, id: u32) -> Option<&[u8]> {
        self.bpe.token_bytes.get(id)
    }

    /// Bytes of any token, added or ordinary.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        match self.added_text(id) {
            Some(text) => Some(text.as_bytes()),
            None => self.ordinary_bytes(id),
        }
    }
}

/// Encodes text without the added vocabulary, reusing buffers from call to call.
#[derive(Debug)]
pub struct Encoder<'t> {
    tokenizer: &'t Tokenizer,
    scratch: Scratch,
}

impl Encoder<'_> {
    /// Appends the ids of `text`, in which spellings of added tokens are ordinary text.
    pub fn encode_ordinary(&mut self, text: &str, ids: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let prefixed;
        let text = if self.tokenizer.add_prefix_space && !text.starts_with(' ') {
            prefixed = format!(" {text}");
            &prefixed
        } else {
            text
        };
        let Encoder { tokenizer, scratch } = self;
        tokenizer.splitter.split(text, |piece| {
            tokenizer.bpe.encode(piece.as_bytes(), scratch, ids);
        });
    }
}
