//! From token ids back to text, chunk by chunk.

use std::sync::Arc;

use crate::tokenizer::Tokenizer;

/// Text of some of the ids fed to a [`Decoder`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenText {
    /// Text of one or more ordinary tokens.
    Ordinary {
        /// The text.
        text: String,
        /// For each token its position in the chunk's list of ids and the offset of its first byte.
        tokens: Vec<(usize, usize)>,
    },
    /// One added token.
    Added {
        /// Its spelling.
        text: Arc<str>,
        /// Position in the chunk's list of ids.
        token: usize,
    },
}

/// Splits a list of ids into runs of ordinary tokens and single added tokens.
#[derive(Debug, Clone, Default)]
pub struct Decoder;

impl Decoder {
    /// Decodes `ids`; a byte sequence that is no valid character becomes U+FFFD.
    ///
    /// Ids unknown to the tokenizer contribute no text.
    pub fn decode(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<TokenText> {
        let mut texts = Vec::new();
        let mut bytes = Vec::new();
        let mut tokens = Vec::new();
        for (index, &id) in ids.iter().enumerate() {
            if let Some(text) = tokenizer.added_text(id) {
                flush(&mut bytes, &mut tokens, &mut texts);
                texts.push(TokenText::Added {
                    text: text.clone(),
                    token: index,
                });
            } else if let Some(piece) = tokenizer.ordinary_bytes(id) {
                tokens.push((index, bytes.len()));
                bytes.extend_from_slice(piece);
            }
        }
        flush(&mut bytes, &mut tokens, &mut texts);
        texts
    }

    /// Number of trailing ids of `ids` whose bytes may still grow into a character with ids to come.
    ///
    /// 0 when the text of `ids` ends at a character boundary.
    pub fn incomplete_tail(tokenizer: &Tokenizer, ids: &[u32]) -> usize {
        let mut bytes: Vec<u8> = Vec::new();
        for (count, &id) in ids.iter().rev().enumerate() {
            let Some(piece) = tokenizer
                .ordinary_bytes(id)
                .filter(|_| tokenizer.added_text(id).is_none())
            else {
                return 0;
            };
            bytes.splice(0..0, piece.iter().copied());
            if bytes.iter().any(|byte| byte & 0xc0 != 0x80) || bytes.len() >= 4 {
                return if ends_inside_character(&bytes) {
                    count + 1
                } else {
                    0
                };
            }
        }
        0
    }
}

/// Whether the bytes end with a proper prefix of a multi-byte character.
pub(crate) fn ends_inside_character(bytes: &[u8]) -> bool {
    for length in 1..=bytes.len().min(3) {
        let byte = bytes[bytes.len() - length];
        if byte & 0xc0 == 0x80 {
            continue;
        }
        let needed = match byte {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => 1,
        };
        if needed <= length {
            return false;
        }
        let tail = &bytes[bytes.len() - length..];
        return matches!(std::str::from_utf8(tail), Err(error) if error.error_len().is_none());
    }
    false
}

/// Moves collected bytes into `texts`, replacing invalid sequences and keeping token offsets in step.
fn flush(bytes: &mut Vec<u8>, tokens: &mut Vec<(usize, usize)>, texts: &mut Vec<TokenText>) {
    if tokens.is_empty() {
        bytes.clear();
        return;
    }
    let mut tokens = std::mem::take(tokens);
    let text = match String::from_utf8(std::mem::take(bytes)) {
        Ok(text) => text,
        Err(error) => replace_invalid(error.as_bytes(), &mut tokens),
    };
    texts.push(TokenText::Ordinary { text, tokens });
}

fn replace_invalid(bytes: &[u8], tokens: &mut [(usize, usize)]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut consumed = 0;
    let mut pending = tokens.iter_mut().peekable();
    for chunk in bytes.utf8_chunks() {
        let start = consumed;
        let valid_end = start + chunk.valid().len();
        consumed = valid_end + chunk.invalid().len();
        // A token that starts inside a replaced sequence belongs to its replacement character.
        let base = text.len();
        while let Some((_, offset)) = pending.next_if(|(_, offset)| *offset < consumed) {
            *offset = base + (*offset).min(valid_end) - start;
        }
        text.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            text.push('\u{fffd}');
        }
    }
    for (_, offset) in pending {
        *offset = text.len();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_where_a_character_may_continue() {
        assert!(ends_inside_character("潮".as_bytes().split_at(1).0));
        assert!(ends_inside_character(&[b'a', 0xf0, 0x9f, 0x8c]));
        assert!(!ends_inside_character("潮".as_bytes()));
        assert!(!ends_inside_character(b"abc"));
        assert!(!ends_inside_character(&[0x80]));
        assert!(!ends_inside_character(&[0xff]));
        assert!(!ends_inside_character(&[0xe0, 0x80]));
    }

    #[test]
    fn offsets_follow_replacements() {
        let mut tokens = [(0, 0), (1, 1), (2, 2), (3, 3)];
        assert_eq!(
            replace_invalid(&[b'a', 0xff, 0xff, b'b'], &mut tokens),
            "a\u{fffd}\u{fffd}b"
        );
        assert_eq!(tokens, [(0, 0), (1, 1), (2, 4), (3, 7)]);
    }
}
