// SPDX-License-Identifier: BSD-2-Clause
//! What is drawn, and that it is well-formed.

use super::*;

fn point(x: f64, y: f64) -> Point {
    Point { x, y, interval: Some((y * 0.9, y * 1.1)) }
}

fn chart() -> Lines {
    let series = |label: &str, factor: f64| Series {
        label: label.into(),
        points: [1.0, 8.0, 64.0, 512.0].map(|x| point(x, x * factor)).to_vec(),
    };
    Lines {
        title: "Rate <by> batch".into(),
        x: "packets & batch".into(),
        y: "Mpps".into(),
        x_scale: Scale::Log,
        series: vec![series("unetmap", 3.0), series("a & b", 2.999), series("third", 0.1)],
        ..Lines::default()
    }
}

/// Checks that each element is closed in order. Void elements are those of the page's head.
fn check_nesting(html: &str) {
    let mut open = Vec::new();
    for tag in html.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("each tag ends");
        let name = tag.split([' ', '/']).find(|part| !part.is_empty()).expect("a name");
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
        } else if !tag.ends_with('/') && !["!DOCTYPE", "meta", "link"].contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn a_page_is_whole_and_loads_nothing() {
    let mut page = Page::new("A <page>", "of \"tests\"");
    page.heading("First & last");
    page.text("1 < 2");
    page.table(&Table { header: vec!["a".into(), "b".into()], rows: vec![vec!["<x>".into(), "1".into()]], left: 1 });
    page.lines(&chart());
    page.bars(&Bars {
        title: "Ratios".into(),
        bars: vec![
            Bar { label: "better".into(), ratio: 200.0, interval: Some((150.0, 230.0)) },
            Bar { label: "worse".into(), ratio: 0.5, interval: None },
        ],
        ..Bars::default()
    });
    let html = page.finish();
    check_nesting(&html);
    assert!(html.contains("<title>A &lt;page&gt;</title>") && html.contains("a &amp; b"));
    assert!(!html.contains("http") && !html.contains("<script"), "it loads nothing");
    assert!(html.contains("\u{d7} 200") && html.contains("\u{d7} 0.5"));
    assert!(html.contains("prefers-color-scheme: dark") && html.contains("@media print"));
}

#[test]
fn names_of_series_do_not_overlap() {
    let svg = chart().svg();
    let mut heights: Vec<f64> = svg
        .split("class=\"label\" x=\"")
        .skip(1)
        .map(|rest| rest.split(" y=\"").nth(1).and_then(|y| y.split('"').next()).expect("y").parse().expect("a number"))
        .collect();
    heights.sort_by(f64::total_cmp);
    assert_eq!(heights.len(), 3);
    assert!(heights.windows(2).all(|two| two[1] - two[0] >= 14.9), "{heights:?}");
}

#[test]
fn odd_values_are_drawn_somewhere() {
    for scale in [Scale::Linear, Scale::Log] {
        for values in [vec![], vec![0.0], vec![0.0, 5.0], vec![f64::NAN, 1.0], vec![1e-9, 1e12]] {
            let points: Vec<_> = values.iter().map(|v| Point { x: *v, y: *v, interval: None }).collect();
            let series = vec![Series { label: "s".into(), points }];
            let svg = Lines { x_scale: scale, y_scale: scale, series, ..Lines::default() }.svg();
            check_nesting(&svg);
            assert!(!svg.contains("inf"), "{values:?}: {svg}");
        }
    }
}

#[test]
fn ticks_are_round_and_few() {
    let ticks = |scale, values: &[f64]| axis::Axis::new(scale, values.iter().copied(), (0.0, 100.0)).ticks();
    assert_eq!(ticks(Scale::Linear, &[3.0, 12.0]), [0.0, 2.5, 5.0, 7.5, 10.0, 12.5]);
    assert_eq!(ticks(Scale::Log, &[1.0, 900.0]), [1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0]);
    assert!(ticks(Scale::Log, &[1e-9, 1e12]).len() <= 12);
    let axis = axis::Axis::new(Scale::Log, [1.0, 100.0].into_iter(), (0.0, 100.0));
    assert!((axis.at(10.0) - 50.0).abs() < 1e-6 && axis.at(0.0) == 0.0);
}

#[test]
fn numbers_have_three_digits() {
    for (value, text) in [
        (0.0, "0"),
        (0.012_345, "0.0123"),
        (1.0, "1"),
        (1.5, "1.5"),
        (12.34, "12.3"),
        (999.9, "1000"),
        (1514.0, "1514"),
        (14_880_000.0, "14.9M"),
        (25_000.0, "25k"),
        (-2.75, "-2.75"),
    ] {
        assert_eq!(number(value), text);
    }
}

#[test]
fn times_have_the_unit_that_fits() {
    for (value, unit, text) in [
        (164.0, "ns", "164 ns"),
        (4580.0, "ns", "4.58 us"),
        (2_260_000.0, "ns", "2.26 ms"),
        (29_600.0, "us", "29.6 ms"),
        (5e6, "ms", "5000 s"),
        (0.5, "us", "0.5 us"),
        (300.0, "Mpps", "300 Mpps"),
        (12.0, "%", "12 %"),
    ] {
        assert_eq!(quantity(value, unit), text);
    }
}

#[test]
fn names_of_series_have_room_beside_the_chart() {
    let end_of_grid = |label: &str| {
        let point = Point { x: 1.0, y: 2.0, interval: None };
        let series = vec![Series { label: label.into(), points: vec![point, Point { x: 9.0, ..point }] }];
        let svg = Lines { title: "t".into(), series, ..Lines::default() }.svg();
        let text = svg.split("class=\"grid\" x1=\"62\" x2=\"").nth(1).and_then(|rest| rest.split('"').next());
        text.and_then(|end| end.parse::<f64>().ok()).expect("a grid")
    };
    let (short, long) = (end_of_grid("a"), end_of_grid("openvswitch-dpdk receive"));
    assert!(short > 800.0 && long < 860.0 - 24.0 * 8.0, "{short} {long}");
    assert!(end_of_grid(&"x".repeat(500)) >= 430.0, "a chart keeps half of the width");
}
