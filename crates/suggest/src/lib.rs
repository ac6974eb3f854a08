// SPDX-License-Identifier: BSD-2-Clause
//! Suggestions for a word that is not known: those of the known ones that its author may have meant.
//!
//! clap has the same for options and subcommands; this is for words that the programs read themselves: knobs, keys of
//! files, rules of a firewall.
#![forbid(unsafe_code)]

/// Most suggestions for one word: more are a list to be read, which a manual page has.
const MOST: usize = 3;
/// Fewest letters that count as the beginning of another word.
const BEGINNING: usize = 3;
/// Distance of words of which one begins with the other: more than that of any with wrong letters.
const BEGINS: usize = 1000;

/// Returns those of `candidates` that resemble `word`, the most alike first, at most three. One resembles it if one
/// letter, or a third of them, were typed wrong, left out, added or exchanged, and no other needs two changes less; if
/// there is none, those of which one begins with the other. Case does not count.
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let word = word.to_lowercase();
    let mut similar: Vec<(usize, &str)> =
        candidates.into_iter().filter_map(|known| Some((distance(&word, &known.to_lowercase())?, known))).collect();
    similar.sort_by_key(|(distance, _)| *distance);
    similar.dedup_by_key(|(_, known)| *known);
    let furthest = similar.first().map_or(0, |(distance, _)| distance + 1);
    similar.into_iter().take_while(|(distance, _)| *distance <= furthest).take(MOST).map(|(_, known)| known).collect()
}

/// Returns `; did you mean \`x\`, \`y\` or \`z\`?` with the [`closest`], to be added to the sentence that says what is
/// not known; nothing if none resembles `word`.
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = closest(word, candidates).iter().map(|known| format!("`{known}`")).collect();
    match quoted.split_last() {
        None => String::new(),
        Some((last, [])) => format!("; did you mean {last}?"),
        Some((last, others)) => format!("; did you mean {} or {last}?", others.join(", ")),
    }
}

/// The number of changes that make `word` of `known`, or [`BEGINS`]; none if they do not resemble each other.
fn distance(word: &str, known: &str) -> Option<usize> {
    let letters = known.chars().count();
    let changes = strsim::osa_distance(word, known);
    let begins =
        known.starts_with(word) && word.chars().count() >= BEGINNING || word.starts_with(known) && letters >= BEGINNING;
    // Of a word of one letter nothing is left if that is wrong.
    if changes <= (letters / 3).max(1) && changes < letters { Some(changes) } else { begins.then_some(BEGINS) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOBS: [&str; 6] = ["ring_size", "priv_ring_size", "buf_num", "buf_size", "if_num", "admode"];

    #[test]
    fn wrong_missing_added_and_exchanged_letters_are_recognized() {
        for (word, meant) in [
            ("rng_size", "ring_size"),
            ("ringg_size", "ring_size"),
            ("rign_size", "ring_size"),
            ("RING-SIZE", "ring_size"),
            ("priv_rings_size", "priv_ring_size"),
            ("adnode", "admode"),
        ] {
            assert_eq!(closest(word, KNOBS).first(), Some(&meant), "{word}");
        }
        assert_eq!(closest("tpc", ["udp", "tcp", "icmp"]), ["tcp"]);
        assert_eq!(closest("alow", ["deny", "allow", "all"]), ["allow"]);
    }

    #[test]
    fn a_beginning_is_recognized_if_no_word_is_closer() {
        assert_eq!(closest("buf", KNOBS), ["buf_num", "buf_size"]);
        assert_eq!(closest("admode2", KNOBS), ["admode"]);
        assert_eq!(closest("vlan", ["vlans", "vlan-tags", "flan"]), ["vlans", "flan"]);
        assert_eq!(closest("b", KNOBS), [""; 0]);
    }

    #[test]
    fn words_that_do_not_resemble_are_not_suggested() {
        for word in ["", "x", "colour", "zzzzzzzzz", "\u{1f600}", "size"] {
            assert_eq!(closest(word, KNOBS), [""; 0], "{word}");
        }
        assert_eq!(closest("q", ["a", "b"]), [""; 0]);
        assert_eq!(closest("word", []), [""; 0]);
    }

    #[test]
    fn the_suggestions_are_a_sentence() {
        assert_eq!(did_you_mean("rng_size", KNOBS), "; did you mean `ring_size`?");
        assert_eq!(did_you_mean("buf", KNOBS), "; did you mean `buf_num` or `buf_size`?");
        assert_eq!(did_you_mean("abcx", ["abca", "abcb", "abcc", "abcd"]), "; did you mean `abca`, `abcb` or `abcc`?");
        assert_eq!(did_you_mean("colour", KNOBS), "");
    }
}
