//! Checks of encoded images before anything is decoded.

use std::fmt;

use crate::quota::MAX_IMAGE_BYTES;

/// Why a source is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceError {
    /// Not a base64 data URL.
    InvalidDataUrl,
    /// A media type that is not decoded here.
    UnsupportedMediaType {
        /// The media type, or what the first bytes look like.
        found: String,
    },
    /// No bytes.
    EmptyImage,
    /// Above [`MAX_IMAGE_BYTES`].
    ImageTooLarge {
        /// Its bytes.
        bytes: usize,
    },
}

impl SourceError {
    /// A stable identifier.
    pub fn kind(&self) -> &'static str {
        match self {
            SourceError::InvalidDataUrl => "InvalidDataUrl",
            SourceError::UnsupportedMediaType { .. } => "UnsupportedMediaType",
            SourceError::EmptyImage => "EmptyImage",
            SourceError::ImageTooLarge { .. } => "ImageTooLarge",
        }
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceError::InvalidDataUrl => formatter.write_str("not a base64 data URL"),
            SourceError::UnsupportedMediaType { found } => {
                write!(
                    formatter,
                    "unsupported image type: {found}, allowed: webp, png, jpeg, gif"
                )
            }
            SourceError::EmptyImage => formatter.write_str("image is empty"),
            SourceError::ImageTooLarge { bytes } => {
                write!(
                    formatter,
                    "image too large: {bytes} bytes, the limit is {MAX_IMAGE_BYTES}"
                )
            }
        }
    }
}

impl std::error::Error for SourceError {}

const MEDIA_TYPES: [&str; 5] = [
    "image/webp",
    "image/png",
    "image/jpeg",
    "image/jpg",
    "image/gif",
];

/// The bytes of a base64 data URL with an image media type.
///
/// # Errors
/// A URL of another form, media type or size.
pub fn decode_data_url(url: &str) -> Result<Vec<u8>, SourceError> {
    let prefix = url
        .get(..5)
        .filter(|prefix| prefix.eq_ignore_ascii_case("data:"));
    let (header, payload) = prefix
        .and_then(|_| url[5..].split_once(','))
        .ok_or(SourceError::InvalidDataUrl)?;
    if !header.ends_with(";base64") {
        return Err(SourceError::InvalidDataUrl);
    }
    let media_type = header.split(';').next().unwrap_or("").trim();
    if !MEDIA_TYPES
        .iter()
        .any(|known| known.eq_ignore_ascii_case(media_type))
    {
        return Err(SourceError::UnsupportedMediaType {
            found: media_type.to_owned(),
        });
    }
    // Decoding first would let a client spend memory beyond the limit.
    if payload.len() / 4 * 3 > MAX_IMAGE_BYTES + 3 {
        return Err(SourceError::ImageTooLarge {
            bytes: payload.len() / 4 * 3,
        });
    }
    let bytes = decode_base64(payload).ok_or(SourceError::InvalidDataUrl)?;
    check_bytes(&bytes)?;
    Ok(bytes)
}

/// Checks size and signature of an encoded image.
///
/// # Errors
/// No bytes, too many, or no known signature.
pub fn check_bytes(bytes: &[u8]) -> Result<(), SourceError> {
    if bytes.is_empty() {
        return Err(SourceError::EmptyImage);
    }
    if bytes.len() > MAX_IMAGE_BYTES {
        return Err(SourceError::ImageTooLarge { bytes: bytes.len() });
    }
    let is_webp = bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP");
    let is_known = is_webp
        || bytes.starts_with(b"\x89PNG\r\n\x1a\n")
        || bytes.starts_with(b"\xff\xd8\xff")
        || bytes.starts_with(b"GIF87a")
        || bytes.starts_with(b"GIF89a");
    if is_known {
        Ok(())
    } else {
        Err(SourceError::UnsupportedMediaType {
            found: "unknown signature".to_owned(),
        })
    }
}

/// Base64 with blanks and missing padding allowed.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count, mut symbols) = (0u32, 0u32, 0usize);
    let body = text
        .trim_end_matches(|character: char| character == '=' || character.is_ascii_whitespace());
    for byte in body.bytes().filter(|byte| !byte.is_ascii_whitespace()) {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        symbols += 1;
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    (symbols % 4 != 1).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_and_media_types_are_checked() {
        assert_eq!(
            decode_data_url("data:image/png;base64,iVBORw0KGgo="),
            Ok(b"\x89PNG\r\n\x1a\n".to_vec())
        );
        for (url, kind) in [
            ("data:image/png;base64,", "EmptyImage"),
            ("data:image/png,AA", "InvalidDataUrl"),
            ("https://img.example/a", "InvalidDataUrl"),
            ("data:application/pdf;base64,AA==", "UnsupportedMediaType"),
            ("data:image/png;base64,AAAA", "UnsupportedMediaType"),
            ("data:image/png;base64,!!!!", "InvalidDataUrl"),
        ] {
            assert_eq!(
                decode_data_url(url).err().map(|error| error.kind()),
                Some(kind),
                "{url}"
            );
        }
    }
}
