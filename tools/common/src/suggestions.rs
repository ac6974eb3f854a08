// SPDX-License-Identifier: BSD-2-Clause
//! Suggestions for a wrong word of a command line, by the rules for all other words ([`unetmap_suggest`]): clap itself
//! takes no exchanged letters in short words for a slip.

use clap::Command;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

/// Puts the words that the wrong one resembles into clap's error, in the place of those that clap found, if there are
/// any. `command` is one that is built; `args` are those of the command line.
pub(crate) fn add(error: &mut Error, command: &Command, args: impl Iterator<Item = String>) {
    let text = |error: &Error, kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.clone()),
        _ => None,
    };
    let (suggestion, word, candidates) = if let Some(word) = text(error, ContextKind::InvalidSubcommand) {
        let names = reached(command, args, &word).get_subcommands().map(|known| known.get_name().to_owned()).collect();
        (ContextKind::SuggestedSubcommand, word, names)
    } else if let Some(value) = text(error, ContextKind::InvalidValue)
        && let Some(ContextValue::Strings(valid)) = error.get(ContextKind::ValidValue)
    {
        (ContextKind::SuggestedValue, value, valid.clone())
    } else if error.kind() == ErrorKind::UnknownArgument
        && let Some(option) = text(error, ContextKind::InvalidArg).filter(|arg| arg.starts_with("--"))
    {
        let known = reached(command, args, &option).get_arguments().filter(|arg| !arg.is_hide_set());
        let names = known.filter_map(|arg| Some(format!("--{}", arg.get_long()?))).collect();
        (ContextKind::SuggestedArg, option, names)
    } else {
        return;
    };
    let alike = unetmap_suggest::closest(&word, candidates.iter().map(String::as_str));
    if !alike.is_empty() {
        error.insert(suggestion, ContextValue::Strings(alike.into_iter().map(str::to_owned).collect()));
    }
}

/// The subcommand whose arguments `word` is among.
fn reached<'a>(command: &'a Command, args: impl Iterator<Item = String>, word: &str) -> &'a Command {
    let mut at = command;
    for arg in args.take_while(|arg| arg != word) {
        at = at.find_subcommand(arg).unwrap_or(at);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory as _, Parser, Subcommand};

    #[derive(Debug, Parser)]
    #[command(name = "any", version = "1")]
    enum Cli {
        Top {
            #[arg(long)]
            all: bool,
            #[arg(long, value_parser = ["tx", "rx", "fwd"])]
            mode: Option<String>,
            #[arg(long, value_name = "PPS")]
            rate: Option<u32>,
        },
        Stop,
        Nic {
            #[command(subcommand)]
            action: Action,
        },
    }

    #[derive(Debug, Subcommand)]
    enum Action {
        Set,
        Get,
    }

    fn said(line: &str) -> String {
        let words = || line.split(' ').map(str::to_owned);
        let mut error = Cli::try_parse_from(words()).expect_err(line);
        let mut command = Cli::command();
        command.build();
        add(&mut error, &command, words().skip(1));
        error.to_string()
    }

    #[test]
    fn exchanged_letters_of_short_words_are_recognized() {
        for (line, tip) in [
            ("any tpo", "a similar subcommand exists: 'top'"),
            ("any nic gte", "a similar subcommand exists: 'get'"),
            ("any top --lal", "a similar argument exists: '--all'"),
            ("any top --mode wfd", "a similar value exists: 'fwd'"),
            ("any sotp", "a similar subcommand exists: 'stop'"),
            ("any --verson", "a similar argument exists: '--version'"),
        ] {
            let said = said(line);
            assert!(said.contains(tip), "{line}: {said}");
        }
        for line in ["any zzz", "any top --zzzz", "any top --mode zzz", "any top more", "any top --rate ten"] {
            assert!(!said(line).contains("similar"), "{line}");
        }
    }
}
