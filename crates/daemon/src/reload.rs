// SPDX-License-Identifier: BSD-2-Clause
//! Reading the configuration and the policy again: `unetmap reload`, and SIGHUP.

use serde::Serialize;
use unetmap_core::errno::EINVAL;

use crate::events::What;
use crate::knobs::KnobChange;
use crate::limits::Limits;
use crate::log;
use crate::owner::owner;
use crate::ports::Daemon;
use crate::refusal::{Refusal, refuse};
use crate::tuning::events::MAX_REASON;

/// The results of a reload, in JSON.
#[derive(Serialize)]
pub(crate) struct Reloaded {
    /// The configuration file, if there is one to read.
    config: Option<String>,
    /// Knobs that have other values now.
    knobs: Vec<KnobChange>,
    /// Threads of switches, if another number or other processors were configured.
    threads: Option<u16>,
    /// Rules of the policy; `None`: a user's own daemon has none.
    policy_rules: Option<usize>,
}

/// Reads both files again, and the limits of this process, and applies what has changed. Open ports stay as they are.
/// Counts it.
///
/// # Errors
/// `EINVAL`: a file is invalid; the reason begins with it and the line. The daemon goes on with the configuration that
/// it had; while the policy is invalid, it opens nothing more.
pub(crate) fn reload(daemon: &mut Daemon) -> Result<Reloaded, Refusal> {
    let result = read_again(daemon);
    match &result {
        Ok(_) => {
            daemon.history.reloaded();
            daemon.events.add(owner(), What::Reloaded);
        }
        Err(refusal) => {
            daemon.history.reload_failed();
            let reason = refusal.why.chars().take(MAX_REASON).collect();
            daemon.events.add(owner(), What::ReloadFailed { reason });
        }
    }
    result
}

fn read_again(daemon: &mut Daemon) -> Result<Reloaded, Refusal> {
    let fresh = daemon.knob_sources.load().or_else(|why| refuse(EINVAL, why))?;
    let policy = daemon.admission.policy.as_mut().map(|policy| policy.reload());
    let policy_rules = policy.transpose().or_else(|why| refuse(EINVAL, why))?;
    let plan = fresh.thread_plan().clone();
    let other_plan = plan != *daemon.knobs.thread_plan();
    if other_plan {
        daemon.vale.apply_configured_plan(plan.clone())?;
    }
    let knobs = daemon.knobs.reload(fresh)?;
    log::set_verbose(daemon.knobs.verbose());
    let limits = Limits::read(daemon.users.keeps_ports);
    if let Err(why) = limits.check() {
        tracing::warn!("there is less than a daemon needs to start, and users can have next to nothing: {why}");
    }
    daemon.set_bounds(limits.bounds(plan.threads));
    let threads = other_plan.then_some(plan.threads);
    tracing::info!(?knobs, ?threads, ?policy_rules, "configuration and policy read again");
    let config = daemon.knob_sources.file.as_ref().map(|file| file.display().to_string());
    Ok(Reloaded { config, knobs, threads, policy_rules })
}
