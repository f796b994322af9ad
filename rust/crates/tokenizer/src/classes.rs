//! Character classes of the pre-tokenizer, from the Unicode tables of `regex-syntax`.

use std::sync::OnceLock;

pub(crate) const LETTER: u8 = 1;
pub(crate) const MARK: u8 = 2;
/// `\p{P}` or `\p{S}`
pub(crate) const SYMBOL: u8 = 4;
pub(crate) const SPACE: u8 = 8;
pub(crate) const NUMBER: u8 = 16;
/// `[一-龥぀-ゟ゠-ヿ]`
pub(crate) const CJK: u8 = 32;
/// `\r` or `\n`
pub(crate) const NEWLINE: u8 = 64;

/// One byte of flags per code point.
pub(crate) fn classes() -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    TABLE.get_or_init(build)
}

fn build() -> Vec<u8> {
    let mut table = vec![0u8; 0x11_0000];
    for (pattern, flag) in [
        (r"\p{L}", LETTER),
        (r"\p{M}", MARK),
        (r"[\p{P}\p{S}]", SYMBOL),
        (r"\s", SPACE),
        (r"\p{N}", NUMBER),
        ("[一-龥぀-ゟ゠-ヿ]", CJK),
        (r"[\r\n]", NEWLINE),
    ] {
        let Ok(hir) = regex_syntax::parse(pattern) else {
            continue;
        };
        if let regex_syntax::hir::HirKind::Class(regex_syntax::hir::Class::Unicode(class)) =
            hir.kind()
        {
            for range in class.ranges() {
                for flags in &mut table[range.start() as usize..=range.end() as usize] {
                    *flags |= flag;
                }
            }
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_known_characters() {
        let of = |character: char| classes()[character as usize];
        assert_eq!(of('a'), LETTER);
        assert_eq!(of('\n'), SPACE | NEWLINE);
        assert_eq!(of('7'), NUMBER);
        assert_eq!(of('½'), NUMBER);
        assert_eq!(of('潮'), LETTER | CJK);
        assert_eq!(of('・'), SYMBOL | CJK);
        assert_eq!(of('\u{3099}'), MARK | CJK);
        assert_eq!(of('🌊'), SYMBOL);
        assert_eq!(of('\u{0}'), 0);
    }
}
