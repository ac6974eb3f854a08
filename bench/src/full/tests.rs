// SPDX-License-Identifier: BSD-2-Clause
//! The page and the comparison, from made-up figures.

use super::*;

fn rows(scale: f64, peer_scale: f64) -> Vec<RowResult> {
    let row = |name: &str, unit: &str, median: f64, peers: &[(&str, f64)]| {
        RowResult::of_figures(
            name,
            unit,
            median * scale,
            &peers.iter().map(|(l, m)| (*l, m * peer_scale)).collect::<Vec<_>>(),
        )
    };
    vec![
        row("pipe", "Mpps", 300.0, &[("seqpacket", 1.5)]),
        row("pipe-rtt", "ns", 200.0, &[("seqpacket", 9000.0)]),
        row("pipe-rtt-p99", "ns", 400.0, &[("seqpacket", 9500.0)]),
        row("nic-fwd", "Mpps", 0.9, &[("afxdp", 0.8), ("kernel-bridge", 0.7)]),
        row("pipe-batch-1", "Mpps", 40.0, &[("seqpacket", 1.5)]),
        row("pipe-batch-512", "Mpps", 300.0, &[("seqpacket", 1.5)]),
        row("ports-10", "us", 350.0, &[]),
        row("ports-500", "us", 380.0, &[]),
    ]
}

fn findings(rows: Vec<RowResult>) -> Findings {
    Findings {
        machine: Machine::read(),
        rows,
        absent: without(&[
            (Bench::NicTx, "no root".into()),
            (Bench::Memif, "no DPDK".into()),
            (Bench::NicRx, "no root".into()),
        ]),
        notes: vec!["nic-tx: no <permission>".into()],
        seconds: 7,
        quick: true,
    }
}

#[test]
fn a_page_has_ratios_figures_and_what_is_missing() {
    let tcp = |name: &str, unit: &str, ours: f64, its: f64| {
        RowResult::of_figures(name, unit, ours, &[("kernel-bridge", its)])
    };
    let both = [tcp("tcp-switch", "Gbit/s", 3.0, 20.0), tcp("tcp-switch-cpu", "ms/Gbit", 150.0, 50.0)];
    let html = figures::page(&findings([rows(1.0, 1.0), both.into()].concat()), None);
    for part in [
        "\u{d7} 200", // 300 Mpps by 1.5
        "\u{d7} 45",  // 9000 ns by 200
        "Figure 7",
        "<td>pipe-rtt (L)</td><td>unetmap</td><td class=\"n\">200 ns</td><td class=\"n\">400 ns</td>",
        "unetmap pipe",
        "Figure 8",
        "tcp-switch (L) / kernel-bridge",
        "<td>kernel-bridge</td><td class=\"n\">20</td><td class=\"n\">50</td><td class=\"n\">-</td>",
        "kernel-bridge (L)",
        "Time to open one port",
        "no &lt;permission&gt;",
        "rows nic-tx, nic-rx</td><td>no root",
        "rows memif</td>",
    ] {
        assert!(html.contains(part), "{part}");
    }
    assert!(!html.contains("Figure 6") && !html.contains("Compared with"), "no rows, no figure");
}

#[test]
fn tables_in_markdown_have_all_rows_and_points() {
    let text = markdown::text(&findings(rows(1.0, 1.0)));
    for part in [
        "| pipe | L | 300 Mpps (297 to 303) | seqpacket 1.5 Mpps (200) |",
        "| pipe-rtt | L | 200 ns (198 to 202) | seqpacket 9 us (45) |",
        "| nic-fwd | L | 0.9 Mpps (0.891 to 0.909) | afxdp 0.8 Mpps (1.12), kernel-bridge 0.7 Mpps (1.29) |",
        "| packets of a batch | unetmap pipe | seqpacket pipe |\n|---|---|---|\n| 1 | 40 | 1.5 |\n| 512 | 300 | 1.5 |",
        "| 500 | 380 |",
        "| rows memif | no DPDK |",
        "- nic-tx: no <permission>",
        "- processor: ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_comparison_marks_what_moved_and_ignores_the_machines_speed() {
    let old = json!({"rows": rows(1.0, 1.0)});
    let moved = |scale, peer_scale| compare::moved(&old, &rows(scale, peer_scale)).unwrap();
    assert_eq!(moved(1.0, 1.0), (vec![], 8));
    // A machine of half the speed: only the rows without a peer move.
    let (slower, _) = moved(0.5, 0.5);
    let names: Vec<_> = slower.iter().map(|m| (m.name.as_str(), m.better)).collect();
    assert_eq!(names, [("ports-10", true), ("ports-500", true)]);
    let (worse, _) = moved(0.5, 1.0);
    assert_eq!(worse.len(), 8);
    assert!(worse.iter().all(|m| m.better != higher_is_better(&m.unit) && (m.change - 0.5).abs() < 1e-6), "{worse:?}");
    let html = figures::page(&findings(rows(0.5, 1.0)), Some(&(worse, 8)));
    assert!(html.contains("WORSE") && html.contains("ratio to afxdp, kernel-bridge"));
    assert!(compare::moved(&json!([]), &[]).unwrap_err().contains("report.json"));
}

#[test]
fn a_report_that_cannot_be_made_fails_before_the_first_sample() {
    let folder = tempfile::tempdir().unwrap();
    let report = |compare: Option<&str>| Report {
        folder: folder.path().join("new"),
        quick: true,
        steady: false,
        compare: compare.map(|text| {
            let path = folder.path().join("old.json");
            fs::write(&path, text).unwrap();
            path
        }),
    };
    assert!(report(None).prepare().unwrap().is_none());
    assert!(folder.path().join("new").is_dir());
    assert!(report(Some("{}")).prepare().unwrap_err().contains("report.json of an earlier"));
    assert!(report(Some("x")).prepare().unwrap_err().contains("--compare"));
    assert!(report(Some(r#"{"rows":[]}"#)).prepare().unwrap().is_some());
}

#[test]
fn a_quick_report_has_fewer_points() {
    let names = |quick| {
        let report = Report { folder: PathBuf::new(), quick, steady: false, compare: None };
        let groups = report.benches().into_iter().flat_map(row_groups).filter(|group| report.has(group));
        groups.map(|group| group.name).collect::<Vec<_>>()
    };
    let (all, quick) = (names(false), names(true));
    assert!(quick.len() * 2 < all.len(), "{} of {}", quick.len(), all.len());
    assert!(quick.contains(&"pipe-batch-8".to_owned()) && !quick.contains(&"pipe-batch-64".to_owned()), "{quick:?}");
    assert!(quick.iter().all(|name| all.contains(name)));
    assert!(all.contains(&"memif-60".to_owned()) && !all.contains(&"memif-1500".to_owned()), "{all:?}");
    assert!(all.contains(&"pipe-cycles-4q-1000".to_owned()) && !all.contains(&"vale-steady".to_owned()), "{all:?}");
    let steady = Report { folder: PathBuf::new(), quick: true, steady: true, compare: None };
    assert_eq!(steady.benches().last(), Some(&Bench::ValeSteady));
    assert!(!steady.left_out().iter().any(|absent| absent.peer.contains("vale-steady")));
}

#[test]
fn a_report_without_networks_keeps_its_other_rows() {
    let setup = crate::Setup {
        nics: None,
        hosts: None,
        dpdk: std::rc::Rc::default(),
        failures: vec![(Bench::NicTx, "not root".into()), (Bench::HostTcp, "no bridge".into())],
    };
    let report = Report { folder: PathBuf::new(), quick: false, steady: false, compare: None };
    let lacking: Vec<_> = report.benches().into_iter().filter_map(|bench| Some((bench, setup.lacks(bench)?))).collect();
    let why = |bench: Bench| lacking.iter().find(|(of, _)| *of == bench).map(|(_, why)| why.as_str());
    for bench in [Bench::NicTx, Bench::NicFwd, Bench::Lb, Bench::Pcap] {
        assert_eq!(why(bench), Some("not root"), "{}", bench.name());
    }
    assert_eq!((why(Bench::HostTcp), why(Bench::HostRtt)), (Some("no bridge"), Some("no bridge")));
    for bench in [Bench::Pipe, Bench::ValeRtt, Bench::Ports, Bench::Fw, Bench::Emulate] {
        assert_eq!(why(bench), None, "{}", bench.name());
    }
    let named = without(&lacking);
    let rows = named.iter().find(|absent| absent.why == "not root").map(|absent| absent.peer.as_str());
    assert!(rows.is_some_and(|rows| rows.starts_with("rows nic-tx, nic-rx")), "{rows:?}");
}
