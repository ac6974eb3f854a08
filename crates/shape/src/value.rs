// SPDX-License-Identifier: BSD-2-Clause
//! Values as people write them: delays, probabilities, losses, queues.

use crate::{Delay, Limit, Loss, MILLISECOND, Nanos};

/// Longest delay.
const MAX_DELAY: Nanos = 3_600_000 * MILLISECOND;

/// Parses a time: a number with `ns`, `us`, `ms` or `s`.
pub fn time(text: &str) -> Option<Nanos> {
    let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
    let (number, scale) = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)))?;
    let nanos = number.parse::<f64>().ok()? * scale;
    (0.0..=MAX_DELAY as f64).contains(&nanos).then_some(nanos as Nanos)
}

/// Parses a probability: `0.01`, or `1%`.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn probability(text: &str) -> Result<f64, String> {
    let value = match text.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>().map(|percent| percent / 100.0),
        None => text.parse(),
    };
    value.ok().filter(|p| (0.0..=1.0).contains(p)).ok_or_else(|| "give a probability: 0 to 1, or 0% to 100%".into())
}

/// Parses a delay: `20ms`, `10ms..30ms`, `20ms~2ms`, or `@FILE`.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn delay(text: &str) -> Result<Delay, String> {
    let wrong = || {
        "give a time such as 20ms; a range, 10ms..30ms; a mean and a deviation, 20ms~2ms; or a file of a distribution, \
         @FILE"
            .to_owned()
    };
    if let Some(path) = text.strip_prefix('@') {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
        return distribution(&text).map_err(|e| format!("{path}: {e}"));
    }
    if let Some((from, to)) = text.split_once("..") {
        let (from, to) = (time(from).ok_or_else(wrong)?, time(to).ok_or_else(wrong)?);
        return if from <= to { Ok(Delay::Uniform(from, to)) } else { Err(wrong()) };
    }
    if let Some((mean, deviation)) = text.split_once('~') {
        return Ok(Delay::Normal(time(mean).ok_or_else(wrong)?, time(deviation).ok_or_else(wrong)?));
    }
    time(text).map(Delay::Constant).ok_or_else(wrong)
}

/// Parses a distribution: a probability and a time on each line.
fn distribution(text: &str) -> Result<Delay, String> {
    let mut points = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<_> = line.split_whitespace().collect();
        let point = match words.as_slice() {
            [] => continue,
            [part, delay] => part.parse::<f64>().ok().zip(time(delay)),
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
        return Ok(Loss::BitError(probability(rate)?));
    }
    if let Some(list) = text.strip_prefix("ge:") {
        let parts = list.split(',').map(probability).collect::<Result<Vec<_>, _>>()?;
        return match *parts.as_slice() {
            [p, r] => Ok(Loss::GilbertElliott { p, r, bad: 1.0, good: 0.0 }),
            [p, r, bad] => Ok(Loss::GilbertElliott { p, r, bad, good: 0.0 }),
            [p, r, bad, good] => Ok(Loss::GilbertElliott { p, r, bad, good }),
            _ => Err("give 2 to 4 probabilities: good to bad, bad to good, loss when bad, loss when good".into()),
        };
    }
    probability(text).map(Loss::Random).map_err(|e| format!("{e}; ber:RATE of bits; or ge:P,R[,BAD[,GOOD]]"))
}

/// Parses the size of a queue: packets, or bytes with `B`, `KB` or `MB`.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn queue(text: &str) -> Result<Limit, String> {
    let wrong = || "give a number of packets, or of bytes with B, KB or MB".to_owned();
    let limit = match text.strip_suffix('B') {
        None => text.parse().ok().filter(|&n| n > 0).map(Limit::Packets),
        Some(number) => {
            let (number, scale) = match number.strip_suffix(['K', 'M']) {
                None => (number, 1),
                Some(rest) => (rest, if number.ends_with('K') { 1000 } else { 1_000_000 }),
            };
            number.parse::<u32>().ok().filter(|&n| n > 0).map(|n| Limit::Bytes(u64::from(n) * scale))
        }
    };
    limit.ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parsed_or_refused() {
        assert_eq!(delay("20ms"), Ok(Delay::Constant(20 * MILLISECOND)));
        assert_eq!(delay("1.5us..1s"), Ok(Delay::Uniform(1500, 1000 * MILLISECOND)));
        assert_eq!(delay("20ms~100ns"), Ok(Delay::Normal(20 * MILLISECOND, 100)));
        for text in ["20", "ms", "-1ms", "2s..1s", "1ms..", "1ms~x", "NaNms", "2h", "9999999s"] {
            assert!(delay(text).unwrap_err().contains("give a time"), "{text}");
        }
        let error = delay("@/nonexistent").unwrap_err();
        assert!(error.contains("/nonexistent: "), "{error}");
        assert_eq!(
            distribution("0 1ms # least\n\n1 9ms"),
            Delay::empirical(vec![(0.0, 1_000_000), (1.0, 9_000_000)]).map_err(|e| e.to_string())
        );
        assert!(distribution("0 1ms\n0.5 2").unwrap_err().starts_with("line 2: "));
        assert!(distribution("0 1ms").unwrap_err().contains("two points"));
        assert_eq!((probability("2.5%"), probability("1")), (Ok(0.025), Ok(1.0)));
        assert!(["", "-1", "101%", "NaN", "x%"].iter().all(|text| probability(text).is_err()));
        assert_eq!(loss("ber:1e-6"), Ok(Loss::BitError(1e-6)));
        assert_eq!(loss("ge:1%,20%"), Ok(Loss::GilbertElliott { p: 0.01, r: 0.2, bad: 1.0, good: 0.0 }));
        assert!(["ge:1", "ge:1,1,1,1,1", "ber:2", "x"].iter().all(|text| loss(text).is_err()));
        assert_eq!(
            [queue("50"), queue("64KB"), queue("9B")],
            [Ok(Limit::Packets(50)), Ok(Limit::Bytes(64_000)), Ok(Limit::Bytes(9))]
        );
        assert!(["", "0", "B", "1k", "-1", "KB"].iter().all(|text| queue(text).is_err()));
    }
}
