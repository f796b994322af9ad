//! Model output, cut in pieces, under options.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u16, u64, &str)| {
    let (flags, seed, text) = input;
    recipe_checks::check_stream(flags, seed, text);
});
