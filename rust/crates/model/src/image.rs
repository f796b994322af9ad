//! Where an image comes from.

use std::sync::Arc;

/// How closely the model should look at an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ImageDetail {
    /// A smaller bound on the size.
    Low,
    /// The default.
    #[default]
    High,
    /// The size as sent.
    Original,
    /// Left to the service.
    Auto,
}

impl ImageDetail {
    /// The word used in requests.
    pub fn as_str(self) -> &'static str {
        match self {
            ImageDetail::Low => "low",
            ImageDetail::High => "high",
            ImageDetail::Original => "original",
            ImageDetail::Auto => "auto",
        }
    }

    /// The inverse of [`ImageDetail::as_str`].
    pub fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "low" => ImageDetail::Low,
            "high" => ImageDetail::High,
            "original" => ImageDetail::Original,
            "auto" => ImageDetail::Auto,
            _ => return None,
        })
    }
}

/// The three ways to name an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageData {
    /// A base64 data URL.
    DataUrl(Arc<str>),
    /// An http or https URL.
    Url(Arc<str>),
    /// The encoded file.
    Bytes(Arc<[u8]>),
}

/// An image of a message, and where in the request it stood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSource {
    /// The image.
    pub data: ImageData,
    /// Requested detail.
    pub detail: ImageDetail,
    /// Path of the part that held it, for error messages; empty when built directly.
    pub path: Arc<str>,
}
