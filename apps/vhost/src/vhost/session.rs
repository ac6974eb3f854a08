// SPDX-License-Identifier: BSD-2-Clause
//! One connection of a hypervisor: what it has negotiated, its guest's memory, and its queues.
//!
//! | a queue is | after | then packets |
//! |---|---|---|
//! | stopped | the connection, `GET_VRING_BASE`, a fault | stay with the guest |
//! | running, not enabled | its kick | that the guest sends are dropped |
//! | running, enabled | its kick, and `SET_VRING_ENABLE` or features without `PROTOCOL_FEATURES` | are moved |
//!
//! Messages come in any order, and again while queues run. They are carried out between two rounds of the loop, when
//! nothing else uses the queues. After one whose answer carries a descriptor, the next is received when that answer was
//! sent, which needs that the last such answer was received ([`FdSender`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use tool_common::host::eventfd::is_eventfd;
use tool_common::host::memory;
use tool_common::host::socket::FdSender;
use unetmap::guest::{self, GuestMemory, GuestWords, MappedRange};

use crate::descriptors::{is_passing, why_unsent};
use crate::device::{Connection, Queues};
use crate::features::{self, EVENT_IDX, MRG_RXBUF, PROTOCOL_FEATURES, RING_PACKED, VERSION_1};
use crate::queue::{NotStarted, Queue, Shape, part_bytes};
use crate::tuning::{ANSWER_LIMIT, MAX_QUEUE_PAIRS, MAX_QUEUE_SIZE, MAX_REGIONS, MESSAGES_AT_ONCE};
use crate::vhost::message::{Incoming, InflightShape, Malformed, Message, Region, Request, Stream};
use crate::vring::Vring;

/// Bytes that an MTU can have: IPv4's least, and the most of its length field.
const MTUS: std::ops::RangeInclusive<u64> = 68..=65535;

/// The reply to a request: a payload of its own and a descriptor beside it, or none.
type Reply = Option<(Vec<u8>, Option<OwnedFd>)>;

/// A reply with a descriptor that is to be sent.
struct Unsent {
    number: u32,
    payload: Vec<u8>,
    fd: OwnedFd,
    since: Instant,
}

/// The region of in-flight descriptors that the hypervisor keeps.
struct Inflight {
    range: MappedRange,
    shape: InflightShape,
}

pub(crate) struct Session {
    stream: Stream,
    memory: GuestMemory,
    features: u64,
    protocol: u64,
    /// Queue `2 n` is received by the guest, `2 n + 1` sent.
    vrings: Vec<Vring>,
    inflight: Option<Inflight>,
    unsent: Option<Unsent>,
}

impl Connection for Session {
    fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn process_messages(&mut self, sender: &mut FdSender) -> Result<bool, String> {
        // A hypervisor that sends without a pause must not keep the process from everything else.
        for _ in 0..MESSAGES_AT_ONCE {
            self.send_unsent(sender)?;
            if self.unsent.is_some() {
                break;
            }
            match self.stream.receive() {
                Ok(Incoming::Message(message)) => self.answer(message)?,
                Ok(Incoming::Nothing) => return Ok(true),
                Ok(Incoming::Closed) => return Ok(false),
                Err(Malformed(why)) => return Err(why),
            }
        }
        Ok(true)
    }

    fn waits_to_send(&self) -> bool {
        self.unsent.is_some()
    }

    fn vrings(&self) -> &[Vring] {
        &self.vrings
    }

    fn queues(&mut self) -> Queues<'_> {
        let header = if self.features & (VERSION_1 | MRG_RXBUF) != 0 { 12 } else { 10 };
        // The guest receives and sends with them.
        let receivers = self.vrings.chunks(2).take_while(|pair| pair.iter().all(Vring::is_active)).count();
        Queues { memory: &self.memory, vrings: &mut self.vrings, features: self.features, header, receivers }
    }
}

impl Session {
    pub(crate) fn new(socket: UnixStream, pairs: u16) -> std::io::Result<Session> {
        let vrings = (0..2 * pairs.min(MAX_QUEUE_PAIRS)).map(|_| Vring::default()).collect();
        let stream = Stream::new(socket)?;
        let memory = GuestMemory::default();
        Ok(Session { stream, memory, features: 0, protocol: 0, vrings, inflight: None, unsent: None })
    }

    fn answer(&mut self, message: Message) -> Result<(), String> {
        let Message { number, need_reply, request } = message;
        let wants_status = need_reply && self.protocol & features::PROTOCOL_REPLY_ACK != 0;
        let status = |failed: bool| u64::from(failed).to_ne_bytes().to_vec();
        let reply = match self.carry_out(request) {
            Ok(Some((payload, Some(fd)))) => {
                self.unsent = Some(Unsent { number, payload, fd, since: Instant::now() });
                return Ok(());
            }
            Ok(Some((payload, None))) => payload,
            Ok(None) if wants_status => status(false),
            Ok(None) => return Ok(()),
            Err(_) if wants_status => status(true),
            Err(why) => return Err(format!("request {number}: {why}")),
        };
        self.stream.reply(number, &reply).map_err(|e| format!("the reply to request {number} cannot be sent: {e}"))
    }

    /// Sends the reply with a descriptor, if there is one and it can be sent now.
    fn send_unsent(&mut self, sender: &mut FdSender) -> Result<(), String> {
        let Some(Unsent { number, payload, fd, since }) = &self.unsent else { return Ok(()) };
        match self.stream.reply_fd(sender, (*number, payload), fd.as_fd()) {
            Ok(()) => self.unsent = None,
            Err(e) if is_passing(&e) && since.elapsed() < ANSWER_LIMIT => {}
            Err(e) => return Err(format!("the reply to request {number} cannot be sent: {}", why_unsent(&e))),
        }
        Ok(())
    }

    fn carry_out(&mut self, request: Request) -> Result<Reply, String> {
        let number = |n: u64| Ok(Some((n.to_ne_bytes().to_vec(), None)));
        match request {
            Request::GetFeatures => return number(features::OFFERED),
            Request::SetFeatures(bits) => self.set_features(bits)?,
            Request::SetOwner | Request::SetVringErr => {}
            Request::Reset => self.reset(),
            Request::GetProtocolFeatures => return number(features::PROTOCOL_OFFERED),
            Request::SetProtocolFeatures(bits) => {
                if bits & !features::PROTOCOL_OFFERED != 0 {
                    return Err(format!("features {bits:#x} of the protocol are not offered"));
                }
                self.protocol = bits;
            }
            Request::GetQueueNum => return number(self.vrings.len() as u64 / 2),
            Request::GetMaxMemSlots => return number(MAX_REGIONS as u64),
            Request::SetMemTable(regions) => {
                self.memory = GuestMemory::default();
                let added = regions.into_iter().try_for_each(|(region, fd)| self.add_region(region, &fd));
                self.reopen_queues().and(added)?;
            }
            Request::AddMemReg(region, fd) => self.add_region(region, &fd)?,
            Request::RemMemReg(region) => {
                if !self.memory.remove(region.place) {
                    return Err("there is no such region of memory".into());
                }
                self.reopen_queues()?;
            }
            Request::SetVringNum(index, size) => {
                let valid = (1..=u32::from(MAX_QUEUE_SIZE)).contains(&size);
                self.vring(index)?.size = if valid { size } else { return Err(format!("a queue of {size}")) };
            }
            Request::SetVringAddr(index, addresses) => {
                self.vring(index)?.addresses = addresses;
                self.reopen(index as usize)?;
            }
            Request::SetVringBase(index, base) => self.vring(index)?.base = base,
            Request::GetVringBase(index) => {
                let vring = self.vring(index)?;
                vring.stop();
                return Ok(Some(([index, vring.base].map(u32::to_ne_bytes).concat(), None)));
            }
            Request::SetVringKick(index, fd) => {
                check_event("kick", index, fd.as_ref())?;
                self.vring(index)?.kick = fd;
                self.start(index as usize)?;
            }
            Request::SetVringCall(index, fd) => {
                check_event("call", index, fd.as_ref())?;
                self.vring(index)?.call = fd;
            }
            Request::SetVringEnable(index, on) => self.vring(index)?.is_enabled = on,
            Request::SetMtu(mtu) if MTUS.contains(&mtu) => {}
            Request::SetMtu(mtu) => return Err(format!("an MTU of {mtu}")),
            Request::GetInflight(wanted) => return self.create_inflight(wanted).map(Some),
            Request::SetInflight(shape, fd) => self.inflight = Some(self.map_inflight(shape, &fd)?),
            // Without a request for a reply there is nobody to tell.
            Request::Unknown(number) if self.protocol & features::PROTOCOL_REPLY_ACK != 0 => {
                return Err(format!("request {number} is not supported"));
            }
            Request::Unknown(_) => {}
        }
        Ok(None)
    }

    fn set_features(&mut self, bits: u64) -> Result<(), String> {
        if bits & !features::OFFERED != 0 {
            return Err(format!("features {bits:#x} are not offered"));
        }
        self.features = bits;
        if bits & PROTOCOL_FEATURES == 0 {
            self.vrings.iter_mut().for_each(|vring| vring.is_enabled = true);
        }
        Ok(())
    }

    fn reset(&mut self) {
        for vring in &mut self.vrings {
            vring.stop();
            vring.is_enabled = false;
        }
    }

    fn vring(&mut self, index: u32) -> Result<&mut Vring, String> {
        let count = self.vrings.len();
        self.vrings.get_mut(index as usize).ok_or_else(|| format!("queue {index} of {count}"))
    }

    fn add_region(&mut self, Region { place, offset }: Region, fd: &OwnedFd) -> Result<(), String> {
        if self.memory.regions() >= MAX_REGIONS {
            return Err(format!("more than {MAX_REGIONS} regions of memory"));
        }
        let bytes = usize::try_from(place.bytes).map_err(|_| "a region of memory is too large")?;
        let map = guest::map(fd.as_fd(), offset, bytes)
            .map_err(|e| format!("{bytes} bytes of guest memory cannot be mapped: {e}"))?;
        match self.memory.add(place, map) {
            true => Ok(()),
            false => Err(format!("the region of memory {place:x?} is invalid, or overlaps another")),
        }
    }

    /// The bytes that a region for these queues needs, with the rings that are negotiated now.
    fn inflight_bytes(&self, shape: InflightShape) -> Result<usize, String> {
        let InflightShape { queues, size, .. } = shape;
        if queues == 0 || usize::from(queues) > self.vrings.len() || size == 0 || size > MAX_QUEUE_SIZE {
            return Err(format!("in-flight descriptors of {queues} queues of {size}"));
        }
        Ok(usize::from(queues) * part_bytes(self.features & RING_PACKED != 0, size))
    }

    /// Creates a region of in-flight descriptors, which the hypervisor keeps, and gives back.
    fn create_inflight(&self, wanted: InflightShape) -> Result<(Vec<u8>, Option<OwnedFd>), String> {
        let bytes = self.inflight_bytes(wanted)? as u64;
        let fd = memory::create_sealed("unetmap-inflight", bytes).map_err(|e| format!("in-flight descriptors: {e}"))?;
        Ok((InflightShape { bytes, offset: 0, ..wanted }.payload(), Some(fd)))
    }

    fn map_inflight(&self, shape: InflightShape, fd: &OwnedFd) -> Result<Inflight, String> {
        let bytes = self.inflight_bytes(shape)?;
        if shape.bytes < bytes as u64 {
            return Err(format!("{} bytes of in-flight descriptors in place of {bytes}", shape.bytes));
        }
        let map = guest::map(fd.as_fd(), shape.offset, bytes)
            .map_err(|e| format!("{bytes} bytes of in-flight descriptors cannot be mapped: {e}"))?;
        Ok(Inflight { range: map, shape })
    }

    /// Returns the part of a queue in the region of in-flight descriptors, if there is a region.
    fn inflight_part(&self, index: usize) -> Result<Option<GuestWords>, String> {
        let Some(Inflight { range, shape }) = &self.inflight else { return Ok(None) };
        let packed = self.features & RING_PACKED != 0;
        let size = self.vrings[index].size;
        let too_small = || format!("queue {index}: no room for {size} in-flight descriptors in their region");
        if index >= usize::from(shape.queues) || size > u32::from(shape.size) {
            return Err(too_small());
        }
        // The rings' layout may have changed since the region was mapped.
        let part = range.part(index * part_bytes(packed, shape.size), part_bytes(packed, size as u16));
        part.map(GuestWords::new).map(Some).ok_or_else(too_small)
    }

    /// Starts a queue, if it does not run; a running one has a new descriptor for its kicks.
    fn start(&mut self, index: usize) -> Result<(), String> {
        if self.vrings[index].queue.is_none() {
            self.vrings[index].queue = Some(self.queue(index)?);
        }
        Ok(())
    }

    /// Goes on with a running queue at the addresses that it has now.
    fn reopen(&mut self, index: usize) -> Result<(), String> {
        let vring = &mut self.vrings[index];
        if let Some(queue) = vring.queue.take() {
            vring.base = queue.base();
            self.vrings[index].queue = Some(self.queue(index)?);
        }
        Ok(())
    }

    /// Goes on with all running queues in the memory as it is now; those that are not in it stop.
    fn reopen_queues(&mut self) -> Result<(), String> {
        let all: Vec<_> = (0..self.vrings.len()).map(|index| self.reopen(index)).collect();
        all.into_iter().collect()
    }

    fn queue(&self, index: usize) -> Result<Queue, String> {
        let vring = &self.vrings[index];
        let shape = Shape {
            size: vring.size,
            addresses: vring.addresses,
            base: vring.base,
            packed: self.features & RING_PACKED != 0,
            event_idx: self.features & EVENT_IDX != 0,
            writes: index.is_multiple_of(2),
        };
        let inflight = self.inflight_part(index)?;
        Queue::new(&self.memory, &shape, inflight).map_err(|NotStarted(why)| format!("queue {index}: {why}"))
    }
}

/// Any other descriptor could be readable for ever, or keep the process in a read or a write.
fn check_event(what: &str, index: u32, fd: Option<&OwnedFd>) -> Result<(), String> {
    if fd.is_none_or(is_eventfd) { Ok(()) } else { Err(format!("the {what} of queue {index} is no eventfd")) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Write as _};

    use tool_common::host::socket::{recv, send};

    use super::*;

    fn message(number: u32, payload: &[u8]) -> Vec<u8> {
        let header = [number, 1, payload.len() as u32].map(u32::to_ne_bytes).concat();
        [&header, payload].concat()
    }

    /// A connected session, and the front end's socket.
    fn connected() -> (UnixStream, Session) {
        let (front, back) = UnixStream::pair().unwrap();
        front.set_nonblocking(true).unwrap();
        (front, Session::new(back, 1).unwrap())
    }

    /// `GET_INFLIGHT_FD` for two queues of 128.
    fn get_inflight() -> Vec<u8> {
        message(31, &[&[0; 16][..], &[2, 0, 128, 0, 0, 0, 0, 0]].concat())
    }

    #[test]
    fn endless_messages_do_not_keep_the_process() {
        let (mut front, mut session) = connected();
        let sender = &mut FdSender::default();
        // SET_OWNER, and after them GET_QUEUE_NUM, which is answered.
        front.write_all(&message(3, &[]).repeat(MESSAGES_AT_ONCE as usize)).unwrap();
        front.write_all(&message(17, &[])).unwrap();
        assert_eq!(session.process_messages(sender), Ok(true));
        assert!(front.read(&mut [0; 64]).is_err(), "answered at once");
        assert_eq!(session.process_messages(sender), Ok(true));
        assert_eq!(front.read(&mut [0; 64]).unwrap(), 20);
    }

    /// The descriptors of a front end's answers that it can receive now.
    fn received(front: &UnixStream) -> usize {
        let (mut bytes, mut fds) = ([0; 36], Vec::new());
        while recv(front, &mut bytes, &mut fds).is_ok_and(|got| got.bytes > 0) {}
        fds.len()
    }

    #[test]
    fn one_descriptor_is_in_flight_over_all_connections() {
        let mut sender = FdSender::default();
        let ((mut first, mut session), (mut second, mut next)) = (connected(), connected());
        first.write_all(&get_inflight().repeat(10)).unwrap();
        for _ in 0..3 {
            assert_eq!(session.process_messages(&mut sender), Ok(true));
        }
        assert!(session.waits_to_send());
        // The connection ends; its answer is still there.
        drop(session);
        sender.end_last();
        second.write_all(&get_inflight()).unwrap();
        assert_eq!((next.process_messages(&mut sender), next.waits_to_send()), (Ok(true), true));
        assert_eq!((received(&first), received(&second)), (1, 0));
        assert_eq!((next.process_messages(&mut sender), next.waits_to_send()), (Ok(true), false));
        // After each answer that is received comes the next one.
        for n in 0..5 {
            assert_eq!(received(&second), 1, "answer {n}");
            second.write_all(&get_inflight()).unwrap();
            assert_eq!((next.process_messages(&mut sender), next.waits_to_send()), (Ok(true), false));
        }
    }

    #[test]
    fn kicks_and_calls_are_eventfds() {
        let null = File::open("/dev/null").unwrap();
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        for number in [12, 13] {
            for fd in [null.as_fd(), pipe.as_fd()] {
                let (front, mut session) = connected();
                send(&front, &message(number, &0u64.to_ne_bytes()), &[fd]).unwrap();
                let why = session.process_messages(&mut FdSender::default()).unwrap_err();
                assert!(why.contains("is no eventfd"), "{why}");
            }
        }
    }
}
