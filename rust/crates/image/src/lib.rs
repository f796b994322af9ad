//! Image sizes, token costs and quotas.
//!
//! What needs no pixels: how large an image becomes, how many tokens it costs, how many images and bytes one request
//! may hold, and whether a source is one that may be fetched. Formulas: vLLM `mm_preprocess.py` for DeepSeek V4.1 and
//! the behaviour of `deepseek-recipe` 0.2.0.

mod quota;
mod resize;
mod source;

pub use quota::{ImageQuota, QuotaError, MAX_IMAGES, MAX_IMAGE_BYTES, MAX_TOTAL_BYTES};
pub use resize::{bounded, calc_resize, token_cost, CalcResizeError, MAX_DIMENSION, MIN_DIMENSION};
pub use source::{check_bytes, decode_data_url, SourceError};
