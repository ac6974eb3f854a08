// SPDX-License-Identifier: BSD-2-Clause

use super::*;

/// Texts that are no quantity of any kind.
const NONE: [&str; 16] = [
    "",
    " ",
    "-1",
    "+1",
    "k",
    "pps",
    "NaN",
    "inf",
    "1..2",
    "1kk",
    "1,5k",
    "1 k",
    "0x10",
    "1e99",
    "99999999999999999999999G",
    "1\u{e9}",
];

#[test]
fn what_is_no_quantity_is_refused_by_all() {
    for text in NONE {
        assert!(packet_rate(text).is_err() && whole_packet_rate(text).is_err(), "{text}");
        assert!(bit_rate(text).is_err() && rate(text).is_err() && ipfw_bandwidth(text).is_err(), "{text}");
        assert!(time(text).is_err() && seconds(text).is_err() && milliseconds(text).is_err(), "{text}");
        assert!(microseconds(text).is_err() && nanoseconds(text).is_err(), "{text}");
        assert!(bytes(text).is_err() && mebibytes(text).is_err() && ipfw_bytes(text).is_err(), "{text}");
        assert!(count(text).is_err() && share(text).is_err(), "{text}");
    }
}

#[test]
fn rates_count_packets_or_bits() {
    for text in ["10k", "10K", "10kpps", "10Kpps", "10KPPS", "10000", "10000pps", "0.01Mpps", "10kpackets/s", "1e4"] {
        assert_eq!(whole_packet_rate(text), Ok(10_000), "{text}");
    }
    for text in [
        "100M",
        "100Mbit",
        "100mbit",
        "100Mbit/s",
        "100Mbps",
        "100mbps",
        "100Mb/s",
        "12.5MB/s",
        "12.5MByte/s",
        "0.1Gbit",
    ] {
        assert_eq!(bit_rate(text), Ok(100_000_000), "{text}");
    }
    assert!(["10Mbit", "10Mbps", "10kB"].iter().all(|text| packet_rate(text).unwrap_err() == PACKETS));
    assert!(["10kpps", "10MB", "10MBPS", "10ms", "0.5bit"].iter().all(|text| bit_rate(text).unwrap_err() == BITS));
    assert_eq!((whole_packet_rate("14.88095238M"), whole_packet_rate("0.1k")), (Ok(14_880_952), Ok(100)));
    assert!(whole_packet_rate("1.5").is_err() && packet_rate("1.5").is_ok_and(|rate| rate.as_f64() == 1.5));
    assert_eq!(
        (whole_packet_rate("18446744073709551615"), whole_packet_rate("18446744073709551616").ok()),
        (Ok(u64::MAX), None)
    );
}

#[test]
fn a_rate_of_either_kind_needs_its_unit() {
    assert_eq!(rate("10kpps"), Ok(Rate::Packets(packet_rate("10k").unwrap())));
    assert_eq!(
        rate("1.5Mbit").map(|rate| matches!(rate, Rate::Bits(bits) if bits.whole() == Some(1_500_000))),
        Ok(true)
    );
    assert_eq!(rate("1MB/s"), rate("8Mbps"));
    for text in ["100M", "1000"] {
        let message = rate(text).unwrap_err();
        assert!(message.contains(&format!("{text}pps")) && message.contains(&format!("{text}bit")), "{message}");
    }
    assert_eq!(rate("fast"), Err(EITHER.into()));
}

#[test]
fn times_have_units() {
    let all = [
        ("1500000ns", 1_500_000),
        ("1500us", 1_500_000),
        ("1500\u{b5}s", 1_500_000),
        ("1.5ms", 1_500_000),
        ("2s", 2_000_000_000),
    ];
    for (text, nanos) in
        all.into_iter().chain([("0.5min", 30_000_000_000), ("1h", 3_600_000_000_000), ("0", 0), ("10MS", 10_000_000)])
    {
        for parse in [time, seconds, milliseconds, microseconds, nanoseconds] {
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
    }
    assert_eq!((seconds("0.1"), milliseconds("10")), (Ok(Duration::from_millis(100)), Ok(Duration::from_millis(10))));
    assert_eq!((microseconds("50"), nanoseconds("7")), (Ok(Duration::from_micros(50)), Ok(Duration::from_nanos(7))));
    assert_eq!(time("0.3333333333333333333333s"), Ok(Duration::from_nanos(333_333_333)));
    assert!(time("10").unwrap_err().contains("10ms") && seconds("1m").unwrap_err().contains("min"));
    assert!(time("0.4ns").is_err() && seconds("99999999999").is_err() && time("5Mbit").is_err());
}

#[test]
fn sizes_are_decimal_unless_they_are_binary() {
    for text in
        ["64k", "64K", "64kB", "64KB", "64kb", "64000", "64000B", "0.064MB", "64kByte", "64KBytes", "64000bytes"]
    {
        assert_eq!(bytes(text), Ok(64_000), "{text}");
    }
    assert_eq!(
        [bytes("4KiB"), bytes("1.5MiB"), bytes("2Gi"), bytes("1G")],
        [Ok(4096), Ok(3 << 19), Ok(2 << 30), Ok(1_000_000_000)]
    );
    assert_eq!(
        [mebibytes("256"), mebibytes("256MiB"), mebibytes("0.25GiB"), mebibytes("0.5")],
        [Ok(256 << 20), Ok(256 << 20), Ok(256 << 20), Ok(1 << 19)]
    );
    assert_eq!(mebibytes("256M"), Ok(256_000_000));
    assert!(bytes("1.5").is_err() && bytes("1Mbit").is_err() && bytes("1iB").is_err() && bytes("1T").is_err());
}

#[test]
fn ipfw_has_words_of_its_own() {
    assert_eq!(
        [ipfw_bytes("50KBytes"), ipfw_bytes("50k"), ipfw_bytes("1500"), ipfw_bytes("1M")],
        [Ok(51_200), Ok(51_200), Ok(1500), Ok(1 << 20)]
    );
    for text in [
        "1Mbit/s",
        "1MBit/s",
        "1000Kbit/s",
        "1Mb",
        "1000Kbits/s",
        "1000000",
        "1M",
        "125KByte/s",
        "125Kbytes",
        "125KB",
        "125KBytes/s",
    ] {
        assert_eq!(ipfw_bandwidth(text), Ok(1_000_000), "{text}");
    }
}

#[test]
fn shares_are_exact_and_not_above_all() {
    for (text, part) in [
        ("1%", 0.01),
        ("0.01", 0.01),
        ("2.5%", 0.025),
        ("100%", 1.0),
        ("1", 1.0),
        ("0", 0.0),
        ("1e-6", 1e-6),
        ("0%", 0.0),
    ] {
        assert_eq!(share(text), Ok(part), "{text}");
    }
    assert!(share("5").unwrap_err().contains("5%"));
    assert!(["101%", "200", "1.1%%", "x%", "1k"].iter().all(|text| share(text).is_err()));
}

#[test]
fn values_out_of_range_are_refused() {
    let slots = within::<u64, u32>(count, 1..=65_536);
    assert_eq!([slots("1"), slots("1.5k"), slots("65536")], [Ok(1), Ok(1500), Ok(65_536)]);
    assert_eq!(
        [slots("0"), slots("66k")],
        [Err("give a number from 1 to 65536".into()), Err("give a number from 1 to 65536".into())]
    );
    assert!(within::<u64, u8>(count, 0..=1000)("256").is_err(), "the type is smaller than the range");
    let interval = within::<Duration, Duration>(seconds, Duration::from_millis(50)..=Duration::from_secs(3600));
    assert_eq!(interval("1h"), Ok(Duration::from_secs(3600)));
    assert_eq!(interval("0.01"), Err("give a time from 50ms to 3600s".into()));
}

#[test]
fn knobs_have_the_unit_of_their_name() {
    assert_eq!(
        [knob("buf_size", "4KiB"), knob("buf_size", "0x1000"), knob("buf_num", "4096")],
        [Ok(4096), Ok(4096), Ok(4096)]
    );
    assert_eq!(
        [knob("sink_delay_ns", "1.5us"), knob("sink_delay_ns", "1500"), knob("if_num", "1.5k")],
        [Ok(1500), Ok(1500), Ok(1500)]
    );
    for (name, text) in [("buf_num", "4KiB"), ("buf_size", "4us"), ("buf_size", "0x"), ("fwd", "-1"), ("fwd", "yes")] {
        assert!(knob(name, text).is_err(), "{name} {text}");
    }
}

#[test]
fn no_text_panics() {
    let numbers = [
        "",
        "0",
        "7",
        "0.1",
        ".",
        "..",
        "1e18",
        "1e-18",
        "1e-19",
        "340282366920938463463",
        "1e",
        "e9",
        "1e+",
        "0e999999999999",
    ];
    let units = [
        "",
        "k",
        "K",
        "\u{b5}s",
        "\u{3bc}",
        "ki",
        "kib",
        "%",
        "%%",
        "ms",
        "min",
        "h",
        "Gpps",
        "GByte/s",
        "B/s",
        "b",
        "i",
        "\u{1f600}",
        "\0",
    ];
    for text in numbers.iter().flat_map(|number| units.map(|unit| format!("{number}{unit}"))) {
        let _ = (packet_rate(&text), whole_packet_rate(&text), bit_rate(&text), rate(&text), ipfw_bandwidth(&text));
        let _ = (time(&text), seconds(&text), milliseconds(&text), microseconds(&text), nanoseconds(&text));
        let _ = (bytes(&text), mebibytes(&text), ipfw_bytes(&text), count(&text), share(&text), knob("a_size", &text));
    }
}
