// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap metrics`: the daemons' counters for Prometheus, once or for each request over HTTP.
//!
//! Prometheus is served by a process of its own, so that no daemon parses HTTP.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::Path;

use rustix::fs::Mode;
use rustix::process::umask;
use serde_json::Value;
use tool_common::metrics::Metric;
use unetmap_sys::socket::listen_for_streams;

use crate::http::{self, Listener};
use crate::ls::{members, parse_reply};
use format::Format;

mod format;
mod histogram;

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), String::from)
}

/// All metrics, without samples.
fn definitions() -> Vec<Metric> {
    let (gauge, counter) = (Metric::gauge, Metric::counter);
    vec![
        gauge("daemon_info", "A daemon that runs; 1"),
        gauge("daemon_uptime_seconds", "Time since it started"),
        gauge("daemon_connections", "Connections of clients"),
        gauge("crash_protection", "1: a crash of the daemon ends no port; 0: it would, though --keep-ports was given"),
        counter("crash_protection_off_seconds", "Time that it was 0 since the daemon started"),
        counter("crashes", "Crashes of daemons from which this one has its ports"),
        counter("replacements", "Replacements of daemons from which this one has its ports"),
        counter("reloads", "How often configuration and policy were read again"),
        counter("failed_reloads", "How often they could not be read"),
        gauge("config_read_timestamp_seconds", "When they were last read without an error"),
        counter("policy_refused", "Requests and connections that the policy refused"),
        gauge("port_info", "A port of a switch with a label, such as the pod that has it; 1"),
        gauge("sessions", "Open ports, counted once for each program that has them open"),
        gauge("region_bytes", "Size of a region"),
        gauge("region_resident_bytes", "Memory that it uses"),
        gauge("region_buffers", "Buffers of a region by state: free, in_rings, extra, missing"),
        gauge("switch_ports", "Open ports of a switch"),
        gauge("switch_addresses", "Addresses that a switch knows"),
        counter("switch_sent_packets", "Packets that a switch took from its ports"),
        counter("switch_lost_packets", "Of these, packets that reached no port, by reason"),
        counter("switch_copies", "Packets that other ports were to get of these: a flooded one once for each port"),
        counter("switch_received_packets", "Packets that a switch delivered to its ports"),
        counter("switch_not_received_packets", "Packets that a port of a switch did not receive, by reason"),
        counter("ring_packets", "Slots that crossed a ring, sent or received"),
        counter("ring_bytes", "Bytes of these packets, where they are counted"),
        counter("ring_batches", "Batches in which they did"),
        counter("ring_wakeups", "How often a switch woke the program of a ring"),
        counter("ring_dropped", "Packets dropped at a ring, by the rules of ls"),
        counter("ring_bad_slots", "Slots with an invalid index or length, or a packet that the port cannot send"),
        gauge("ring_queued", "Slots sent and not yet released by the receiver"),
        counter("port_lost", "Packets that a port sent and that reached no port, by reason"),
        counter("port_not_received", "Packets for a port that it did not receive, by reason"),
        counter("port_sent_packets", "Packets that a switch took from a port"),
        counter("port_received_packets", "Packets that a switch delivered to a port"),
        counter(
            "interface_frames",
            "Frames of an interface with a failure setting that no program took, or lost, by fate",
        ),
        gauge("bypass_active", "1: the kernel forwards in place of a program, by cause; 0: it does not"),
        counter("bypass_seconds", "For how long it has"),
        counter("port_received_frames", "Frames that an interface received since an XDP program was attached"),
        counter("port_frames", "Of these, frames that were not dropped, by where they went"),
        counter("port_dropped_frames", "Of these, frames that were dropped, by reason"),
        counter("port_host_passed_frames", "Frames that the host sent to the wire past a program that was late"),
        gauge("user_used", "What a user has of a budget"),
        gauge("user_limit", "The budget"),
        counter("user_refused", "Requests refused for lack of budget"),
    ]
}

/// The metrics of the snapshots of daemons.
fn metrics(snapshots: &[Value]) -> Vec<Metric> {
    let mut all = definitions();
    for snapshot in snapshots {
        let daemon = ("daemon".to_owned(), text_of(&snapshot["daemon"]["uid"]));
        let mut add = |name: &str, labels: &[Label<'_>], value: Option<f64>| {
            if let (Some(metric), Some(value)) = (all.iter_mut().find(|metric| metric.name == name), value) {
                let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), text_of(value)));
                metric.samples.push((std::iter::once(daemon.clone()).chain(labels).collect(), value));
            }
        };
        add_daemon(snapshot, &mut add);
        members(&snapshot["ports"]).for_each(|port| add_port(port, &mut add));
        members(&snapshot["interfaces"]).for_each(|interface| add_interface(interface, &mut add));
        members(&snapshot["users"]).for_each(|user| add_user(user, &mut add));
    }
    all
}

type Label<'a> = (&'static str, &'a Value);
/// Adds a sample to the metric of a name, if there is a value.
type Add<'a> = dyn FnMut(&str, &[Label<'_>], Option<f64>) + 'a;

fn add_daemon(snapshot: &Value, add: &mut Add<'_>) {
    let daemon = &snapshot["daemon"];
    add("daemon_info", &[("version", &daemon["version"]), ("pid", &daemon["pid"])], Some(1.0));
    add("daemon_uptime_seconds", &[], daemon["uptime_seconds"].as_f64());
    add("daemon_connections", &[], daemon["connections"].as_f64());
    let protection = &daemon["crash_protection"];
    if protection["asked"] == true {
        add("crash_protection", &[], Some(f64::from(u8::from(protection["on"] == true))));
        add("crash_protection_off_seconds", &[], protection["off_seconds"].as_f64());
    }
    let history = &daemon["history"];
    for (metric, key) in [
        ("crashes", "crashes"),
        ("replacements", "replacements"),
        ("reloads", "reloads"),
        ("failed_reloads", "failed_reloads"),
        ("policy_refused", "policy_refusals"),
    ] {
        add(metric, &[], history[key].as_f64());
    }
    add("config_read_timestamp_seconds", &[], history["read_ms"].as_f64().map(|ms| ms / 1000.0));
    add("sessions", &[], Some(members(&snapshot["sessions"]).count() as f64));
    for region in members(&snapshot["regions"]) {
        let name = [("region", &region["name"]), ("mem_id", &region["mem_id"])];
        add("region_bytes", &name, region["bytes"].as_f64());
        add("region_resident_bytes", &name, region["resident_bytes"].as_f64());
        for state in ["free", "in_rings", "extra", "missing"] {
            let label = Value::from(state);
            add("region_buffers", &[name[0], name[1], ("state", &label)], region["buffers"][state].as_f64());
        }
    }
    for switch in members(&snapshot["switches"]) {
        let name = [("switch", &switch["switch"]), ("uid", &switch["uid"])];
        add("switch_ports", &name, switch["ports"].as_f64());
        add("switch_addresses", &name, switch["addresses"].as_f64());
        for (metric, key) in
            [("switch_sent_packets", "sent"), ("switch_copies", "copies"), ("switch_received_packets", "received")]
        {
            add(metric, &name, switch["packets"][key].as_f64());
        }
        add_reasons("switch_lost_packets", &name, &switch["lost"], add);
        add_reasons("switch_not_received_packets", &name, &switch["not_received"], add);
    }
}

/// Adds a sample for each reason.
fn add_reasons(metric: &str, labels: &[Label<'_>], counts: &Value, add: &mut Add<'_>) {
    for (reason, count) in counts.as_object().into_iter().flatten() {
        add(metric, &[labels, &[("reason", &reason.as_str().into())]].concat(), count.as_f64());
    }
}

fn add_port(port: &Value, add: &mut Add<'_>) {
    let name = [("port", &port["name"]), ("kind", &port["kind"]), ("mem_id", &port["mem_id"])];
    if port["label"].is_string() {
        add("port_info", &[&name[..], &[("label", &port["label"])]].concat(), Some(1.0));
    }
    for ring in members(&port["rings"]) {
        let labels = [&name[..], &[("dir", &ring["dir"]), ("ring", &ring["id"])]].concat();
        for (metric, key) in [
            ("ring_packets", "crossed"),
            ("ring_bytes", "bytes"),
            ("ring_batches", "batches"),
            ("ring_wakeups", "wakeups"),
            ("ring_dropped", "dropped"),
            ("ring_bad_slots", "bad_slots"),
            ("ring_queued", "queued"),
        ] {
            add(metric, &labels, ring[key].as_f64());
        }
    }
    add_reasons("port_lost", &name, &port["lost"], add);
    add_reasons("port_not_received", &name, &port["not_received"], add);
    let frames = &port["frames"];
    add("port_received_frames", &name, frames["received"].as_f64());
    for (to, key) in
        [("programs", "to_programs"), ("stack", "to_stack"), ("stack by filter", "refused"), ("bypass", "bypassed")]
    {
        add("port_frames", &[&name[..], &[("to", &to.into())]].concat(), frames[key].as_f64());
    }
    add_reasons("port_dropped_frames", &name, &frames["dropped"], add);
    add("port_host_passed_frames", &name, frames["host_passed"].as_f64());
    add("port_sent_packets", &name, port["packets"]["sent"].as_f64());
    add("port_received_packets", &name, port["packets"]["received"].as_f64());
}

/// An interface with the setting `failure`.
fn add_interface(interface: &Value, add: &mut Add<'_>) {
    let name = [("interface", &interface["interface"]), ("netns", &interface["netns"])];
    for fate in ["to_stack", "dropped", "bypassed", "left_in_rings", "no_room", "overtaken"] {
        add("interface_frames", &[name[0], name[1], ("fate", &fate.into())], interface[fate].as_f64());
    }
    let bypass = &interface["bypass"];
    if let Some(seconds) = bypass["seconds"].as_f64() {
        let is_active = f64::from(u8::from(bypass["cause"].is_string()));
        add(
            "bypass_active",
            &[name[0], name[1], ("cause", &bypass["cause"].as_str().unwrap_or("none").into())],
            Some(is_active),
        );
        add("bypass_seconds", &name, Some(seconds));
    }
}

fn add_user(user: &Value, add: &mut Add<'_>) {
    let all_but_root = Value::from("all but root");
    let uid = ("uid", user.get("uid").unwrap_or(&all_but_root));
    add("user_refused", &[uid], user["refused"].as_f64());
    for (resource, budget) in user.as_object().into_iter().flatten().filter(|(_, value)| value.is_object()) {
        let resource = Value::from(resource.as_str());
        add("user_used", &[uid, ("resource", &resource)], budget["used"].as_f64());
        add("user_limit", &[uid, ("resource", &resource)], budget["limit"].as_f64());
    }
}

/// Returns the text of all daemons, and of the programs that answer.
fn page(format: Format) -> Result<String, String> {
    let snapshots = unetmap::snapshots().map_err(|e| e.to_string())?;
    let parsed = snapshots.iter().map(|snapshot| parse_reply("metrics", snapshot)).collect::<Result<Vec<_>, _>>()?;
    let mut all = metrics(&parsed);
    // A program cannot take the name of one of the daemon's.
    let of_programs = tool_common::metrics::read().into_iter();
    let own: Vec<_> = of_programs.filter(|metric| all.iter().all(|known| known.name != metric.name)).collect();
    all.extend(own);
    Ok(format.page(&all, &histogram::latency(&parsed)))
}

/// Prints the metrics, or serves them at `listen`: `unix:PATH`, or ADDRESS:PORT.
pub(crate) fn run(listen: Option<&str>, hosts: &[String], openmetrics: bool) -> Result<u8, String> {
    let format = if openmetrics { Format::OpenMetrics } else { Format::Text };
    let Some(listen) = listen else { return crate::print("metrics", &page(format)?) };
    let server = listener(listen, hosts).map_err(|why| format!("metrics: {listen}: {why}"))?;
    crate::note(&format!("unetmap: metrics: serving at {listen}"));
    let why = http::serve(&server, |target, accept| match target {
        "/metrics" => {
            let format = Format::accepted(accept);
            match page(format) {
                Ok(page) => (200, format.content_type(), page),
                Err(why) => (500, http::TEXT, format!("{why}\n")),
            }
        }
        _ => (404, http::TEXT, "see /metrics\n".into()),
    });
    Err(format!("metrics: {listen}: {why}"))
}

/// Checks the form of a place to listen at.
///
/// # Errors
/// A sentence that says what to give.
pub(crate) fn place(text: &str) -> Result<String, String> {
    let is_place = match text.strip_prefix("unix:") {
        Some(path) => !path.is_empty(),
        None => text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()),
    };
    let wrong = || "give unix:PATH, or ADDRESS:PORT as in 127.0.0.1:9464".to_owned();
    is_place.then(|| text.to_owned()).ok_or_else(wrong)
}

fn listener(listen: &str, hosts: &[String]) -> Result<Listener, String> {
    match listen.strip_prefix("unix:") {
        // As of any new file. It stays when a signal ends the process: the next one replaces it.
        Some(path) => {
            let mask = umask(Mode::empty());
            umask(mask);
            listen_for_streams(Path::new(path), 0o666 & !mask.bits()).map(|(listener, _)| Listener::Unix(listener))
        }
        None => {
            // Its own name or address is one, too, with which its port was given.
            let names = hosts.iter().cloned().chain([listen.to_owned()]).collect();
            TcpListener::bind(listen).map(|listener| Listener::Tcp(listener, names))
        }
    }
    .map_err(|e| match e.kind() {
        ErrorKind::AddrInUse => "another program serves there, or it is a file that is no socket".into(),
        _ => e.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use unetmap_core::control::drops::DropReason;

    #[test]
    fn places_have_a_path_or_a_port() {
        for (text, is_place) in [
            ("unix:/run/m.sock", true),
            ("127.0.0.1:9464", true),
            ("[::1]:0", true),
            ("localhost:80", true),
            ("unix:", false),
            ("9464", false),
            (":9464", false),
            ("127.0.0.1", false),
            ("127.0.0.1:99999", false),
            ("", false),
        ] {
            assert_eq!(place(text).is_ok(), is_place, "{text}");
        }
    }

    #[test]
    fn the_manual_page_has_all_reasons() {
        let page = include_str!("../../../man/unetmap-metrics.7").replace("\\-", "-");
        for reason in DropReason::ALL {
            let entry = format!(".TP\n\\fB{}\\fR\n{}\n", reason.name(), reason.meaning());
            assert!(page.contains(&entry), "{entry}");
        }
    }

    #[test]
    fn a_snapshot_is_text_of_both_formats() {
        let ring = json!({"dir": "rx", "id": 0, "queued": 5, "crossed": 7, "bytes": 420, "batches": 2, "dropped": 1, "bad_slots": 0});
        let snapshot = json!({
            "daemon": {"pid": 7, "uid": 0, "version": "1", "uptime_seconds": 3, "connections": 2,
                "history": {"crashes": 1, "replacements": 2, "reloads": 3, "failed_reloads": 4, "read_ms": 5500,
                    "policy_refusals": 6}},
            "regions": [{"name": "r\"\\\n", "mem_id": 2, "bytes": 4096, "buffers": {"free": 3}}],
            "switches": [{"switch": "vale0", "uid": 0, "ports": 2, "addresses": 9, "lost": {"home": 1},
                "packets": {"sent": 3, "copies": 2, "received": 1}, "not_received": {"room": 1}}],
            "ports": [{"name": "vale0:a", "kind": "vale", "mem_id": 2, "label": "default/web", "lost": {"vlan": 4}, "not_received": {"rate": 8},
                "packets": {"sent": 3, "copies": 2, "received": 7}, "rings": [ring]},
                {"name": "eth1", "kind": "nic", "mem_id": 3, "rings": [], "frames": {"received": 21, "to_programs": 1,
                "to_stack": 2, "refused": 3, "bypassed": 4, "dropped": {"closed": 5, "room": 6}, "host_passed": 7}}],
            "sessions": [{}],
            "interfaces": [{"interface": "eth1", "netns": 4, "bypassed": 9,
                "bypass": {"cause": "stalled", "seconds": 2.5}}, {"interface": "eth2", "netns": 4, "dropped": 1}],
            "users": [{"uid": 1, "rings": {"used": 2, "limit": null}, "refused": 6}, {"rings": {"used": 2, "limit": 9}}],
        });
        let all = metrics(&[snapshot]);
        for format in [Format::Text, Format::OpenMetrics] {
            let page = format.page(&all, "");
            for line in [
                r#"unetmap_ring_packets_total{daemon="0",port="vale0:a",kind="vale",mem_id="2",dir="rx",ring="0"} 7"#,
                r#"unetmap_port_info{daemon="0",port="vale0:a",kind="vale",mem_id="2",label="default/web"} 1"#,
                r#"unetmap_ring_bytes_total{daemon="0",port="vale0:a",kind="vale",mem_id="2",dir="rx",ring="0"} 420"#,
                r#"unetmap_port_lost_total{daemon="0",port="vale0:a",kind="vale",mem_id="2",reason="vlan"} 4"#,
                r#"unetmap_port_not_received_total{daemon="0",port="vale0:a",kind="vale",mem_id="2",reason="rate"} 8"#,
                r#"unetmap_port_received_packets_total{daemon="0",port="vale0:a",kind="vale",mem_id="2"} 7"#,
                r#"unetmap_port_received_frames_total{daemon="0",port="eth1",kind="nic",mem_id="3"} 21"#,
                r#"unetmap_port_frames_total{daemon="0",port="eth1",kind="nic",mem_id="3",to="programs"} 1"#,
                r#"unetmap_port_frames_total{daemon="0",port="eth1",kind="nic",mem_id="3",to="stack by filter"} 3"#,
                r#"unetmap_port_dropped_frames_total{daemon="0",port="eth1",kind="nic",mem_id="3",reason="room"} 6"#,
                r#"unetmap_switch_copies_total{daemon="0",switch="vale0",uid="0"} 2"#,
                r#"unetmap_switch_lost_packets_total{daemon="0",switch="vale0",uid="0",reason="home"} 1"#,
                r#"unetmap_region_buffers{daemon="0",region="r\"\\\\n",mem_id="2",state="free"} 3"#,
                r#"unetmap_interface_frames_total{daemon="0",interface="eth1",netns="4",fate="bypassed"} 9"#,
                r#"unetmap_bypass_active{daemon="0",interface="eth1",netns="4",cause="stalled"} 1"#,
                r#"unetmap_bypass_seconds_total{daemon="0",interface="eth1",netns="4"} 2.5"#,
                r#"unetmap_user_refused_total{daemon="0",uid="1"} 6"#,
                r#"unetmap_crashes_total{daemon="0"} 1"#,
                r#"unetmap_config_read_timestamp_seconds{daemon="0"} 5.5"#,
                r#"unetmap_policy_refused_total{daemon="0"} 6"#,
                r#"unetmap_user_limit{daemon="0",uid="all but root",resource="rings"} 9"#,
                "# TYPE unetmap_region_buffers gauge",
            ] {
                assert!(page.lines().any(|found| found == line), "{line}\n{page}");
            }
            assert!(!page.contains("uid=\"1\",resource=\"rings\"} 9"), "no limit is no sample");
            let is_openmetrics = format == Format::OpenMetrics;
            assert_eq!(page.contains("# TYPE unetmap_ring_packets counter\n"), is_openmetrics, "{page}");
            assert_eq!(page.contains("# TYPE unetmap_ring_packets_total counter\n"), !is_openmetrics, "{page}");
            assert_eq!(page.ends_with("# EOF\n"), is_openmetrics, "{page}");
        }
    }
}
