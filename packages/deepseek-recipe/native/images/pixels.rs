//! Decoding, scaling and encoding as WebP, with the feature `images`.

use std::io::Cursor;

use image::codecs::webp::WebPEncoder;
use image::imageops::FilterType;
use image::{ExtendedColorType, ImageReader, Limits};
use recipe::image::{bounded, calc_resize, MAX_DIMENSION};
use recipe::model::ImageDetail;

use super::{ImageInfo, PreprocessOptions};

/// Bytes that decoding one image may take.
const MAX_PIXEL_BYTES: u64 = 1 << 30;

/// The image in the size that the model sees, as lossless WebP.
pub fn process(data: &[u8], options: PreprocessOptions) -> Result<ImageInfo, String> {
    let mut reader = ImageReader::new(Cursor::new(data))
        .with_guessed_format()
        .map_err(|error| error.to_string())?;
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_DIMENSION);
    limits.max_image_height = Some(MAX_DIMENSION);
    limits.max_alloc = Some(MAX_PIXEL_BYTES);
    reader.limits(limits);
    let decoded = reader.decode().map_err(|error| error.to_string())?;
    let bound = match options.detail {
        ImageDetail::Low => options.low_detail_max_dimension_px,
        _ => options.max_dimension_px,
    };
    let (width, height) = bounded(decoded.width(), decoded.height(), bound);
    let (width, height) = calc_resize(width, height).map_err(|error| error.to_string())?;
    let pixels = decoded
        .resize_exact(width, height, FilterType::CatmullRom)
        .into_rgb8();
    let mut encoded = Vec::new();
    WebPEncoder::new_lossless(&mut encoded)
        .encode(&pixels, width, height, ExtendedColorType::Rgb8)
        .map_err(|error| error.to_string())?;
    Ok(ImageInfo {
        data: encoded,
        width,
        height,
    })
}
