//! The byte-to-character alphabet of byte-level vocabularies (as in GPT-2's `encoder.py`).

/// The printable character that stands for each byte.
pub(crate) fn alphabet() -> [char; 256] {
    let mut table = ['\0'; 256];
    let mut next = 0x100;
    for byte in 0..=255u8 {
        let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        table[usize::from(byte)] = if printable {
            char::from(byte)
        } else {
            let stand_in = char::from_u32(next).unwrap_or('\0');
            next += 1;
            stand_in
        };
    }
    table
}

/// The inverse: for characters below U+0144 the byte, or `None`.
pub(crate) fn inverse() -> [Option<u8>; 0x144] {
    let mut table = [None; 0x144];
    for (byte, character) in alphabet().into_iter().enumerate() {
        table[character as usize] = u8::try_from(byte).ok();
    }
    table
}
