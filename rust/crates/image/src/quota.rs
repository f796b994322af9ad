//! How many images and bytes a request may hold.

use std::fmt;

/// Images per request.
pub const MAX_IMAGES: usize = 600;
/// Bytes of one encoded image.
pub const MAX_IMAGE_BYTES: usize = 32 << 20;
/// Bytes of all encoded images of a request.
pub const MAX_TOTAL_BYTES: usize = 256 << 20;

/// A bound that would be exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaError {
    /// More than [`MAX_IMAGES`].
    TooManyImages,
    /// One image above [`MAX_IMAGE_BYTES`].
    ImageTooLarge {
        /// Its bytes.
        bytes: usize,
    },
    /// All images above [`MAX_TOTAL_BYTES`].
    TotalTooLarge {
        /// Their bytes.
        bytes: usize,
    },
}

impl fmt::Display for QuotaError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuotaError::TooManyImages => {
                write!(formatter, "too many images, the limit is {MAX_IMAGES}")
            }
            QuotaError::ImageTooLarge { bytes } => {
                write!(
                    formatter,
                    "image too large: {bytes} bytes, the limit is {MAX_IMAGE_BYTES}"
                )
            }
            QuotaError::TotalTooLarge { bytes } => {
                write!(
                    formatter,
                    "images too large together: {bytes} bytes, the limit is {MAX_TOTAL_BYTES}"
                )
            }
        }
    }
}

impl std::error::Error for QuotaError {}

/// Counts the images of one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ImageQuota {
    images: usize,
    bytes: usize,
}

impl ImageQuota {
    /// Images so far.
    pub fn image_count(&self) -> usize {
        self.images
    }

    /// Bytes so far.
    pub fn byte_size(&self) -> usize {
        self.bytes
    }

    /// Takes `count` further images into account.
    ///
    /// # Errors
    /// Too many images.
    pub fn add_images(&mut self, count: usize) -> Result<(), QuotaError> {
        if self.images + count > MAX_IMAGES {
            return Err(QuotaError::TooManyImages);
        }
        self.images += count;
        Ok(())
    }

    /// Takes the bytes of one image into account.
    ///
    /// # Errors
    /// One image, or all together, too large.
    pub fn add_bytes(&mut self, bytes: usize) -> Result<(), QuotaError> {
        if bytes > MAX_IMAGE_BYTES {
            return Err(QuotaError::ImageTooLarge { bytes });
        }
        let total = self.bytes + bytes;
        if total > MAX_TOTAL_BYTES {
            return Err(QuotaError::TotalTooLarge { bytes: total });
        }
        self.bytes = total;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_exact() {
        let mut quota = ImageQuota::default();
        assert_eq!(quota.add_images(MAX_IMAGES), Ok(()));
        assert_eq!(quota.add_images(1), Err(QuotaError::TooManyImages));
        assert!(quota.add_bytes(MAX_IMAGE_BYTES).is_ok());
        assert!(quota.add_bytes(MAX_IMAGE_BYTES + 1).is_err());
        assert_eq!(
            (quota.image_count(), quota.byte_size()),
            (MAX_IMAGES, MAX_IMAGE_BYTES)
        );
    }
}
