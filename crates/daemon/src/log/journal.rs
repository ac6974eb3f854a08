// SPDX-License-Identifier: BSD-2-Clause
//! Messages to systemd's journal, with their fields: its native protocol (systemd's JOURNAL_NATIVE_PROTOCOL.md).
//!
//! The crate `tracing-journald` sends a message without its fields, so that `journalctl` would show "attached" and not
//! of what: here the line is complete, and the fields can be searched as well.

use std::fmt::{Debug, Write as _};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use unetmap_abi::printable;
use unetmap_core::without_codes;

use crate::tuning::log::MAX_JOURNAL_BYTES;

const SOCKET: &str = "/run/systemd/journal/socket";

/// Sends events to the journal.
pub(super) struct Journal(UnixDatagram);

impl Journal {
    /// Connects to the journal, if standard error is a stream of it: systemd.exec(5), `JOURNAL_STREAM`.
    pub(super) fn of_stderr() -> Option<Journal> {
        let named = std::env::var("JOURNAL_STREAM").ok()?;
        let file = File::from(io::stderr().as_fd().try_clone_to_owned().ok()?).metadata().ok()?;
        if named != format!("{}:{}", file.dev(), file.ino()) {
            return None;
        }
        let socket = UnixDatagram::unbound().ok()?;
        // Now, as the daemon may not open files later.
        socket.connect(SOCKET).ok()?;
        // A journal that is not read must not stop the daemon.
        socket.set_nonblocking(true).ok()?;
        Some(Journal(socket))
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let line = format!("{}{}", fields.message, fields.shown);
        let line = without_codes(&line);
        let priority = match *event.metadata().level() {
            Level::ERROR => "3",
            Level::WARN => "4",
            Level::INFO => "6",
            _ => "7",
        };
        let mut bytes = Vec::new();
        let of_event = [("MESSAGE", &*line), ("PRIORITY", priority), ("SYSLOG_IDENTIFIER", "unetmapd")];
        let of_fields = fields.named.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        of_event.into_iter().chain(of_fields).for_each(|(name, value)| add(&mut bytes, name, value));
        // A message that cannot be sent is lost, as one that standard error does not take.
        let _ = self.0.send(&bytes);
    }
}

/// Adds a field as its name, its length and its bytes, which may contain any character.
fn add(bytes: &mut Vec<u8>, name: &str, value: &str) {
    let value = &value.as_bytes()[..value.len().min(MAX_JOURNAL_BYTES)];
    bytes.extend(name.as_bytes());
    bytes.push(b'\n');
    bytes.extend((value.len() as u64).to_le_bytes());
    bytes.extend(value);
    bytes.push(b'\n');
}

/// The fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    /// The others as they follow the message in a line.
    shown: String,
    named: Vec<(String, String)>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: &str) {
        let value = printable::word(value).into_owned();
        if field.name() == "message" {
            self.message = value;
            return;
        }
        // Writing to a string does not fail.
        let _ = write!(self.shown, " {}={value}", field.name());
        let name = match field.name() {
            "uid" => "USER".into(),
            "name" | "port" => "PORT".into(),
            other => other.to_uppercase().replace('.', "_"),
        };
        self.named.push((format!("UNETMAP_{name}"), value));
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, &format!("{value:?}"));
    }
}
