// SPDX-License-Identifier: BSD-2-Clause
//! Which users the daemon serves.

use std::os::fd::AsFd;

use unetmap_core::errno::EACCES;
use unetmap_sys::socket;

use crate::caller::Caller;
use crate::policy::{Policy, PolicyFile};
use crate::refusal::{Refusal, refuse};
use crate::region::Scope;

/// Which users the daemon serves.
pub(crate) struct Admission {
    /// The only user that is served; `None`: all users, each with names and regions of his own.
    pub(crate) only_user: Option<u32>,
    /// Which users may open which interfaces; `None`: the daemon itself may open none.
    pub(crate) policy: Option<PolicyFile>,
}

impl Admission {
    /// Until [`Admission::end_work`], the policy's files are looked at once.
    pub(crate) fn begin_work(&mut self) {
        self.policy.iter_mut().for_each(PolicyFile::begin_work);
    }

    pub(crate) fn end_work(&mut self) {
        self.policy.iter_mut().for_each(PolicyFile::end_work);
    }
}

impl Admission {
    /// The owner of the names and regions that `caller` refers to, where no interface is involved.
    pub(crate) fn scope(&self, caller: &Caller) -> Scope {
        Scope { uid: self.only_user.unwrap_or(caller.peer.uid), netns: 0 }
    }

    /// The same, where an interface of the caller's network namespace is involved.
    pub(crate) fn interface_scope(&self, caller: &Caller) -> Scope {
        Scope { netns: caller.netns_id(), ..self.scope(caller) }
    }

    /// Whether a user has no budget: root, and each user of a daemon that serves only one.
    pub(crate) fn has_no_budget(&self, uid: u32) -> bool {
        uid == 0 || self.policy.is_none()
    }

    /// The policy; `None` in a user's own daemon, which opens no interface.
    pub(crate) fn policy(&mut self) -> Result<Option<&Policy>, Refusal> {
        match &mut self.policy {
            None => Ok(None),
            Some(file) => file.current().map(Some).or_else(|why| refuse(EACCES, why)),
        }
    }

    /// Whether the caller may use this daemon for pipes and switches that involve no interface.
    pub(crate) fn may_use_pipes(&mut self, caller: &Caller) -> Result<bool, Refusal> {
        if self.only_user.is_some() || caller.peer.uid == 0 {
            return Ok(true);
        }
        Ok(self.policy()?.is_some_and(|policy| policy.pipes(&caller.identity(policy))))
    }

    /// Refuses root of a container, if the policy says so or cannot be read.
    pub(crate) fn check_root(&mut self, connection: impl AsFd) -> Result<(), Refusal> {
        let refuses = |policy: &Policy| policy.refuses_contained_root;
        let asks = self.only_user.is_none() && self.policy().map_or(true, |policy| policy.is_some_and(refuses));
        if !asks || socket::peer_is_contained(connection).is_ok_and(|contained| !contained) {
            return Ok(());
        }
        let why = "root of a container is not admitted (`refuse_contained_root`, unetmap-policy(5)): have it run as \
                   another user, or in a user namespace";
        refuse(EACCES, why)
    }

    /// Refuses a caller that may not use this daemon for anything.
    pub(crate) fn check_admission(&mut self, caller: &Caller) -> Result<(), Refusal> {
        let uid = caller.peer.uid;
        if self.only_user.is_some() || uid == 0 {
            return Ok(());
        }
        if self.policy()?.is_some_and(|policy| policy.admits_anything(&caller.identity(policy))) {
            return Ok(());
        }
        let place = self.policy.as_ref().map(|file| format!("root adds one to {}: ", file.path().display()));
        let place = place.unwrap_or_default();
        let why = format!("no rule of this daemon's policy lets user {uid} open anything ({place}unetmap-policy(5))");
        refuse(EACCES, why)
    }
}
