//! Random identifiers.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::{SystemTime, UNIX_EPOCH};

/// A small generator, seeded by the process's hash keys; for identifiers, not for secrets.
#[derive(Debug, Clone)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    pub fn new() -> Self {
        Random {
            state: RandomState::new().build_hasher().finish(),
        }
    }

    /// SplitMix64 (Steele, Lea, Flood 2014).
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Twelve bytes that do not repeat within a process, and hardly across processes.
    pub fn nonce() -> [u8; 12] {
        let mut nonce = [0; 12];
        // A fresh `RandomState` hashes with keys that no other value of this process has.
        let low = RandomState::new().build_hasher().finish();
        let high = RandomState::new().build_hasher().finish();
        nonce[..8].copy_from_slice(&low.to_le_bytes());
        nonce[8..].copy_from_slice(&high.to_le_bytes()[..4]);
        nonce
    }

    /// `call_NN_`, `ET_` if the call was made without reasoning, 20 alphanumerics and 4 digits.
    pub fn call_id(&mut self, index: usize, without_reasoning: bool) -> String {
        const ALPHABET: &[u8; 62] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
        let mut id = format!("call_{index:02}_");
        if without_reasoning {
            id.push_str("ET_");
        }
        for _ in 0..20 {
            id.push(ALPHABET[(self.next() % 62) as usize] as char);
        }
        for _ in 0..4 {
            id.push(ALPHABET[52 + (self.next() % 10) as usize] as char);
        }
        id
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_ids_have_the_documented_form() {
        let mut random = Random::new();
        let id = random.call_id(3, false);
        assert!(id.starts_with("call_03_") && id.len() == 32);
        assert!(random.call_id(101, true).starts_with("call_101_ET_"));
        assert_ne!(random.call_id(0, false), random.call_id(0, false));
    }
}
