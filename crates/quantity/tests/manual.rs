// SPDX-License-Identifier: BSD-2-Clause
//! The table of unetmap(7), section QUANTITIES, is what the parser does.

use unetmap_quantity::{bit_rate, bytes, count, packet_rate, rate, seconds, share, time};

/// Returns the lines of the table: kind, spellings, value.
fn table() -> Vec<(String, Vec<String>, f64)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../man/unetmap.7");
    let page = std::fs::read_to_string(path).expect("the man page");
    let section = page.split(".SH QUANTITIES\n").nth(1).expect("the section");
    let table = section.split(".nf\n").nth(1).and_then(|rest| rest.split(".fi\n").next()).expect("a table");
    let row = |line: &str| {
        let line = line.replace("\\-", "-");
        let columns: Vec<&str> = line.split("  ").map(str::trim).filter(|column| !column.is_empty()).collect();
        let [kind, spellings, value] = columns[..] else { panic!("{line}") };
        let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
        (kind.to_owned(), spellings.split(' ').map(String::from).collect(), value)
    };
    table.lines().map(row).collect()
}

fn parse(kind: &str, text: &str) -> Result<f64, String> {
    let whole = |number: Result<u64, String>| number.map(|number| number as f64);
    match kind {
        "packets per second" => packet_rate(text).map(|rate| rate.as_f64()),
        "bits per second" => whole(bit_rate(text)),
        "time" => time(text).map(|time| time.as_secs_f64()),
        "size" => whole(bytes(text)),
        "share" => share(text),
        "count" => whole(count(text)),
        other => panic!("an unknown kind: {other}"),
    }
}

#[test]
fn the_spellings_of_the_manual_have_its_values() {
    let table = table();
    assert!(table.len() >= 10, "{table:?}");
    for (kind, spellings, value) in &table {
        for text in spellings {
            assert_eq!(parse(kind, text), Ok(*value), "{kind}: {text}");
        }
    }
}

#[test]
fn the_refusals_of_the_manual_name_its_alternatives() {
    for (refused, alternatives) in [
        (rate("100M").map(drop), ["100Mpps", "100Mbit"]),
        (time("10").map(drop), ["10ms", "10s"]),
        (share("5").map(drop), ["5%", "0 to 1"]),
        (count("1.5").map(drop), ["1.5k", "whole"]),
    ] {
        let message = refused.expect_err(alternatives[0]);
        assert!(alternatives.iter().all(|text| message.contains(text)), "{message}");
    }
    assert_eq!(seconds("10"), time("10s"));
}
