//! Reasoning that travels through a client without being readable there.
//!
//! Responses carry reasoning in `encrypted_content`. With a key, that member holds the reasoning text sealed by
//! ChaCha20-Poly1305; a later request that sends it back has it restored. A text that was not sealed with the same
//! key is ignored.

use std::fmt;
use std::sync::Arc;

use chacha20poly1305::aead::{Aead, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, Key, Nonce};

const PREFIX: &str = "dsr1.";
const NONCE_BYTES: usize = 12;

/// A secret of 32 bytes.
#[derive(Clone)]
pub struct ReasoningKey {
    cipher: Arc<ChaCha20Poly1305>,
}

impl fmt::Debug for ReasoningKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ReasoningKey(..)")
    }
}

impl ReasoningKey {
    /// A key from 32 secret bytes.
    pub fn new(secret: [u8; 32]) -> Self {
        let key = Key::from(secret);
        ReasoningKey {
            cipher: Arc::new(ChaCha20Poly1305::new(&key)),
        }
    }

    /// Seals `text`. The nonce must not repeat for one key.
    pub fn seal(&self, text: &str, nonce: [u8; NONCE_BYTES]) -> Option<String> {
        let sealed = self
            .cipher
            .encrypt(&Nonce::from(nonce), text.as_bytes())
            .ok()?;
        let mut out = String::from(PREFIX);
        push_hex(&mut out, &nonce);
        push_hex(&mut out, &sealed);
        Some(out)
    }

    /// Opens what [`seal`](Self::seal) made; `None` for anything else.
    pub fn open(&self, sealed: &str) -> Option<String> {
        let bytes = parse_hex(sealed.strip_prefix(PREFIX)?)?;
        let (nonce, ciphertext) = bytes.split_at_checked(NONCE_BYTES)?;
        let nonce: [u8; NONCE_BYTES] = nonce.try_into().ok()?;
        let text = self.cipher.decrypt(&Nonce::from(nonce), ciphertext).ok()?;
        String::from_utf8(text).ok()
    }
}

fn push_hex(out: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)] as char);
        out.push(DIGITS[usize::from(byte & 15)] as char);
    }
}

fn parse_hex(text: &str) -> Option<Vec<u8>> {
    if text.len() % 2 != 0 {
        return None;
    }
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    text.as_bytes()
        .chunks_exact(2)
        .map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_only_what_it_sealed() {
        let key = ReasoningKey::new([7; 32]);
        let sealed = key.seal("why 潮", [1; 12]).unwrap_or_default();
        assert_eq!(key.open(&sealed).as_deref(), Some("why 潮"));
        assert_eq!(ReasoningKey::new([8; 32]).open(&sealed), None);
        for foreign in [
            "",
            "resp-1-0",
            "dsr1.",
            "dsr1.zz",
            "dsr1.00",
            &sealed[..sealed.len() - 2],
        ] {
            assert_eq!(key.open(foreign), None);
        }
    }
}
