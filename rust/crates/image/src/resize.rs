//! Sizes and token costs.

use std::fmt;

/// Side of a patch in pixels.
const PATCH: u64 = 14;
/// Patches along a side of one token's cell.
const DOWNSAMPLE: u64 = 3;
const CELL: f64 = (PATCH * DOWNSAMPLE) as f64;
/// Smaller images are enlarged to this many pixels.
const MIN_AREA: f64 = 295_936.0;
/// Largest token cost of one image.
const MAX_TOKENS: u64 = 1024;
/// Smallest side that is accepted.
pub const MIN_DIMENSION: u32 = 1;
/// Largest side that is accepted.
pub const MAX_DIMENSION: u32 = 1 << 20;

/// The size does not settle, or is out of range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CalcResizeError {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
}

impl fmt::Display for CalcResizeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "no size found for an image of {} x {} pixels, sides may be {MIN_DIMENSION} to {MAX_DIMENSION}",
            self.width, self.height
        )
    }
}

impl std::error::Error for CalcResizeError {}

fn cells(pixels: u64) -> u64 {
    pixels.div_ceil(PATCH).div_ceil(DOWNSAMPLE)
}

/// Tokens of an image of this size: one per cell, one per row, two around it.
pub fn token_cost(width: u32, height: u32) -> u64 {
    let (columns, rows) = (cells(u64::from(width)), cells(u64::from(height)));
    rows * (columns + 1) + 2
}

/// The size to which an image is scaled before it is cut into patches.
///
/// # Errors
/// Sides out of range, and sizes for which the rule has no fixed point.
pub fn calc_resize(width: u32, height: u32) -> Result<(u32, u32), CalcResizeError> {
    let error = CalcResizeError { width, height };
    let range = MIN_DIMENSION..=MAX_DIMENSION;
    if !range.contains(&width) || !range.contains(&height) {
        return Err(error);
    }
    let mut size = (u64::from(width), u64::from(height));
    // Sizes settle after a few rounds or move in a cycle.
    for _ in 0..64 {
        let next = step(size.0, size.1);
        if next == size {
            let side = |pixels: u64| u32::try_from(pixels).map_err(|_| error);
            return Ok((side(size.0)?, side(size.1)?));
        }
        size = next;
    }
    Err(error)
}

fn step(width: u64, height: u64) -> (u64, u64) {
    let (mut w, mut h) = (width as f64, height as f64);
    let area = w * h;
    if area < MIN_AREA {
        let scale = (MIN_AREA / area).sqrt();
        w = (w * scale).trunc().max(1.0);
        h = (h * scale).trunc().max(1.0);
    }
    let up = |side: f64| (side as u64).div_ceil(PATCH) * PATCH;
    let rounded = (up(w), up(h));
    if cells(rounded.1) * (cells(rounded.0) + 1) + 2 <= MAX_TOKENS {
        return rounded;
    }
    let budget = (MAX_TOKENS - 2) as f64;
    let ratio = h / w;
    let x = (budget / ratio + 0.25).sqrt() - 0.5;
    let y = x * ratio;
    if x < 1.0 {
        return (CELL as u64, 511 * CELL as u64);
    }
    if y < 1.0 {
        return (1021 * CELL as u64, CELL as u64);
    }
    let scale = (x.floor() * CELL / w).min(y.floor() * CELL / h);
    let down = |side: f64| ((side * scale) as u64 / PATCH * PATCH).max(PATCH);
    (down(w), down(h))
}

/// Scales a size down so that no side exceeds `bound`.
pub fn bounded(width: u32, height: u32, bound: u32) -> (u32, u32) {
    let longest = width.max(height);
    if longest <= bound || longest == 0 {
        return (width, height);
    }
    let scale = f64::from(bound) / f64::from(longest);
    let side = |pixels: u32| ((f64::from(pixels) * scale).round() as u32).max(1);
    (side(width), side(height))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adjustment(width: u32, height: u32) -> u64 {
        calc_resize(width, height).map_or(0, |(width, height)| token_cost(width, height) - 1)
    }

    #[test]
    fn token_adjustments_of_known_sizes() {
        for (width, height, expected) in [
            (1, 1, 183),
            (546, 546, 183),
            (640, 480, 205),
            (644, 490, 205),
            (1024, 768, 495),
            (1920, 1080, 967),
            (2048, 2048, 993),
            (4096, 100, 298),
            (100, 4096, 393),
        ] {
            assert_eq!(adjustment(width, height), expected, "{width} x {height}");
        }
    }

    #[test]
    fn every_size_gives_a_size_or_an_error() {
        for width in [1, 2, 13, 14, 15, 500, 1021, 5000, 100_000, MAX_DIMENSION] {
            for height in [1, 3, 42, 43, 999, 4095, 77_777, MAX_DIMENSION] {
                if let Ok((width, height)) = calc_resize(width, height) {
                    assert!(token_cost(width, height) <= MAX_TOKENS);
                    assert_eq!((width % 14, height % 14), (0, 0));
                }
            }
        }
        assert!(calc_resize(0, 5).is_err());
    }
}
