//! Added tokens: text that is one token wherever it stands.

use std::collections::HashMap;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};

/// An entry of `added_tokens`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AddedToken {
    pub id: u32,
    pub content: Arc<str>,
    /// Matched in a second pass, after the others have been cut out.
    pub normalized: bool,
}

/// All added tokens of a file.
#[derive(Debug)]
pub(crate) struct AddedVocabulary {
    ids: HashMap<Arc<str>, u32>,
    texts: HashMap<u32, Arc<str>>,
    passes: [Option<Matcher>; 2],
}

#[derive(Debug)]
struct Matcher {
    automaton: AhoCorasick,
    ids: Vec<u32>,
}

/// A stretch of text after added tokens have been cut out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stretch<'t> {
    Text(&'t str),
    Added(u32),
}

impl AddedVocabulary {
    pub fn new(tokens: &[AddedToken]) -> Result<Self, aho_corasick::BuildError> {
        let pass = |normalized: bool| {
            let members: Vec<&AddedToken> = tokens
                .iter()
                .filter(|token| token.normalized == normalized)
                .collect();
            if members.is_empty() {
                return Ok(None);
            }
            let automaton = AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .build(members.iter().map(|token| token.content.as_bytes()))?;
            let ids = members.iter().map(|token| token.id).collect();
            Ok(Some(Matcher { automaton, ids }))
        };
        Ok(AddedVocabulary {
            ids: tokens
                .iter()
                .map(|token| (token.content.clone(), token.id))
                .collect(),
            texts: tokens
                .iter()
                .map(|token| (token.id, token.content.clone()))
                .collect(),
            passes: [pass(false)?, pass(true)?],
        })
    }

    pub fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    pub fn text(&self, id: u32) -> Option<&Arc<str>> {
        self.texts.get(&id)
    }

    /// Cuts `text` at added tokens.
    pub fn split<'t>(&self, text: &'t str, mut stretch: impl FnMut(Stretch<'t>)) {
        self.split_pass(0, text, &mut stretch);
    }

    fn split_pass<'t>(&self, pass: usize, text: &'t str, stretch: &mut dyn FnMut(Stretch<'t>)) {
        let Some(matcher) = self.passes.get(pass) else {
            if !text.is_empty() {
                stretch(Stretch::Text(text));
            }
            return;
        };
        let Some(matcher) = matcher else {
            return self.split_pass(pass + 1, text, stretch);
        };
        let mut position = 0;
        for found in matcher.automaton.find_iter(text) {
            self.split_pass(pass + 1, &text[position..found.start()], stretch);
            stretch(Stretch::Added(matcher.ids[found.pattern().as_usize()]));
            position = found.end();
        }
        self.split_pass(pass + 1, &text[position..], stretch);
    }
}
