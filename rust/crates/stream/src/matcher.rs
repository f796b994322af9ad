//! Markers, and how far each has been matched.

use std::ops::Range;

/// Where a byte came from, which decides what it may match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A text chunk: markers match by spelling.
    Text,
    /// Ordinary tokens: the special part of a marker never matches.
    Ordinary,
    /// One added token.
    Added,
}

/// A text to look for.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    pub bytes: Vec<u8>,
    /// The part that in token chunks is one added token.
    pub special: Range<usize>,
    /// Length of the longest border of each prefix (Knuth, Morris, Pratt).
    borders: Vec<usize>,
    /// Line feeds directly before the marker belong to it.
    pub swallows_newlines: bool,
    /// Only looked for while nothing but line feeds has come.
    pub start_only: bool,
}

impl Pattern {
    pub fn plain(text: &str) -> Self {
        Pattern::new(&["", "", text])
    }

    /// A marker of text, special token, text.
    pub fn new(parts: &[&str; 3]) -> Self {
        let bytes = parts.concat().into_bytes();
        let special = parts[0].len()..parts[0].len() + parts[1].len();
        Pattern {
            borders: borders(&bytes),
            bytes,
            special,
            swallows_newlines: false,
            start_only: false,
        }
    }

    pub fn after_newlines(mut self) -> Self {
        self.swallows_newlines = true;
        self
    }

    pub fn at_start(mut self) -> Self {
        self.start_only = true;
        self
    }
}

fn borders(bytes: &[u8]) -> Vec<usize> {
    let mut borders = vec![0; bytes.len()];
    let mut length = 0;
    for index in 1..bytes.len() {
        while length > 0 && bytes[index] != bytes[length] {
            length = borders[length - 1];
        }
        if bytes[index] == bytes[length] {
            length += 1;
        }
        borders[index] = length;
    }
    borders
}

/// Progress of one pattern.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Line feeds counted before the marker.
    pub newlines: usize,
    /// Bytes of the marker matched.
    pub matched: usize,
}

impl Progress {
    pub fn length(self) -> usize {
        self.newlines + self.matched
    }

    /// Takes one byte; true when the pattern is complete.
    #[inline]
    pub fn step(&mut self, pattern: &Pattern, byte: u8, source: Source, mixed: bool) -> bool {
        let fits = |at: usize| {
            pattern.bytes[at] == byte && (source == Source::Text || !pattern.special.contains(&at))
        };
        if fits(self.matched) {
            self.matched += 1;
            return self.matched == pattern.bytes.len();
        }
        if self.matched == 0 {
            if byte == b'\n' && pattern.swallows_newlines {
                self.newlines += 1;
            } else {
                self.newlines = 0;
            }
            return false;
        }
        // A byte that breaks a half-matched marker is not counted as a line feed before the next.
        self.newlines = 0;
        while self.matched > 0 {
            self.matched = pattern.borders[self.matched - 1];
            // With tokens in play, a border that reaches into the special part may stand on ordinary text.
            if mixed && self.matched > pattern.special.start && !pattern.special.is_empty() {
                continue;
            }
            if fits(self.matched) {
                self.matched += 1;
                return self.matched == pattern.bytes.len();
            }
        }
        false
    }

    /// Takes one added token; true when the pattern is complete.
    pub fn step_added(&mut self, pattern: &Pattern, token: &[u8]) -> bool {
        let special = &pattern.special;
        if !special.is_empty() && &pattern.bytes[special.clone()] == token {
            // What was matched so far may end with what has to come before the token.
            while self.matched > special.start {
                self.matched = pattern.borders[self.matched - 1];
                self.newlines = 0;
            }
            if self.matched == special.start {
                self.matched = special.end;
                return self.matched == pattern.bytes.len();
            }
        }
        *self = Progress::default();
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(pattern: &Pattern, text: &str) -> Vec<usize> {
        let mut progress = Progress::default();
        let mut found = Vec::new();
        for (index, byte) in text.bytes().enumerate() {
            if progress.step(pattern, byte, Source::Text, false) {
                found.push(index + 1 - progress.length());
                progress = Progress::default();
            }
        }
        found
    }

    #[test]
    fn borders_are_used() {
        assert_eq!(ends(&Pattern::plain("aab"), "aaab"), [1]);
        assert_eq!(ends(&Pattern::plain("<<x"), "<<<x"), [1]);
    }

    #[test]
    fn newlines_before_a_marker_are_part_of_it() {
        let pattern = Pattern::new(&["", "</t>", ""]).after_newlines();
        assert_eq!(ends(&pattern, "a\n\n</t>"), [1]);
        assert_eq!(ends(&pattern, "a\n \n</t>"), [3]);
        assert_eq!(ends(&pattern, "a\n<\n</t>"), [4]);
    }

    #[test]
    fn ordinary_bytes_do_not_spell_the_special_part() {
        let pattern = Pattern::new(&["<", "D", " c>"]);
        let mut progress = Progress::default();
        for byte in *b"<D" {
            assert!(!progress.step(&pattern, byte, Source::Ordinary, true));
        }
        assert_eq!(progress, Progress::default());
        assert!(!progress.step(&pattern, b'<', Source::Ordinary, true));
        assert!(!progress.step_added(&pattern, b"D"));
        assert_eq!(progress.matched, 2);
    }
}
