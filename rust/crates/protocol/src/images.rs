//! Images and files named in requests.

use std::sync::Arc;

use recipe_model::{ImageData, ImageDetail, ImageSource};

use crate::common::Rule;
use crate::error::refuse;

pub(crate) const NO_FILE_ID: &str =
    "file_id is not supported. Pass the image as a base64 data url instead.";

const MEDIA_TYPES: [&str; 5] = [
    "image/webp",
    "image/png",
    "image/jpeg",
    "image/jpg",
    "image/gif",
];

/// The parts of a data URL.
pub(crate) struct DataUrl<'a> {
    /// Media type without parameters, as written.
    pub media_type: &'a str,
    pub is_base64: bool,
    pub payload: &'a str,
}

impl<'a> DataUrl<'a> {
    pub fn split(url: &'a str) -> Option<Self> {
        let rest = strip_prefix_ignore_case(url, "data:")?;
        let (header, payload) = rest.split_once(',')?;
        let media_type = header.split(';').next().unwrap_or("").trim();
        Some(DataUrl {
            media_type,
            is_base64: header.ends_with(";base64"),
            payload,
        })
    }

    fn is_image(&self) -> bool {
        MEDIA_TYPES
            .iter()
            .any(|known| known.eq_ignore_ascii_case(self.media_type))
    }
}

fn strip_prefix_ignore_case<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let head = text.get(..prefix.len())?;
    head.eq_ignore_ascii_case(prefix)
        .then(|| &text[prefix.len()..])
}

pub(crate) fn is_web_url(url: &str) -> bool {
    strip_prefix_ignore_case(url, "http:").is_some()
        || strip_prefix_ignore_case(url, "https:").is_some()
}

/// Whether `text` is base64 in the forgiving form of the WHATWG: blanks and missing padding are allowed.
pub(crate) fn is_forgiving_base64(text: &str) -> bool {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0c);
    let mut length = text.bytes().filter(|byte| !is_blank(byte)).count();
    let mut padding = 0;
    if length % 4 == 0 {
        padding = text
            .bytes()
            .rev()
            .filter(|byte| !is_blank(byte))
            .take(2)
            .take_while(|byte| *byte == b'=')
            .count();
        length -= padding;
    }
    length % 4 != 1
        && text
            .bytes()
            .filter(|byte| !is_blank(byte))
            .take(length)
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/')
        && padding <= 2
}

/// Whether `text` is base64 with exact padding.
pub(crate) fn is_strict_base64(text: &str) -> bool {
    let bytes = text.as_bytes();
    let padding = bytes
        .iter()
        .rev()
        .take(2)
        .take_while(|byte| **byte == b'=')
        .count();
    let body = &bytes[..bytes.len() - padding];
    bytes.len() % 4 == 0
        && body
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'))
        && trailing_bits_are_zero(body)
}

/// The last character of unpadded base64 must not carry bits that belong to no byte.
fn trailing_bits_are_zero(body: &[u8]) -> bool {
    let Some(&last) = body.last() else {
        return true;
    };
    let value = match last {
        b'A'..=b'Z' => last - b'A',
        b'a'..=b'z' => last - b'a' + 26,
        b'0'..=b'9' => last - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    match body.len() % 4 {
        2 => value & 0x0f == 0,
        3 => value & 0x03 == 0,
        _ => true,
    }
}

/// Decodes forgiving base64; `None` if it is not.
pub(crate) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    if !is_forgiving_base64(text) {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0u32, 0);
    for byte in text.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => continue,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

/// The source of an `image_url`; `path` is where an error is reported.
pub(crate) fn image_url_source(
    url: String,
    detail: ImageDetail,
    path: &Arc<str>,
) -> Rule<ImageSource> {
    let data = if is_web_url(&url) {
        ImageData::Url(url.into())
    } else {
        let Some(parts) = DataUrl::split(&url).filter(|parts| parts.is_base64) else {
            return refuse(format!("{path}: Unsupported image_url format"));
        };
        if !parts.is_image() {
            return refuse(format!(
                "{path}: You have uploaded an unsupported image. Please make sure your image is valid and has one of \
                 the following formats: webp, png, jpeg, and gif."
            ));
        }
        if !is_forgiving_base64(parts.payload) {
            return refuse(format!("{path}: Invalid base64 data"));
        }
        ImageData::DataUrl(url.into())
    };
    Ok(ImageSource {
        data,
        detail,
        path: path.clone(),
    })
}

/// Checks that `file_data` is an image in a data URL.
pub(crate) fn check_file_data(url: &str, path: &str) -> Rule<()> {
    let Some(parts) = DataUrl::split(url) else {
        return refuse(format!("{path}: file_data is not a valid base64 data url"));
    };
    if !parts.is_image() {
        return refuse(format!(
            "{path}: You have uploaded an unsupported file. Please make sure your file is valid and has one of the \
             following formats: webp, png, jpeg, and gif."
        ));
    }
    if parts.is_base64 && !is_forgiving_base64(parts.payload) {
        return refuse(format!("{path}: file_data is not a valid base64 data url"));
    }
    Ok(())
}

/// The source of checked `file_data`.
pub(crate) fn file_data_source(url: String, path: &Arc<str>) -> Rule<ImageSource> {
    image_url_source(url, ImageDetail::High, path)
}

/// Text of a plain-text data URL, for documents that can simply be shown.
pub(crate) fn plain_text_document(url: &str) -> Option<String> {
    let parts = DataUrl::split(url)?;
    if !parts.media_type.eq_ignore_ascii_case("text/plain") || !parts.is_base64 {
        return None;
    }
    String::from_utf8(decode_base64(parts.payload)?).ok()
}
