// SPDX-License-Identifier: BSD-2-Clause
//! The messages of the kubelet's device plugin API, v1beta1, with the numbers of its definition. Fields that the plugin
//! neither reads nor writes are left out; they are passed over when a message is decoded.

use std::collections::BTreeMap;

use prost::Message;

pub(crate) const VERSION: &str = "v1beta1";
pub(crate) const HEALTHY: &str = "Healthy";
pub(crate) const UNHEALTHY: &str = "Unhealthy";

/// A message without fields, of which there are several.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Empty {}

/// Plugin to kubelet: the plugin's socket (a name in the kubelet's folder), and what it serves.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RegisterRequest {
    #[prost(string, tag = "1")]
    pub(crate) version: String,
    #[prost(string, tag = "2")]
    pub(crate) endpoint: String,
    #[prost(string, tag = "3")]
    pub(crate) resource_name: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) options: Option<DevicePluginOptions>,
}

/// Which of the optional calls the plugin wants.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DevicePluginOptions {
    #[prost(bool, tag = "1")]
    pub(crate) pre_start_required: bool,
    #[prost(bool, tag = "2")]
    pub(crate) get_preferred_allocation_available: bool,
}

/// All devices, at the start of the stream and after each change.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListAndWatchResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) devices: Vec<Device>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Device {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) health: String,
}

/// A request for each container of a pod.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AllocateRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) container_requests: Vec<ContainerAllocateRequest>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerAllocateRequest {
    #[prost(string, repeated, tag = "1")]
    pub(crate) devices_ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AllocateResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) container_responses: Vec<ContainerAllocateResponse>,
}

/// The variables and mounts that a container gets.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerAllocateResponse {
    #[prost(btree_map = "string, string", tag = "1")]
    pub(crate) envs: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) mounts: Vec<Mount>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Mount {
    #[prost(string, tag = "1")]
    pub(crate) container_path: String,
    #[prost(string, tag = "2")]
    pub(crate) host_path: String,
    #[prost(bool, tag = "3")]
    pub(crate) read_only: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes as `protoc --encode` writes them.
    #[test]
    fn messages_have_the_numbers_of_the_definition() {
        let register = RegisterRequest {
            version: VERSION.into(),
            endpoint: "e".into(),
            resource_name: "r/n".into(),
            options: Some(DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true }),
        };
        assert_eq!(register.encode_to_vec(), b"\x0a\x07v1beta1\x12\x01e\x1a\x03r/n\x22\x02\x10\x01");
        let list = ListAndWatchResponse { devices: vec![Device { id: "a".into(), health: HEALTHY.into() }] };
        assert_eq!(list.encode_to_vec(), b"\x0a\x0c\x0a\x01a\x12\x07Healthy");
        let mount = Mount { container_path: "/c".into(), host_path: "/h".into(), read_only: true };
        let container = ContainerAllocateResponse { envs: [("K".into(), "v".into())].into(), mounts: vec![mount] };
        let reply = AllocateResponse { container_responses: vec![container] };
        assert_eq!(reply.encode_to_vec(), b"\x0a\x14\x0a\x06\x0a\x01K\x12\x01v\x12\x0a\x0a\x02/c\x12\x02/h\x18\x01");
        let request = AllocateRequest::decode(&b"\x0a\x06\x0a\x01a\x0a\x01b\x0a\x00"[..]).expect("a message");
        let ids: Vec<_> = request.container_requests.iter().map(|one| one.devices_ids.join(",")).collect();
        assert_eq!(ids, ["a,b", ""]);
    }
}
