// SPDX-License-Identifier: BSD-2-Clause
//! Finds the position of an error in a filter expression, which libpcap does not report.
//!
//! Compiles longer and longer prefixes of the expression, each up to the end of a word. The first prefix that fails
//! with the same error ends with the word at fault. A prefix that is only incomplete does not count: it would compile
//! with a suitable ending, so several endings are tried.

use unetmap::abi::printable::word;

/// Endings that complete a valid prefix. The closing brackets follow.
const ENDINGS: [&str; 20] = [
    "",
    "1",
    "= 1",
    "1 = 1",
    "0] = 1",
    "] = 1",
    "1] = 1",
    "ip",
    "host 192.0.2.1",
    "192.0.2.1",
    "mask 255.255.255.0",
    "net 192.0.2.0/24",
    "1-2",
    "host 02:00:00:00:00:01",
    "02:00:00:00:00:01",
    "dst host 192.0.2.1",
    "mgt",
    "beacon",
    "nods",
    "clnp",
];
/// Prefix of libpcap's parser errors.
const PARSER: &str = "can't parse filter expression: ";

/// Returns libpcap's message for the error `why`, and its position: the number of a character, from 1, and the word
/// there. `compile` returns libpcap's error.
pub(super) fn explain(expression: &str, why: &str, compile: impl Fn(&str) -> Result<(), String>) -> (String, String) {
    let message = why.strip_prefix(PARSER).unwrap_or(why).trim().to_owned();
    let at = match word_at_fault(expression, why, compile) {
        Some((from, to)) => {
            format!("at character {}: `{}`", expression[..from].chars().count() + 1, word(&expression[from..to]))
        }
        None => format!("at its end, character {}", expression.chars().count() + 1),
    };
    (message, at)
}

/// Returns the byte range of the word at fault; `None` if the expression is incomplete.
fn word_at_fault(expression: &str, why: &str, compile: impl Fn(&str) -> Result<(), String>) -> Option<(usize, usize)> {
    let is_syntax_error = |why: &str| why.contains("syntax error");
    let (words, mut open) = (words(expression), Vec::new());
    for &(from, to) in &words {
        match &expression[from..to] {
            "(" => open.push(" )"),
            ")" => drop(open.pop()),
            _ => {}
        }
        let prefix = &expression[..to];
        let wrong = match compile(prefix) {
            Ok(()) => false,
            Err(again) if !is_syntax_error(&again) => again == why,
            Err(_) if !is_syntax_error(why) => false,
            Err(_) => {
                let closing: String = open.iter().rev().copied().collect();
                let parses = |text: String| match compile(&text) {
                    Ok(()) => true,
                    // The syntax is right; the error is another one.
                    Err(other) => !is_syntax_error(&other),
                };
                // An arithmetic expression in brackets needs a comparison to be complete.
                let completes = |ending: &&str| {
                    let text = format!("{prefix} {ending}{closing}");
                    parses(format!("{text} = 1")) || parses(text)
                };
                !ENDINGS.iter().any(completes)
            }
        };
        if wrong {
            return Some((from, to));
        }
    }
    None
}

/// Returns the byte ranges of the words of an expression.
fn words(expression: &str) -> Vec<(usize, usize)> {
    let mut words: Vec<(usize, usize)> = Vec::new();
    let in_word = |c: char| c.is_alphanumeric() || ".:-_/\\".contains(c) || !c.is_ascii();
    // In brackets a colon, a minus and a slash are separate tokens.
    let (mut brackets, mut joins) = (0, false);
    for (at, c) in expression.char_indices() {
        match c {
            '[' => brackets += 1,
            ']' => brackets -= 1,
            _ => {}
        }
        let part_of_word = in_word(c) && (brackets == 0 || c.is_alphanumeric());
        let pair = ["&&", "||", "!=", "==", "<=", ">=", "<<", ">>"];
        let second =
            expression[..at].chars().next_back().is_some_and(|before| pair.contains(&&*format!("{before}{c}")));
        match words.last_mut() {
            _ if c.is_whitespace() => {}
            Some(last) if last.1 == at && (part_of_word && joins || second && last.1 - last.0 == 1) => {
                last.1 = at + c.len_utf8();
            }
            _ => words.push((at, at + c.len_utf8())),
        }
        joins = part_of_word;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_split_into_words_and_operators() {
        let split = |text: &'static str| words(text).into_iter().map(|(a, b)| &text[a..b]).collect::<Vec<_>>();
        assert_eq!(split("udp port 53"), ["udp", "port", "53"]);
        assert_eq!(split("(ip6 host fe80::1)&&not tcp"), ["(", "ip6", "host", "fe80::1", ")", "&&", "not", "tcp"]);
        assert_eq!(split("ip[2:2]>=0x40-1"), ["ip", "[", "2", ":", "2", "]", ">=", "0x40-1"]);
        assert_eq!(split("a||(b)==c"), ["a", "||", "(", "b", ")", "==", "c"]);
        assert_eq!(split("  "), [""; 0]);
        assert_eq!(split("é udp"), ["é", "udp"]);
    }
}
