//! Splitting text into the pieces that byte-pair encoding works on.
//!
//! V4-series files name three regular expressions; [`Scanner`] walks the text once and gives the pieces that the
//! three would give one after the other. Files with other expressions use [`Splitter::Patterns`].

use fancy_regex::Regex;

use crate::classes::{classes, CJK, LETTER, MARK, NEWLINE, NUMBER, SPACE, SYMBOL};

/// The expressions of V4-series tokenizer files, in their order.
pub(crate) const V4_PATTERNS: [&str; 3] = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^"##,
        "\r\n",
        r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[",
        "\r\n",
        r"]*|\s*[",
        "\r\n",
        r"]+|\s+(?!\S)|\s+"
    ),
];

/// The expression of the byte-level pre-tokenizer with `use_regex` (as in GPT-2's `encoder.py`).
pub(crate) const BYTE_LEVEL_PATTERN: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// How a tokenizer file splits text.
#[derive(Debug, Clone)]
pub(crate) enum Splitter {
    /// The V4 expressions, by hand-written scanner.
    V4,
    /// Any list of expressions, each splitting the pieces of the one before.
    Patterns(Vec<Regex>),
}

impl Splitter {
    /// Calls `piece` for every piece of `text`, in order; nothing is left out.
    pub fn split<'t>(&self, text: &'t str, mut piece: impl FnMut(&'t str)) {
        match self {
            Splitter::V4 => Scanner::new(text).run(&mut piece),
            Splitter::Patterns(patterns) => split_by(patterns, text, &mut piece),
        }
    }
}

fn split_by<'t>(patterns: &[Regex], text: &'t str, piece: &mut impl FnMut(&'t str)) {
    let Some((pattern, rest)) = patterns.split_first() else {
        if !text.is_empty() {
            piece(text);
        }
        return;
    };
    let mut pieces = Vec::new();
    let mut position = 0;
    for found in pattern.find_iter(text) {
        // A pattern that exceeds its backtracking limit leaves the remainder as one piece.
        let Ok(found) = found else { break };
        pieces.extend([&text[position..found.start()], found.as_str()]);
        position = found.end();
    }
    pieces.push(&text[position..]);
    for part in pieces.into_iter().filter(|part| !part.is_empty()) {
        split_by(rest, part, piece);
    }
}

struct Scanner<'t> {
    text: &'t str,
    classes: &'static [u8],
}

impl<'t> Scanner<'t> {
    fn new(text: &'t str) -> Self {
        Scanner {
            text,
            classes: classes(),
        }
    }

    /// Flags and byte length of the character at `position`, which is inside the text.
    #[inline]
    fn class_at(&self, position: usize) -> (u8, usize) {
        let bytes = self.text.as_bytes();
        let first = bytes[position];
        if first < 0x80 {
            return (self.classes[usize::from(first)], 1);
        }
        let continuation = |offset: usize| u32::from(bytes[position + offset] & 0x3f);
        let (code, length) = if first < 0xe0 {
            (u32::from(first & 0x1f) << 6 | continuation(1), 2)
        } else if first < 0xf0 {
            (
                u32::from(first & 0x0f) << 12 | continuation(1) << 6 | continuation(2),
                3,
            )
        } else {
            let high = u32::from(first & 0x07) << 18 | continuation(1) << 12;
            (high | continuation(2) << 6 | continuation(3), 4)
        };
        (self.classes[code as usize], length)
    }

    /// End of the run of characters with any of `flags` that starts at `position`.
    #[inline]
    fn run_end(&self, mut position: usize, end: usize, flags: u8) -> usize {
        while position < end {
            let (class, length) = self.class_at(position);
            if class & flags == 0 {
                break;
            }
            position += length;
        }
        position
    }

    /// Cuts the text at numbers and CJK runs, the work of the first two expressions.
    fn run(&self, piece: &mut impl FnMut(&'t str)) {
        let end = self.text.len();
        let mut start = 0;
        let mut position = 0;
        while position < end {
            let (class, length) = self.class_at(position);
            if class & (NUMBER | CJK) == 0 {
                position += length;
                continue;
            }
            self.segment(start, position, piece);
            if class & NUMBER != 0 {
                start = self.number_end(position, end);
                piece(&self.text[position..start]);
            } else {
                start = self.run_end(position, end, CJK);
                self.segment(position, start, piece);
            }
            position = start;
        }
        self.segment(start, end, piece);
    }

    fn number_end(&self, mut position: usize, end: usize) -> usize {
        for _ in 0..3 {
            if position == end {
                break;
            }
            let (class, length) = self.class_at(position);
            if class & NUMBER == 0 {
                break;
            }
            position += length;
        }
        position
    }

    /// Applies the third expression to one segment; what it does not match forms pieces of its own.
    fn segment(&self, start: usize, end: usize, piece: &mut impl FnMut(&'t str)) {
        let mut unmatched = start;
        let mut position = start;
        while position < end {
            match self.match_at(position, end) {
                Some(stop) => {
                    if unmatched < position {
                        piece(&self.text[unmatched..position]);
                    }
                    piece(&self.text[position..stop]);
                    position = stop;
                    unmatched = stop;
                }
                None => position += self.class_at(position).1,
            }
        }
        if unmatched < end {
            piece(&self.text[unmatched..end]);
        }
    }

    /// End of the first alternative that matches at `position`.
    #[inline]
    fn match_at(&self, position: usize, end: usize) -> Option<usize> {
        let bytes = self.text.as_bytes();
        let (class, length) = self.class_at(position);
        let next = position + length;
        if class & (LETTER | MARK) != 0 {
            return Some(self.run_end(next, end, LETTER | MARK));
        }
        if class & SYMBOL != 0 {
            if bytes[position].is_ascii_punctuation() {
                let word = bytes[next..end]
                    .iter()
                    .take_while(|byte| byte.is_ascii_alphabetic())
                    .count();
                if word > 0 {
                    return Some(next + word);
                }
            }
            return Some(self.symbols_end(next, end));
        }
        if class & NEWLINE == 0 && next < end {
            let (following, _) = self.class_at(next);
            if following & (LETTER | MARK) != 0 {
                return Some(self.run_end(next, end, LETTER | MARK));
            }
            if bytes[position] == b' ' && following & SYMBOL != 0 {
                return Some(self.symbols_end(next, end));
            }
        }
        if class & SPACE != 0 {
            return Some(self.blanks_end(position, end));
        }
        None
    }

    /// End of `[\p{P}\p{S}]*[\r\n]*`.
    fn symbols_end(&self, position: usize, end: usize) -> usize {
        let position = self.run_end(position, end, SYMBOL);
        self.run_end(position, end, NEWLINE)
    }

    /// End of the whitespace alternatives: up to the last line break, else all but the blank before a word.
    fn blanks_end(&self, start: usize, end: usize) -> usize {
        let mut position = start;
        let mut last_start = start;
        let mut after_break = None;
        while position < end {
            let (class, length) = self.class_at(position);
            if class & SPACE == 0 {
                break;
            }
            last_start = position;
            position += length;
            if class & NEWLINE != 0 {
                after_break = Some(position);
            }
        }
        match after_break {
            Some(stop) => stop,
            None if position == end || last_start == start => position,
            None => last_start,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces<'t>(splitter: &Splitter, text: &'t str) -> Vec<&'t str> {
        let mut pieces = Vec::new();
        splitter.split(text, |piece| pieces.push(piece));
        pieces
    }

    #[test]
    fn scanner_equals_the_expressions() {
        let patterns = V4_PATTERNS
            .iter()
            .map(|pattern| Regex::new(pattern).ok())
            .collect::<Option<Vec<_>>>();
        let patterns = Splitter::Patterns(patterns.unwrap_or_default());
        let alphabet: Vec<char> =
            "aZé漢かア・゛\u{3099}\u{301}\u{0}\u{7}12½①  \n\r\t\u{a0}\u{3000}!.-_<>\"'$+🌊👍🏽\u{200d}\u{e000}".chars().collect();
        let mut state = 7u64;
        for _ in 0..30_000 {
            let mut text = String::new();
            let mut next = || {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize
            };
            for _ in 0..next() % 14 {
                text.push(alphabet[next() % alphabet.len()]);
            }
            assert_eq!(
                pieces(&Splitter::V4, &text),
                pieces(&patterns, &text),
                "{text:?}"
            );
        }
    }
}
