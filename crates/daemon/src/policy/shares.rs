// SPDX-License-Identifier: BSD-2-Clause
//! Pipes that users share: tables `[[share]]` of the policy's file.
//!
//! Each user has pipes of its own: the same name of another user is another pipe. A share gives names to one user, so
//! that the others of its lists open that user's pipes, also if one of these comes first.

use serde::{Deserialize, Serialize};
use toml::Spanned;
use unetmap_abi::NETMAP_REQ_IFNAMSIZ;

use super::words::{Account, Accounts, Identity, Pattern, Users, Word, accounts_of, id, patterns, users};
use crate::written::{Wrong, wrong};

/// Bytes of the longest name of a pipe's parent.
const MAX_PARENT: usize = NETMAP_REQ_IFNAMSIZ - 1;

/// Pipes of one user that others may open.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Share {
    /// Of the names of the pipes' parents.
    pub(super) pipes: Vec<Pattern>,
    pub(super) owner: u32,
    users: Users,
    groups: Vec<u32>,
}

/// Whose a pipe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PipeOwner {
    /// No share has its name: each user has one of its own.
    Each,
    /// It is this user's, and the client may open it.
    Shared(u32),
    /// It is this user's, and the client may not.
    Denied(u32),
}

impl Share {
    /// Whether the share is for this client.
    pub(super) fn is_for(&self, who: &Identity<'_>) -> bool {
        who.uid == self.owner || who.is_one_of(&self.users, &self.groups)
    }
}

/// A table `[[share]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenShare {
    #[serde(default)]
    pipes: Vec<Spanned<String>>,
    owner: Spanned<Word>,
    #[serde(default)]
    users: Vec<Spanned<Word>>,
    #[serde(default)]
    groups: Vec<Spanned<Word>>,
}

pub(super) fn understand(share: &Spanned<WrittenShare>, accounts: Accounts) -> Result<Share, Wrong> {
    let WrittenShare { pipes, owner, users: of_users, groups: of_groups } = share.get_ref();
    if pipes.is_empty() {
        return wrong(&share.span(), "the share has no pipes; give it pipes = [\"bus*\"]");
    }
    let (pipes, owner) = (patterns(pipes, MAX_PARENT)?, id(owner, Account::User, accounts)?);
    let groups = accounts_of(of_groups, Account::Group, accounts)?;
    Ok(Share { pipes, owner, users: users(of_users, accounts)?, groups })
}
