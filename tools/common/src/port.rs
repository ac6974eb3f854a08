// SPDX-License-Identifier: BSD-2-Clause
//! Port names of a command line, and waiting for several ports at once.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use unetmap::abi::{NmreqRegister, PortSpec};
use unetmap::{Interest, Port, Ring};

use crate::{Failure, link, note};

/// Longest wait; programs check their stop flag in between.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// The number of slots and rings to request for a port. It takes effect only for the first open of the port. 0 requests
/// the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingConfig {
    /// Slots of each transmit ring.
    pub tx_slots: u32,
    /// Slots of each receive ring.
    pub rx_slots: u32,
    /// Transmit rings.
    pub tx_rings: u16,
    /// Receive rings.
    pub rx_rings: u16,
}

/// Returns the port name with its prefix: a bare `NAME` means `netmap:NAME`.
pub fn full_name(name: &str) -> String {
    // A bare name may have options, and colons in them.
    let prefixed = name.find(':').is_some_and(|colon| !name[..colon].contains(['@', '{', '}', '/', '^', '*']));
    if prefixed { name.into() } else { format!("netmap:{name}") }
}

/// Opens a port, by [`link::open`]. Prints a line to standard error if the port has other numbers of slots or rings
/// than `config` or the name (`@conf:`) requested.
///
/// # Errors
/// [`Failure::Usage`] for an invalid name, else the library's error.
pub fn open(spec: &str, config: RingConfig, flags: u64) -> Result<Port, Failure> {
    let options = Port::options().tx_slots(config.tx_slots).rx_slots(config.rx_slots);
    let options = options.tx_rings(config.tx_rings).rx_rings(config.rx_rings).flags(flags);
    let port = link::open(spec, &options)?;
    if let Some(line) = unmet_requests(spec, config, port.register()) {
        note(&line);
    }
    Ok(port)
}

/// Returns an error if the port sends no frames of `longest` bytes, without a virtio-net header.
///
/// # Errors
/// A sentence that says what to do.
pub fn check_longest(port: &Port, longest: usize) -> Result<(), String> {
    let Some(most) = longest_frame(port).filter(|most| longest > *most as usize) else { return Ok(()) };
    Err(format!(
        "{}: it sends frames of at most {most} bytes, as its MTU and its slots allow, and not of {longest}; {}",
        port.spec(),
        set_mtu(port, longest)
    ))
}

/// Returns the bytes of the longest frame that a port sends; `None`: as many as its slots have room for.
pub fn longest_frame(port: &Port) -> Option<u32> {
    port.tx_rings().iter().filter_map(Ring::longest_frame).min()
}

/// Returns how a port can send frames of `longest` bytes.
fn set_mtu(port: &Port, longest: usize) -> String {
    let name = PortSpec::parse(port.spec()).map_or_else(|_| "IF".into(), |spec| spec.name);
    // An Ethernet header, and a VLAN tag.
    format!("send shorter ones, or: ip link set dev {name} mtu {}", longest.saturating_sub(18).max(68))
}

/// Returns how many slots of a port's transmit rings were not sent ([`Ring::bad_slots`]).
pub fn bad_slots(port: &Port) -> u64 {
    port.tx_rings().iter().map(Ring::bad_slots).sum()
}

/// Says that slots were not sent.
pub fn not_sent(port: &str, slots: u64) -> String {
    format!("{port}: {slots} slots were not sent: they are too short or too long for it (unetmap ls: bad_slots)")
}

/// Returns the port's name with `-RING` inserted before its flags and options.
///
/// # Errors
/// [`Failure::Usage`] for a name of host rings.
pub fn ring_spec(spec: &str, ring: u16) -> Result<String, Failure> {
    let body = spec.find(':').map_or(0, |colon| colon + 1);
    let end = spec[body..].find(['/', '@']).map_or(spec.len(), |at| body + at);
    let (name, rest) = spec.split_at(end);
    if name.ends_with(['^', '*']) {
        let why = format!("{spec}: several threads (-p) can only use hardware rings; leave out the ^ or *");
        return Err(Failure::Usage(why));
    }
    Ok(format!("{name}-{ring}{rest}"))
}

/// Waits until one of the ports is ready, for at most 100 ms and at most `limit`. Returns early if a signal arrives.
///
/// # Errors
/// The error of a port that has failed, or of `poll`.
pub fn wait_any(ports: &[(&Port, Interest)], limit: Option<Duration>) -> Result<(), String> {
    for (port, interest) in ports {
        if !port.arm(*interest).map_err(|e| e.to_string())?.is_none() {
            return Ok(());
        }
    }
    let fds: Vec<_> = ports.iter().flat_map(|(port, interest)| port.wait_fds(*interest)).collect();
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let wait = limit.unwrap_or(MAX_WAIT).min(MAX_WAIT);
    let wait = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
    match poll(&mut fds, Some(&wait)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(format!("cannot wait for packets: {e}")),
    }
}

/// Returns a sentence about the numbers of slots and rings that were requested but not granted.
fn unmet_requests(spec: &str, config: RingConfig, granted: &NmreqRegister) -> Option<String> {
    // The name is valid, as the port is open; whether its `-` begins a ring number makes no difference here.
    let parsed = PortSpec::parse(spec).or_else(|_| PortSpec::parse_with(spec, |_| true));
    let conf = parsed.map(|spec| spec.options.conf).unwrap_or_default();
    // The name overrides the rest of the command line, as in the library.
    let requested = |in_name: u32, in_config: u32| if in_name > 0 { in_name } else { in_config };
    let [tx_rings, rx_rings] = [config.tx_rings, config.rx_rings].map(u32::from);
    let list = [
        ("tx slots", requested(conf.tx_slots, config.tx_slots), granted.nr_tx_slots),
        ("rx slots", requested(conf.rx_slots, config.rx_slots), granted.nr_rx_slots),
        ("tx rings", requested(conf.tx_rings.into(), tx_rings), granted.nr_tx_rings.into()),
        ("rx rings", requested(conf.rx_rings.into(), rx_rings), granted.nr_rx_rings.into()),
        ("host tx rings", conf.host_tx_rings.into(), granted.nr_host_tx_rings.into()),
        ("host rx rings", conf.host_rx_rings.into(), granted.nr_host_rx_rings.into()),
    ];
    let parts: Vec<String> = list
        .iter()
        .filter(|(_, requested, got)| *requested > 0 && requested != got)
        .map(|(what, requested, got)| format!("{got} {what} in place of {requested}"))
        .collect();
    let line = || {
        let parts = parts.join(", ");
        format!("{spec}: got {parts} (the port has limits, and the first program to open it sets the numbers)")
    };
    (!parts.is_empty()).then(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_number_is_inserted_into_port_name() {
        assert_eq!(ring_spec("netmap:p{1", 2).unwrap(), "netmap:p{1-2");
        assert_eq!(ring_spec("netmap:eth0/x@3", 0).unwrap(), "netmap:eth0-0/x@3");
        assert_eq!(ring_spec("vale0:a@conf:tx-rings=2", 1).unwrap(), "vale0:a-1@conf:tx-rings=2");
        assert!(matches!(ring_spec("netmap:eth0^", 1), Err(Failure::Usage(why)) if why.contains("leave out the ^")));
    }

    #[test]
    fn a_name_without_prefix_gets_netmap() {
        for (name, spec) in [
            ("eth0", "netmap:eth0"),
            ("p{1", "netmap:p{1"),
            ("p{1@conf:slots=64", "netmap:p{1@conf:slots=64"),
            ("netmap:p{1", "netmap:p{1"),
            ("vale0:a", "vale0:a"),
            ("vale0:a{1", "vale0:a{1"),
        ] {
            assert_eq!(full_name(name), spec);
        }
    }

    #[test]
    fn unmet_requests_are_named() {
        let granted =
            NmreqRegister { nr_tx_slots: 1024, nr_rx_slots: 512, nr_tx_rings: 2, nr_rx_rings: 1, ..Default::default() };
        let unmet = |spec: &str, config: RingConfig| unmet_requests(spec, config, &granted);
        let none = RingConfig::default();
        assert_eq!(unmet("netmap:p{1", none), None);
        assert_eq!(unmet("netmap:p{1", RingConfig { tx_slots: 1024, rx_slots: 512, tx_rings: 2, rx_rings: 1 }), None);
        assert_eq!(unmet("netmap:p{1@conf:tx-slots=1024", none), None);
        assert_eq!(
            unmet("netmap:p{1@conf:slots=4097", none).unwrap(),
            "netmap:p{1@conf:slots=4097: got 1024 tx slots in place of 4097, 512 rx slots in place of 4097 \
             (the port has limits, and the first program to open it sets the numbers)"
        );
        let line = unmet("netmap:p{1", RingConfig { tx_rings: 3, ..none }).unwrap();
        assert!(line.contains("got 2 tx rings in place of 3 ("), "{line}");
        let line = unmet("netmap:p{1@conf:rx-rings=4", RingConfig { rx_rings: 1, ..none }).unwrap();
        assert!(line.contains("1 rx rings in place of 4"), "the name overrides the option: {line}");
        // This name is valid only if an interface lan-4095 exists.
        assert!(unmet("netmap:lan-4095@conf:slots=1024", none).unwrap().contains("512 rx slots in place of 1024"));
    }
}
