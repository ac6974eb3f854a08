// SPDX-License-Identifier: BSD-2-Clause
//! Decimal numbers without a sign, exact to 18 decimal places.

/// Decimal places of a [`Number`].
const PLACES: i32 = 18;
/// The number 1.
const ONE: u128 = 1_000_000_000_000_000_000;
/// A number counts as whole if rounding changes it by at most one part of this many.
const PRECISION: u128 = 1000;

/// A decimal number of 0 or more, in units of 1e-18; below 3.4e20.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Number(u128);

impl Number {
    /// The number 0.
    pub const ZERO: Number = Number(0);

    /// Splits a text into the number at its start and the rest. The number has digits, an optional fraction, and an
    /// optional power of ten (`1e-6`). `None`: there is no number, or it is too large, or too small and not 0.
    pub(crate) fn split(text: &str) -> Option<(Number, &str)> {
        let end_of_digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (whole, rest) = text.split_at(end_of_digits(text));
        let (fraction, rest) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(end_of_digits(rest)),
            None => ("", rest),
        };
        let (exponent, rest) = exponent(rest).unwrap_or((0, rest));
        if whole.len() + fraction.len() == 0 || whole.len() + fraction.len() > 100 {
            return None;
        }
        // The digits, of which the last is worth 10^shift of the unit.
        let digits = [whole, fraction].concat();
        let shift = PLACES + exponent - fraction.len() as i32;
        let kept = digits.len().saturating_sub(usize::try_from(-shift).unwrap_or(0));
        let mantissa = match digits[..kept].trim_start_matches('0') {
            "" => 0,
            significant => significant.parse::<u128>().ok()?,
        };
        let units = match mantissa {
            0 if digits.bytes().any(|digit| digit != b'0') => return None,
            0 => 0,
            _ => mantissa.checked_mul(10u128.checked_pow(u32::try_from(shift).unwrap_or(0))?)?,
        };
        Some((Number(units), rest))
    }

    /// Returns the number times a factor, unless it is too large.
    pub(crate) fn times(self, factor: u64) -> Option<Number> {
        self.0.checked_mul(factor.into()).map(Number)
    }

    /// Returns a hundredth of the number.
    pub(crate) fn hundredth(self) -> Number {
        Number(self.0 / 100)
    }

    /// Returns the nearest whole number; `None` if it differs by more than a thousandth, or does not fit.
    pub fn whole(self) -> Option<u64> {
        let rounded = self.0.checked_add(ONE / 2)? / ONE;
        let difference = (rounded * ONE).abs_diff(self.0);
        (difference.checked_mul(PRECISION)? <= self.0).then(|| u64::try_from(rounded).ok())?
    }

    /// Returns the nearest number of the type.
    pub fn as_f64(self) -> f64 {
        // Correctly rounded, which a division of two rounded numbers would not be.
        format!("{}.{:018}", self.0 / ONE, self.0 % ONE).parse().unwrap_or(f64::MAX)
    }
}

/// Splits a power of ten from the start of a text.
fn exponent(text: &str) -> Option<(i32, &str)> {
    let rest = text.strip_prefix(['e', 'E'])?;
    let digits = rest.strip_prefix(['-', '+']).unwrap_or(rest);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let (number, after) = rest.split_at(rest.len() - digits.len() + end);
    // A power that does not fit is as far beyond the bounds as this one.
    let (sign, limit) = (if number.starts_with('-') { -1 } else { 1 }, 999);
    let power = digits[..end].parse::<u32>().map_or(limit, |power| power.min(limit as u32) as i32);
    (end > 0).then_some((sign * power, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Option<f64> {
        Number::split(text).filter(|(_, rest)| rest.is_empty()).map(|(number, _)| number.as_f64())
    }

    #[test]
    fn numbers_are_exact() {
        for text in
            ["0", "1", "0.1", "0.3", "14.88", "1e-6", "18446744073709551615", "0.000001", "1e15", "2.5e+3", "007"]
        {
            assert_eq!(number(text), Some(text.parse().unwrap()), "{text}");
        }
        assert_eq!(
            (number(".5"), number("5."), number("0.33333333333333333333333333")),
            (Some(0.5), Some(5.0), Some(1.0 / 3.0))
        );
        let (tenth, rest) = Number::split("0.1k").unwrap();
        assert_eq!((tenth.times(1000).unwrap().whole(), rest), (Some(100), "k"));
    }

    #[test]
    fn other_texts_are_no_numbers() {
        let zeros = "0".repeat(101);
        let wrong = [
            "",
            ".",
            "-1",
            "+1",
            "x",
            "e5",
            "1e99",
            "1e999999999999",
            "1e-40",
            "999999999999999999999",
            "\u{664}",
            "NaN",
            "inf",
        ];
        for text in wrong.into_iter().chain([&*zeros]) {
            assert_eq!(number(text), None, "{text}");
        }
        assert_eq!(Number::split("1e"), Some((Number(ONE), "e")));
        assert_eq!(number("0e-999"), Some(0.0));
    }

    #[test]
    fn whole_numbers_differ_by_at_most_a_thousandth() {
        let whole = |text: &str| Number::split(text).unwrap().0.whole();
        assert_eq!(
            [whole("14880952.38"), whole("999.9"), whole("0"), whole("7")],
            [Some(14_880_952), Some(1000), Some(0), Some(7)]
        );
        assert_eq!([whole("1.5"), whole("0.5"), whole("0.0001"), whole("300000000000000000000")], [None; 4]);
    }
}
