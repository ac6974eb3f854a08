// SPDX-License-Identifier: BSD-2-Clause
//! The counters of `unetmap flows` for `unetmap metrics`.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tool_common::metrics::Metric;

/// A summary that another thread reads, a tenth of a second old while packets come.
#[derive(Clone, Default)]
pub(crate) struct Published(Arc<Mutex<Value>>);

impl Published {
    pub(crate) fn set(&self, summary: Value) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = summary;
    }

    /// The metrics of the summary.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let summary = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let counter = |name: &str, help: &str, key: &str| Metric::counter(name, help).with(&[], number(&summary[key]));
        let mut records = Metric::counter("flows_records", "Records of flows that ended, by reason");
        for (end, count) in summary["records"].as_object().into_iter().flatten() {
            records.add(&[("reason", end)], number(count));
        }
        let collector = &summary["collector"];
        let mut all = vec![
            counter("flows_packets", "Packets that came", "packets"),
            counter("flows_bytes", "Bytes of these packets", "bytes"),
            counter("flows_sampled_packets", "Of these packets, those that were chosen", "sampled_packets"),
            counter("flows_malformed_packets", "Chosen packets with headers that are cut or wrong", "malformed"),
            Metric::gauge("flows_now", "Flows that have a record now").with(&[], number(&summary["flows"])),
            records,
        ];
        if collector.is_object() {
            let of = |name: &str, help: &str, key: &str| Metric::counter(name, help).with(&[], number(&collector[key]));
            all.extend([
                of("flows_sent_records", "Records that were sent to the collector", "records"),
                of("flows_unsent_records", "Records that could not be sent", "unsent_records"),
                of("flows_refused", "How often the collector was not there", "refused"),
                of("flows_connections", "Connections to the collector that were made", "connections"),
            ]);
        }
        all
    }
}
