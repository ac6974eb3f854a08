// SPDX-License-Identifier: BSD-2-Clause
//! Capture files for tests, as programs wrote them that read the formats' descriptions differently.

use std::path::Path;

/// Returns all Ethernet frames of a file, which is not damaged.
///
/// # Panics
/// The file cannot be read.
pub fn read_file(path: &Path) -> Vec<Vec<u8>> {
    let fail = |e: &dyn std::fmt::Display| -> ! { panic!("{}: {e}", path.display()) };
    let file = std::fs::File::open(path).unwrap_or_else(|e| fail(&e));
    let mut file = crate::Frames::new(file).unwrap_or_else(|e| fail(&e));
    let mut all = Vec::new();
    while let Some(frame) = file.next_frame().unwrap_or_else(|e| fail(&e)) {
        all.push(frame.bytes.to_vec());
    }
    all
}

/// A capture file, and what is to be read from it.
pub struct Sample {
    /// File name.
    pub name: String,
    /// The file.
    pub bytes: Vec<u8>,
    /// The frames to send, in order.
    pub frames: Vec<Vec<u8>>,
    /// Parts of what is said about the file.
    pub notes: &'static [&'static str],
    /// Part of the error after the last frame; empty: the file is good.
    pub damage: &'static str,
    /// The behaviour of libpcap.
    pub libpcap: Libpcap,
}

/// How libpcap reads a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Libpcap {
    /// It reads the bytes that we read.
    Same,
    /// It reads our bytes, and 4 of FCS after them.
    WithFcs,
    /// At most this number of the bytes.
    First(usize),
    /// A part of the frames, then an error; or no frame.
    Refuses,
}

/// Returns test frame `i`: 100 bytes or a few more, of a local experimental protocol.
pub fn frame(i: usize) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    bytes.resize(100 + i, i as u8 + 1);
    bytes
}

fn frame_with_fcs(i: usize) -> Vec<u8> {
    [&frame(i)[..], &[0xde, 0xad, 0xbe, 0xef]].concat()
}

fn number(big: bool, value: u64, len: usize) -> Vec<u8> {
    if big { value.to_be_bytes()[8 - len..].to_vec() } else { value.to_le_bytes()[..len].to_vec() }
}

/// A pcap file that is being built.
#[derive(Clone)]
pub struct Pcap {
    big: bool,
    /// Zeros between the header of a record and its data.
    extra: usize,
    /// The original length comes first.
    swapped: bool,
    /// The file so far.
    pub bytes: Vec<u8>,
}

impl Pcap {
    /// Begins a file of this byte order.
    pub fn new(big: bool, magic: u32, version: (u16, u16), snaplen: u32, link: u32) -> Pcap {
        let bytes = [
            number(big, magic.into(), 4),
            number(big, version.0.into(), 2),
            number(big, version.1.into(), 2),
            vec![0; 8],
            number(big, snaplen.into(), 4),
            number(big, link.into(), 4),
        ];
        let extra = if magic == 0xa1b2_cd34 { 8 } else { 0 };
        Pcap { big, extra, swapped: version < (2, 3) || version == (543, 0), bytes: bytes.concat() }
    }

    /// A file of Ethernet packets of this machine's time.
    pub fn usual() -> Pcap {
        Pcap::new(false, 0xa1b2_c3d4, (2, 4), 262_144, 1)
    }

    /// Appends a record of `data`, of which `original` bytes were captured, `time` units after second 1.
    #[must_use]
    pub fn record(mut self, time: u32, data: &[u8], original: usize) -> Pcap {
        let (first, second) = if self.swapped { (original, data.len()) } else { (data.len(), original) };
        for value in [1, u64::from(time), first as u64, second as u64] {
            self.bytes.extend(number(self.big, value, 4));
        }
        self.bytes.resize(self.bytes.len() + self.extra, 0);
        self.bytes.extend(data);
        self
    }

    /// Appends whole packets.
    #[must_use]
    pub fn records(self, frames: &[Vec<u8>]) -> Pcap {
        frames.iter().zip(1..).fold(self, |file, (frame, time)| file.record(time, frame, frame.len()))
    }
}

/// A pcapng file that is being built.
#[derive(Clone, Default)]
pub struct Pcapng {
    big: bool,
    /// The file so far.
    pub bytes: Vec<u8>,
}

/// Options: code and value.
pub type Options<'a> = &'a [(u16, &'a [u8])];

/// The end mark of options.
pub const END: (u16, &[u8]) = (0, &[]);

impl Pcapng {
    /// A file of a section of this byte order with an interface of Ethernet.
    pub fn usual(big: bool) -> Pcapng {
        Pcapng::default().section(big).interface(1, 262_144, &[])
    }

    /// Appends a block.
    #[must_use]
    pub fn block(mut self, kind: u32, body: &[u8]) -> Pcapng {
        let len = number(self.big, (12 + body.len().next_multiple_of(4)) as u64, 4);
        self.bytes.extend(number(self.big, kind.into(), 4));
        self.bytes.extend(&len);
        self.bytes.extend(body);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self.bytes.extend(&len);
        self
    }

    /// Appends the header of a section, whose interfaces count from 0 again.
    #[must_use]
    pub fn section(mut self, big: bool) -> Pcapng {
        self.big = big;
        let body = [number(big, 0x1a2b_3c4d, 4), number(big, 1, 2), number(big, 0, 2), vec![0xff; 8]].concat();
        self.block(0x0a0d_0d0a, &body)
    }

    /// Appends an interface.
    #[must_use]
    pub fn interface(self, link: u16, snaplen: u32, options: Options<'_>) -> Pcapng {
        let fields = [number(self.big, link.into(), 2), vec![0; 2], number(self.big, snaplen.into(), 4)].concat();
        let body = [fields, self.options(options)].concat();
        self.block(1, &body)
    }

    /// Appends a packet of an interface, captured at `time` in its units.
    #[must_use]
    pub fn packet(self, interface: u32, time: u64, data: &[u8], original: usize, options: Options<'_>) -> Pcapng {
        let fields = [interface.into(), time >> 32, time & 0xffff_ffff, data.len() as u64, original as u64];
        let fields = fields.map(|field| number(self.big, field, 4)).concat();
        let body = [fields, padded(data), self.options(options)].concat();
        self.block(6, &body)
    }

    /// Appends an obsolete packet.
    #[must_use]
    pub fn old_packet(self, interface: u16, time: u64, data: &[u8], original: usize, options: Options<'_>) -> Pcapng {
        let fields = [time >> 32, time & 0xffff_ffff, data.len() as u64, original as u64];
        let fields = fields.map(|field| number(self.big, field, 4)).concat();
        let head = [number(self.big, interface.into(), 2), vec![0xff; 2]].concat();
        let body = [head, fields, padded(data), self.options(options)].concat();
        self.block(2, &body)
    }

    /// Appends a simple packet.
    #[must_use]
    pub fn simple_packet(self, data: &[u8], original: usize) -> Pcapng {
        let body = [number(self.big, original as u64, 4), data.to_vec()].concat();
        self.block(3, &body)
    }

    /// Appends whole packets of interface 0, a millisecond apart.
    #[must_use]
    pub fn packets(self, frames: &[Vec<u8>]) -> Pcapng {
        frames.iter().zip(1..).fold(self, |file, (frame, i)| file.packet(0, i * 1000, frame, frame.len(), &[]))
    }

    fn options(&self, options: Options<'_>) -> Vec<u8> {
        let one = |(code, value): &(u16, &[u8])| {
            [number(self.big, u64::from(*code), 2), number(self.big, value.len() as u64, 2), padded(value)].concat()
        };
        options.iter().flat_map(one).collect()
    }
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn good(name: impl Into<String>, bytes: Vec<u8>, libpcap: Libpcap) -> Sample {
    let frames = (0..3).map(frame).collect();
    Sample { name: name.into(), bytes, frames, notes: &[], damage: "", libpcap }
}

/// Returns all samples. Each has a frame at least, and all can be sent through a port.
pub fn samples() -> Vec<Sample> {
    let all = [pcap_samples(), pcapng_samples(), interface_samples(), samples_with_fcs(), incomplete_samples()];
    all.into_iter().flatten().collect()
}

fn pcap_samples() -> Vec<Sample> {
    let frames: Vec<_> = (0..3).map(frame).collect();
    let mut all = Vec::new();
    for big in [false, true] {
        for (unit, magic) in [("us", 0xa1b2_c3d4), ("ns", 0xa1b2_3c4d), ("kuznetsov", 0xa1b2_cd34)] {
            let file = Pcap::new(big, magic, (2, 4), 65535, 1).records(&frames);
            all.push(good(format!("{unit}-big-{big}.pcap"), file.bytes, Libpcap::Same));
        }
    }
    for version in [(2, 2), (2, 3), (543, 0)] {
        let file = Pcap::new(true, 0xa1b2_c3d4, version, 65535, 1).records(&frames);
        all.push(good(format!("version-{}.{}.pcap", version.0, version.1), file.bytes, Libpcap::Same));
    }
    let small = Pcap::new(false, 0xa1b2_c3d4, (2, 4), 64, 1).records(&frames);
    all.push(good("snaplen-below-stored.pcap", small.bytes, Libpcap::First(64)));
    let none = Pcap::new(false, 0xa1b2_c3d4, (2, 4), 0, 1).records(&frames);
    all.push(good("snaplen-0.pcap", none.bytes, Libpcap::Same));
    let backwards = Pcap::usual().record(9000, &frames[0], 100).record(5, &frames[1], 101).record(7, &frames[2], 102);
    all.push(good("time-backwards.pcap", backwards.bytes, Libpcap::Same));
    let below = Pcap::usual().record(1, &frames[0], 60).record(2, &frames[1], 0).record(3, &frames[2], 102);
    all.push(good("original-below-stored.pcap", below.bytes, Libpcap::Same));
    let fraction = Pcap::usual().record(u32::MAX, &frames[0], 100).records(&frames[1..]);
    all.push(good("microseconds-above-a-second.pcap", fraction.bytes, Libpcap::Same));
    all
}

fn pcapng_samples() -> Vec<Sample> {
    let frames: Vec<_> = (0..3).map(frame).collect();
    let [a, b, c] = [0, 1, 2].map(|i| frames[i].as_slice());
    let usual = Pcapng::usual;
    let sections = usual(false).packets(&frames[..1]).section(false).interface(1, 262_144, &[]).packets(&frames[1..]);
    let interfaces = usual(false)
        .interface(1, 262_144, &[(9, &[9]), END])
        .interface(1, 262_144, &[(9, &[0x8a]), (14, &[1, 0, 0, 0, 0, 0, 0, 0]), END])
        .packet(2, 1024, a, 100, &[])
        .packet(1, 2_000_100_000, b, 101, &[])
        .packet(0, 2_000_200, c, 102, &[]);
    let unknown = usual(true)
        .block(0xbad, &[7; 99])
        .packets(&frames[..1])
        .block(0x0bad_0001, &[])
        .block(10, &[1; 70_000])
        .block(5, &[0; 12])
        .packets(&frames[1..]);
    let simple = usual(false).simple_packet(a, 100).simple_packet(b, 101).simple_packet(c, 102);
    let old = usual(true).old_packet(0, 1, a, 100, &[END]).old_packet(0, 2, b, 101, &[]);
    let options = usual(false)
        .packet(0, 1, a, 100, &[(1, b"\xc0\xff"), (2, &[1, 0, 0, 0])])
        .packet(0, 2, b, 101, &[(0x8bad, b"odd"), END])
        .packet(0, 3, c, 102, &[(1, &[b'x'; 60_000]), END]);
    let both_orders = usual(false).packets(&frames[..1]).section(true).interface(1, 0, &[]).packets(&frames[1..]);
    let snaplen = Pcapng::default().section(false).interface(1, 64, &[]).packets(&frames);
    [
        ("little.pcapng", usual(false).packets(&frames), Libpcap::Same),
        ("big.pcapng", usual(true).packets(&frames), Libpcap::Same),
        ("sections.pcapng", sections, Libpcap::Same),
        ("several-interfaces.pcapng", interfaces, Libpcap::Same),
        ("unknown-blocks.pcapng", unknown, Libpcap::Same),
        ("simple.pcapng", simple, Libpcap::Same),
        ("old-packets.pcapng", old.old_packet(0, 3, c, 102, &[]), Libpcap::Same),
        ("options-of-packets.pcapng", options, Libpcap::Same),
        ("both-orders.pcapng", both_orders, Libpcap::Refuses),
        ("snaplen-below-stored.pcapng", snaplen, Libpcap::Refuses),
    ]
    .map(|(name, file, libpcap)| good(name, file.bytes, libpcap))
    .into()
}

/// Files whose interfaces have unusual options or link types.
fn interface_samples() -> Vec<Sample> {
    let frames: Vec<_> = (0..3).map(frame).collect();
    let [a, b, c] = [0, 1, 2].map(|i| frames[i].as_slice());
    let with = |big, options| Pcapng::default().section(big).interface(1, 0, options).packets(&frames).bytes;
    let text: Options<'_> = &[(3, b"Schnittstelle \xfcber"), (2, b"\xff\xfe"), END];
    let odd: Options<'_> = &[(2, b"a"), (3, b"abc"), (1, b"12345"), (0x7fff, b"x"), END];
    let sizes = with(false, &[(8, &[0; 4]), (9, &[6, 0]), (13, &[4, 0]), END]);
    let mut over = with(false, &[(2, b"eth0")]);
    // The name's length, in the interface after a section of 28 bytes: more than the block has.
    over[28 + 18] = 200;
    let [long_of_usb, cooked] = [&[7; 300_000][..], &[7; 102]];
    let mixed = Pcapng::usual(false)
        .interface(113, 262_144, &[])
        .interface(220, 0, &[])
        .packet(0, 1, a, 100, &[])
        .packet(1, 2, cooked, 102, &[])
        .packet(2, 3, long_of_usb, 300_000, &[])
        .packet(0, 4, b, 101, &[])
        .packet(1, 5, cooked, 102, &[])
        .packet(0, 6, c, 102, &[]);
    let links = &["2 packets of link type LINUX_SLL (113): not sent", "1 packet of link type USB_LINUX_MMAPPED (220)"];
    let refused = |name, bytes, notes| Sample { notes, ..good(name, bytes, Libpcap::Refuses) };
    vec![
        good("no-end-of-options.pcapng", with(false, &[(2, b"eth0")]), Libpcap::Same),
        good("not-utf-8.pcapng", with(false, text), Libpcap::Same),
        good("odd-options.pcapng", with(true, odd), Libpcap::Same),
        refused("resolution-of-no-clock.pcapng", with(false, &[(9, &[0x7f])]), &[]),
        refused("wrong-sizes.pcapng", sizes, &["3 options of a wrong size"]),
        refused("option-over-the-end.pcapng", over, &["1 option of a wrong size"]),
        refused("link-types.pcapng", mixed.bytes, links),
    ]
}

fn samples_with_fcs() -> Vec<Sample> {
    let whole: Vec<_> = (0..3).map(frame_with_fcs).collect();
    let [a, b, c] = [0, 1, 2].map(|i| whole[i].as_slice());
    let header = |link| Pcap::new(false, 0xa1b2_c3d4, (2, 4), 262_144, link);
    let frames: Vec<_> = (0..3).map(frame).collect();
    let interface = |value: &[u8]| Pcapng::default().section(false).interface(1, 0, &[(13, value), END]);
    let flags = Pcapng::usual(true).packet(0, 1, a, 104, &[(2, &[0, 0, 0, 0x81]), END]).old_packet(
        0,
        2,
        b,
        105,
        &[(2, &[0, 0, 0, 0x80])],
    );
    let mixed = interface(&[4])
        .packet(0, 1, a, 104, &[])
        .packet(0, 2, &[b, &[0xaa; 4]].concat(), 109, &[(2, &[0, 1, 0, 0]), END])
        .packet(0, 3, c, 106, &[(2, &[1, 0, 0, 0]), END]);
    // Truncated in the FCS, before it, and not at all.
    let cut = header(0x2400_0001).record(1, &a[..102], 104).record(2, &b[..101], 105).record(3, &c[..90], 106);
    let mut cut_frames = frames.clone();
    cut_frames[2].truncate(90);
    vec![
        good("fcs-given.pcap", header(0x2400_0001).records(&whole).bytes, Libpcap::WithFcs),
        good("fcs-of-0.pcap", header(0x0400_0001).records(&frames).bytes, Libpcap::Same),
        good("fcs-bits-without-the-flag.pcap", header(0x2000_0001).records(&frames).bytes, Libpcap::Same),
        good("reserved-bit.pcap", header(0x0800_0001).records(&frames).bytes, Libpcap::Same),
        good("fcs-of-interface.pcapng", interface(&[4]).packets(&whole).bytes, Libpcap::WithFcs),
        good("fcs-in-bits.pcapng", interface(&[32]).packets(&whole).bytes, Libpcap::WithFcs),
        good("fcs-in-flags.pcapng", flags.packet(0, 3, c, 106, &[(2, &[0, 0, 0, 0x80])]).bytes, Libpcap::WithFcs),
        Sample {
            frames: vec![frame(0), frame(1), frame(2)],
            ..good("fcs-of-packets.pcapng", mixed.bytes, Libpcap::Refuses)
        },
        Sample {
            frames: cut_frames,
            notes: &["1 of 3 packets are truncated"],
            ..good("fcs-truncated.pcap", cut.bytes, Libpcap::Refuses)
        },
    ]
}

/// Files of which something is not sent.
fn incomplete_samples() -> Vec<Sample> {
    let frames: Vec<_> = (0..3).map(frame).collect();
    let [a, b, c] = [0, 1, 2].map(|i| frames[i].as_slice());
    let short: Vec<_> = frames.iter().map(|frame| frame[..70].to_vec()).collect();
    let notes = &["3 of 3 packets are truncated"];
    let mut all = vec![
        Sample {
            frames: short.clone(),
            notes,
            ..good(
                "truncated.pcap",
                Pcap::usual().record(1, &a[..70], 100).record(2, &b[..70], 101).record(3, &c[..70], 102).bytes,
                Libpcap::Same,
            )
        },
        Sample {
            frames: short,
            notes,
            ..good(
                "truncated-simple.pcapng",
                Pcapng::default()
                    .section(false)
                    .interface(1, 70, &[])
                    .simple_packet(&a[..70], 100)
                    .simple_packet(&b[..70], 101)
                    .simple_packet(&c[..70], 102)
                    .bytes,
                Libpcap::Same,
            )
        },
        Sample {
            notes: &["2 packets without bytes"],
            ..good(
                "empty-records.pcap",
                Pcap::usual()
                    .record(0, &[], 0)
                    .record(1, a, 100)
                    .record(2, &[], 60)
                    .record(3, b, 101)
                    .record(4, c, 102)
                    .bytes,
                Libpcap::Same,
            )
        },
        Sample {
            notes: &["1 packet without bytes"],
            ..good(
                "empty-records.pcapng",
                Pcapng::usual(true).packets(&frames[..2]).packet(0, 3, &[], 0, &[]).packet(0, 4, c, 102, &[]).bytes,
                Libpcap::Same,
            )
        },
    ];
    for (name, file) in
        [("pcap", Pcap::usual().records(&frames).bytes), ("pcapng", Pcapng::usual(false).packets(&frames).bytes)]
    {
        let two = || frames[..2].to_vec();
        for (cut, left) in [("data", 60), ("header", file.len() - last_record(name, &file) - 6)] {
            let bytes = file[..file.len() - left].to_vec();
            let sample = good(format!("ends-in-{cut}.{name}"), bytes, Libpcap::Refuses);
            all.push(Sample { frames: two(), damage: "it ends within a record, after packet 2", ..sample });
        }
        let mut wrong = file.clone();
        let (at, damage) = match name {
            "pcap" => (last_record(name, &file) + 8, "the next packet has 2130706"),
            _ => (last_record(name, &file) + 4, "not 12 or more in steps of 4"),
        };
        wrong[at..at + 4].copy_from_slice(&0x7f00_0001_u32.to_le_bytes());
        let sample = good(format!("wrong-length.{name}"), wrong, Libpcap::Refuses);
        all.push(Sample { frames: two(), damage, ..sample });
    }
    let unknown = Pcapng::usual(false).packets(&frames).packet(7, 1, a, 100, &[]);
    all.push(Sample {
        damage: "interface 7 is not described",
        ..good("no-interface.pcapng", unknown.bytes, Libpcap::Refuses)
    });
    all
}

/// Returns where the record of frame 2 begins, the last one of a file.
fn last_record(name: &str, file: &[u8]) -> usize {
    file.len() - if name == "pcap" { 16 + 102 } else { 32 + 104 }
}

/// Returns captures with an index: plain, and compressed. Flow: TCP between 10.0.0.1:1 and 10.0.0.2:2.
#[cfg(feature = "index")]
pub fn with_index() -> [Vec<u8>; 2] {
    use crate::index::Builder;
    use crate::write::{CaptureInfo, Counters, Format, begin, end, packet};
    use std::time::Duration;

    let info = CaptureInfo { port: "a".into(), filter: String::new(), snaplen: 262_144, times: "" };
    let mut head = Vec::new();
    begin(&mut head, Format::Pcapng, &info).expect("memory");
    let zstd = |bytes: &[u8]| zstd::bulk::compress(bytes, 3).expect("memory");
    let mut files = [head.clone(), zstd(&head)];
    let mut builder = Builder::default();
    for chunk in 0..2u64 {
        let mut records = Vec::new();
        for i in 0..3 {
            let mut bytes = [2; 60];
            let tcp = [8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, i + 1, 0, 1, 0, 2];
            bytes[12..12 + tcp.len()].copy_from_slice(&tcp);
            let time = Duration::from_secs(1_700_000_000 + chunk * 10 + u64::from(i));
            builder.add(records.len(), time, &bytes);
            packet(&mut records, Format::Pcapng, time, &bytes, 60).expect("memory");
        }
        let mut again = builder.clone();
        files[0].extend(builder.block(records.len()));
        files[0].extend(&records);
        let packed = zstd(&records);
        files[1].extend(again.frame(records.len(), &[(0, 0)], packed.len()));
        files[1].extend(packed);
    }
    let mut last = Vec::new();
    end(&mut last, Format::Pcapng, Duration::ZERO, Duration::ZERO, Counters::default()).expect("memory");
    files[0].extend(&last);
    files[1].extend(zstd(&last));
    files
}
