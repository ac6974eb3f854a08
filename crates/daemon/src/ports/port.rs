// SPDX-License-Identifier: BSD-2-Clause
//! A port of any kind, and how a port of one kind is found in the registry.

use super::copied_end::CopiedEnd;
use super::key::{EndpointKey, PipeKey, PortKey};
use super::mediated::Mediated;
use super::monitor::Monitor;
use super::nic::{Nic, NicKey, NicPort};
use super::null::NullPort;
use super::pipe::Pipe;
use super::sink::Sink;
use super::vale::{ValeKey, ValePort};
use crate::budget::Amounts;
use crate::endpoint::Endpoint;
use crate::refusal::Refusal;
use crate::region::{RegionKey, RegionRecord, Scope};
use crate::registry::{self, Port, Record};

pub(crate) type Registry = registry::Registry<PortKey, AnyPort>;
pub(crate) type Session = registry::Session<PortKey>;

/// A port of any kind. What is done with each is in `lifecycle`.
pub(crate) enum AnyPort {
    Nic(Port<NicPort>),
    /// A switch port; also the end of a persistent port that programs open.
    Vale(Port<ValePort>),
    Mediated(Port<Mediated>),
    Pipe(Port<Pipe>),
    CopiedEnd(Port<CopiedEnd>),
    Null(Port<NullPort>),
    Sink(Port<Sink>),
    Monitor(Port<Monitor>),
}

/// Evaluates an expression with the port, of whichever kind it is.
macro_rules! of_any {
    ($any:expr, $port:ident => $result:expr) => {
        match $any {
            AnyPort::Nic($port) => $result,
            AnyPort::Vale($port) => $result,
            AnyPort::Mediated($port) => $result,
            AnyPort::Pipe($port) => $result,
            AnyPort::CopiedEnd($port) => $result,
            AnyPort::Null($port) => $result,
            AnyPort::Sink($port) => $result,
            AnyPort::Monitor($port) => $result,
        }
    };
}

impl AnyPort {
    pub(crate) fn record(&self) -> &Record {
        of_any!(self, port => &port.record)
    }

    pub(crate) fn record_mut(&mut self) -> &mut Record {
        of_any!(self, port => &mut port.record)
    }

    /// Ends a port that is no longer in the registry, and returns what all kinds have.
    pub(super) fn into_record(self) -> Record {
        of_any!(self, port => port.record)
    }
}

impl AsRef<Record> for AnyPort {
    fn as_ref(&self) -> &Record {
        self.record()
    }
}

impl AsMut<Record> for AnyPort {
    fn as_mut(&mut self) -> &mut Record {
        self.record_mut()
    }
}

/// A kind of ports that is looked for in the registry.
pub(crate) trait Kind: Sized + 'static {
    /// The port, if it is of this kind.
    fn of(port: &AnyPort) -> Option<&Port<Self>>;

    /// The same, mutable.
    fn of_mut(port: &mut AnyPort) -> Option<&mut Port<Self>>;
}

macro_rules! kind {
    ($kind:ty: $variant:ident) => {
        impl Kind for $kind {
            fn of(port: &AnyPort) -> Option<&Port<Self>> {
                if let AnyPort::$variant(port) = port { Some(port) } else { None }
            }

            fn of_mut(port: &mut AnyPort) -> Option<&mut Port<Self>> {
                if let AnyPort::$variant(port) = port { Some(port) } else { None }
            }
        }
    };
}

kind!(NicPort: Nic);
kind!(ValePort: Vale);
kind!(Mediated: Mediated);
kind!(Pipe: Pipe);
kind!(CopiedEnd: CopiedEnd);
kind!(Sink: Sink);
kind!(Monitor: Monitor);

impl Registry {
    /// Returns a port of kind `T`.
    pub(crate) fn get<T: Kind>(&self, key: &PortKey) -> Option<&Port<T>> {
        self.port(key).ok().and_then(T::of)
    }

    /// The same, mutable.
    pub(crate) fn get_mut<T: Kind>(&mut self, key: &PortKey) -> Option<&mut Port<T>> {
        self.port_mut(key).ok().and_then(T::of_mut)
    }

    /// All ports of kind `T`, in order of their keys.
    pub(crate) fn all<T: Kind>(&self) -> impl Iterator<Item = &Port<T>> {
        self.ports().filter_map(|(_, port)| T::of(port))
    }

    /// The same, mutable.
    pub(crate) fn all_mut<T: Kind>(&mut self) -> impl Iterator<Item = &mut Port<T>> {
        self.ports_mut().filter_map(|(_, port)| T::of_mut(port))
    }

    /// All monitors, whose keys are the last ones.
    pub(super) fn monitors(&self) -> impl Iterator<Item = &Port<Monitor>> {
        self.ports_from(&PortKey::Monitor(0)).filter_map(|(_, port)| Monitor::of(port))
    }

    /// The same, mutable.
    pub(super) fn monitors_mut(&mut self) -> impl Iterator<Item = &mut Port<Monitor>> {
        self.ports_from_mut(&PortKey::Monitor(0)).filter_map(|(_, port)| Monitor::of_mut(port))
    }

    /// The pipes from this key on, in order of their keys.
    pub(super) fn pipes_from(&self, first: PipeKey) -> impl Iterator<Item = &Port<Pipe>> {
        self.ports_from(&PortKey::Pipe(first)).map_while(|(_, port)| Pipe::of(port))
    }

    /// The attached interfaces, each as often as rings of it are attached.
    pub(crate) fn attached_interfaces(&self) -> impl Iterator<Item = NicKey> {
        let attachments = self.all::<ValePort>().filter_map(|port| port.attachment.as_ref());
        attachments.filter_map(|attachment| attachment.interface.as_nic())
    }

    /// Returns the region of the pipes that a parent has, if it has any.
    pub(crate) fn region_of_pipes(&self, scope: Scope, parent: &str) -> Option<RegionKey> {
        self.pipes_of(scope, parent).next()
    }

    /// The regions of a parent's pipes, one for each.
    pub(super) fn pipes_of(&self, scope: Scope, parent: &str) -> impl Iterator<Item = RegionKey> {
        let first = PipeKey { scope, parent: parent.into(), id: String::new() };
        let pipes = self.pipes_from(first).take_while(move |pipe| pipe.key.scope == scope && pipe.key.parent == parent);
        pipes.map(|pipe| pipe.record.region)
    }

    /// Returns the name of the switch port of an attached interface.
    pub(crate) fn switch_port_of(&self, nic: NicKey) -> Option<String> {
        self.all::<ValePort>().find(|port| port.is_wire_of(&PortKey::Nic(nic))).map(|port| port.key.name())
    }

    /// Returns the member of a switch that has this place.
    pub(super) fn switch_port(&self, key: &ValeKey) -> Option<&Port<ValePort>> {
        self.all::<ValePort>().find(|port| port.is_at(key))
    }

    /// The port through which the daemon gives an interface to a program.
    pub(super) fn mediated(&self, nic: NicKey) -> Option<&Port<Mediated>> {
        self.all::<Mediated>().find(|port| port.nic() == nic)
    }

    /// Adds a port that is created in a region. On failure the region is freed, if it has no other port.
    pub(super) fn add(
        &mut self,
        key: PortKey,
        region: RegionKey,
        create: impl FnOnce(&mut RegionRecord) -> Result<AnyPort, Refusal>,
    ) -> Result<(), Refusal> {
        let created = self.regions.existing_mut(region).and_then(create);
        let port = created.inspect_err(|_| self.free_region_if_unused(region))?;
        self.insert(key, port);
        Ok(())
    }

    /// The interface that is this port, unless it is away.
    pub(crate) fn nic(&self, key: &PortKey) -> Option<&Nic> {
        self.get::<NicPort>(key)?.here()
    }

    /// The same, mutable.
    pub(crate) fn nic_mut(&mut self, key: &PortKey) -> Option<&mut Nic> {
        self.get_mut::<NicPort>(key)?.kind.here_mut()
    }

    /// Returns an endpoint, and the region of its port.
    pub(crate) fn endpoint(&self, key: &EndpointKey) -> Result<(&Endpoint, RegionKey), Refusal> {
        let port = self.record(&key.port)?;
        Ok((&port.endpoints[key.index], port.region))
    }

    /// Returns the amounts of an interface that the daemon runs for a program: the program's port is charged for it.
    pub(super) fn usage_of_interface(&self, nic: NicKey) -> Amounts {
        let Ok(nic) = self.record(&PortKey::Nic(nic)) else { return Amounts::default() };
        nic.usage_with_memory().and(self.regions.get(nic.region).map(RegionRecord::locked_buffers).unwrap_or_default())
    }
}
