//! Ports as they are given on a command line, and as a program that moves packets between several waits for them.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use unetmap::{Interest, Port};
use unetmap_abi::{NmreqRegister, PortSpec};

use crate::{Failure, note};

/// How long a sleep lasts at most; programs look at their signal flags in between.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Slots and rings that a port is to have, if the command line opens it first; 0 is the port's own default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Slots of each transmit ring.
    pub tx_slots: u32,
    /// Slots of each receive ring.
    pub rx_slots: u32,
    /// Transmit rings.
    pub tx_rings: u16,
    /// Receive rings.
    pub rx_rings: u16,
}

/// The port's name as the library wants it: a bare `NAME` means `netmap:NAME`.
pub fn full_name(name: &str) -> String {
    // A bare name may have options, and colons in them.
    let prefixed = name.find(':').is_some_and(|colon| !name[..colon].contains(['@', '{', '}', '/', '^', '*']));
    if prefixed { name.into() } else { format!("netmap:{name}") }
}

/// Opens a port, and says on standard error which of the wishes, its name's own (`@conf:`) among them, did not come true.
///
/// # Errors
/// [`Failure::Usage`] for a name that is none, else what the library says.
pub fn open(spec: &str, wishes: Wishes, flags: u64) -> Result<Port, Failure> {
    let options = Port::options().tx_slots(wishes.tx_slots).rx_slots(wishes.rx_slots);
    let options = options.tx_rings(wishes.tx_rings).rx_rings(wishes.rx_rings).flags(flags);
    let port = options.open(spec)?;
    if let Some(line) = disappointment(spec, wishes, port.register()) {
        note(&line);
    }
    Ok(port)
}

/// Sleeps until one of these has come true, or 100 ms. Less, if a signal comes.
///
/// # Errors
/// What the port says of itself if it has failed, and why there can be no sleep.
pub fn sleep(wants: &[(&Port, Interest)]) -> Result<(), String> {
    for (port, want) in wants {
        if !port.arm(*want).map_err(|e| e.to_string())?.is_none() {
            return Ok(());
        }
    }
    let fds: Vec<_> = wants.iter().flat_map(|(port, want)| port.wait_fds(*want)).collect();
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    match poll(&mut fds, Some(&NAP)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(format!("cannot wait for packets: {e}")),
    }
}

/// What was asked for and not given.
fn disappointment(spec: &str, wishes: Wishes, given: &NmreqRegister) -> Option<String> {
    // The name is good, as the port is open; whether its `-` begins a ring's number does not matter here.
    let parsed = PortSpec::parse(spec).or_else(|_| PortSpec::parse_with(spec, |_| true));
    let conf = parsed.map(|spec| spec.options.conf).unwrap_or_default();
    // As the library has it, the name beats the rest of the command line.
    let wish = |of_name: u32, of_line: u32| if of_name > 0 { of_name } else { of_line };
    let [tx_rings, rx_rings] = [wishes.tx_rings, wishes.rx_rings].map(u32::from);
    let list = [
        ("tx slots", wish(conf.tx_slots, wishes.tx_slots), given.nr_tx_slots),
        ("rx slots", wish(conf.rx_slots, wishes.rx_slots), given.nr_rx_slots),
        ("tx rings", wish(conf.tx_rings.into(), tx_rings), given.nr_tx_rings.into()),
        ("rx rings", wish(conf.rx_rings.into(), rx_rings), given.nr_rx_rings.into()),
        ("host tx rings", conf.host_tx_rings.into(), given.nr_host_tx_rings.into()),
        ("host rx rings", conf.host_rx_rings.into(), given.nr_host_rx_rings.into()),
    ];
    let parts: Vec<String> = list
        .iter()
        .filter(|(_, asked, got)| *asked > 0 && asked != got)
        .map(|(what, asked, got)| format!("{got} {what} in place of {asked}"))
        .collect();
    let line = || format!("{spec}: got {} (the port has limits, and who opens it first decides)", parts.join(", "));
    (!parts.is_empty()).then(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_name_is_netmaps() {
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
    fn wishes_that_did_not_come_true_are_named() {
        let given =
            NmreqRegister { nr_tx_slots: 1024, nr_rx_slots: 512, nr_tx_rings: 2, nr_rx_rings: 1, ..Default::default() };
        let told = |spec: &str, wishes: Wishes| disappointment(spec, wishes, &given);
        let none = Wishes::default();
        assert_eq!(told("netmap:p{1", none), None);
        assert_eq!(told("netmap:p{1", Wishes { tx_slots: 1024, rx_slots: 512, tx_rings: 2, rx_rings: 1 }), None);
        assert_eq!(told("netmap:p{1@conf:tx-slots=1024", none), None);
        assert_eq!(
            told("netmap:p{1@conf:slots=4097", none).unwrap(),
            "netmap:p{1@conf:slots=4097: got 1024 tx slots in place of 4097, 512 rx slots in place of 4097 \
             (the port has limits, and who opens it first decides)"
        );
        let line = told("netmap:p{1", Wishes { tx_rings: 3, ..none }).unwrap();
        assert!(line.contains("got 2 tx rings in place of 3 ("), "{line}");
        let line = told("netmap:p{1@conf:rx-rings=4", Wishes { rx_rings: 1, ..none }).unwrap();
        assert!(line.contains("1 rx rings in place of 4"), "the name counts: {line}");
        // Grammar that only an interface of that name makes right.
        assert!(told("netmap:lan-4095@conf:slots=1024", none).unwrap().contains("512 rx slots in place of 1024"));
    }
}
