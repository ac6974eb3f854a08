// SPDX-License-Identifier: BSD-2-Clause
//! Records of the connections that NAT makes and ends, and could not make: the events of NAT44 (RFC 8158).

use unetmap_filter::{NatChange, NatEvent};

/// The fields of a template, and their bytes, in the order of [`put`].
type Fields = &'static [(u16, u16)];

/// The templates, with their numbers.
pub(super) const TEMPLATES: [(u16, Fields); 3] = [(SESSION, &OF_SESSION), (PORTS, &OF_PORTS), (QUOTA, &OF_QUOTA)];
const SESSION: u16 = 514;
const PORTS: u16 = 515;
const QUOTA: u16 = 516;

const OF_SESSION: [(u16, u16); 12] = [
    // The time, the event, the instance, the protocol.
    (323, 8),
    (230, 1),
    (463, 4),
    (4, 1),
    // The source: address and port inside, and translated.
    (8, 4),
    (7, 2),
    (225, 4),
    (227, 2),
    // The destination, which stays what it is.
    (12, 4),
    (11, 2),
    (226, 4),
    (228, 2),
];
/// The time, the event, the instance, the protocol, and the address whose ports are in use.
const OF_PORTS: [(u16, u16); 5] = [(323, 8), (230, 1), (463, 4), (4, 1), (225, 4)];
/// The time, the event, the instance, the quota, and its connections.
const OF_QUOTA: [(u16, u16); 5] = [(323, 8), (230, 1), (463, 4), (466, 4), (471, 4)];

/// Bytes of the longest record.
pub(super) const BYTES: usize = 38;

/// Values of `natEvent`.
const CREATED: u8 = 4;
const DELETED: u8 = 5;
const PORTS_EXHAUSTED: u8 = 12;
const QUOTA_EXCEEDED: u8 = 13;
/// Value of `natQuotaExceededEvent`: of all sessions.
const MAX_SESSIONS: u32 = 1;

/// Returns the number of an event's template.
pub(super) fn template_of(event: &NatEvent) -> u16 {
    match event.change {
        NatChange::Begins | NatChange::Ends => SESSION,
        NatChange::NoPort => PORTS,
        NatChange::Full(_) => QUOTA,
    }
}

/// Appends a record. `time`: of the event, in milliseconds since 1970.
pub(super) fn put(event: &NatEvent, time: u64, to: &mut Vec<u8>) {
    let NatEvent { change, number, proto, inside, alias, remote, .. } = *event;
    let kind = match change {
        NatChange::Begins => CREATED,
        NatChange::Ends => DELETED,
        NatChange::NoPort => PORTS_EXHAUSTED,
        NatChange::Full(_) => QUOTA_EXCEEDED,
    };
    to.extend(time.to_be_bytes());
    to.push(kind);
    to.extend(u32::from(number).to_be_bytes());
    match change {
        NatChange::Full(most) => [MAX_SESSIONS, most].iter().for_each(|word| to.extend(word.to_be_bytes())),
        NatChange::NoPort => {
            to.push(proto);
            to.extend(alias.0.to_be_bytes());
        }
        NatChange::Begins | NatChange::Ends => {
            to.push(proto);
            for (address, port) in [inside, alias, remote, remote] {
                to.extend(address.to_be_bytes());
                to.extend(port.to_be_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_bytes_of_its_template() {
        let end = (0, 0);
        for change in [NatChange::Begins, NatChange::Ends, NatChange::NoPort, NatChange::Full(1)] {
            let event = NatEvent { millis: 0, change, number: 1, proto: 6, inside: end, alias: end, remote: end };
            let mut record = Vec::new();
            put(&event, 0, &mut record);
            let (_, fields) = TEMPLATES.iter().find(|(id, _)| *id == template_of(&event)).expect("its template");
            let bytes: usize = fields.iter().map(|field| usize::from(field.1)).sum();
            assert_eq!(record.len(), bytes, "{change:?}");
            assert!(bytes <= BYTES);
        }
    }
}
