// SPDX-License-Identifier: BSD-2-Clause
//! Whether a crash would end ports: what `unetmap ls` and events say.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::tuning::store::LOG_PAUSE;

/// Crash protection (`--keep-ports`).
#[derive(Default)]
pub(crate) struct Protection {
    is_asked_for: bool,
    off: Option<Off>,
    /// How long it was off before.
    was_off: Duration,
    /// When the log last said that it is off: programs may cause it often.
    logged: Option<Instant>,
}

/// It is off.
struct Off {
    since: Instant,
    since_ms: u64,
    /// A sentence.
    why: String,
    is_logged: bool,
}

/// As a snapshot shows it.
#[derive(Serialize)]
pub(crate) struct ProtectionSnapshot {
    /// Whether the daemon was started with `--keep-ports`.
    asked: bool,
    on: bool,
    /// Milliseconds since 1970.
    since_ms: Option<u64>,
    why: Option<String>,
    /// The process that keeps the ports.
    pid: Option<u32>,
    /// How long it was off since the daemon was started; 0 if it was not asked for.
    off_seconds: f64,
}

impl Protection {
    /// The daemon is to keep its ports.
    pub(crate) fn ask_for(&mut self) {
        self.is_asked_for = true;
    }

    /// Ports that are open now are not kept; returns whether all were before. The log says so once a minute at most.
    pub(crate) fn set_off(&mut self, why: &str) -> bool {
        if let Some(off) = &mut self.off {
            // The last reason is that which lasts.
            why.clone_into(&mut off.why);
            return false;
        }
        let (since, last) = (Instant::now(), self.logged);
        let is_logged = last.is_none_or(|last| since.duration_since(last) >= LOG_PAUSE);
        if is_logged {
            self.logged = Some(since);
            tracing::warn!("a crash will end ports: {why}");
        }
        let since_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        self.off = Some(Off { since, since_ms, why: why.into(), is_logged });
        true
    }

    /// All ports are kept; returns how long they were not.
    pub(crate) fn set_on(&mut self) -> Option<Duration> {
        let off = self.off.take()?;
        let was_off = off.since.elapsed();
        self.was_off += was_off;
        if off.is_logged {
            tracing::info!(?was_off, "a crash ends no port any more");
        }
        Some(was_off)
    }

    /// `pid`: the process that keeps the ports.
    pub(crate) fn snapshot(&self, pid: Option<u32>) -> ProtectionSnapshot {
        let off = self.off.as_ref();
        let off_for = self.was_off + off.map_or(Duration::ZERO, |off| off.since.elapsed());
        ProtectionSnapshot {
            asked: self.is_asked_for,
            on: self.is_asked_for && off.is_none(),
            since_ms: off.map(|off| off.since_ms),
            why: match self.is_asked_for {
                true => off.map(|off| off.why.clone()),
                false => Some("not asked for (unetmapd --keep-ports)".into()),
            },
            pid,
            off_seconds: off_for.as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_tells_since_when_and_the_last_one_why() {
        let mut protection = Protection::default();
        assert!(!protection.snapshot(None).on && protection.snapshot(None).since_ms.is_none());
        protection.ask_for();
        assert!(protection.snapshot(None).on && protection.set_on().is_none());
        assert!(protection.set_off("a"));
        let since = protection.snapshot(None).since_ms;
        assert!(!protection.set_off("b"));
        let off = protection.snapshot(None);
        assert_eq!((off.on, off.since_ms, off.why.as_deref()), (false, since, Some("b")));
        assert!(protection.set_on().is_some() && protection.set_on().is_none());
        let on = protection.snapshot(None);
        assert!(on.on && on.why.is_none() && on.off_seconds > 0.0);
    }
}
