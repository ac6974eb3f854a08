// SPDX-License-Identifier: BSD-2-Clause
//! The policy of the system's daemon: which users may open which interfaces, and which may use pipes and switches.
//!
//! A list of rules. The first rule that matches the client and the requested port decides; a request that no rule
//! matches is denied. The rules are those of a file that only root can write (see unetmap-policy(5)), then the built-in
//! ones: root opens interfaces directly, members of the group `netmap` mediated.
//!
//! The policy applies when a port is opened. A port that is open stays open when the file changes.

mod budgets;
mod file;
mod shares;
mod words;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use serde::{Deserialize, Serialize};
use toml::Spanned;
use unetmap_core::control::trusted_file;

use crate::budget::Budgets;
use crate::owner::owner;
use crate::subordinates::Subordinates;
use crate::threads::lock;
use crate::written::{self, Wrong, wrong};
use budgets::WrittenBudget;
use shares::{Share, WrittenShare};
use words::{Account, Accounts, Pattern, Symbol, Users, Word, accounts_of, patterns, system_account, users};

pub(crate) use file::PolicyFile;
pub(crate) use shares::PipeOwner;
pub(crate) use words::Identity;

/// The policy file, unless the command line names another.
pub(crate) const DEFAULT_PATH: &str = "/etc/unetmap/policy.toml";

/// The subordinate users that users have, for their user namespaces.
const SUBORDINATES: &str = "/etc/subuid";
const USERS: &str = "/etc/passwd";

/// The group that the built-in rules admit.
const GROUP: &str = "netmap";
/// Bytes of the longest name of an interface: IFNAMSIZ less its NUL.
const MAX_NAME: usize = 15;
/// The daemon's own namespace. All namespaces are on one device.
const OWN_NETNS: &str = "/proc/self/ns/net";

/// How a client gets an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Access {
    /// The client uses the interface's sockets itself.
    Direct,
    /// The daemon uses them, and copies packets.
    Mediated,
}

/// The rules, in order.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Policy {
    rules: Vec<Rule>,
    shares: Vec<Share>,
    budgets: Budgets,
    /// Users who count for themselves, though their numbers are subordinate ones of others. Of the broker alone.
    #[serde(skip)]
    separate_users: Vec<u32>,
    /// Root of containers is not admitted.
    #[serde(default)]
    pub(crate) refuses_contained_root: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Rule {
    ports: Vec<Pattern>,
    pipes: bool,
    users: Users,
    groups: Vec<u32>,
    netns: Option<Netns>,
    /// None: refused.
    access: Option<Access>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Netns {
    Inode(u64),
    /// Resolved for each client, as the namespace may be created later than the rule.
    Path(PathBuf),
}

impl Policy {
    /// Reads the policy from a file; the built-in rules if there is no file. May wait for a directory service that
    /// names of accounts are looked up in.
    ///
    /// # Errors
    /// One sentence that begins with the file, and the line if there is one.
    pub(crate) fn load(path: &Path) -> Result<Policy, String> {
        let bytes = trusted_file::read(path, owner(), "policy").map_err(|why| format!("{}: {why}", path.display()))?;
        let mut policy = written::read(path, &bytes.unwrap_or_default(), |text| parse(text, system_account))?;
        policy.budgets.subordinates = subordinates(Path::new(SUBORDINATES)).without(&policy.separate_users);
        Ok(policy)
    }

    /// The policy of a text; `None` if it is refused.
    #[cfg(fuzzing)]
    pub(crate) fn of_text(text: &str) -> Option<Policy> {
        parse(text, system_account).ok()
    }

    /// How much of the daemon users can have.
    pub(crate) fn budgets(&self) -> &Budgets {
        &self.budgets
    }

    /// How this client gets an interface of this name (its own one, not an alternative name) in its namespace; None:
    /// not at all.
    pub(crate) fn nic(&self, who: &Identity<'_>, interface: &str) -> Option<Access> {
        let decides = |rule: &&Rule| rule.ports.iter().any(|p| p.fits(interface)) && rule.is_for(who);
        self.rules.iter().find(decides)?.access
    }

    /// Whether this client may have pipes whose parent is no interface.
    pub(crate) fn pipes(&self, who: &Identity<'_>) -> bool {
        let decides = |rule: &&Rule| rule.pipes && rule.is_for(who);
        self.rules.iter().find(decides).is_some_and(|rule| rule.access.is_some())
    }

    /// Whose the pipes of a parent are, for this client. The first share that has the name decides; root opens all.
    pub(crate) fn pipe_owner(&self, who: &Identity<'_>, parent: &str) -> PipeOwner {
        match self.shares.iter().find(|share| share.pipes.iter().any(|pattern| pattern.fits(parent))) {
            None => PipeOwner::Each,
            Some(share) if who.uid == 0 || share.is_for(who) => PipeOwner::Shared(share.owner),
            Some(share) => PipeOwner::Denied(share.owner),
        }
    }

    /// Whether any share is for this client.
    fn shares_with(&self, who: &Identity<'_>) -> bool {
        self.shares.iter().any(|share| share.is_for(who))
    }

    /// Whether any rule is for clients in one network namespace.
    pub(crate) fn names_namespaces(&self) -> bool {
        self.rules.iter().any(|rule| rule.netns.is_some())
    }

    /// Whether there is anything that this client might be given. A yes is no promise: the interfaces that are allowed
    /// may all be refused by other rules, if only several of these together refuse them.
    pub(crate) fn admits_anything(&self, who: &Identity<'_>) -> bool {
        self.pipes(who) || self.shares_with(who) || self.may_give_interfaces(who)
    }

    /// Whether there is an interface that this client might be given; as little of a promise.
    pub(crate) fn may_give_interfaces(&self, who: &Identity<'_>) -> bool {
        let mut refused: Vec<&Pattern> = Vec::new();
        for rule in self.rules.iter().filter(|rule| rule.is_for(who)) {
            if rule.access.is_none() {
                refused.extend(&rule.ports);
            } else if rule.ports.iter().any(|allowed| !refused.iter().any(|no| no.covers(allowed))) {
                return true;
            }
        }
        false
    }
}

impl Rule {
    fn is_for(&self, who: &Identity<'_>) -> bool {
        who.is_one_of(&self.users, &self.groups) && self.netns.as_ref().is_none_or(|netns| netns.is(who.netns))
    }
}

/// Finds the namespace of a path, if this process may not.
static NAMESPACE_AT: OnceLock<fn(&Path) -> Option<u64>> = OnceLock::new();

/// Has another function than [`namespace_at`] find the namespaces of rules.
pub(crate) fn find_namespaces_by(find: fn(&Path) -> Option<u64>) {
    let _ = NAMESPACE_AT.set(find);
}

/// The inode number of the network namespace that a file names. That of a file that is no namespace may be anything.
pub(crate) fn namespace_at(path: &Path) -> Option<u64> {
    let (file, own) = (fs::metadata(path).ok()?, fs::metadata(OWN_NETNS).ok()?);
    (file.dev() == own.dev()).then(|| file.ino())
}

impl Netns {
    fn is(&self, inode: u64) -> bool {
        match self {
            Netns::Inode(number) => *number == inode,
            Netns::Path(path) => {
                NAMESPACE_AT.get().map_or_else(|| namespace_at(path), |find| find(path)) == Some(inode)
            }
        }
    }
}

/// The contents of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenPolicy {
    defaults: Option<bool>,
    #[serde(default)]
    separate_users: Vec<Spanned<Word>>,
    #[serde(default)]
    refuse_contained_root: bool,
    #[serde(default)]
    rule: Vec<Spanned<WrittenRule>>,
    #[serde(default)]
    share: Vec<Spanned<WrittenShare>>,
    #[serde(default)]
    budget: Vec<WrittenBudget>,
    total: Option<Spanned<WrittenBudget>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRule {
    #[serde(default)]
    ports: Vec<Spanned<String>>,
    #[serde(default)]
    pipes: bool,
    #[serde(default)]
    users: Vec<Spanned<Word>>,
    #[serde(default)]
    groups: Vec<Spanned<Word>>,
    netns: Option<Spanned<Word>>,
    #[serde(default)]
    access: WrittenAccess,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WrittenAccess {
    Direct,
    #[default]
    Mediated,
    None,
}

fn parse(text: &str, accounts: Accounts) -> Result<Policy, Wrong> {
    let written: WrittenPolicy = written::parse(text, "unetmap-policy(5)")?;
    let mut rules: Vec<Rule> =
        written.rule.into_iter().map(|rule| understand(rule, accounts)).collect::<Result<_, _>>()?;
    if written.defaults.unwrap_or(true) {
        rules.extend(defaults(accounts));
    }
    let shares = written.share.iter().map(|share| shares::understand(share, accounts)).collect::<Result<_, _>>()?;
    let budgets = budgets::understand(written.budget, written.total, accounts)?;
    let separate_users = accounts_of(&written.separate_users, Account::User, accounts)?;
    let refuses_contained_root = written.refuse_contained_root;
    Ok(Policy { rules, shares, budgets, separate_users, refuses_contained_root })
}

fn understand(rule: Spanned<WrittenRule>, accounts: Accounts) -> Result<Rule, Wrong> {
    let (span, rule) = (rule.span(), rule.into_inner());
    if rule.ports.is_empty() && !rule.pipes {
        return wrong(&span, "the rule is about nothing; give it ports = [\"eth0\"], or pipes = true");
    }
    if rule.users.is_empty() && rule.groups.is_empty() {
        return wrong(&span, "the rule is for nobody; give it users or groups, users = [\"*\"] for anybody");
    }
    let ports = patterns(&rule.ports, MAX_NAME)?;
    let groups = accounts_of(&rule.groups, Account::Group, accounts)?;
    let users = users(&rule.users, accounts)?;
    let netns = rule.netns.map(|netns| namespace(&netns)).transpose()?;
    let access = match rule.access {
        WrittenAccess::Direct => Some(Access::Direct),
        WrittenAccess::Mediated => Some(Access::Mediated),
        WrittenAccess::None => None,
    };
    Ok(Rule { ports, pipes: rule.pipes, users, groups, netns, access })
}

fn namespace(word: &Spanned<Word>) -> Result<Netns, Wrong> {
    let wrong = |why| wrong(&word.span(), why);
    match word.get_ref() {
        Word::Number(inode) => Ok(Netns::Inode(*inode)),
        Word::Name(name) if name == "host" => match fs::metadata(OWN_NETNS) {
            Ok(own) => Ok(Netns::Inode(own.ino())),
            Err(e) => wrong(format!("{OWN_NETNS} tells which namespace is \"host\", and it cannot be read: {e}")),
        },
        Word::Name(name) if name.starts_with('/') => Ok(Netns::Path(name.into())),
        Word::Name(name) => {
            wrong(format!("`{name}` is no network namespace; write a path such as \"/run/netns/blue\", or \"host\""))
        }
    }
}

/// The contents of the two files that tell the subordinate users, and what they say.
type KnownSubordinates = ([Option<Vec<u8>>; 2], Subordinates);

/// The subordinate users of this system. Without its file, or if another user could have written it, there are none.
/// Users are looked up, which may take long, only if the file or the system's users have changed.
fn subordinates(path: &Path) -> Subordinates {
    static KNOWN: Mutex<Option<KnownSubordinates>> = Mutex::new(None);
    let bytes = trusted_file::read(path, owner(), "list of subordinate users").unwrap_or_else(|why| {
        tracing::warn!("{}: {why}: each subordinate user has a budget of its own", path.display());
        None
    });
    let files = [bytes, fs::read(USERS).ok()];
    let mut known = lock(&KNOWN);
    if let Some((_, same)) = known.as_ref().filter(|(of, _)| *of == files) {
        return same.clone();
    }
    let number_of = |name: &str| system_account(Account::User, name).ok().flatten();
    let text = String::from_utf8_lossy(files[0].as_deref().unwrap_or_default());
    let all = Subordinates::parse(&text, number_of);
    *known = Some((files, all.clone()));
    all
}

/// The built-in rules.
fn defaults(accounts: Accounts) -> Vec<Rule> {
    let rule = |pipes, users, groups, access| {
        let (ports, users, access) = (vec![Pattern(vec![Symbol::Any])], Some(users), Some(access));
        Rule { ports, pipes, users, groups, netns: None, access }
    };
    let mut rules = vec![rule(true, vec![0], vec![], Access::Direct)];
    match accounts(Account::Group, GROUP) {
        Ok(Some(gid)) => rules.push(rule(false, vec![], vec![gid], Access::Mediated)),
        Ok(None) => {}
        Err(e) => tracing::warn!("the group {GROUP} cannot be looked up, and so nobody is in it: {e}"),
    }
    rules
}

#[cfg(test)]
mod tests;
