// SPDX-License-Identifier: BSD-2-Clause
//! Bounds of what others can have logged: messages of a kind (a place in the source) and a user, for whom its
//! subordinate users count, in a period. The rest is counted, and its number logged when the period is over. What root
//! does is always logged.

use std::cell::Cell;
use std::fmt::{Debug, Write as _};
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use unetmap_sys::log::Bounds;

use crate::subordinates::Subordinates;
use crate::threads::lock;
use crate::tuning::log::{TIMES_OF_DETAILS, TIMES_OF_NOBODY};

/// The target of the messages that tell how many were not logged.
const COUNTS: &str = "unetmapd::log";

static BOUNDS: LazyLock<Mutex<Bounds<Identifier>>> = LazyLock::new(Mutex::default);

thread_local! {
    /// The user whose request this thread does.
    static USER: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Until it is dropped, what this thread logs is caused by a user.
pub(crate) struct Acting(Option<u32>);

impl Acting {
    pub(crate) fn of(uid: u32) -> Acting {
        Acting(USER.replace(Some(uid)))
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        USER.set(self.0);
    }
}

/// Says what was not logged, if it is time to; returns the time until it is.
pub(crate) fn summarize() -> Option<Duration> {
    // Not in the loop: logging takes the lock.
    let unlogged = lock(&BOUNDS).end();
    for unlogged in unlogged {
        tracing::warn!(target: COUNTS, "{unlogged}");
    }
    lock(&BOUNDS).ends_in()
}

/// Says what was not logged, as the process ends.
pub(crate) fn finish() {
    let unlogged = lock(&BOUNDS).take();
    unlogged.iter().for_each(|unlogged| tracing::warn!(target: COUNTS, "{unlogged}"));
}

/// The layer that drops the events that are too many.
pub(super) struct Bounded;

impl<S: Subscriber> Layer<S> for Bounded {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if metadata.target() == COUNTS {
            return true;
        }
        // In processes without a timer for it.
        summarize();
        let mut found = User(USER.get());
        event.record(&mut found);
        let user = found.0.map(|uid| Subordinates::of_system().owner(uid));
        let times = match (*metadata.level(), user) {
            (_, Some(0)) => return true,
            (Level::DEBUG | Level::TRACE, _) => TIMES_OF_DETAILS,
            (_, None) => TIMES_OF_NOBODY,
            _ => 1,
        };
        lock(&BOUNDS).admit(metadata.callsite(), user, times, || {
            let mut text = Text::default();
            event.record(&mut text);
            text.0 + &text.1
        })
    }
}

/// The user whom an event names.
struct User(Option<u32>);

impl Visit for User {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "uid" {
            self.0 = u32::try_from(value).ok();
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

/// An event's message, and its fields.
#[derive(Default)]
struct Text(String, String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.1, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use tracing_subscriber::prelude::*;
    use unetmap_sys::tuning::log::{LINES_OF_KIND, LINES_OF_USER};

    use super::*;

    /// Counts events.
    struct Counter(Arc<AtomicU32>);

    impl<S: Subscriber> Layer<S> for Counter {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn a_flood_of_one_user_is_bounded_and_takes_no_messages_of_root_and_of_others() {
        let count = Arc::new(AtomicU32::new(0));
        let subscriber = tracing_subscriber::registry().with(Bounded).with(Counter(count.clone()));
        let logged = |uid: u32, times: u32| {
            let before = count.load(Relaxed);
            let _acting = Acting::of(uid);
            (0..times).for_each(|seconds| tracing::info!(seconds, "ageing set"));
            count.load(Relaxed) - before
        };
        tracing::subscriber::with_default(subscriber, || {
            assert_eq!(logged(65534, 100_000), LINES_OF_USER);
            assert_eq!(logged(0, 1000), 1000);
            assert_eq!(logged(1000, 3), 3);
            assert!((1..500).map(|uid| logged(uid, 100)).sum::<u32>() < LINES_OF_KIND);
            assert_eq!(logged(0, 10), 10);
            // A field of the event names another user than the one whose request is done.
            let _acting = Acting::of(65534);
            let before = count.load(Relaxed);
            (0..10).for_each(|_| tracing::info!(uid = 0u32, "knob set"));
            assert_eq!(count.load(Relaxed) - before, 10);
        });
        assert!(USER.get().is_none());
    }
}
