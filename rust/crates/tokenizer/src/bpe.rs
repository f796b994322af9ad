//! Byte-pair encoding of one piece.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::table::{Merge, PairTable, StringTable};

/// Vocabulary and merges.
#[derive(Debug)]
pub(crate) struct Bpe {
    /// Bytes of every token of the vocabulary, by id; empty for ids without one.
    pub token_bytes: TokenBytes,
    /// Ids of the whole strings.
    pub strings: StringTable,
    /// Id of each single byte; `u32::MAX` where the vocabulary has none.
    pub byte_ids: [u32; 256],
    pub merges: PairTable,
    /// Merges of two single bytes, indexed by `first << 8 | second`.
    pub byte_merges: Vec<Merge>,
    /// For each id whether merging reproduces it from its bytes: see [`WHOLE_UNKNOWN`].
    pub whole: Vec<AtomicU8>,
}

/// Not tried yet.
const WHOLE_UNKNOWN: u8 = 0;
/// The piece encodes to this one token.
const WHOLE_YES: u8 = 1;
/// Merging takes another path.
const WHOLE_NO: u8 = 2;

/// Longest piece for which the quadratic scan beats a heap.
const SCAN_LIMIT: usize = 48;

/// The bytes of all tokens in one allocation.
#[derive(Debug, Default)]
pub(crate) struct TokenBytes {
    pub bytes: Vec<u8>,
    /// Start and end by id.
    pub spans: Vec<(u32, u32)>,
}

impl TokenBytes {
    #[inline]
    pub fn get(&self, id: u32) -> Option<&[u8]> {
        let &(start, end) = self.spans.get(id as usize)?;
        if start == end {
            return None;
        }
        self.bytes.get(start as usize..end as usize)
    }
}

/// Buffers that are reused from piece to piece.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    parts: Vec<Part>,
    links: Vec<Link>,
    heap: BinaryHeap<Reverse<(u32, u32, u32)>>,
}

/// A symbol, and the merge with the one behind it.
#[derive(Debug, Clone, Copy)]
struct Part {
    id: u32,
    merge: Merge,
}

/// A symbol in a doubly linked list.
#[derive(Debug, Clone, Copy)]
struct Link {
    id: u32,
    previous: u32,
    next: u32,
    /// Rank and result of the merge with the next symbol; entries of the heap that differ are out of date.
    merge: Merge,
}

const NIL: u32 = u32::MAX;

impl Bpe {
    /// Appends the ids of `piece`.
    #[inline]
    pub fn encode(&self, piece: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
        if let [byte] = piece {
            let id = self.byte_ids[usize::from(*byte)];
            if id != NIL {
                ids.push(id);
            }
            return;
        }
        let found = self
            .strings
            .get(piece, |id| self.token_bytes.get(id) == Some(piece));
        let Some(id) = found else {
            return self.merge(piece, scratch, ids);
        };
        let state = &self.whole[id as usize];
        match state.load(Ordering::Relaxed) {
            WHOLE_YES => ids.push(id),
            WHOLE_NO => self.merge(piece, scratch, ids),
            _ => {
                let start = ids.len();
                self.merge(piece, scratch, ids);
                let whole = ids[start..] == [id];
                debug_assert_eq!(state.load(Ordering::Relaxed) & WHOLE_UNKNOWN, WHOLE_UNKNOWN);
                state.store(if whole { WHOLE_YES } else { WHOLE_NO }, Ordering::Relaxed);
            }
        }
    }

    fn merge(&self, piece: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
        if piece.len() <= SCAN_LIMIT {
            self.merge_by_scan(piece, &mut scratch.parts, ids);
        } else {
            self.merge_by_heap(piece, scratch, ids);
        }
    }

    fn merge_by_scan(&self, piece: &[u8], parts: &mut Vec<Part>, ids: &mut Vec<u32>) {
        parts.clear();
        let mut previous: Option<u8> = None;
        for &byte in piece {
            let id = self.byte_ids[usize::from(byte)];
            if id == NIL {
                // A byte outside the vocabulary is dropped, its neighbours become adjacent.
                continue;
            }
            if let (Some(before), Some(last)) = (previous, parts.last_mut()) {
                last.merge = self.byte_merges[usize::from(before) << 8 | usize::from(byte)];
            }
            parts.push(Part {
                id,
                merge: Merge::NONE,
            });
            previous = Some(byte);
        }
        loop {
            let mut best = Merge::NONE;
            let mut at = 0;
            for (index, part) in parts.iter().enumerate() {
                if part.merge.rank < best.rank {
                    best = part.merge;
                    at = index;
                }
            }
            if best.rank == NIL {
                break;
            }
            parts[at].id = best.id;
            parts.remove(at + 1);
            parts[at].merge = match parts.get(at + 1) {
                Some(next) => self.merges.get(best.id, next.id),
                None => Merge::NONE,
            };
            if at > 0 {
                parts[at - 1].merge = self.merges.get(parts[at - 1].id, best.id);
            }
        }
        ids.extend(parts.iter().map(|part| part.id));
    }

    fn merge_by_heap(&self, piece: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
        let Scratch { links, heap, .. } = scratch;
        links.clear();
        heap.clear();
        for &byte in piece {
            let id = self.byte_ids[usize::from(byte)];
            if id != NIL {
                let index = links.len() as u32;
                let previous = if index == 0 { NIL } else { index - 1 };
                links.push(Link {
                    id,
                    previous,
                    next: index + 1,
                    merge: Merge::NONE,
                });
            }
        }
        let Some(last) = links.last_mut() else { return };
        last.next = NIL;
        for index in 0..links.len() as u32 {
            self.offer(links, heap, index);
        }
        while let Some(Reverse((rank, index, result))) = heap.pop() {
            let link = links[index as usize];
            if link.merge != (Merge { rank, id: result }) {
                continue;
            }
            let removed = links[link.next as usize];
            links[link.next as usize].merge = Merge::NONE;
            links[index as usize].id = result;
            links[index as usize].next = removed.next;
            if removed.next != NIL {
                links[removed.next as usize].previous = index;
            }
            self.offer(links, heap, index);
            if link.previous != NIL {
                self.offer(links, heap, link.previous);
            }
        }
        let mut index = 0;
        while index != NIL {
            let link = links[index as usize];
            ids.push(link.id);
            index = link.next;
        }
    }

    /// Recomputes the merge of symbol `index` with its successor and puts it on the heap.
    fn offer(
        &self,
        links: &mut [Link],
        heap: &mut BinaryHeap<Reverse<(u32, u32, u32)>>,
        index: u32,
    ) {
        let link = links[index as usize];
        let merge = match link.next {
            NIL => Merge::NONE,
            next => self.merges.get(link.id, links[next as usize].id),
        };
        links[index as usize].merge = merge;
        if merge.rank != NIL {
            heap.push(Reverse((merge.rank, index, merge.id)));
        }
    }
}
