// SPDX-License-Identifier: BSD-2-Clause
//! The functions of the libpcap overlay, called by a C program.

use std::path::Path;
use std::process::Command;

use conformance::c::compile_with;
use conformance::net::{CABLE, DIRECT, Net, assert_same, open_in};
use conformance::pcap::{Far, InteractiveProgram, overlay};
use conformance::{Home, isolated_with_interfaces, program};

/// The output of `pcap_calls` on a device, while frames are sent to it and received from it.
#[track_caller]
fn answers(mut command: Command, device: &str, far: &Far) -> String {
    let mut program = InteractiveProgram::start(command.arg(device));
    program.until("ready");
    let frame = |i: usize, len: usize| {
        let mut frame = vec![0x02, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
        frame.resize(len, i as u8);
        frame
    };
    far.send(&(0..40).map(|i| frame(i, 60 + i)).collect::<Vec<_>>());
    program.until("select 20: 20");
    assert_same(&far.collect(5), &(0..5).map(|i| frame(i, 100)).collect::<Vec<_>>());
    program.end()
}

#[track_caller]
fn assert_same_lines(what: &str, ours: &str, systems: &str) {
    let differ = ours.lines().zip(systems.lines()).find(|(ours, systems)| ours != systems);
    assert_eq!(differ, None, "(ours, the system's) on {what}, after:\n{ours}");
    assert_eq!(ours.lines().count(), systems.lines().count(), "{what}:\n{ours}");
}

fn calls(home: &Home) -> std::path::PathBuf {
    overlay();
    compile_with(home, "pcap_calls", &["-lpcap"])
}

fn by_us(mut command: Command, calls: &Path) -> Command {
    command.args(["run", "--"]).arg(calls);
    command
}

#[test]
fn every_function_behaves_like_the_system_libpcap() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let calls = calls(home);
        let systems = answers(net.command(&calls), "va", &Far::Tap(net.tap()));
        let far = Far::Port(Box::new(open_in(&net.near, "netmap:c{1")));
        let pipes = answers(by_us(net.command(program("unetmap")), &calls), "netmap:c}1", &far);
        assert_same_lines("a pipe", &pipes, &systems);
        let ours = answers(by_us(net.command(program("unetmap")), &calls), "netmap:va", &Far::Tap(net.tap()));
        assert_same_lines("an interface's port", &ours, &systems);
    });
}

#[test]
fn filters_accept_the_same_packets_as_the_system_libpcap() {
    isolated_with_interfaces(|home| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folders = ["../pcap", "../include", "c"].map(|folder| format!("-I{}", root.join(folder).display()));
        let more: Vec<_> =
            folders.iter().map(String::as_str).chain(["-Wno-deprecated-declarations", "-lpcap"]).collect();
        let output = Command::new(compile_with(home, "pcap_filters", &more)).output().expect("it starts");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n", "{}", String::from_utf8_lossy(&output.stderr));
    });
}

/// The functions that a library exports, and `pcap_version`.
#[track_caller]
fn exported(library: &Path) -> Vec<String> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().expect("nm (binutils)");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let symbol = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let (kind, name) = (words.next()?, words.next()?);
        (["T", "W", "i"].contains(&kind) || name == "pcap_version").then(|| name.to_owned())
    };
    text.lines().filter_map(symbol).collect()
}

#[test]
fn every_function_of_the_system_libpcap_exists() {
    let output = Command::new("cc").arg("-print-file-name=libpcap.so").output().expect("cc");
    let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let (systems, ours) = (exported(Path::new(&path)), exported(&overlay().join("libpcap.so.0.8")));
    assert!(systems.len() > 80, "{systems:?}");
    let missing: Vec<_> = systems.iter().filter(|name| !ours.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Python's ctypes calls dlopen.
const LOADS: &str = "
import ctypes, sys
for name in sys.argv[2:]:
    pcap = ctypes.CDLL(name)
    pcap.pcap_open_live.restype = ctypes.c_void_p
    error = ctypes.create_string_buffer(256)
    print(name, bool(pcap.pcap_open_live(sys.argv[1].encode(), 100, 0, 100, error)), error.value.decode())
";

#[test]
fn programs_may_load_the_library_by_any_of_its_names() {
    isolated_with_interfaces(|_| {
        overlay();
        let _port = unetmap::Port::open("netmap:d{1").expect("a port");
        let mut run = Command::new(program("unetmap"));
        run.args(["run", "python3", "-c", LOADS, "netmap:d}1", "libpcap.so", "libpcap.so.1", "libpcap.so.0.8"]);
        let output = run.output().expect("unetmap starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        let wanted = "libpcap.so True \nlibpcap.so.1 True \nlibpcap.so.0.8 True \n";
        assert_eq!(String::from_utf8_lossy(&output.stdout), wanted, "{errors}");
    });
}

#[test]
fn pcap_findalldevs_lists_the_ports() {
    isolated_with_interfaces(|_| {
        overlay();
        let _ports = ["netmap:d{1", "vale9:one"].map(|spec| unetmap::Port::open(spec).expect("a port"));
        let calls = Command::new(program("unetmap")).args(["run", "tcpdump", "-D"]).output().expect("unetmap starts");
        if !calls.status.success() {
            conformance::home::summary("skipped: there is no tcpdump (apt-get install tcpdump)");
            return;
        }
        let list = String::from_utf8_lossy(&calls.stdout).into_owned();
        for name in ["netmap:d{1 (netmap port (pipe))", "vale9:one (netmap port (vale))", "lo "] {
            assert!(list.contains(name), "{list}");
        }
    });
}

#[test]
fn a_link_that_is_down_is_a_warning_or_a_line_of_standard_error() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        overlay();
        let down = compile_with(home, "pcap_down", &["-lpcap"]);
        let answers = || {
            let output = by_us(net.command(program("unetmap")), &down).arg("netmap:va").output().expect("it runs");
            assert!(output.status.success(), "{output:?}");
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"))
        };
        assert_eq!(answers(), ["activate 0: \nopen_live: \n", ""]);
        net.far.ip(&["link", "set", "vb", "down"]).unwrap_or_else(|e| panic!("{e}"));
        let text = "netmap:va: the link is down: va has no carrier, as its peer, in another network namespace, is down";
        // Programs exist that take a warning for a failure, and libpcap opens such an interface.
        assert_eq!(answers(), [format!("activate 0: {text}\nopen_live: {text}\n"), format!("{text}\n{text}\n")]);
        net.near.ip(&["link", "set", "va", "down"]).unwrap_or_else(|e| panic!("{e}"));
        let text = "netmap:va: the link is down: va is administratively down (ip link set va up)";
        assert_eq!(answers(), [format!("activate 1: {text}\nopen_live: {text}\n"), format!("{text}\n")]);
    });
}
