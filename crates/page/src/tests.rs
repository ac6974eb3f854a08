// SPDX-License-Identifier: BSD-2-Clause
//! Tests of the drawings, and that they are well-formed.

use super::layout::{NARROW, WIDE};
use super::*;

fn point(x: f64, y: f64) -> Point {
    Point { x, y, interval: Some((y * 0.9, y * 1.1)), marked: false }
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
    page.bars(&Bars {
        title: "Amounts".into(),
        bars: vec![
            Bar { label: "<most>".into(), ratio: 5e6, interval: None },
            Bar { label: "least".into(), ratio: 0.5e6, interval: None },
        ],
        unit: Some("B"),
        ..Bars::default()
    });
    let html = page.finish();
    check_nesting(&html);
    assert!(html.contains(">5M B<") && html.contains(">500k B<") && html.contains("&lt;most&gt;"));
    assert!(html.contains("<title>A &lt;page&gt;</title>") && html.contains("a &amp; b"));
    assert!(!html.contains("http") && !html.contains("<script"), "it loads nothing");
    assert!(html.contains("\u{d7} 200") && html.contains("\u{d7} 0.5"));
    assert!(html.contains("prefers-color-scheme: dark") && html.contains("@media print"));
}

#[test]
fn names_of_series_do_not_overlap() {
    let svg = chart().svg(&WIDE);
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
            let points: Vec<_> = values.iter().map(|v| Point { x: *v, y: *v, interval: None, marked: false }).collect();
            let series = vec![Series { label: "s".into(), points }];
            let svg = Lines { x_scale: scale, y_scale: scale, series, ..Lines::default() };
            for svg in [svg.svg(&WIDE), svg.svg(&NARROW)] {
                check_nesting(&svg);
                assert!(!svg.contains("inf"), "{values:?}: {svg}");
            }
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
        let point = Point { x: 1.0, y: 2.0, interval: None, marked: false };
        let series = vec![Series { label: label.into(), points: vec![point, Point { x: 9.0, ..point }] }];
        let svg = Lines { title: "t".into(), series, ..Lines::default() }.svg(&WIDE);
        let text = svg.split("class=\"grid\" x1=\"62\" x2=\"").nth(1).and_then(|rest| rest.split('"').next());
        text.and_then(|end| end.parse::<f64>().ok()).expect("a grid")
    };
    let (short, long) = (end_of_grid("a"), end_of_grid("openvswitch-dpdk receive"));
    assert!(short > 800.0 && long < 860.0 - 24.0 * 8.0, "{short} {long}");
    assert!(end_of_grid(&"x".repeat(500)) >= 430.0, "a chart keeps half of the width");
}

/// Returns the value of an attribute of an element.
fn attribute<'s>(element: &'s str, name: &str) -> Option<&'s str> {
    element.split(&format!(" {name}=\"")).nth(1)?.split('"').next()
}

/// Returns the boxes of the texts of a drawing that are not turned, as the widest font has them: left, right, baseline.
fn text_boxes(svg: &str, character: f64) -> Vec<(f64, f64, f64, String)> {
    let number = |element: &str, name| attribute(element, name).and_then(|text| text.parse::<f64>().ok());
    let texts = svg.split("<text").skip(1).filter(|text| !text.contains("rotate"));
    let boxes = texts.map(|text| {
        let (element, content) = text.split_once('>').expect("an element");
        let content = content.split('<').next().unwrap_or_default().replace("&amp;", "&");
        let (x, y) = (number(element, "x").expect("x"), number(element, "y").expect("y"));
        let (width, class) =
            (content.chars().count() as f64 * character, attribute(element, "class").unwrap_or_default());
        let left = match class {
            "end" | "dim end" => x - width,
            "dim mid" => x - width / 2.0,
            _ => x,
        };
        (left, left + width, y, content)
    });
    boxes.collect()
}

/// Charts with what is longest in the reports.
fn crowded() -> (Lines, Bars) {
    let sizes = [64.0, 128.0, 256.0, 512.0, 1024.0, 1280.0, 1518.0];
    let labels = [
        "openvswitch-dpdk receive",
        "typical (median)",
        "the link's rate",
        "a name that is much longer than others have it",
    ];
    let series = labels.iter().enumerate().map(|(i, label)| Series {
        label: (*label).into(),
        points: sizes.map(|x| Point { marked: x == 512.0, ..point(x, x * 1e3 / (i + 1) as f64) }).to_vec(),
    });
    let lines = Lines {
        title: "Highest rate".into(),
        x: "cycles of the program's own per packet".into(),
        y: "million frames per second".into(),
        x_scale: Scale::Log,
        y_scale: Scale::Log,
        series: series.collect(),
        marked: "disturbed: the sender stood still and caught up, in each attempt at a trial".into(),
        ..Lines::default()
    };
    let bars = [1.2, 300.0, 0.4].map(|ratio| Bar {
        label: "nic-fwd-threads (L) / kernel-bridge with a filter and a long name".into(),
        ratio,
        interval: Some((ratio * 0.9, ratio * 1.1)),
    });
    (lines, Bars { title: "Ratios".into(), bars: bars.to_vec(), ..Bars::default() })
}

#[test]
fn text_on_a_narrow_screen_is_inside_the_drawing_and_does_not_overlap() {
    // Characters of 13 px are 7 px wide in the mean.
    const CHARACTER: f64 = 7.0;
    let (lines, bars) = crowded();
    for svg in [lines.svg(&NARROW), bars.svg(&NARROW)] {
        check_nesting(&svg);
        let mut view =
            attribute(&svg, "viewBox").expect("a box").split(' ').map(|n| n.parse::<f64>().expect("a number"));
        let (width, height) = (view.nth(2).expect("width"), view.next().expect("height"));
        let texts = text_boxes(&svg, CHARACTER);
        assert!(texts.len() > 10);
        for (i, (left, right, y, text)) in texts.iter().enumerate() {
            assert!(*left >= -1.0 && *right <= width + 8.0 && *y >= 10.0 && *y <= height, "{text}: {left} {right} {y}");
            for (other_left, other_right, other_y, other) in &texts[..i] {
                let apart = right <= other_left || other_right <= left || (y - other_y).abs() >= 12.0;
                assert!(apart, "{text} and {other} overlap");
            }
        }
    }
}

#[test]
fn text_has_11_px_on_every_screen() {
    // Of style.css: where the layouts change, and the padding and the font size in each.
    for part in ["max-width: 53rem", "main { padding: 1rem; }", "on-narrow text { font-size: 13px; }", "font: 12px"] {
        assert!(STYLE.contains(part), "{part}");
    }
    for (layout, font, screen) in
        [(NARROW, 13.0, 320.0 - 32.0), (NARROW, 13.0, 390.0 - 32.0), (WIDE, 12.0, 849.0 - 48.0)]
    {
        let pixels = font * screen / layout.width;
        assert!(pixels >= 11.0, "{}: {pixels} px", layout.class);
    }
    let mut page = Page::new("t", "");
    page.lines(&crowded().0);
    let html = page.finish();
    assert!(html.contains("<svg class=\"on-wide\"") && html.contains("<svg class=\"on-narrow\""));
}

#[test]
fn marked_points_have_a_ring_and_a_legend_that_says_what_it_means() {
    let (mut lines, _) = crowded();
    for layout in [WIDE, NARROW] {
        let svg = lines.svg(&layout);
        // One for each series, and the legend's.
        assert_eq!(svg.matches("<circle class=\"mark\"").count(), lines.series.len() + 1);
        assert!(svg.contains(">disturbed: the sender stood still") && svg.contains("at 512, disturbed"), "{svg}");
    }
    lines.series.iter_mut().flat_map(|series| &mut series.points).for_each(|point| point.marked = false);
    assert!(!lines.svg(&WIDE).contains("disturbed"), "nothing is marked");
}
