// SPDX-License-Identifier: BSD-2-Clause
//! The words of rules: clients, accounts, and patterns of names.

use std::io;

use nix::unistd::{Group, User};
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::written::{Wrong, wrong};

/// The properties of a client that rules refer to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity<'a> {
    pub(crate) uid: u32,
    /// The primary one and the supplementary ones, in any order.
    pub(crate) groups: &'a [u32],
    /// Inode number of the network namespace.
    pub(crate) netns: u64,
}

/// Users; `None`: all.
pub(super) type Users = Option<Vec<u32>>;

impl Identity<'_> {
    /// Whether the client is one of these users, or in one of these groups.
    pub(super) fn is_one_of(&self, users: &Users, groups: &[u32]) -> bool {
        users.as_ref().is_none_or(|uids| uids.contains(&self.uid)) || groups.iter().any(|gid| self.groups.contains(gid))
    }
}

/// A pattern of interface names: `?` matches any character, `*` any number of characters.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pattern(pub(super) Vec<Symbol>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Symbol {
    Char(char),
    One,
    Any,
}

impl Pattern {
    /// A pattern of names of at most `max` bytes.
    pub(super) fn new(text: &str, max: usize) -> Result<Pattern, String> {
        let wrong = |why: &str| Err(format!("`{text}` {why}; write names such as \"eth0\" or \"veth*\""));
        if text.is_empty() {
            return wrong("is no name");
        }
        if text.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control()) {
            return wrong("has a character that no such name has");
        }
        if text.bytes().filter(|b| *b != b'*').count() > max {
            return wrong(&format!("is longer than such a name, {max} bytes"));
        }
        let mut symbols: Vec<Symbol> = text
            .chars()
            .map(|c| match c {
                '*' => Symbol::Any,
                '?' => Symbol::One,
                other => Symbol::Char(other),
            })
            .collect();
        symbols.dedup_by(|a, b| (*a, *b) == (Symbol::Any, Symbol::Any));
        Ok(Pattern(symbols))
    }

    pub(super) fn fits(&self, name: &str) -> bool {
        let name: Vec<Symbol> = name.chars().map(Symbol::Char).collect();
        self.takes(&name)
    }

    /// Every name that fits `other` fits this one. Some pairs of which that is true are not seen, such as `?*` and
    /// `*?`.
    pub(super) fn covers(&self, other: &Pattern) -> bool {
        self.takes(&other.0)
    }

    /// The usual walk: at a mismatch, the last `*` takes one symbol more.
    fn takes(&self, word: &[Symbol]) -> bool {
        let (mut at, mut seen) = (0, 0);
        let mut star = None;
        while seen < word.len() {
            match (self.0.get(at), word[seen]) {
                (Some(Symbol::Any), _) => {
                    star = Some((at, seen));
                    at += 1;
                }
                (Some(Symbol::One), Symbol::Char(_) | Symbol::One) => (at, seen) = (at + 1, seen + 1),
                (Some(Symbol::Char(a)), Symbol::Char(b)) if *a == b => (at, seen) = (at + 1, seen + 1),
                _ => {
                    let Some((last, from)) = star else { return false };
                    star = Some((last, from + 1));
                    (at, seen) = (last + 1, from + 1);
                }
            }
        }
        self.0[at..].iter().all(|symbol| *symbol == Symbol::Any)
    }
}

/// A name, or the equivalent number.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a name in quotes or a number from 0")]
pub(super) enum Word {
    Name(String),
    Number(u64),
}

#[derive(Clone, Copy)]
pub(super) enum Account {
    User,
    Group,
}

/// Looks up the number of an account of that name.
pub(super) type Accounts = fn(Account, &str) -> io::Result<Option<u32>>;

/// Looks an account up in the system.
pub(super) fn system_account(kind: Account, name: &str) -> io::Result<Option<u32>> {
    Ok(match kind {
        Account::User => User::from_name(name)?.map(|user| user.uid.as_raw()),
        Account::Group => Group::from_name(name)?.map(|group| group.gid.as_raw()),
    })
}

/// Parses patterns of names of at most `max` bytes.
pub(super) fn patterns(written: &[Spanned<String>], max: usize) -> Result<Vec<Pattern>, Wrong> {
    let pattern = |text: &Spanned<String>| Pattern::new(text.get_ref(), max).or_else(|why| wrong(&text.span(), why));
    written.iter().map(pattern).collect()
}

/// The users of a list; `*`: all. All names are looked up in any case, so that a wrong one is reported.
pub(super) fn users(written: &[Spanned<Word>], accounts: Accounts) -> Result<Users, Wrong> {
    let is_any = |user: &&Spanned<Word>| matches!(user.get_ref(), Word::Name(name) if name == "*");
    let named = written.iter().filter(|user| !is_any(user)).map(|user| id(user, Account::User, accounts));
    let named = named.collect::<Result<_, _>>()?;
    Ok((!written.iter().any(|user| is_any(&user))).then_some(named))
}

/// The numbers of users, or of groups.
pub(super) fn accounts_of(written: &[Spanned<Word>], kind: Account, accounts: Accounts) -> Result<Vec<u32>, Wrong> {
    written.iter().map(|word| id(word, kind, accounts)).collect()
}

/// The number of an account.
pub(super) fn id(word: &Spanned<Word>, account: Account, accounts: Accounts) -> Result<u32, Wrong> {
    let kind = match account {
        Account::User => "user",
        Account::Group => "group",
    };
    let wrong = |why| wrong(&word.span(), why);
    match word.get_ref() {
        // The kernel reserves the last number for "no user".
        Word::Number(number) => match u32::try_from(*number) {
            Ok(id) if id != u32::MAX => Ok(id),
            _ => wrong(format!("{number} is no number of a {kind}; they go from 0 to {}", u32::MAX - 1)),
        },
        Word::Name(name) => match accounts(account, name) {
            Ok(Some(id)) => Ok(id),
            Ok(None) => wrong(format!("there is no {kind} `{name}`; add it to the system or correct the name")),
            Err(e) => wrong(format!("the {kind} `{name}` cannot be looked up ({e}); give its number")),
        },
    }
}
