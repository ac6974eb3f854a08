//! Where an expression is wrong, which libpcap does not say.
//!
//! A part from the beginning, up to the end of some word, is compiled again: the first that is wrong in the same way ends
//! with the word that is at fault. A part that merely ends too early is no such: with the right words behind it it would
//! be a whole expression, and so some are tried.

/// What may make an expression whole: one of these, and then what closes the brackets that are open.
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
/// How libpcap begins the complaint of its parser.
const PARSER: &str = "can't parse filter expression: ";

/// libpcap's words, and where: the place of a character, from 1, and the word there. `try_it` compiles, or says why not.
pub(super) fn explain(expression: &str, why: &str, try_it: impl Fn(&str) -> Result<(), String>) -> (String, String) {
    let words = why.strip_prefix(PARSER).unwrap_or(why).trim().to_owned();
    let at = match fault(expression, why, try_it) {
        Some((from, to)) => {
            let word: String = expression[from..to].chars().map(|c| if c.is_control() { '?' } else { c }).collect();
            format!("at character {}: `{word}`", expression[..from].chars().count() + 1)
        }
        None => format!("at its end, character {}", expression.chars().count() + 1),
    };
    (words, at)
}

/// The word at fault; `None`: it ends too early.
fn fault(expression: &str, why: &str, try_it: impl Fn(&str) -> Result<(), String>) -> Option<(usize, usize)> {
    let of_parser = |why: &str| why.contains("syntax error");
    let (words, mut open) = (words(expression), Vec::new());
    for &(from, to) in &words {
        match &expression[from..to] {
            "(" => open.push(" )"),
            ")" => drop(open.pop()),
            _ => {}
        }
        let part = &expression[..to];
        let wrong = match try_it(part) {
            Ok(()) => false,
            Err(again) if !of_parser(&again) => again == why,
            Err(_) if !of_parser(why) => false,
            Err(_) => {
                let closing: String = open.iter().rev().copied().collect();
                let understood = |text: String| match try_it(&text) {
                    Ok(()) => true,
                    // It was understood, and made no sense.
                    Err(other) => !of_parser(&other),
                };
                // What is in brackets may be a number, which is not a whole expression yet.
                let whole = |ending: &&str| {
                    let text = format!("{part} {ending}{closing}");
                    understood(format!("{text} = 1")) || understood(text)
                };
                !ENDINGS.iter().any(whole)
            }
        };
        if wrong {
            return Some((from, to));
        }
    }
    None
}

/// The words of an expression: where each begins and ends.
fn words(expression: &str) -> Vec<(usize, usize)> {
    let mut words: Vec<(usize, usize)> = Vec::new();
    let in_word = |c: char| c.is_alphanumeric() || ".:-_/\\".contains(c) || !c.is_ascii();
    // In brackets a colon, a minus and a slash are signs of their own.
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
    fn words_and_signs() {
        let split = |text: &'static str| words(text).into_iter().map(|(a, b)| &text[a..b]).collect::<Vec<_>>();
        assert_eq!(split("udp port 53"), ["udp", "port", "53"]);
        assert_eq!(split("(ip6 host fe80::1)&&not tcp"), ["(", "ip6", "host", "fe80::1", ")", "&&", "not", "tcp"]);
        assert_eq!(split("ip[2:2]>=0x40-1"), ["ip", "[", "2", ":", "2", "]", ">=", "0x40-1"]);
        assert_eq!(split("a||(b)==c"), ["a", "||", "(", "b", ")", "==", "c"]);
        assert_eq!(split("  "), [""; 0]);
        assert_eq!(split("é udp"), ["é", "udp"]);
    }
}
