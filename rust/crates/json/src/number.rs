//! Numbers and their two printed forms.

/// A JSON number.
///
/// Integers that fit 64 bits stay integers; everything else is a double, as in the JSON libraries whose prompts
/// this crate has to match. `-0` is the double `-0.0`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// A non-negative integer.
    Unsigned(u64),
    /// A negative integer.
    Signed(i64),
    /// Any other finite number.
    Float(f64),
}

impl Number {
    /// The value as a double.
    pub fn as_f64(self) -> f64 {
        match self {
            Number::Unsigned(value) => value as f64,
            Number::Signed(value) => value as f64,
            Number::Float(value) => value,
        }
    }

    /// Appends the number in the given style.
    pub fn write(self, out: &mut String, style: FloatStyle) {
        match self {
            Number::Unsigned(value) => write_u64(out, value),
            Number::Signed(value) => {
                out.push('-');
                write_u64(out, value.unsigned_abs());
            }
            Number::Float(value) => write_f64(out, value, style),
        }
    }
}

/// How doubles print.
///
/// Both styles use the shortest digits that round-trip, always show a decimal point or an exponent, and switch to
/// `1e+16` at 1e16. They differ below one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatStyle {
    /// Decimals down to 1e-5, then `1e-6`: V4 prompts and compact JSON.
    Compact,
    /// As Python's `repr`: decimals down to 1e-4, then `1e-05`: V4.1 prompts.
    Python,
}

/// Appends `value` in decimal.
pub(crate) fn write_u64(out: &mut String, mut value: u64) {
    let mut digits = [0u8; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend(digits[start..].iter().map(|&digit| digit as char));
}

/// Appends a finite double; see [`FloatStyle`].
pub fn write_f64(out: &mut String, value: f64, style: FloatStyle) {
    let scientific = format!("{:e}", value.abs());
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let digits: String = mantissa.chars().filter(|c| *c != '.').collect();
    if value.is_sign_negative() {
        out.push('-');
    }
    let lowest = match style {
        FloatStyle::Compact => -5,
        FloatStyle::Python => -4,
    };
    if value != 0.0 && !(lowest..16).contains(&exponent) {
        write_exponent_form(out, &digits, exponent, style);
    } else if exponent < 0 {
        out.push_str("0.");
        out.extend(std::iter::repeat_n('0', (-exponent - 1) as usize));
        out.push_str(&digits);
    } else {
        let whole = exponent as usize + 1;
        if digits.len() <= whole {
            out.push_str(&digits);
            out.extend(std::iter::repeat_n('0', whole - digits.len()));
            out.push_str(".0");
        } else {
            out.push_str(&digits[..whole]);
            out.push('.');
            out.push_str(&digits[whole..]);
        }
    }
}

fn write_exponent_form(out: &mut String, digits: &str, exponent: i32, style: FloatStyle) {
    out.push_str(&digits[..1]);
    if digits.len() > 1 {
        out.push('.');
        out.push_str(&digits[1..]);
    }
    out.push('e');
    out.push(if exponent < 0 { '-' } else { '+' });
    if style == FloatStyle::Python && exponent.abs() < 10 {
        out.push('0');
    }
    write_u64(out, u64::from(exponent.unsigned_abs()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(value: f64) -> (String, String) {
        let (mut compact, mut python) = (String::new(), String::new());
        write_f64(&mut compact, value, FloatStyle::Compact);
        write_f64(&mut python, value, FloatStyle::Python);
        (compact, python)
    }

    #[test]
    fn styles_differ_only_below_one() {
        for (value, compact, python) in [
            (0.0, "0.0", "0.0"),
            (-0.0, "-0.0", "-0.0"),
            (2.5, "2.5", "2.5"),
            (1e15, "1000000000000000.0", "1000000000000000.0"),
            (1e16, "1e+16", "1e+16"),
            (1.5e300, "1.5e+300", "1.5e+300"),
            (1e-4, "0.0001", "0.0001"),
            (1e-5, "0.00001", "1e-05"),
            (1.5e-5, "0.000015", "1.5e-05"),
            (1e-6, "1e-6", "1e-06"),
            (1.25e-10, "1.25e-10", "1.25e-10"),
        ] {
            assert_eq!(both(value), (compact.to_owned(), python.to_owned()));
        }
    }
}
