// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap-device-plugin`, with a stand-in for the kubelet by the gRPC library (`conformance/python/kubelet.py`).

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use conformance::c::Running;
use conformance::home::{Guard, summary};
use conformance::traffic::{open, receive};
use conformance::{Home, isolated, program, until};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A Python that has these modules.
fn python(modules: &str) -> Option<&'static str> {
    let has = |python: &&str| {
        let mut command = Command::new(python);
        command.args(["-c", &format!("import {modules}")]).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    ["python3", "/usr/bin/python3"].into_iter().find(has)
}

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A kubelet's folder and the stand-in.
struct Kubelet {
    folder: PathBuf,
    process: Running,
}

impl Kubelet {
    /// `None`, with the reason printed, if it cannot run here.
    fn start(home: &Home) -> Option<Kubelet> {
        let Some(python) = python("grpc, google.protobuf") else {
            summary("skipped: no Python with grpcio and protobuf (apt-get install python3-grpcio python3-protobuf)");
            return None;
        };
        let folder = home.folder().join("plugins");
        fs::create_dir(&folder).expect("a folder");
        let mut command = Command::new(python);
        command.arg("-B").arg(source("python/kubelet.py")).arg(&folder);
        let mut kubelet = Kubelet { folder, process: Running::spawn("kubelet.py", &mut command) };
        kubelet.expect("started");
        Some(kubelet)
    }

    /// Reads the next event, which has to be this one.
    #[track_caller]
    fn expect(&mut self, event: &str) -> Value {
        let line = self.process.read_line();
        let found: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}, not {event}"));
        assert_eq!(found["event"], event, "{found}");
        found
    }

    /// Reads that a plugin's connection has ended, and that another is registered and has healthy devices, in the
    /// order in which the stand-in notices.
    #[track_caller]
    fn expect_another(&mut self, count: usize) {
        let mut events = [(); 3].map(|()| self.process.read_line());
        events.sort();
        let found = ["devices", "registered", "unwatched"].map(|event| format!("{{\"event\": \"{event}\""));
        assert!(events.iter().zip(&found).all(|(event, found)| event.starts_with(found)), "{events:?}");
        assert_eq!(events[0].matches("\"Healthy\"").count(), count, "{events:?}");
    }

    /// Reads a list of devices, which has so many, all with this health.
    #[track_caller]
    fn expect_devices(&mut self, count: usize, health: &str) {
        let devices = self.expect("devices")["devices"].take();
        let devices = devices.as_array().expect("a list");
        assert!(devices.len() == count && devices.iter().all(|device| device[1] == health), "{health}: {devices:?}");
    }

    #[track_caller]
    fn ask(&mut self, line: &str, event: &str) -> Value {
        self.process.write_line(line);
        self.expect(event)
    }

    /// Makes a call, which the plugin has to refuse so.
    #[track_caller]
    fn refused(&mut self, line: &str, code: &str, part: &str) {
        let error = self.ask(line, "error");
        let details = error["details"].as_str().unwrap_or_default();
        assert!(error["code"] == code && details.contains(part), "{line:.80}: {error}");
    }

    fn plugin(&self, home: &Home, count: u16) -> Guard {
        let mut command = Command::new(program("unetmap-device-plugin"));
        command.arg("--socket").arg(home.socket()).arg("--plugins").arg(&self.folder);
        command.args(["--count", &count.to_string()]).stdin(Stdio::null());
        let notes = fs::File::options().append(true).create(true).open(self.folder.join("notes")).expect("a file");
        Guard::spawn(command.stderr(notes))
    }

    fn notes(&self) -> String {
        fs::read_to_string(self.folder.join("notes")).unwrap_or_default()
    }

    fn own(&self) -> PathBuf {
        self.folder.join("unetmap.io_port.sock")
    }
}

/// A command for a program in a container: with the mounts and the variables that the plugin has given, below its root.
fn contained(container: &Value, name: &str, args: &str) -> Command {
    let mounts = container["mounts"].as_array().expect("a list");
    let mount = |mount: &Value| {
        let (host, inside) = (mount[0].as_str().expect("a path"), mount[1].as_str().expect("a path"));
        let read_only = if mount[2] == true { format!("mount -o remount,bind,ro {inside} && ") } else { String::new() };
        format!("mount --bind {host} {inside} && {read_only}")
    };
    let mounts: String = mounts.iter().map(mount).collect();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &format!("{mounts}exec \"$@\""), "sh"]).arg(program(name));
    command.args(args.split(' ')).env_remove("UNETMAP_SOCKET").stdin(Stdio::null());
    for (name, value) in container["envs"].as_object().expect("an object") {
        command.env(name, value.as_str().expect("a text"));
    }
    command
}

#[test]
fn pods_get_the_socket_of_the_daemon() {
    isolated(|home| {
        let Some(mut kubelet) = Kubelet::start(home) else { return };
        let mut plugin = kubelet.plugin(home, 3);
        let registered = kubelet.expect("registered");
        assert_eq!((&registered["version"], &registered["resource"]), (&json!("v1beta1"), &json!("unetmap.io/port")));
        assert_eq!(registered["options"], json!([false, false]));
        kubelet.expect_devices(3, "Unhealthy");
        kubelet.refused("allocate port-0", "UNAVAILABLE", "no daemon listens");
        assert!(!home.serves(), "no daemon was started");
        let mode = fs::metadata(kubelet.own()).expect("a socket").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}");

        let receiver = open("netmap:pod}1");
        kubelet.expect_devices(3, "Healthy");
        let containers = kubelet.ask("allocate port-2 - port-0,port-1", "allocated")["containers"].take();
        let folder = home.folder().display().to_string();
        let expected = json!({
            "envs": {"UNETMAP_SOCKET": home.socket()}, "mounts": [[folder, folder, true]], "devices": 0,
        });
        let nothing = json!({"envs": {}, "mounts": [], "devices": 0});
        assert_eq!(containers, json!([expected, nothing, expected]));
        // A pod with the mounts and the variable, which only root can make here.
        let mut pod = contained(&containers[0], "pkt-gen", "-i netmap:pod{1 -f tx -n 500 -w 0");
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            let mut sender = Guard::spawn(pod.stdout(Stdio::null()).stderr(Stdio::null()));
            assert_eq!(receive(&receiver, 500).expect("packets").len(), 500);
            receiver.rxsync().expect("the slots are released");
            assert!(sender.wait().success(), "it has sent 500 packets");
        } else {
            summary("no program in a mount namespace, which needs root");
        }
        drop(receiver);
        home.end_daemon();
        if is_root {
            let output = pod.stderr(Stdio::piped()).output().expect("unshare");
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && why.contains("ead-only"), "{why}");
            assert!(!home.serves(), "it has put no daemon of its own there");
        }
        kubelet.expect_devices(3, "Unhealthy");
        plugin.signal(Signal::TERM);
        assert_eq!(plugin.wait().code(), Some(0));
        assert!(!kubelet.own().exists(), "its socket is removed");
        assert_eq!(kubelet.expect("unwatched")["code"], "UNAVAILABLE");
        let notes = kubelet.notes();
        assert!(notes.matches("the devices are unhealthy").count() == 2 && notes.contains("registered"), "{notes}");
    });
}

#[test]
fn the_plugin_registers_again_after_a_restart_of_the_kubelet() {
    isolated(|home| {
        let Some(mut kubelet) = Kubelet::start(home) else { return };
        kubelet.ask("refuse not today: 100 %", "refuses");
        let mut plugin = kubelet.plugin(home, 2);
        kubelet.expect("registered");
        kubelet.expect_devices(2, "Unhealthy");
        assert!(kubelet.notes().contains("does not register it: not today: 100 % (status 3)"), "{}", kubelet.notes());
        let _port = open("netmap:p{1");
        kubelet.expect_devices(2, "Healthy");
        for _ in 0..3 {
            kubelet.ask("restart", "started");
            kubelet.expect("registered");
            kubelet.expect_devices(2, "Healthy");
            kubelet.ask("allocate port-1", "allocated");
        }
        // Only the plugin's socket is removed, as by hand.
        fs::remove_file(kubelet.own()).expect("a socket");
        kubelet.expect_another(2);

        // A second one leaves the first alone, and takes over once that has ended, even by a kill.
        let mut second = kubelet.plugin(home, 2);
        until("it says why", || kubelet.notes().contains("another plugin serves the same resource"));
        kubelet.ask("allocate port-0", "allocated");
        plugin.kill();
        kubelet.expect_another(2);
        second.signal(Signal::TERM);
        assert_eq!(second.wait().code(), Some(0));
    });
}

/// Each is refused, or ends its connection; the kubelet's go on, or are made again.
#[test]
fn malformed_calls_disturb_nobody() {
    isolated(|home| {
        let Some(mut kubelet) = Kubelet::start(home) else { return };
        let _port = open("netmap:p{1");
        let mut plugin = kubelet.plugin(home, 1000);
        kubelet.expect("registered");
        kubelet.expect_devices(1000, "Healthy");
        kubelet.refused("allocate port-0 port-1000", "INVALID_ARGUMENT", "there is no device");
        kubelet.refused("allocate ../../etc", "INVALID_ARGUMENT", "there is no device");
        for (method, bytes, code) in [
            ("Allocate", "ff", "INVALID_ARGUMENT"),
            ("Allocate", "0aff", "INVALID_ARGUMENT"),
            ("Allocate", "0a020aff", "INVALID_ARGUMENT"),
            ("Allocate", "0a030a01ff", "INVALID_ARGUMENT"),
            ("GetPreferredAllocation", "", "UNIMPLEMENTED"),
            ("/v1beta1.Registration/Register", "", "UNIMPLEMENTED"),
            ("/", "", "UNIMPLEMENTED"),
        ] {
            kubelet.refused(&format!("call {method} {bytes}"), code, "");
        }
        let long = "00".repeat(3 << 19);
        kubelet.refused(&format!("call Allocate {long}"), "RESOURCE_EXHAUSTED", "1048576");
        kubelet.ask("call PreStartContainer", "answered");
        // As many callers as may be that read nothing.
        kubelet.ask("watch 20", "watches");
        kubelet.ask("allocate port-999", "allocated");
        kubelet.ask("unwatch", "watches");
        // Connections with other protocols, and without a word: more than there may be.
        for beginning in
            [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\0", &[0x16; 999]]
        {
            let mut stream = UnixStream::connect(kubelet.own()).expect("it listens");
            let _ = stream.write_all(beginning).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
            let _ = stream.read_to_end(&mut Vec::new());
        }
        let silent: Vec<_> = (0..40).map(|_| UnixStream::connect(kubelet.own()).expect("it listens")).collect();
        assert_eq!(kubelet.expect("unwatched")["code"], "UNAVAILABLE", "one more ends the oldest");
        kubelet.ask("allocate port-0", "allocated");
        drop(silent);
        // The kubelet does not ask for the devices again by itself.
        kubelet.expect("registered");
        kubelet.expect_devices(1000, "Healthy");
        plugin.signal(Signal::TERM);
        assert_eq!(plugin.wait().code(), Some(0));
    });
}

#[test]
fn what_is_wrong_is_said() {
    isolated(|home| {
        let folder = home.folder().join("plugins");
        fs::create_dir(&folder).expect("a folder");
        let kubelet = Kubelet { folder, process: Running::spawn("cat", &mut Command::new("cat")) };
        let mut plugin = kubelet.plugin(home, 1);
        until("it waits", || kubelet.notes().contains("no kubelet has a socket"));
        // Files that are no sockets: the kubelet's, and its own, which it leaves there.
        fs::write(kubelet.own(), "text").expect("a file");
        fs::write(kubelet.folder.join("kubelet.sock"), "").expect("a file");
        until("it says so", || kubelet.notes().contains("which is no socket"));
        fs::remove_file(kubelet.own()).expect("our file");
        until("it says so", || kubelet.notes().contains("does not register it"));
        assert!(plugin.0.try_wait().expect("our child").is_none(), "it goes on");
        plugin.signal(Signal::INT);
        assert_eq!(plugin.wait().code(), Some(0));
        assert!(!kubelet.own().exists());
        kubelet.process.kill();
        for args in ["--count 0", "--resource port", "--socket relative", "more"] {
            let output =
                Command::new(program("unetmap-device-plugin")).args(args.split(' ')).output().expect("it runs");
            assert_eq!(output.status.code(), Some(2), "{args}: {}", String::from_utf8_lossy(&output.stderr));
        }
    });
}

/// The examples' programs have these options; folders, resources and users agree.
/// The documents of a file of `examples/kubernetes`; `None`, with a message, if this machine has no parser of YAML.
fn documents(name: &str) -> Option<Vec<Value>> {
    let Some(python) = python("yaml") else {
        summary("skipped: no Python with yaml (apt-get install python3-yaml)");
        return None;
    };
    let script = "import json, sys, yaml; json.dump(list(yaml.safe_load_all(open(sys.argv[1]))), sys.stdout)";
    let path = source("../examples/kubernetes").join(name);
    let output = Command::new(python).args(["-c", script]).arg(&path).output().expect("Python");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}

/// The code with which `unetmap-cni` answers STATUS for a network of which no daemon runs: 50, if it takes the keys.
fn status_code(network: &Value) -> Value {
    let mut plugin = Command::new(program("unetmap-cni"));
    plugin.env("CNI_COMMAND", "STATUS").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut plugin = plugin.spawn().expect("it runs");
    let written = plugin.stdin.take().expect("a pipe").write_all(network.to_string().as_bytes());
    written.expect("it reads");
    let output = plugin.wait_with_output().expect("it ends");
    serde_json::from_slice::<Value>(&output.stdout).expect("JSON")["code"].clone()
}

#[test]
fn the_layout_for_a_cluster_is_whole() {
    isolated(|_| {
        let Some(kustomization) = documents("kustomization.yaml").map(|mut all| all.remove(0)) else { return };
        let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("a text: {value}")).to_owned();
        let list = |value: &Value| value.as_array().unwrap_or_else(|| panic!("a list: {value}")).clone();
        let files = list(&kustomization["resources"]);
        let all: Vec<Value> = files.iter().flat_map(|file| documents(&text(file)).expect("as before")).collect();
        let named = |kind: &str, name: &str| {
            let found = all.iter().find(|one| one["kind"] == kind && one["metadata"]["name"] == name);
            found.unwrap_or_else(|| panic!("{kind} {name}")).clone()
        };
        assert!(all.iter().all(|one| one["metadata"]["namespace"] == kustomization["namespace"]));
        let sets: Vec<&Value> = all.iter().filter(|one| one["kind"] == "DaemonSet").collect();
        assert_eq!(sets.len(), 2);
        for set in sets {
            let pod = &set["spec"]["template"];
            assert_eq!(set["spec"]["selector"]["matchLabels"], pod["metadata"]["labels"], "{set}");
            named("ServiceAccount", &text(&pod["spec"]["serviceAccountName"]));
            assert_eq!(pod["spec"]["nodeSelector"], json!({"unetmap.io/daemon": "yes"}));
            let volumes = list(&pod["spec"]["volumes"]);
            let of = |kind: &str| pod["spec"][kind].as_array().cloned().unwrap_or_default();
            for container in of("initContainers").into_iter().chain(of("containers")) {
                assert_eq!(container["image"], kustomization["images"][0]["name"]);
                assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]), "{container}");
                for mount in container["volumeMounts"].as_array().into_iter().flatten() {
                    assert!(volumes.iter().any(|volume| volume["name"] == mount["name"]), "{mount}");
                }
            }
        }
        // The files that are copied are there, under the names by which a runtime finds them.
        let pod = &named("DaemonSet", "unetmap-cni")["spec"]["template"]["spec"];
        let script = text(&pod["initContainers"][0]["args"][0]);
        let installed = std::fs::read_to_string(source("../Makefile")).expect("a file");
        assert!(
            script.contains("/usr/lib/cni/unetmap ") && installed.contains("$(PREFIX)/lib/cni/unetmap\n"),
            "{script}"
        );
        let conf = named("ConfigMap", &text(&list(&pod["volumes"])[2]["configMap"]["name"]));
        let (file, network) = conf["data"].as_object().and_then(|data| data.iter().next()).expect("a file");
        assert!(
            script.contains(&format!("/conf/{file} ")) && script.ends_with(&format!("/net.d/{file}\n")),
            "{script}"
        );
        // The plugin takes each network: all that is missing is a daemon.
        let network: Value = serde_json::from_str(&text(network)).expect("JSON");
        let mut pods = network["plugins"][0].clone();
        (pods["cniVersion"], pods["name"]) = (network["cniVersion"].clone(), network["name"].clone());
        let second = documents("network.yaml").expect("as before").remove(0);
        let storage: Value = serde_json::from_str(&text(&second["spec"]["config"])).expect("JSON");
        assert_eq!(second["metadata"]["name"], storage["name"]);
        for network in [pods, storage] {
            assert_eq!(network["type"], "unetmap");
            assert_eq!(status_code(&network), 50, "{network}");
            let mut wrong = network.clone();
            wrong["switch"] = json!("br0");
            assert_eq!(status_code(&wrong), 7, "{wrong}");
        }
    });
}

#[test]
fn the_examples_for_kubernetes_agree_with_the_plugin() {
    isolated(|home| {
        let Some(device_plugin) = documents("device-plugin.yaml") else { return };
        let texts = |list: &Value| -> Vec<String> {
            list.as_array().into_iter().flatten().map(|one| one.as_str().expect("a text").to_owned()).collect()
        };
        let set = &device_plugin[0]["spec"]["template"]["spec"];
        let container = &set["containers"][0];
        assert_eq!(texts(&container["command"]), ["unetmap-device-plugin"]);
        let args = texts(&container["args"]);
        let value = |option: &str| {
            let at = args.iter().position(|arg| arg == option).unwrap_or_else(|| panic!("{option}: {args:?}"));
            args[at + 1].clone()
        };
        // Each folder has the same path in the pod as on the node, which the kubelet needs of the daemon's.
        let (socket, resource) = (value("--socket"), value("--resource"));
        for (volume, folder) in [
            ("daemon", Path::new(&socket).parent().expect("a folder")),
            ("plugins", Path::new("/var/lib/kubelet/device-plugins")),
        ] {
            let named =
                |list: &Value| list.as_array().expect("a list").iter().find(|one| one["name"] == volume).cloned();
            let (mount, host) = (named(&container["volumeMounts"]), named(&set["volumes"]));
            assert_eq!(mount.expect("a mount")["mountPath"], json!(folder), "{volume}");
            assert_eq!(host.expect("a volume")["hostPath"]["path"], json!(folder), "{volume}");
        }
        // The plugin takes the arguments: with a folder of the test it waits for its kubelet.
        let mut plugin = Command::new(program("unetmap-device-plugin"));
        plugin.args(&args).arg("--plugins").arg(home.folder()).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut plugin = Guard::spawn(&mut plugin);
        let mut said = [0; 64];
        plugin.0.stderr.as_mut().expect("a pipe").read_exact(&mut said).expect("a note");
        assert!(String::from_utf8_lossy(&said).starts_with(&resource), "{said:?}");
        plugin.signal(Signal::TERM);
        assert_eq!(plugin.wait().code(), Some(0));

        let pods = documents("pods.yaml").expect("as before");
        assert_eq!(pods.len(), 2);
        for pod in pods {
            let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
            assert_eq!(container["resources"]["limits"], json!({ resource.clone(): 1 }), "{pod}");
            assert_eq!(spec["nodeSelector"], set["nodeSelector"], "{pod}");
            assert!(spec["securityContext"]["runAsUser"].as_u64().is_some_and(|user| user > 0), "{pod}");
            let words = texts(&container["command"]);
            let mut tool = Command::new(program(&words[0]));
            let output = tool.args(&words[1..]).arg("--help").output().expect("it runs");
            assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
    });
}
