//! The parser of model output.

use recipe::json::{parse, Value};
use recipe::stream::{
    Delta, DeltaKind, Machine, MalformedCall, ParsingOptions, ThinkingInitialStage,
};

/// What an output came to, however it was cut.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Output {
    /// Reasoning text.
    pub reasoning: String,
    /// Answer text.
    pub answer: String,
    /// Name, argument text, and whether the call ended well.
    pub calls: Vec<(String, String, bool)>,
    /// Malformed calls.
    pub malformed: Vec<MalformedCall>,
    /// The stop sequence that ended the output.
    pub stopped: Option<String>,
}

impl Output {
    /// Parses the pieces of an output.
    pub fn of<'p>(
        pieces: impl Iterator<Item = &'p str>,
        options: &ParsingOptions,
        official: bool,
    ) -> Self {
        let mut machine = Machine::new(options.clone(), official);
        let mut output = Output::default();
        for piece in pieces {
            let mut deltas = Vec::new();
            machine.feed_text(piece, &mut deltas);
            machine.release(&mut deltas);
            output.extend(deltas);
        }
        let mut deltas = Vec::new();
        machine.finish(&mut deltas);
        output.extend(deltas);
        output
    }

    fn extend(&mut self, deltas: Vec<Delta>) {
        for delta in deltas {
            match delta.kind {
                DeltaKind::Reasoning(text) => self.reasoning += &text,
                DeltaKind::Answer(text) => self.answer += &text,
                DeltaKind::CallStart { name } => self.calls.push((name, String::new(), false)),
                DeltaKind::Arguments(text) => match self.calls.last_mut() {
                    Some(call) => call.1 += &text,
                    None => panic!("arguments without a call: {text:?}"),
                },
                DeltaKind::CallEnd => match self.calls.last_mut() {
                    Some(call) => call.2 = true,
                    None => panic!("the end of no call"),
                },
                DeltaKind::CallMalformed(call) => self.malformed.push(call),
                DeltaKind::Stopped { sequence } => self.stopped = Some(sequence),
            }
        }
    }
}

/// Parses `text` whole, in characters and in the pieces that `seed` gives, under options that `flags` choose.
///
/// In the default mode all three agree, every call either ends with an object as arguments or is malformed and has
/// arguments that are no JSON. The original's grammar is only run.
pub fn check_stream(flags: u16, seed: u64, text: &str) {
    let flag = |bit: u16| flags & (1 << bit) != 0;
    let options = ParsingOptions {
        parse_tool_calls: !flag(0),
        starts_in_tool_calls: flag(1) && !flag(0),
        parse_json_output: flag(2),
        thinking_initial_stage: match flags >> 3 & 3 {
            0 => None,
            1 => Some(ThinkingInitialStage::ReasoningStart),
            2 => Some(ThinkingInitialStage::ReasoningContinuation),
            _ => Some(ThinkingInitialStage::ContentContinuation),
        },
        stop_sequences: if flag(5) {
            vec!["STOP".into(), "\n\n\n".into()]
        } else {
            Vec::new()
        },
        keep_text_after_tools: flag(6),
        strict_json_output: flag(7),
        repair_tool_calls: flag(8),
        tool_names: flag(9).then(|| vec!["tide".to_owned()]),
        ..ParsingOptions::default()
    };
    let whole = Output::of(std::iter::once(text), &options, false);
    check_calls(&whole, options.repair_tool_calls);
    assert_eq!(
        Output::of(characters(text), &options, false),
        whole,
        "{options:?} {text:?}"
    );
    let pieces = pieces(text, seed);
    assert_eq!(
        Output::of(pieces.iter().copied(), &options, false),
        whole,
        "{options:?} {pieces:?}"
    );
    Output::of(pieces.into_iter(), &options, true);
    Output::of(characters(text), &options, true);
}

fn check_calls(output: &Output, repairs: bool) {
    for (index, (name, arguments, ended)) in output.calls.iter().enumerate() {
        let is_malformed = output
            .malformed
            .iter()
            .any(|call| call.index == Some(index));
        assert_ne!(*ended, is_malformed, "{name} {arguments:?}");
        let parsed = parse(arguments);
        if *ended {
            assert!(
                matches!(parsed, Ok(Value::Object(_))),
                "{name} {arguments:?}"
            );
        } else {
            assert!(parsed.is_err(), "{name} {arguments:?}");
        }
        assert!(repairs || *ended || is_malformed);
    }
}

fn characters(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(|_: char| true)
}

fn pieces(text: &str, mut seed: u64) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let wanted = 1 + (seed >> 33) as usize % 12;
        let end = rest
            .char_indices()
            .nth(wanted)
            .map_or(rest.len(), |(end, _)| end);
        let (piece, other) = rest.split_at(end);
        pieces.push(piece);
        rest = other;
    }
    pieces
}
