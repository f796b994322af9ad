//! The rendered prompt and the writer that builds it.

use std::ops::Range;

use recipe_model::{Content, ImageSource, SpecialToken, SpecialTokens};

/// Prompt text with the places the renderer itself wrote as special tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedPrompt {
    /// The text.
    pub prompt: String,
    /// Byte ranges of special tokens and image placeholders, ascending and disjoint.
    pub special_ranges: Vec<Range<usize>>,
    /// Images in prompt order.
    pub image_sources: Vec<ImageSource>,
}

impl RenderedPrompt {
    /// [`special_ranges`](Self::special_ranges) counted in code points.
    pub fn char_ranges(&self) -> Vec<(usize, usize)> {
        let mut ranges = Vec::with_capacity(self.special_ranges.len());
        let (mut bytes, mut chars) = (0, 0);
        let mut advance = |to: usize| {
            chars += count_chars(&self.prompt.as_bytes()[bytes..to]);
            bytes = to;
            chars
        };
        for range in &self.special_ranges {
            let start = advance(range.start);
            ranges.push((start, advance(range.end)));
        }
        ranges
    }
}

fn count_chars(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&&byte| byte & 0xc0 != 0x80).count()
}

/// Collects text, special ranges and images.
pub(crate) struct Writer<'a> {
    pub tokens: &'a SpecialTokens,
    pub out: String,
    ranges: Vec<Range<usize>>,
    images: Vec<ImageSource>,
}

impl<'a> Writer<'a> {
    pub fn new(tokens: &'a SpecialTokens, capacity: usize, messages: usize) -> Self {
        Writer {
            tokens,
            out: String::with_capacity(capacity),
            ranges: Vec::with_capacity(4 * messages + 16),
            images: Vec::new(),
        }
    }

    pub fn token(&mut self, token: SpecialToken) {
        let start = self.out.len();
        self.out.push_str(self.tokens.get(token));
        if self.out.len() > start {
            self.ranges.push(start..self.out.len());
        }
    }

    pub fn text(&mut self, text: &str) {
        self.out.push_str(text);
    }

    pub fn content(&mut self, content: &Content) {
        let start = self.out.len();
        self.out.push_str(&content.text);
        for placeholder in &content.placeholders {
            self.ranges
                .push(start + placeholder.start..start + placeholder.end);
        }
        self.images.extend_from_slice(&content.images);
    }

    pub fn finish(self) -> RenderedPrompt {
        RenderedPrompt {
            prompt: self.out,
            special_ranges: self.ranges,
            image_sources: self.images,
        }
    }
}
