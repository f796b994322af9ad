//! Message text with image placeholders.

use std::fmt;
use std::ops::Range;

use crate::image::ImageSource;

/// Text in which some byte ranges are image placeholders.
///
/// Conversion knows where it put each placeholder, so that a literal image token elsewhere stays plain text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// The text, placeholders included.
    pub text: String,
    /// The images, in the order of their placeholders.
    pub images: Vec<ImageSource>,
    /// Byte ranges of the placeholders, ascending.
    pub placeholders: Vec<Range<usize>>,
}

/// An image token of no length cannot mark anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmptyImageToken;

impl fmt::Display for EmptyImageToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("image_token must not be empty")
    }
}

impl std::error::Error for EmptyImageToken {}

impl Content {
    /// Text without images.
    pub fn text(text: impl Into<String>) -> Self {
        Content {
            text: text.into(),
            ..Content::default()
        }
    }

    /// Text in which the first occurrences of `image_token` stand for `images`, as many as there are images.
    ///
    /// Fewer occurrences than images are allowed; the surplus images have no placeholder.
    pub fn with_images(
        text: String,
        images: Vec<ImageSource>,
        image_token: &str,
    ) -> Result<Self, EmptyImageToken> {
        if image_token.is_empty() {
            return Err(EmptyImageToken);
        }
        let placeholders = text
            .match_indices(image_token)
            .take(images.len())
            .map(|(start, found)| start..start + found.len())
            .collect();
        Ok(Content {
            text,
            images,
            placeholders,
        })
    }

    /// Appends a placeholder for `image`.
    pub fn push_image(&mut self, image: ImageSource, image_token: &str) {
        let start = self.text.len();
        self.text.push_str(image_token);
        self.images.push(image);
        self.placeholders.push(start..self.text.len());
    }
}
