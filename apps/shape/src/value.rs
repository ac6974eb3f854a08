// SPDX-License-Identifier: BSD-2-Clause
//! Values as people write them that consist of quantities: delays, losses, queues.

use std::time::Duration;

use unetmap_quantity::{bytes, count, milliseconds, share, within};

use crate::{Delay, Limit, Loss, Nanos};

/// Longest delay.
const MAX_DELAY: Duration = Duration::from_secs(3600);
/// Longest queue, in bytes.
const MAX_QUEUE: u64 = 1_000_000_000_000_000;

/// Parses a time of an hour at most.
fn time(text: &str, parse: fn(&str) -> Result<Duration, String>) -> Result<Nanos, String> {
    within(parse, Duration::ZERO..=MAX_DELAY)(text).map(|time: Duration| time.as_nanos() as Nanos)
}

/// Parses a delay: `20ms`, `10ms..30ms` or `20ms~2ms`; a caller reads `@FILE` by [`distribution`].
///
/// # Errors
/// A sentence that says what is allowed.
pub fn delay(text: &str) -> Result<Delay, String> {
    let more = "or a file of a distribution, @FILE";
    without_file(text, unetmap_quantity::time).map_err(|why| format!("{why}; {more}"))
}

/// Parses a delay in ipfw's language: as [`delay`], but a number alone is in milliseconds, and there is no `@FILE`.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn ipfw_delay(text: &str) -> Result<Delay, String> {
    without_file(text, milliseconds)
}

fn without_file(text: &str, parse: fn(&str) -> Result<Duration, String>) -> Result<Delay, String> {
    let time = |text: &str| time(text, parse);
    let wrong = |why: String| format!("{why}; or a range, 10ms..30ms; or a mean and a deviation, 20ms~2ms");
    if let Some((from, to)) = text.split_once("..") {
        let (from, to) = (time(from).map_err(wrong)?, time(to).map_err(wrong)?);
        return if from <= to {
            Ok(Delay::Uniform(from, to))
        } else {
            Err("give the shorter time of a range first".into())
        };
    }
    if let Some((mean, deviation)) = text.split_once('~') {
        return Ok(Delay::Normal(time(mean).map_err(wrong)?, time(deviation).map_err(wrong)?));
    }
    time(text).map(Delay::Constant).map_err(wrong)
}

/// Parses a distribution: a probability and a time on each line.
///
/// # Errors
/// A sentence that begins with the line.
pub fn distribution(text: &str) -> Result<Delay, String> {
    let mut points = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<_> = line.split_whitespace().collect();
        let point = match words.as_slice() {
            [] => continue,
            [part, delay] => share(part).ok().zip(time(delay, unetmap_quantity::time).ok()),
            _ => None,
        };
        points.push(point.ok_or_else(|| format!("line {}: give a probability and a time, such as 0.5 20ms", at + 1))?);
    }
    Delay::empirical(points).map_err(|e| e.to_string())
}

/// Parses a loss: a probability, `ber:RATE`, or `ge:P,R[,BAD[,GOOD]]`.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn loss(text: &str) -> Result<Loss, String> {
    if let Some(rate) = text.strip_prefix("ber:") {
        return Ok(Loss::BitError(share(rate)?));
    }
    if let Some(list) = text.strip_prefix("ge:") {
        let parts = list.split(',').map(share).collect::<Result<Vec<_>, _>>()?;
        return match *parts.as_slice() {
            [p, r] => Ok(Loss::GilbertElliott { p, r, bad: 1.0, good: 0.0 }),
            [p, r, bad] => Ok(Loss::GilbertElliott { p, r, bad, good: 0.0 }),
            [p, r, bad, good] => Ok(Loss::GilbertElliott { p, r, bad, good }),
            _ => Err("give 2 to 4 probabilities: good to bad, bad to good, loss when bad, loss when good".into()),
        };
    }
    share(text).map(Loss::Random).map_err(|e| format!("{e}; ber:RATE of bits; or ge:P,R[,BAD[,GOOD]]"))
}

/// Parses the size of a queue: packets, or bytes with a unit. A prefix needs its unit: `10k` may mean either.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn queue(text: &str) -> Result<Limit, String> {
    let limit = if text.ends_with(|c: char| c.is_ascii_digit()) {
        within(count, 1..=u32::MAX.into())(text).map(Limit::Packets)
    } else if text.ends_with(['k', 'K', 'm', 'M', 'g', 'G']) {
        Err(format!("give {text}B if bytes are meant, or packets without k, M and G"))
    } else {
        within(bytes, 1..=MAX_QUEUE)(text).map(Limit::Bytes)
    };
    limit.map_err(|why| format!("{why}; a queue has packets, as in 1000, or bytes, as in 64kB"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MILLISECOND;

    #[test]
    fn values_are_parsed_or_refused() {
        assert_eq!(delay("20ms"), Ok(Delay::Constant(20 * MILLISECOND)));
        assert_eq!(delay("1.5us..1s"), Ok(Delay::Uniform(1500, 1000 * MILLISECOND)));
        assert_eq!(delay("20ms~100ns"), Ok(Delay::Normal(20 * MILLISECOND, 100)));
        for text in ["20", "ms", "-1ms", "1ms..", "1ms~x", "NaNms"] {
            assert!(delay(text).unwrap_err().contains("give a time"), "{text}");
        }
        for (text, part) in [("20", "20ms"), ("2h", "0ns to 3600s"), ("9999999s", "3600s"), ("2s..1s", "shorter time")]
        {
            assert!(delay(text).unwrap_err().contains(part), "{text}");
        }
        assert_eq!(ipfw_delay("20..1s"), Ok(Delay::Uniform(20 * MILLISECOND, 1000 * MILLISECOND)));
        assert!(ipfw_delay("@f").is_err());
        assert_eq!(
            distribution("0 1ms # least\n\n1 9ms"),
            Delay::empirical(vec![(0.0, 1_000_000), (1.0, 9_000_000)]).map_err(|e| e.to_string())
        );
        assert!(distribution("0 1ms\n0.5 2").unwrap_err().starts_with("line 2: "));
        assert!(distribution("0 1ms").unwrap_err().contains("two points"));
        assert_eq!(loss("ber:1e-6"), Ok(Loss::BitError(1e-6)));
        assert_eq!(loss("ge:1%,20%"), Ok(Loss::GilbertElliott { p: 0.01, r: 0.2, bad: 1.0, good: 0.0 }));
        assert!(["ge:1", "ge:1,1,1,1,1", "ber:2", "x"].iter().all(|text| loss(text).is_err()));
        assert_eq!(
            [queue("50"), queue("64KB"), queue("9B"), queue("1MiB")],
            [Ok(Limit::Packets(50)), Ok(Limit::Bytes(64_000)), Ok(Limit::Bytes(9)), Ok(Limit::Bytes(1 << 20))]
        );
        assert!(["", "0", "B", "1k", "-1", "KB", "5000000000"].iter().all(|text| queue(text).is_err()));
        assert!(queue("10k").unwrap_err().starts_with("give 10kB if bytes are meant"));
    }
}
