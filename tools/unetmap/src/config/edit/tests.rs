// SPDX-License-Identifier: BSD-2-Clause
use proptest::prelude::{ProptestConfig, Strategy, any, prop_assert_eq, proptest};

use super::*;

/// Edits a file so that it says what `with` makes of it.
fn edited(before: &str, with: impl FnOnce(&mut Vec<Setting>)) -> String {
    let mut wanted = parse(before).unwrap();
    with(&mut wanted);
    edit(before, &wanted).unwrap()
}

fn port(port: &str, key: &'static str, value: &str) -> Setting {
    Setting::Port { port: port.into(), key, value: value.into() }
}

const FILE: &str = r#"# Of the lab.
[[persistent]]
name = "v0" # the first
config = "1024"

# Not for long.
[[persistent]]
name = "gone" # a guest's

[port."vale0:a"]
# Of each kind.
storm = "1000" # packets
access = 7

# Of the office.
[switch.vale0]
attach = [
    "v0", # the lab's
    "eth2", # the uplink
]
age = 300 # seconds

[port."vale0:b"]   # B
# Tuesdays only.
rate-in = "1Mpps" # at most
# The end.
"#;

#[test]
fn what_is_not_changed_stays_as_it_is() {
    assert_eq!(edited(FILE, |_| {}), FILE);
    // As the daemon has it: with all numbers.
    let after = edited(FILE, |settings| {
        settings.retain(|setting| !matches!(setting, Setting::Persistent { name, .. } if name == "v0"));
        settings.push(Setting::Persistent { name: "v0".into(), config: [1024, 256, 1, 1] });
    });
    assert_eq!(after, FILE);
}

#[test]
fn what_is_changed_keeps_its_place_and_its_comments() {
    let after = edited(FILE, |settings| {
        for setting in settings {
            match setting {
                Setting::Age { seconds, .. } => *seconds = "60".into(),
                Setting::Port { key: "access", value, .. } => *value = "8".into(),
                Setting::Persistent { name, config } if name == "v0" => *config = [512, 0, 0, 0],
                _ => {}
            }
        }
    });
    let wanted = FILE.replace("age = 300", "age = 60").replace("access = 7", "access = 8");
    assert_eq!(after, wanted.replace("config = \"1024\"", "config = \"512,0,0,0\""));
}

#[test]
fn what_is_removed_leaves_its_comments() {
    let after = edited(FILE, |settings| {
        settings.retain(|setting| match setting {
            Setting::Persistent { name, .. } => name != "gone",
            Setting::Port { port, key, .. } => port == "vale0:a" && *key != "storm",
            Setting::Attach { interface, .. } => interface != "eth2",
            _ => true,
        });
    });
    let expected = r#"# Of the lab.
[[persistent]]
name = "v0" # the first
config = "1024"

# Not for long.
# a guest's

[port."vale0:a"]
# Of each kind.
# packets
access = 7

# Of the office.
[switch.vale0]
attach = [
    "v0", # the lab's
# the uplink
]
age = 300 # seconds

# B
# Tuesdays only.
# at most
# The end.
"#;
    assert_eq!(after, expected);
}

#[test]
fn an_empty_state_leaves_the_comments_alone() {
    let after = edited(FILE, Vec::clear);
    assert_eq!(comments(&after), comments(FILE));
    assert!(after.lines().all(|line| line.is_empty() || line.starts_with('#')), "{after}");
}

#[test]
fn a_key_that_another_replaces_leaves_its_comment_in_the_same_table() {
    let file = "[port.\"vale0:a\"]\naccess = 7 # the lab\n[switch.vale0]\nage = 3\n";
    let after = edited(file, |settings| {
        settings.retain(|setting| setting.place()[2] != "access");
        settings.push(port("vale0:a", "trunk", "10,20"));
    });
    assert_eq!(after, "[port.\"vale0:a\"]\ntrunk = \"10,20\"\n# the lab\n[switch.vale0]\nage = 3\n");
}

#[test]
fn lists_get_and_lose_elements() {
    let list = |names: &str| format!("[switch.vale0]\nattach = [{names}] # both\n");
    let attach = |name: &str| Setting::Attach { switch: "vale0".into(), interface: name.into(), host: false };
    for (before, gone, new, after) in [
        (r#""a", "b""#, "b", None, r#""a""#),
        (r#""a", "b""#, "a", None, r#""b""#),
        (r#""a", "b", "c""#, "b", None, r#""a", "c""#),
        (r#""a""#, "", Some("b"), r#""a", "b""#),
    ] {
        let edited = edited(&list(before), |settings| {
            settings.retain(|setting| *setting != attach(gone));
            settings.extend(new.map(attach));
        });
        assert_eq!(edited, list(after), "[{before}] without {gone:?}, with {new:?}");
    }
}

#[test]
fn what_is_new_comes_last() {
    let new = port("vale9:x", "storm", "5");
    let added = "\n[port.\"vale9:x\"]\nstorm = 5\n";
    for before in [FILE, "# Nothing yet.\n", "[switch.vale0]\nage = 3\n# The end.\n"] {
        assert_eq!(edited(before, |settings| settings.push(new.clone())), format!("{before}{added}"));
    }
    assert_eq!(edited("", |settings| settings.push(new.clone())), added[1..]);
    // All that was there is gone: its comments stay where they were.
    let before = "# A\n[switch.vale0] # B\nage = 3 # C\n";
    assert_eq!(edit(before, std::slice::from_ref(&new)).unwrap(), format!("# A\n# B\n# C\n{added}"));
    let persistent = Setting::Persistent { name: "v9".into(), config: [0; 4] };
    let after = edited(FILE, |settings| settings.insert(0, persistent.clone()));
    assert!(after.starts_with(FILE) && parse(&after).unwrap().contains(&persistent), "{after}");
}

/// Ways to write the same.
const FORMS: [&str; 6] = [
    "# a\nswitch.vale0.age = 3 # b\nport.\"vale0:a\".storm = 1000 # c\n",
    "# a\n[switch]\nvale0 = { age = 3 } # b\n[port]\n\"vale0:a\" = {storm = 1000, access = 5} # c\n",
    "# a\n[switch]\nvale0.age = 3 # b\nvale0.attach = [\"x\"] # c\n",
    "# a\nswitch = { vale0 = { age = 3, # d\n attach = [\"x\", \"y\"] # e\n } } # b\n",
    "switch = { vale0.age = 3, \"vale1\" . attach = [\"x\"] } # \"b\" 'c' #\n",
    "port.\"vale0:a\".filter-in = \"\"\"udp or \\\n tcp\"\"\" # a\nport.'vale0:a'.storm = '1k' # b",
];

#[test]
fn all_forms_of_toml_can_be_edited() {
    for file in FORMS {
        let all = parse(file).unwrap();
        for chosen in 0..1 << all.len() {
            let some = all.iter().enumerate().filter(|(at, _)| chosen >> at & 1 == 1).map(|(_, of)| of.clone());
            let wanted: Vec<Setting> = some.chain([port("vale9:x", "storm", "5")]).collect();
            let after = edit(file, &wanted).unwrap_or_else(|why| panic!("{why}: {file}\n{wanted:?}"));
            assert_eq!(comments(&after), comments(file), "{after}");
        }
    }
}

#[test]
fn comments_are_found_outside_of_strings() {
    let text = r##"a = "# \" #" # 1
b = '#\' # 2
c = """
# \""" #"""" #3
d = '''#''' # 4
e = "" #5"##;
    assert_eq!(comments(text), ["# 1", "# 2", "#3", "# 4", "#5"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever is said before and wanted after: the result says it, and has all comments.
    #[test]
    fn any_change_keeps_all_comments(before in lines(), wanted in lines()) {
        let (before, wanted) = (file(&before), parse(&file(&wanted)).unwrap());
        let after = edit(&before, &wanted).unwrap();
        let (mut kept, mut had) = (comments(&after), comments(&before));
        kept.sort_unstable();
        had.sort_unstable();
        prop_assert_eq!(kept, had, "{}", after);
        prop_assert_eq!(parse(&after).unwrap(), wanted.clone(), "{}", after);
        prop_assert_eq!(edit(&after, &wanted).unwrap(), after);
    }
}

/// Which lines of [`file`] there are.
fn lines() -> impl Strategy<Value = Vec<bool>> {
    proptest::collection::vec(any::<bool>(), 12)
}

/// A file of some of these lines, with a comment at each.
fn file(lines: &[bool]) -> String {
    let list = "attach = [\n\"x\", # x\n \"y\" # y\n, \"z\"]";
    let tables = [
        ("[switch.vale0]", vec!["age = 3", list, "attach-host = [\"h\"]"]),
        ("[port.\"vale0:a\"]", vec!["access = 5", "storm = 1000", "rate-in = \"1kpps\""]),
        ("[port.\"vale0:b\"]", vec!["trunk = \"1-5\"", "memif = \"/x\""]),
        ("[interface.eth0]", vec!["header = 12", "busy-poll = \"50 64\""]),
        ("[[persistent]]", vec!["name = \"v0\""]),
        ("[[persistent]]", vec!["name = \"v1\"\nconfig = \"1,2,3,4\""]),
    ];
    let mut at = lines.iter();
    let mut next = || at.next().copied().unwrap_or(false);
    let mut text = String::from("# Begin.\n\n");
    for (n, (header, keys)) in tables.into_iter().enumerate() {
        let chosen: Vec<&str> = keys.into_iter().filter(|_| next()).collect();
        if !chosen.is_empty() {
            text += &format!("# Table {n}.\n{header} # Header {n}.\n");
            chosen.iter().for_each(|key| text += &format!("# Before.\n{key} # After.\n"));
            text += "\n";
        }
    }
    text + "# End.\n"
}

#[test]
fn what_is_not_printable_is_escaped_in_the_file_and_read_again() {
    let hostile = "udp \u{1b}[2J\n\u{202e}\u{9b}\u{e0041}";
    let settings = [
        Setting::Interface { name: "e\u{202e}th".into(), key: "filter", value: "udp".into() },
        Setting::Attach { switch: "vale0".into(), interface: "i\u{1b}f".into(), host: false },
    ];
    let mut document = DocumentMut::new();
    settings.iter().for_each(|setting| put(&mut document, setting));
    document["x"] = value(quoted(hostile));
    let text = document.to_string();
    assert!(text.chars().all(|c| is_printable(c) || c == '\n'), "{text:?}");
    let read: DocumentMut = text.parse().unwrap();
    assert_eq!(read["x"].as_str(), Some(hostile));
    assert_eq!(read["interface"]["e\u{202e}th"]["filter"].as_str(), Some("udp"));
    assert_eq!(read["switch"]["vale0"]["attach"][0].as_str(), Some("i\u{1b}f"));
}
