//! Two open-addressing tables whose probes stay in one or two cache lines.

/// Maps byte strings to indices into a store of strings.
#[derive(Debug, Clone)]
pub(crate) struct StringTable {
    /// `index + 1`, 0 for free; with the upper half of the hash for a cheap first comparison.
    slots: Vec<(u32, u32)>,
    mask: usize,
}

pub(crate) fn hash_bytes(bytes: &[u8]) -> u64 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut hash = bytes.len() as u64 ^ 0x51_7c_c1_b7_27_22_0a_95;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(MULTIPLIER);
        hash ^= hash >> 29;
    }
    let mut word = 0u64;
    for &byte in chunks.remainder() {
        word = word << 8 | u64::from(byte);
    }
    hash = (hash ^ word).wrapping_mul(MULTIPLIER);
    hash ^ hash >> 32
}

impl StringTable {
    pub fn new(count: usize) -> Self {
        let size = (count * 2 + 16).next_power_of_two();
        StringTable {
            slots: vec![(0, 0); size],
            mask: size - 1,
        }
    }

    /// Adds a string that is not yet in the table.
    pub fn insert(&mut self, bytes: &[u8], index: u32) {
        let hash = hash_bytes(bytes);
        let mut slot = hash as usize & self.mask;
        while self.slots[slot].0 != 0 {
            slot = (slot + 1) & self.mask;
        }
        self.slots[slot] = (index + 1, (hash >> 32) as u32);
    }

    /// Index of the string for which `equals` holds.
    pub fn get(&self, bytes: &[u8], equals: impl Fn(u32) -> bool) -> Option<u32> {
        let hash = hash_bytes(bytes);
        let mut slot = hash as usize & self.mask;
        loop {
            match self.slots[slot] {
                (0, _) => return None,
                (index, high) if high == (hash >> 32) as u32 && equals(index - 1) => {
                    return Some(index - 1);
                }
                _ => slot = (slot + 1) & self.mask,
            }
        }
    }
}

/// Rank and result of joining two tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Merge {
    pub rank: u32,
    pub id: u32,
}

impl Merge {
    /// No merge: sorts behind every real one.
    pub const NONE: Merge = Merge {
        rank: u32::MAX,
        id: u32::MAX,
    };
}

/// Maps pairs of token ids to merges.
#[derive(Debug, Clone)]
pub(crate) struct PairTable {
    slots: Vec<(u64, Merge)>,
    mask: usize,
}

const FREE: u64 = u64::MAX;

fn pair_key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

fn pair_slot(key: u64) -> usize {
    let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash ^ hash >> 32) as usize
}

impl PairTable {
    pub fn new(count: usize) -> Self {
        let size = (count * 2 + 16).next_power_of_two();
        PairTable {
            slots: vec![(FREE, Merge::NONE); size],
            mask: size - 1,
        }
    }

    /// Adds a pair; a pair that is already there takes the new merge.
    pub fn insert(&mut self, left: u32, right: u32, merge: Merge) {
        let key = pair_key(left, right);
        let mut slot = pair_slot(key) & self.mask;
        while self.slots[slot].0 != FREE && self.slots[slot].0 != key {
            slot = (slot + 1) & self.mask;
        }
        self.slots[slot] = (key, merge);
    }

    #[inline]
    pub fn get(&self, left: u32, right: u32) -> Merge {
        let key = pair_key(left, right);
        let mut slot = pair_slot(key) & self.mask;
        loop {
            let (found, merge) = self.slots[slot];
            if found == key {
                return merge;
            }
            if found == FREE {
                return Merge::NONE;
            }
            slot = (slot + 1) & self.mask;
        }
    }
}
