// SPDX-License-Identifier: BSD-2-Clause
//! The plugin's answers: its devices, and the mounts and variables of a container that has one.

use std::cell::Cell;

use prost::Message as _;
use tokio::sync::watch;

use crate::api::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, Device, DevicePluginOptions, Empty, HEALTHY,
    ListAndWatchResponse, Mount, UNHEALTHY,
};
use crate::grpc::{Code, Status};
use crate::options::Options;

/// The service's path; a method's name follows.
const SERVICE: &str = "/v1beta1.DevicePlugin/";

/// The answer to a call.
pub(crate) enum Answer {
    /// One message.
    Message(Vec<u8>),
    /// The list of devices, now and after each change.
    Devices,
}

/// The devices of a node. They are all alike: a device is the permission to use the daemon, which serves any number of
/// ports of each container.
pub(crate) struct Plugin {
    pub(crate) options: Options,
    /// Whether a daemon listens.
    serves: watch::Sender<bool>,
    /// Number of callers that are told the devices.
    watchers: Cell<usize>,
}

impl Plugin {
    pub(crate) fn new(options: Options) -> Plugin {
        Plugin { options, serves: watch::Sender::new(false), watchers: Cell::new(0) }
    }

    /// Sets whether a daemon listens; returns whether that is new.
    pub(crate) fn set_serves(&self, serves: bool) -> bool {
        self.serves.send_if_modified(|known| std::mem::replace(known, serves) != serves)
    }

    /// Whether a caller, which is the kubelet, is told the devices.
    pub(crate) fn is_watched(&self) -> bool {
        self.watchers.get() > 0
    }

    /// Counts one more watcher until the guard is dropped; the receiver says when the devices have changed.
    pub(crate) fn watch(&self) -> (watch::Receiver<bool>, Watcher<'_>) {
        self.watchers.set(self.watchers.get() + 1);
        (self.serves.subscribe(), Watcher(&self.watchers))
    }

    fn device(number: u16) -> String {
        format!("port-{number}")
    }

    fn has_device(&self, id: &str) -> bool {
        let number = id.strip_prefix("port-").and_then(|number| number.parse().ok());
        number.is_some_and(|number| number < self.options.count && Plugin::device(number) == id)
    }

    /// The list of devices.
    pub(crate) fn devices(&self) -> Vec<u8> {
        let health = if *self.serves.borrow() { HEALTHY } else { UNHEALTHY };
        let device = |number| Device { id: Plugin::device(number), health: health.into() };
        ListAndWatchResponse { devices: (0..self.options.count).map(device).collect() }.encode_to_vec()
    }

    /// Answers a call with this path and message.
    pub(crate) fn call(&self, path: &str, message: &[u8]) -> Result<Answer, Status> {
        let one = |bytes: Vec<u8>| Ok(Answer::Message(bytes));
        match path.strip_prefix(SERVICE) {
            Some("GetDevicePluginOptions") => one(DevicePluginOptions::default().encode_to_vec()),
            Some("ListAndWatch") => Ok(Answer::Devices),
            Some("Allocate") => one(self.allocate(message)?.encode_to_vec()),
            // Nothing has to be done before a container starts; the kubelet knows so, and does not call it.
            Some("PreStartContainer") => one(Empty {}.encode_to_vec()),
            _ => Err(Status::new(Code::Unimplemented, format!("{path}: there is no such method"))),
        }
    }

    fn allocate(&self, message: &[u8]) -> Result<AllocateResponse, Status> {
        let malformed = |e| Status::new(Code::InvalidArgument, format!("AllocateRequest: {e}"));
        let request = AllocateRequest::decode(message).map_err(malformed)?;
        if !*self.serves.borrow() {
            let text = format!("no daemon listens at {}", self.options.socket.display());
            return Err(Status::new(Code::Unavailable, text));
        }
        let mut container_responses = Vec::new();
        for container in &request.container_requests {
            if let Some(id) = container.devices_ids.iter().find(|id| !self.has_device(id)) {
                let text =
                    format!("there is no device {:?}; the last is {}", id, Plugin::device(self.options.count - 1));
                return Err(Status::new(Code::InvalidArgument, text));
            }
            container_responses.push(match container.devices_ids.is_empty() {
                true => ContainerAllocateResponse::default(),
                false => self.container(),
            });
        }
        Ok(AllocateResponse { container_responses })
    }

    /// The socket's folder, not the socket, which is another file once the daemon was started again. It is read-only,
    /// which does not keep programs from connecting, but from putting a daemon of theirs in its place.
    fn container(&self) -> ContainerAllocateResponse {
        // `Cli::check` has made sure that paths are UTF-8.
        let folder = self.options.folder.to_string_lossy().into_owned();
        ContainerAllocateResponse {
            envs: [("UNETMAP_SOCKET".to_owned(), self.options.socket.to_string_lossy().into_owned())].into(),
            mounts: vec![Mount { container_path: folder.clone(), host_path: folder, read_only: true }],
        }
    }
}

/// Ends with a watcher.
pub(crate) struct Watcher<'a>(&'a Cell<usize>);

impl Drop for Watcher<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::options::Cli;
    use clap::Parser as _;
    use proptest::prelude::*;

    pub(crate) fn plugin(args: &str) -> Plugin {
        let args = ["x", "--socket", "/run/u/s"].into_iter().chain(args.split_whitespace());
        Plugin::new(Cli::try_parse_from(args).expect("valid").check().expect("valid"))
    }

    fn allocate(plugin: &Plugin, containers: &[&[&str]]) -> Result<Vec<ContainerAllocateResponse>, Status> {
        let ids = |ids: &&[&str]| crate::api::ContainerAllocateRequest {
            devices_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        let request = AllocateRequest { container_requests: containers.iter().map(ids).collect() };
        match plugin.call("/v1beta1.DevicePlugin/Allocate", &request.encode_to_vec())? {
            Answer::Message(bytes) => Ok(AllocateResponse::decode(&*bytes).expect("ours").container_responses),
            Answer::Devices => panic!("a message"),
        }
    }

    #[test]
    fn a_container_with_a_device_gets_the_folder_and_the_variable() {
        let plugin = plugin("--count 3");
        assert!(plugin.set_serves(true) && !plugin.set_serves(true));
        let containers = allocate(&plugin, &[&["port-0", "port-2"], &[]]).expect("devices");
        assert_eq!(containers[0].envs["UNETMAP_SOCKET"], "/run/u/s");
        let mount = Mount { container_path: "/run/u".into(), host_path: "/run/u".into(), read_only: true };
        assert_eq!(containers[0].mounts, [mount]);
        assert_eq!(containers[1..], [ContainerAllocateResponse::default()]);
        for unknown in ["port-3", "port-00", "port--1", "port-+1", "port-65536", "", "../x"] {
            let status = allocate(&plugin, &[&["port-0"], &[unknown]]).expect_err("no such device");
            assert_eq!(status.code, Code::InvalidArgument, "{unknown}");
        }
        plugin.set_serves(false);
        assert_eq!(allocate(&plugin, &[&["port-0"]]).expect_err("no daemon").code, Code::Unavailable);
    }

    #[test]
    fn all_devices_are_healthy_or_none() {
        let plugin = plugin("--count 3");
        for (serves, health) in [(false, UNHEALTHY), (true, HEALTHY)] {
            plugin.set_serves(serves);
            let list = ListAndWatchResponse::decode(&*plugin.devices()).expect("ours").devices;
            assert_eq!(list.iter().map(|device| &*device.id).collect::<Vec<_>>(), ["port-0", "port-1", "port-2"]);
            assert!(list.iter().all(|device| device.health == health));
        }
    }

    proptest! {
        #[test]
        fn any_message_is_answered_or_refused(message in proptest::collection::vec(any::<u8>(), 0..200)) {
            let plugin = plugin("");
            plugin.set_serves(true);
            for method in ["GetDevicePluginOptions", "ListAndWatch", "PreStartContainer"] {
                let path = format!("{SERVICE}{method}");
                prop_assert!(plugin.call(&path, &message).is_ok());
            }
            prop_assert!(plugin.call("/v1beta1.Registration/Register", &message).is_err());
            if let Ok(Answer::Message(reply)) = plugin.call("/v1beta1.DevicePlugin/Allocate", &message) {
                let request = AllocateRequest::decode(&*message).expect("it was answered");
                let reply = AllocateResponse::decode(&*reply).expect("ours");
                prop_assert_eq!(reply.container_responses.len(), request.container_requests.len());
            }
        }
    }
}
