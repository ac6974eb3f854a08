// SPDX-License-Identifier: BSD-2-Clause
//! Records of the connections that NAT makes and ends: the session events of NAT44 (RFC 8158).

use unetmap_filter::NatEvent;

/// Number of the template.
pub(super) const TEMPLATE: u16 = 514;

/// The fields of a record, and their bytes, in the order of [`put`].
pub(super) const FIELDS: [(u16, u16); 12] = [
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

/// Bytes of a record.
pub(super) const BYTES: usize = 38;

/// Values of `natEvent`.
const CREATED: u8 = 4;
const DELETED: u8 = 5;

/// Appends a record. `time`: of the event, in milliseconds since 1970.
pub(super) fn put(event: &NatEvent, time: u64, to: &mut Vec<u8>) {
    let NatEvent { begins, number, proto, inside, alias, remote, .. } = *event;
    to.extend(time.to_be_bytes());
    to.push(if begins { CREATED } else { DELETED });
    to.extend(u32::from(number).to_be_bytes());
    to.push(proto);
    for (address, port) in [inside, alias, remote, remote] {
        to.extend(address.to_be_bytes());
        to.extend(port.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_bytes_of_its_template() {
        let end = (0, 0);
        let event = NatEvent { millis: 0, begins: true, number: 1, proto: 6, inside: end, alias: end, remote: end };
        let mut record = Vec::new();
        put(&event, 0, &mut record);
        assert_eq!((record.len(), FIELDS.iter().map(|field| usize::from(field.1)).sum()), (BYTES, BYTES));
    }
}
