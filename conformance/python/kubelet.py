#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The device manager of a kubelet: `kubelet.py FOLDER`, by the gRPC library and protobuf's own encoder.

Serves v1beta1.Registration at FOLDER/kubelet.sock. A plugin that registers is asked for its options and watched, as the
kubelet does it before it answers. Prints a JSON line for each event. Reads lines from standard input:

    allocate ID[,ID]... [ID[,ID]...]...   devices for a pod's containers
    call METHOD HEX                       a call of the plugin with any bytes as its message; METHOD may be any path
    watch N                               N more watchers, which read nothing
    unwatch                               the watchers' end
    restart                               as a kubelet that starts: removes all sockets, makes its own anew
    refuse TEXT                           the next registration is refused
"""

import json
import pathlib
import sys
import threading
from concurrent import futures

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

LIMIT = 20
# Message: its fields, as (name, number, type), a type in brackets if it is repeated.
MESSAGES = {
    "Empty": [],
    "DevicePluginOptions": [("pre_start_required", 1, "bool"), ("get_preferred_allocation_available", 2, "bool")],
    "RegisterRequest": [
        ("version", 1, "string"), ("endpoint", 2, "string"), ("resource_name", 3, "string"),
        ("options", 4, "DevicePluginOptions"),
    ],
    "NUMANode": [("ID", 1, "int64")],
    "TopologyInfo": [("nodes", 1, ["NUMANode"])],
    "Device": [("ID", 1, "string"), ("health", 2, "string"), ("topology", 3, "TopologyInfo")],
    "ListAndWatchResponse": [("devices", 1, ["Device"])],
    "ContainerAllocateRequest": [("devices_ids", 1, ["string"])],
    "AllocateRequest": [("container_requests", 1, ["ContainerAllocateRequest"])],
    # A map is a list of pairs on the wire.
    "Pair": [("key", 1, "string"), ("value", 2, "string")],
    "Mount": [("container_path", 1, "string"), ("host_path", 2, "string"), ("read_only", 3, "bool")],
    "DeviceSpec": [("container_path", 1, "string"), ("host_path", 2, "string"), ("permissions", 3, "string")],
    "ContainerAllocateResponse": [
        ("envs", 1, ["Pair"]), ("mounts", 2, ["Mount"]), ("devices", 3, ["DeviceSpec"]), ("annotations", 4, ["Pair"]),
    ],
    "AllocateResponse": [("container_responses", 1, ["ContainerAllocateResponse"])],
}  # fmt: skip


def message_classes():
    kinds = descriptor_pb2.FieldDescriptorProto
    scalars = {"string": kinds.TYPE_STRING, "bool": kinds.TYPE_BOOL, "int64": kinds.TYPE_INT64}
    file = descriptor_pb2.FileDescriptorProto(name="api.proto", package="v1beta1", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            label = kinds.LABEL_REPEATED if isinstance(kind, list) else kinds.LABEL_OPTIONAL
            (kind,) = kind if isinstance(kind, list) else (kind,)
            added = message.field.add(name=field, number=number, label=label)
            added.type = scalars.get(kind, kinds.TYPE_MESSAGE)
            if kind not in scalars:
                added.type_name = f".v1beta1.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    # Its name differs between versions of the library.
    make = getattr(message_factory, "GetMessageClass", None) or message_factory.MessageFactory(pool).GetPrototype
    return {name: make(pool.FindMessageTypeByName(f"v1beta1.{name}")) for name in MESSAGES}


CLASS = message_classes()


def say(**event):
    print(json.dumps(event), flush=True)


class Plugin:
    """A plugin that has registered."""

    def __init__(self, path):
        self.channel = grpc.insecure_channel(f"unix:{path}")
        self.stopped = False

    def call(self, method, message, reply):
        stub = self.channel.unary_unary(
            method if method.startswith("/") else f"/v1beta1.DevicePlugin/{method}",
            request_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
            response_deserializer=CLASS[reply].FromString,
        )
        return stub(message, timeout=LIMIT)

    def stream(self):
        stub = self.channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=CLASS["Empty"].SerializeToString,
            response_deserializer=CLASS["ListAndWatchResponse"].FromString,
        )
        return stub(CLASS["Empty"]())

    def watch(self):
        try:
            for answer in self.stream():
                say(event="devices", devices=[[device.ID, device.health] for device in answer.devices])
        except grpc.RpcError as error:
            # Not of a kubelet that stops; also of a plugin that another one replaces, whoever notices first.
            if not self.stopped:
                say(event="unwatched", code=error.code().name)

    def stop(self):
        self.stopped = True
        self.channel.close()


class Kubelet:
    def __init__(self, folder):
        self.folder, self.plugin, self.server, self.refusal = folder, None, None, None
        self.watchers = []

    def start(self):
        for path in self.folder.glob("*.sock"):
            path.unlink()
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        handler = grpc.unary_unary_rpc_method_handler(
            self.register,
            request_deserializer=CLASS["RegisterRequest"].FromString,
            response_serializer=CLASS["Empty"].SerializeToString,
        )
        methods = grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler})
        self.server.add_generic_rpc_handlers((methods,))
        self.server.add_insecure_port(f"unix:{self.folder / 'kubelet.sock'}")
        self.server.start()
        say(event="started")

    def stop(self):
        if self.plugin:
            self.plugin.stop()
        self.server.stop(None).wait()

    def register(self, request, context):
        if self.refusal:
            text, self.refusal = self.refusal, None
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        plugin = Plugin(self.folder / request.endpoint)
        options = plugin.call("GetDevicePluginOptions", CLASS["Empty"](), "DevicePluginOptions")
        if self.plugin:
            self.plugin.channel.close()
        self.plugin = plugin
        say(
            event="registered", version=request.version, resource=request.resource_name, endpoint=request.endpoint,
            options=[options.pre_start_required, options.get_preferred_allocation_available],
        )  # fmt: skip
        threading.Thread(target=plugin.watch, daemon=True).start()
        return CLASS["Empty"]()

    def allocate(self, containers):
        request = CLASS["AllocateRequest"]()
        for ids in containers:
            request.container_requests.add().devices_ids.extend(ids.split(",") if ids != "-" else [])
        answer = self.plugin.call("Allocate", request, "AllocateResponse")
        containers = [
            {
                "envs": {pair.key: pair.value for pair in one.envs},
                "mounts": [[mount.host_path, mount.container_path, mount.read_only] for mount in one.mounts],
                "devices": len(one.devices),
            }
            for one in answer.container_responses
        ]
        say(event="allocated", containers=containers)

    def obey(self, words):
        if words[0] == "allocate":
            self.allocate(words[1:])
        elif words[0] == "call":
            message = bytes.fromhex(words[2]) if len(words) > 2 else b""
            self.plugin.call(words[1], message, "Empty")
            say(event="answered")
        elif words[0] == "watch":
            self.watchers += [self.plugin.stream() for _ in range(int(words[1]))]
            say(event="watches")
        elif words[0] == "unwatch":
            for watcher in self.watchers:
                watcher.cancel()
            self.watchers = []
            say(event="watches")
        elif words[0] == "restart":
            self.stop()
            self.start()
        elif words[0] == "refuse":
            self.refusal = " ".join(words[1:])
            say(event="refuses")


def main():
    kubelet = Kubelet(pathlib.Path(sys.argv[1]))
    kubelet.start()
    for line in sys.stdin:
        try:
            kubelet.obey(line.split())
        except grpc.RpcError as error:
            say(event="error", code=error.code().name, details=error.details())
    kubelet.stop()


main()
