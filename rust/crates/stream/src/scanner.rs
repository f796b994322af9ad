//! Finding the next marker of a state.

use std::sync::Arc;

use crate::matcher::{Pattern, Progress, Source};
use crate::queue::Queue;
use crate::state::Action;

/// A marker and what it does.
#[derive(Debug, Clone)]
pub(crate) struct Watcher {
    pub pattern: Pattern,
    pub action: Action,
}

/// The markers of one state.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub watchers: Vec<Watcher>,
    /// Bytes with which a marker can begin.
    first: [bool; 256],
    distinct: Vec<u8>,
    /// The text must match one marker from its first byte on.
    pub anchored: bool,
}

impl Table {
    pub fn new(watchers: Vec<(Pattern, Action)>) -> Self {
        let watchers: Vec<Watcher> = watchers
            .into_iter()
            .filter(|(pattern, _)| !pattern.bytes.is_empty())
            .map(|(pattern, action)| Watcher { pattern, action })
            .collect();
        let mut first = [false; 256];
        for watcher in watchers
            .iter()
            .filter(|watcher| !watcher.pattern.start_only)
        {
            first[usize::from(watcher.pattern.bytes[0])] = true;
            first[usize::from(b'\n')] |= watcher.pattern.swallows_newlines;
        }
        let distinct = (0..=255u8)
            .filter(|byte| first[usize::from(*byte)])
            .collect();
        Table {
            watchers,
            first,
            distinct,
            anchored: false,
        }
    }

    pub fn anchored(watchers: Vec<(Pattern, Action)>) -> Self {
        Table {
            anchored: true,
            ..Table::new(watchers)
        }
    }

    /// Position of the first byte with which a marker can begin.
    #[inline]
    fn find(&self, bytes: &[u8]) -> Option<usize> {
        match self.distinct[..] {
            [] => None,
            [one] => memchr::memchr(one, bytes),
            [one, two] => memchr::memchr2(one, two, bytes),
            [one, two, three] => memchr::memchr3(one, two, three, bytes),
            _ => bytes.iter().position(|byte| self.first[usize::from(*byte)]),
        }
    }
}

/// What stopped a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// A marker from `start` to `end`.
    Marker {
        action: Action,
        start: usize,
        end: usize,
    },
    /// In an anchored state: no marker can match any more.
    NoMatch,
    /// All text has been scanned.
    Exhausted,
}

/// Scan position and progress of every marker of the current state.
#[derive(Debug, Clone)]
pub(crate) struct Scanner {
    pub table: Arc<Table>,
    progress: Vec<Progress>,
    pub position: usize,
    /// Only line feeds have come since the state was entered.
    pub at_start: bool,
    /// Some marker is partly matched.
    active: bool,
    /// Tokens have been seen.
    pub mixed: bool,
}

impl Scanner {
    pub fn new(table: Arc<Table>, at_start: bool) -> Self {
        let progress = vec![Progress::default(); table.watchers.len()];
        Scanner {
            table,
            progress,
            position: 0,
            at_start,
            active: false,
            mixed: false,
        }
    }

    /// Enters a state; the scan goes on at `position`.
    pub fn enter(&mut self, table: Arc<Table>, at_start: bool, position: usize) {
        self.progress.clear();
        self.progress
            .resize(table.watchers.len(), Progress::default());
        self.table = table;
        self.at_start = at_start;
        self.active = false;
        self.position = position;
    }

    /// Number of bytes at the end that may still become part of a marker.
    pub fn tail(&self) -> usize {
        if !self.active {
            return 0;
        }
        self.progress
            .iter()
            .map(|progress| progress.length())
            .max()
            .unwrap_or(0)
    }

    /// Scans on until something is found.
    pub fn advance(&mut self, queue: &Queue) -> Found {
        if self.position >= queue.end() {
            return Found::Exhausted;
        }
        for chunk in queue.chunks.iter().skip(queue.index_of(self.position)) {
            let bytes = chunk.text.as_bytes();
            if chunk.source == Source::Added {
                if self.position == chunk.start {
                    if let Some(found) = self.added(bytes) {
                        return found;
                    }
                }
                self.position = chunk.end();
                continue;
            }
            if let Some(found) = self.bytes(bytes, chunk.start, chunk.source) {
                return found;
            }
        }
        Found::Exhausted
    }

    fn bytes(&mut self, bytes: &[u8], base: usize, source: Source) -> Option<Found> {
        let table = Arc::clone(&self.table);
        let mut index = self.position - base;
        while index < bytes.len() {
            if !self.active && !self.at_start && !table.anchored {
                match table.find(&bytes[index..]) {
                    Some(skipped) => index += skipped,
                    None => break,
                }
            }
            let byte = bytes[index];
            index += 1;
            if let Some(found) = self.step(&table, byte, source, base + index) {
                return Some(found);
            }
        }
        self.position = base + bytes.len();
        None
    }

    #[inline]
    fn step(&mut self, table: &Table, byte: u8, source: Source, end: usize) -> Option<Found> {
        let mut complete = None;
        let mut active = false;
        for (watcher, progress) in table.watchers.iter().zip(&mut self.progress) {
            if watcher.pattern.start_only && !self.at_start {
                continue;
            }
            if progress.step(&watcher.pattern, byte, source, self.mixed) && complete.is_none() {
                complete = Some((watcher.action, progress.length()));
            }
            active |= progress.length() > 0;
        }
        self.active = active;
        if byte != b'\n' {
            self.at_start = false;
        }
        self.result(complete, end)
    }

    fn added(&mut self, token: &[u8]) -> Option<Found> {
        let table = Arc::clone(&self.table);
        let end = self.position + token.len();
        let mut complete = None;
        let mut active = false;
        for (watcher, progress) in table.watchers.iter().zip(&mut self.progress) {
            if progress.step_added(&watcher.pattern, token) && complete.is_none() {
                complete = Some((watcher.action, progress.length()));
            }
            active |= progress.length() > 0;
        }
        self.active = active;
        self.at_start = false;
        self.result(complete, end)
    }

    fn result(&mut self, complete: Option<(Action, usize)>, end: usize) -> Option<Found> {
        if let Some((action, length)) = complete {
            self.position = end;
            return Some(Found::Marker {
                action,
                start: end - length,
                end,
            });
        }
        if self.table.anchored && !self.active {
            self.position = end;
            return Some(Found::NoMatch);
        }
        None
    }
}
