//! The laws on random input; `fuzz/` runs the same ones under a fuzzer.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use recipe_checks::{
    check_chat_request, check_json, check_messages_request, check_responses_request, check_stream,
    check_tokenizer_file, Output,
};

const MARKUP: &[&str] = &[
    "<｜DSML｜ calls>",
    "<｜DSML｜tool_calls>",
    "</｜DSML｜ calls>",
    "</｜DSML｜tool_calls>",
    "\n",
    "\n\n",
    "<｜DSML｜ invoke name=\"",
    "<｜DSML｜invoke name=\"",
    "</｜DSML｜ invoke>",
    "</｜DSML｜invoke>",
    "tide",
    "\">",
    "\"",
    "<｜DSML｜ parameter name=\"",
    "<｜DSML｜parameter name=\"",
    "\" string=\"true\">",
    "\" string=\"false\">",
    "\" string=",
    "</｜DSML｜ parameter>",
    "</｜DSML｜parameter>",
    "<｜DSML｜",
    "</｜DSML｜",
    "｜DSML｜",
    "<｜DSML",
    "<｜",
    "<",
    "</",
    "｜",
    "</think>",
    "<think>",
    "```json\n",
    "```",
    "{",
    "}",
    "[",
    "]",
    "{\"a\": [1, 2]}",
    "\\",
    "\u{0}",
    "潮",
    "🌊",
    "e\u{301}",
    "STOP",
    "STO",
    "1",
    "1e400",
    "-",
    "null",
    "tru",
    "true",
    " ",
    "x",
];

const JSON: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"a\"",
    "\"",
    "\\u00e9",
    "\\ud83c",
    "\\udf0a",
    "\\x",
    "\\n",
    "1",
    "-",
    "0",
    "01",
    "1e5",
    "1E400",
    "1e-400",
    ".5",
    "2.",
    "true",
    "null",
    "nul",
    " ",
    "\n",
    "\t",
    "\u{b}",
    "潮",
    "\u{7f}",
    "+",
    "123456789012345678901234567890",
    "\"\\\"\"",
    "-0",
    "18446744073709551615",
];

const MEMBERS: &[&str] = &[
    "\"model\":\"DeepSeek-V4.1-Flash\"", "\"model\":\"DeepSeek-V4-Pro\"", "\"messages\":[]", "\"input\":\"x\"",
    "\"messages\":[{\"role\":\"user\",\"content\":\"json\"}]", "\"tools\":[]", "\"tools\":null", "\"stream\":true",
    "\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}]", "\"n\":2",
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}]",
    "\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":\"object\",\"properties\":{\"a\":{}}}}]",
    "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"strict\":true,\"parameters\":{\"$ref\":\"#\"}}]",
    "\"tool_choice\":\"required\"", "\"tool_choice\":{\"type\":\"any\"}", "\"thinking\":{\"type\":\"disabled\"}",
    "\"reasoning_effort\":\"max\"", "\"reasoning\":{\"effort\":\"none\"}", "\"stop\":[\"a\"]", "\"temperature\":1e300",
    "\"max_tokens\":-1", "\"response_format\":{\"type\":\"json_object\"}", "\"seed\":1.5", "\"top_logprobs\":21",
    "\"input\":[{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{\"}]",
    "\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":[]}]", "\"system\":[]",
    "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t\"}]}]",
    "\"instructions\":\"</think>\"", "\"previous_response_id\":\"r\"", "\"max_completion_tokens\":1",
];

fn joined(parts: &'static [&'static str], most: usize) -> impl Strategy<Value = String> {
    vec(
        prop_oneof![4 => select(parts).prop_map(str::to_owned), 1 => "\\PC{0,3}"],
        0..most,
    )
    .prop_map(|parts| parts.concat())
}

/// A well-formed block of calls, so that random damage starts from something deep.
fn well_formed() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        "[a-z<>/ ]{0,9}".prop_map(|text| (text, "true")),
        select(&["1", "[1, {}]", "\"x\"", "{\"a\": null}", "-2.5e3"][..])
            .prop_map(|text| (text.to_owned(), "false"))
    ];
    vec(("[a-z \"]{1,5}", value), 0..4).prop_map(|parameters| {
        let mut text = String::from("<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"tide\">\n");
        for (name, (value, string)) in parameters {
            text += &format!(
                "<｜DSML｜ parameter name=\"{name}\" string=\"{string}\">{value}</｜DSML｜ parameter>\n"
            );
        }
        text + "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn json(text in joined(JSON, 14), bytes in vec(any::<u8>(), 0..12)) {
        check_json(text.as_bytes());
        check_json(&bytes);
    }

    #[test]
    fn output(flags: u16, seed: u64, text in joined(MARKUP, 24)) {
        check_stream(flags, seed, &text);
    }

    #[test]
    fn damaged_calls(
        flags: u16, seed: u64, text in well_formed(), damage in joined(MARKUP, 2), place: usize, cut in 0usize..12,
    ) {
        let mut characters: Vec<char> = text.chars().collect();
        let start = place % (characters.len() + 1);
        let end = (start + cut).min(characters.len());
        characters.splice(start..end, damage.chars());
        check_stream(flags & !1, seed, &characters.into_iter().collect::<String>());
    }

    #[test]
    fn truncated_calls_are_malformed(text in well_formed(), keep: usize) {
        let options = recipe::stream::ParsingOptions::default();
        let whole = Output::of(std::iter::once(text.as_str()), &options, false);
        prop_assert_eq!(whole.malformed.len(), 0);
        prop_assert_eq!(whole.calls.len(), 1);
        let closer = text.rfind("</｜DSML｜ invoke>").unwrap_or_default() + "</｜DSML｜ invoke>".len();
        let end = text.char_indices().map(|(index, _)| index).filter(|index| *index < closer).collect::<Vec<_>>();
        let cut = Output::of(std::iter::once(&text[..end[keep % end.len()]]), &options, false);
        prop_assert!(cut.calls.iter().all(|(_, _, ended)| !ended));
    }

    #[test]
    fn requests(members in vec(select(MEMBERS), 0..6), noise in joined(JSON, 6)) {
        let body = format!("{{{}}}", members.join(","));
        for check in [check_chat_request, check_responses_request, check_messages_request] {
            check(body.as_bytes());
            check(noise.as_bytes());
            check(format!("{{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":{noise}}}").as_bytes());
            check(format!("{{\"model\":\"DeepSeek-V4.1-Flash\",\"input\":{noise},\"tools\":{noise}}}").as_bytes());
        }
    }

    #[test]
    fn tokenizer_files(noise in joined(JSON, 8)) {
        check_tokenizer_file(&noise);
        check_tokenizer_file(&format!("{{\"model\":{{\"type\":\"BPE\",\"vocab\":{noise},\"merges\":{noise}}}}}"));
    }
}
