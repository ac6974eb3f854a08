// SPDX-License-Identifier: BSD-2-Clause
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown, symlink};
use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::file::{Stamp, is_settled, stamp};
use super::*;
use crate::tuning::policy::SETTLED;
use crate::written::line_of;

const ALICE: u32 = 1000;
const BOB: u32 = 1001;
const STAFF: u32 = 50;
const NETMAP: u32 = 60;
const HERE: u64 = 4_026_531_840;

/// Accounts of a machine that is always the same.
fn fixed(kind: Account, name: &str) -> io::Result<Option<u32>> {
    let known = match kind {
        Account::User if name == "broken" => return Err(io::Error::other("the directory does not answer")),
        Account::User => [("root", 0), ("alice", ALICE), ("bob", BOB)],
        Account::Group => [("root", 0), ("staff", STAFF), ("netmap", NETMAP)],
    };
    Ok(known.into_iter().find(|(known, _)| *known == name).map(|(_, id)| id))
}

fn policy(text: &str) -> Policy {
    parse(text, fixed).unwrap_or_else(|e| panic!("{}\n{text}", e.why))
}

fn who(uid: u32, groups: &[u32]) -> Identity<'_> {
    Identity { uid, groups, netns: HERE }
}

const ROOT: Identity<'static> = Identity { uid: 0, groups: &[0], netns: HERE };

fn user(uid: u32) -> Identity<'static> {
    who(uid, &[100])
}

const DIRECT: Option<Access> = Some(Access::Direct);
const MEDIATED: Option<Access> = Some(Access::Mediated);

#[test]
fn built_in_rules() {
    for text in ["", "defaults = true", "# nothing\n"] {
        let p = policy(text);
        assert_eq!(p.nic(&ROOT, "eth0"), DIRECT);
        assert_eq!(p.nic(&who(ALICE, &[100, NETMAP]), "eth0"), MEDIATED);
        assert_eq!(p.nic(&user(ALICE), "eth0"), None);
        assert_eq!(p.nic(&who(ALICE, &[0]), "eth0"), None, "root's group is not root");
        assert!(p.pipes(&ROOT) && !p.pipes(&who(ALICE, &[NETMAP])));
        assert!(p.admits_anything(&ROOT) && p.admits_anything(&who(ALICE, &[NETMAP])));
        assert!(!p.admits_anything(&user(ALICE)));
    }
    let none = policy("defaults = false");
    assert_eq!(none.nic(&ROOT, "eth0"), None);
    assert!(!none.pipes(&ROOT) && !none.admits_anything(&ROOT));
    let p = parse("", |_, _| Ok(None)).unwrap();
    assert_eq!((p.nic(&ROOT, "eth0"), p.nic(&who(ALICE, &[0, NETMAP]), "eth0")), (DIRECT, None));
}

#[test]
fn users_and_groups_by_name_and_number() {
    let p = policy(
        r#"
        defaults = false
        [[rule]]
        ports = ["eth0"]
        users = ["alice", 2000]
        groups = ["staff", 77]
        "#,
    );
    for them in [user(ALICE), user(2000), who(BOB, &[STAFF]), who(BOB, &[1, 2, 77])] {
        assert_eq!(p.nic(&them, "eth0"), MEDIATED, "{them:?}");
        assert!(p.admits_anything(&them) && !p.pipes(&them));
    }
    // Numbers of users and of groups are different things.
    for them in [ROOT, user(BOB), who(BOB, &[ALICE, 2000]), user(STAFF), user(77)] {
        assert_eq!(p.nic(&them, "eth0"), None, "{them:?}");
        assert!(!p.admits_anything(&them));
    }
    assert_eq!(p.nic(&user(ALICE), "eth1"), None);
}

#[test]
fn anybody() {
    let p = policy("[[rule]]\nports = ['eth0']\nusers = ['*']");
    assert_eq!(p.nic(&user(12345), "eth0"), MEDIATED);
    assert_eq!(p.nic(&user(12345), "eth1"), None);
    assert_eq!(p.nic(&ROOT, "eth0"), MEDIATED, "the file comes before the built-in rules");
    assert_eq!(p.nic(&ROOT, "eth1"), DIRECT);
    for users in ["['alice', '*']", "['*', 'alice']", "['*', 7]"] {
        let p = policy(&format!("[[rule]]\nports = ['eth0']\nusers = {users}"));
        assert_eq!(p.nic(&user(12345), "eth0"), MEDIATED, "{users}");
    }
}

#[test]
fn the_first_rule_that_fits_decides() {
    let p = policy(
        r#"
        [[rule]]
        ports = ["eth1"]
        users = ["*"]
        access = "none"
        [[rule]]
        ports = ["eth*"]
        users = ["alice"]
        access = "direct"
        [[rule]]
        ports = ["eth*"]
        users = ["alice"]
        access = "mediated"
        [[rule]]
        ports = ["*"]
        groups = ["netmap"]
        access = "none"
        "#,
    );
    assert_eq!(p.nic(&user(ALICE), "eth0"), DIRECT);
    assert_eq!(p.nic(&user(ALICE), "eth1"), None);
    assert_eq!(p.nic(&ROOT, "eth1"), None, "root is refused like others");
    assert_eq!(p.nic(&ROOT, "eth0"), DIRECT);
    assert_eq!(p.nic(&who(BOB, &[NETMAP]), "lo"), None, "before the built-in rule");
    assert_eq!(p.nic(&who(ALICE, &[NETMAP]), "eth0"), DIRECT);
}

#[test]
fn pipes_are_given_apart() {
    let p = policy(
        r#"
        [[rule]]
        pipes = true
        users = ["bob"]
        access = "none"
        [[rule]]
        pipes = true
        ports = ["eth0"]
        groups = ["staff"]
        access = "direct"
        [[rule]]
        pipes = false
        ports = ["eth7"]
        users = [7]
        "#,
    );
    let staff = |uid| who(uid, &[STAFF]);
    assert!(p.pipes(&staff(ALICE)) && !p.pipes(&staff(BOB)) && !p.pipes(&user(ALICE)) && !p.pipes(&user(7)));
    assert_eq!(p.nic(&staff(BOB), "eth0"), DIRECT, "rules about pipes do not apply to interfaces");
    assert!(p.admits_anything(&staff(BOB)) && p.admits_anything(&staff(ALICE)));
    let only = policy("[[rule]]\npipes = true\nusers = ['alice']");
    assert!(only.pipes(&user(ALICE)) && only.admits_anything(&user(ALICE)));
    assert_eq!(only.nic(&user(ALICE), "eth0"), None);
}

#[test]
fn what_is_refused_again_is_not_admitted() {
    let admits = |refused: &str, allowed: &str| {
        let rule = |ports: &str, access: &str| {
            format!("[[rule]]\nports = [{ports}]\nusers = ['alice']\naccess = '{access}'\n")
        };
        let p = policy(&(rule(refused, "none") + &rule(allowed, "direct")));
        p.admits_anything(&user(ALICE))
    };
    assert!(!admits("'*'", "'eth0', 'v*'"));
    assert!(!admits("'eth?', 'v*'", "'eth0', 'veth?'"));
    assert!(!admits("'a*'", "'a*b*'"));
    assert!(admits("'eth?'", "'eth*'"));
    assert!(admits("'eth0'", "'eth?'"));
    assert!(admits("'eth0'", "'eth0', 'eth1'"));
    // A refusal for others, or behind the rule that allows, changes nothing.
    let p = policy("[[rule]]\nports=['*']\nusers=['bob']\naccess='none'\n[[rule]]\nports=['a']\nusers=['*']");
    assert!(p.admits_anything(&user(ALICE)) && !p.admits_anything(&user(BOB)));
    let p = policy("[[rule]]\nports=['a']\nusers=['*']\n[[rule]]\nports=['*']\nusers=['*']\naccess='none'");
    assert!(p.admits_anything(&user(ALICE)));
}

#[test]
fn names_of_interfaces() {
    let fits = |pattern: &str, name: &str| Pattern::new(pattern, MAX_NAME).unwrap().fits(name);
    let split = |pair: &'static str| pair.split_once(' ').unwrap();
    // The last three are legal, if unwise, names.
    let same = "eth0 eth0|* anything|eth* eth|eth* eth12|*0 wan00|e*h*0 eth10|** x|?th? eth0|?* x|*? x|*a*b* xaxbxaxb|\
                enp3s0.12 enp3s0.12|? *|? ?|w? wé";
    for (pattern, name) in same.split('|').map(split) {
        assert!(fits(pattern, name), "{pattern} {name}");
    }
    let other = "eth0 eth01|eth0 xeth0|eth0 ETH0|eth? eth|eth? eth10|?* |*0 eth01|a*b*c abcb|enp3s0.12 enp3s0x12";
    for (pattern, name) in other.split('|').map(split) {
        assert!(!fits(pattern, name), "{pattern} {name}");
    }
}

#[test]
fn namespaces() {
    let own = fs::metadata(OWN_NETNS).unwrap();
    let dir = tempfile::tempdir().unwrap();
    // A file that is no namespace, in the place of one that is not mounted yet.
    let plain = dir.path().join("plain");
    fs::write(&plain, "").unwrap();
    let link = dir.path().join("link");
    symlink(OWN_NETNS, &link).unwrap();
    let allowed = |netns: &str, client: u64| {
        let p = policy(&format!("[[rule]]\nports = ['eth0']\nusers = ['*']\nnetns = {netns}\naccess = 'direct'"));
        p.nic(&Identity { netns: client, ..user(ALICE) }, "eth0").is_some()
    };
    let quoted = |path: &Path| format!("'{}'", path.display());
    assert!(allowed("4026532000", 4_026_532_000) && !allowed("4026532000", 4_026_532_001));
    assert!(allowed("'host'", own.ino()) && !allowed("'host'", own.ino() + 1));
    assert!(allowed(&quoted(&link), own.ino()) && !allowed(&quoted(&link), own.ino() + 1));
    assert!(allowed("'/proc/self/ns/net'", own.ino()));
    assert!(!allowed(&quoted(&plain), fs::metadata(&plain).unwrap().ino()));
    assert!(!allowed(&quoted(&dir.path().join("none")), own.ino()));
    // The namespace may come after the policy.
    let late = dir.path().join("late");
    let p = policy(&format!("[[rule]]\nports = ['eth0']\nusers = ['*']\nnetns = {}", quoted(&late)));
    let client = Identity { netns: own.ino(), ..user(ALICE) };
    assert_eq!(p.nic(&client, "eth0"), None);
    symlink(OWN_NETNS, &late).unwrap();
    assert_eq!(p.nic(&client, "eth0"), MEDIATED);
}

#[test]
fn mistakes_are_told_with_their_line() {
    for (text, line, part) in [
        ("defaults = 1", 1, "expected a boolean"),
        (
            "default = true",
            1,
            "unknown field `default`, expected one of `defaults`, `separate_users`, `refuse_contained_root`, `rule`, \
             `share`, `budget`, `total`; \
             unetmap-policy(5)",
        ),
        ("\n[[allow]]\nports = ['a']", 2, "unknown field `allow`"),
        ("[[rule]]\nports = ['a']\nuser = ['*']", 3, "unknown field `user`"),
        ("[[rule]]\nports = ['a']\nusers = '*'", 3, "expected a sequence"),
        ("[[rule]]\nports = ['a']\nusers = [true]", 3, "a name in quotes or a number from 0"),
        ("[[rule]]\nports = ['a']\nusers = [-1]", 3, "a name in quotes or a number from 0"),
        ("[[rule]]\nports = ['a']\nusers = [1.5]", 3, "a name in quotes or a number from 0"),
        ("[[rule]]\nports = ['a']\nusers = [4294967295]", 3, "4294967295 is no number of a user"),
        ("[[rule]]\nports = ['a']\ngroups = [4294967296]", 3, "4294967296 is no number of a group"),
        ("[[rule]]\nports = ['a']\nusers = [\n'alice',\n'carol']", 5, "there is no user `carol`; add it"),
        ("[[rule]]\nports = ['a']\nusers = ['*', 'carol']", 3, "there is no user `carol`"),
        ("[[rule]]\nports = ['a']\nusers = ['']", 3, "there is no user ``"),
        ("[[rule]]\nports = ['a']\nusers = ['broken']", 3, "the directory does not answer"),
        ("[[rule]]\nports = ['a']\ngroups = ['alice']", 3, "there is no group `alice`"),
        ("[[rule]]\nports = ['a']\ngroups = ['*']", 3, "there is no group `*`"),
        ("\n[[rule]]\nports = ['a']", 2, "the rule is for nobody; give it users"),
        ("[[rule]]\nports = ['a']\nusers = []", 1, "the rule is for nobody"),
        ("[[rule]]\nusers = ['*']", 1, "the rule is about nothing"),
        ("[[rule]]\nusers = ['*']\npipes = false\nports = []", 1, "the rule is about nothing"),
        ("[[rule]]\nusers = ['*']\nports = ['']", 3, "`` is no name"),
        ("[[rule]]\nusers = ['*']\nports = ['netmap:eth0']", 3, "`netmap:eth0` has a character"),
        ("[[rule]]\nusers = ['*']\nports = ['a b']", 3, "`a b` has a character"),
        ("[[rule]]\nusers = ['*']\nports = ['abcdefghijklmnop']", 3, "is longer than such a name, 15 bytes"),
        ("[[rule]]\nusers = ['*']\nports = [1]", 3, "expected a string"),
        ("[[rule]]\nusers = ['*']\nports = ['a']\naccess = 'yes'", 4, "unknown variant `yes`"),
        ("[[rule]]\nusers = ['*']\nports = ['a']\nnetns = 'blue'", 4, "write a path such as"),
        ("[[rule]]\nusers = ['*']\nports = ['a']\nnetns = true", 4, "a name in quotes or a number from 0"),
        ("[rule]\nusers = ['*']", 1, "expected a sequence"),
        ("separate_users = ['*']", 1, "there is no user `*`"),
        ("defaults = true\ndefaults = true", 2, "duplicate key"),
        ("[[rule]]\nusers = ['*'", 2, "unclosed array"),
    ] {
        let wrong = parse(text, fixed).expect_err(text);
        let at = line_of(text.as_bytes(), wrong.at.expect(text));
        assert!(wrong.why.contains(part) && !wrong.why.contains('\n'), "{text}\n{}", wrong.why);
        assert_eq!(at, line, "{text}\n{}", wrong.why);
    }
    // A name that cannot be passed to the C library.
    let text = "[[rule]]\nports = ['a']\nusers = [\"a\\u0000b\"]";
    assert!(parse(text, system_account).unwrap_err().why.contains("there is no user"));
    assert!(policy("[[rule]]\nports = ['*abcdefghijklmno*']\nusers = [4294967294]").nic(&ROOT, "eth0").is_some());
}

#[test]
fn the_systems_own_accounts() {
    let p = parse("defaults = false\n[[rule]]\nports = ['a']\nusers = ['root']\ngroups = ['root']", system_account);
    let p = p.unwrap();
    assert_eq!(p.nic(&user(0), "a"), MEDIATED);
    assert_eq!(p.nic(&who(ALICE, &[0]), "a"), MEDIATED);
    assert_eq!(p.nic(&user(ALICE), "a"), None);
}

/// Writes a file as root would.
fn put(path: &Path, text: &str) {
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o644).open(path).unwrap();
    io::Write::write_all(&mut file, text.as_bytes()).unwrap();
}

const FOR_ALL: &str = "[[rule]]\nports = ['eth0']\nusers = ['*']\n";

#[test]
fn a_missing_file_is_the_built_in_rules_and_a_wrong_one_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.toml");
    assert_eq!(Policy::load(&path).unwrap().nic(&ROOT, "eth0"), DIRECT);
    assert_eq!(Policy::load(&path.with_file_name("no/policy.toml")).unwrap().nic(&ROOT, "eth0"), DIRECT);
    put(&path, FOR_ALL);
    assert_eq!(Policy::load(&path).unwrap().nic(&user(ALICE), "eth0"), MEDIATED);
    put(&path, "\n\nnonsense");
    let why = Policy::load(&path).unwrap_err();
    assert!(why.starts_with(&format!("{}:3: ", path.display())), "{why}");
    fs::write(&path, b"# \xff\n").unwrap();
    let why = Policy::load(&path).unwrap_err();
    assert!(why.starts_with(&format!("{}:1: this is not UTF-8", path.display())), "{why}");
    put(&path, &"#".repeat(1 << 20));
    assert!(Policy::load(&path).is_ok());
    put(&path, &"#".repeat((1 << 20) + 1));
    assert!(Policy::load(&path).unwrap_err().contains("longer than 1 MiB"));
    assert!(Policy::load(dir.path()).unwrap_err().contains("not an ordinary file"));
    assert!(Policy::load(Path::new("/dev/zero")).unwrap_err().contains("not an ordinary file"));
}

#[test]
fn a_file_that_others_could_change_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, link) = (dir.path().join("policy.toml"), dir.path().join("link"));
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    put(&path, FOR_ALL);
    symlink(&path, &link).unwrap();
    for allowed in [0o600, 0o644, 0o444, 0o755] {
        mode(&path, allowed);
        assert!(Policy::load(&path).is_ok() && Policy::load(&link).is_ok(), "{allowed:o}");
    }
    for refused in [0o664, 0o646, 0o666] {
        mode(&path, refused);
        for path in [&path, &link] {
            let why = Policy::load(path).unwrap_err();
            assert!(why.contains("can be written by others") && why.contains("chmod"), "{why}");
        }
    }
    mode(&path, 0o644);
    mode(dir.path(), 0o777);
    assert!(Policy::load(&path).unwrap_err().contains("folder can be written by others"));
    mode(dir.path(), 0o1777);
    assert!(Policy::load(&path).is_ok(), "sticky");
    // Others could replace the file that a link in a folder of ours leads to.
    let [open, target] = ["open", "open/policy.toml"].map(|name| dir.path().join(name));
    fs::create_dir(&open).unwrap();
    put(&target, FOR_ALL);
    fs::remove_file(&link).unwrap();
    symlink(&target, &link).unwrap();
    mode(dir.path(), 0o755);
    assert!(Policy::load(&link).is_ok());
    mode(&open, 0o777);
    assert!(Policy::load(&link).unwrap_err().contains("folder can be written by others"));
    // The kernel may follow no link of others in a folder that others can write to (fs.protected_symlinks).
    let dangling = dir.path().join("dangling");
    symlink(dir.path().join("none"), &dangling).unwrap();
    assert!(Policy::load(&dangling).unwrap_err().contains("cannot be found"), "a broken link is a mistake, no default");

    if owner() != 0 {
        return eprintln!("skipped: giving files to others needs root");
    }
    std::os::unix::fs::lchown(&link, Some(ALICE), None).unwrap();
    assert!(Policy::load(&link).unwrap_err().contains("the link to the policy belongs to user 1000"));
    assert!(Policy::load(&path).is_ok());
    chown(dir.path(), Some(ALICE), None).unwrap();
    assert!(Policy::load(&path).unwrap_err().contains("the policy's folder belongs to user 1000"));
    chown(dir.path(), Some(0), None).unwrap();
    chown(&path, Some(ALICE), None).unwrap();
    let why = Policy::load(&path).unwrap_err();
    assert!(why.contains("the policy belongs to user 1000") && why.contains("chown it to root"), "{why}");
    // A daemon of that user may follow it.
    assert!(trusted_file::read(&path, ALICE, "policy").is_ok());
    assert!(trusted_file::read(&path, BOB, "policy").is_err());
}

#[test]
fn a_changed_file_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.toml");
    let mut file = PolicyFile::new(&path).unwrap();
    let mut nic = |who: &Identity<'_>| file.current().map(|p| p.nic(who, "eth0"));
    let alice = user(ALICE);
    assert_eq!(nic(&alice), Ok(None));
    // Of one size, and within one step of the file system's clock.
    for _ in 0..50 {
        put(&path, "[[rule]]\nports = ['eth0']\nusers = [1000]");
        assert_eq!(nic(&alice), Ok(MEDIATED));
        put(&path, "[[rule]]\nports = ['eth1']\nusers = [1000]");
        assert_eq!(nic(&alice), Ok(None));
    }
    put(&path, "rubbish");
    let why = nic(&ROOT).unwrap_err();
    assert!(why.contains("policy.toml:1: "), "{why}");
    assert_eq!(nic(&ROOT), Err(why), "until it is mended");
    let other = dir.path().join("other");
    put(&other, FOR_ALL);
    fs::rename(&other, &path).unwrap();
    assert_eq!(nic(&alice), Ok(MEDIATED));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(nic(&alice).is_err());
    fs::remove_file(&path).unwrap();
    assert_eq!((nic(&alice), nic(&ROOT)), (Ok(None), Ok(DIRECT)));
    assert!(PolicyFile::new(Path::new("policy.toml")).unwrap_err().contains("give the whole path"));
}

#[test]
fn an_unchanged_file_is_read_once() {
    let dir = tempfile::tempdir().unwrap();
    let (path, accounts) = (dir.path().join("policy.toml"), dir.path().join("group"));
    put(&path, FOR_ALL);
    put(&accounts, "");
    let mut file = PolicyFile::new(&path).unwrap();
    file.files = vec![path.clone(), accounts.clone()];
    let fresh: Vec<Stamp> = file.files.iter().map(|path| stamp(path)).collect();
    let now = SystemTime::now();
    assert!(!is_settled(&fresh, now));
    assert!(is_settled(&fresh, now + SETTLED + Duration::from_secs(1)));
    assert!(!is_settled(&fresh, now - Duration::from_secs(100)), "a clock that was set back proves nothing");
    assert!(is_settled(&[Stamp::Missing; 2], now) && !is_settled(&[Stamp::Unknown], now));
    // As after the time that it takes to settle; changing the file shows whether the stored or the read one is used.
    file.current().unwrap();
    assert!(file.seen.is_none(), "just written, so it is read again");
    file.seen = Some(fresh);
    file.loaded = Ok(Policy::default());
    assert_eq!(file.current().unwrap().nic(&user(ALICE), "eth0"), None, "not read again");
    put(&accounts, "netmap:x:60:alice");
    assert_eq!(file.current().unwrap().nic(&user(ALICE), "eth0"), MEDIATED, "names may mean others now");
}

#[test]
fn the_manuals_examples_are_policies() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../man/unetmap-policy.5")).unwrap();
    let examples: Vec<&str> = page.split("\n.nf\n").skip(1).map(|text| text.split_once("\n.fi\n").unwrap().0).collect();
    assert!(examples.len() >= 4);
    examples.into_iter().for_each(|text| drop(policy(text)));
    assert!(page.contains(DEFAULT_PATH));
}

#[test]
fn the_default_path_can_be_followed() {
    assert!(PolicyFile::new(Path::new(DEFAULT_PATH)).is_ok());
}

/// Asks everything, to see that nothing panics, and that the answers agree.
fn ask_all(p: &Policy, uid: u32, groups: &[u32], interface: &str) -> Result<(), TestCaseError> {
    let who = who(uid, groups);
    let given = p.nic(&who, interface).is_some() || p.pipes(&who);
    prop_assert!(!given || p.admits_anything(&who), "{p:?}");
    Ok(())
}

proptest! {
    #[test]
    fn any_bytes_are_a_policy_or_a_mistake(bytes in prop::collection::vec(any::<u8>(), 0..300), uid: u32) {
        if let Ok(p) = parse(&String::from_utf8_lossy(&bytes), fixed) {
            ask_all(&p, uid, &[uid], "eth0")?;
        }
    }

    /// Nearer to what is written: words of policies in any order.
    #[test]
    fn any_words_are_a_policy_or_a_mistake(
        words in prop::collection::vec(prop::sample::select(vec![
            "[[rule]]\n", "ports = ", "users = ", "groups = ", "netns = ", "access = ", "pipes = ", "defaults = ",
            "['eth0']\n", "['*']\n", "[1000]\n", "'none'\n", "'direct'\n", "true\n", "'host'\n", "-1", "[", "]", "'", "\n",
        ]), 0..30),
        uid in 0_u32..2000,
    ) {
        let text = words.concat();
        match parse(&text, fixed) {
            Ok(p) => ask_all(&p, uid, &[NETMAP], "eth0")?,
            Err(wrong) => prop_assert!(!wrong.why.contains('\n') && wrong.at.is_none_or(|at| at <= text.len())),
        }
    }

    #[test]
    fn whoever_gets_something_is_admitted(
        rules in prop::collection::vec(
            ("[ab*?]{1,3}", prop::sample::select(vec!["none", "direct"]), any::<bool>(), any::<bool>()), 0..6),
        interface in "[ab]{1,3}",
    ) {
        let text: String = rules.iter().map(|(ports, access, pipes, anybody)| {
            let users = if *anybody { "'*'" } else { "'alice'" };
            format!("[[rule]]\nports = ['{ports}']\npipes = {pipes}\nusers = [{users}]\naccess = '{access}'\n")
        }).collect();
        let p = policy(&text);
        ask_all(&p, ALICE, &[], &interface)?;
        ask_all(&p, BOB, &[NETMAP], &interface)?;
    }

    #[test]
    fn a_pattern_that_covers_another_fits_all_its_names(a in "[ab*?]{1,5}", b in "[ab*?]{1,5}", name in "[ab*?]{0,6}") {
        let (pa, pb) = (Pattern::new(&a, MAX_NAME).unwrap(), Pattern::new(&b, MAX_NAME).unwrap());
        prop_assert_eq!(pa.fits(&name), slow_fit(a.as_bytes(), name.as_bytes()));
        prop_assert!(!(pa.covers(&pb) && pb.fits(&name)) || pa.fits(&name));
        prop_assert!(pa.covers(&pa));
    }
}

/// The meaning of a pattern, in its simplest form.
fn slow_fit(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, _) => name.is_empty(),
        (Some((b'*', rest)), _) => (0..=name.len()).any(|n| slow_fit(rest, &name[n..])),
        (Some((b'?', rest)), Some((_, tail))) => slow_fit(rest, tail),
        (Some((c, rest)), Some((d, tail))) => c == d && slow_fit(rest, tail),
        (Some(_), None) => false,
    }
}

#[test]
fn separate_users_are_named_or_numbers() {
    assert_eq!(policy("separate_users = ['alice', 100500]\n[total]\n").separate_users, [ALICE, 100_500]);
    assert!(policy("").separate_users.is_empty());
}

#[test]
fn root_of_containers_is_refused_if_the_policy_says_so() {
    assert!(policy("refuse_contained_root = true").refuses_contained_root);
    assert!(!policy("").refuses_contained_root && !policy("refuse_contained_root = false").refuses_contained_root);
}

#[test]
fn the_first_budget_that_names_a_user_is_its() {
    use crate::budget::{Bounds, Budget, Resource};
    let policy = policy(
        "[[budget]]\nusers = [\"alice\", 7]\nconnections = 3\nmemory = \"2MiB\"\nrequests = 9\n\
         [[budget]]\nrings = 5\n[total]\nthreads = 8\n",
    );
    let (budgets, bounds) = (policy.budgets(), Bounds::default());
    let default = Policy::default().budgets().of(BOB, &bounds);
    let mut alice = Budget { requests: 9, ..default };
    (alice.amounts[Resource::Connections], alice.amounts[Resource::Memory]) = (3, 2 << 20);
    assert_eq!(budgets.of(ALICE, &bounds), alice);
    assert_eq!(budgets.of(7, &bounds), alice);
    let mut bob = default;
    bob.amounts[Resource::Rings] = 5;
    assert_eq!(budgets.of(BOB, &bounds), bob);
    assert_eq!(budgets.total(&bounds)[Resource::Threads], 8);
    assert_eq!(budgets.excessive(&bounds), [""; 0]);
}

/// A budget of the policy is cut to the machine's limit, and says so; a default is half of that, for one user.
#[test]
fn budgets_are_bounded_by_what_the_machine_has() {
    use crate::budget::{Bounds, Resource};
    let policy = policy("[[budget]]\nusers = [\"alice\"]\nmemory = 100\nthreads = 9\n[total]\ndescriptors = 30\n");
    let mut bounds = Bounds::default();
    bounds.others[Resource::Memory] = 24 << 20;
    bounds.others[Resource::Descriptors] = 40;
    bounds.by[Resource::Memory as usize] = "the cgroup's memory.max".into();
    let (budgets, of) = (policy.budgets(), |uid, resource| policy.budgets().of(uid, &bounds).amounts[resource]);
    assert_eq!((of(ALICE, Resource::Memory), of(BOB, Resource::Memory)), (24 << 20, 12 << 20));
    assert_eq!((of(ALICE, Resource::Threads), of(BOB, Resource::Descriptors)), (9, 20));
    assert_eq!(budgets.total(&bounds)[Resource::Descriptors], 30);
    let limited_by = |resource| budgets.total_is_limited_by(resource, &bounds);
    assert_eq!(limited_by(Resource::Memory), "the cgroup's memory.max");
    assert_eq!(limited_by(Resource::Descriptors), "[total] of the policy");
    assert_eq!(limited_by(Resource::Rings), "the default (unetmap-policy(5))");
    let why = "`memory` in [[budget]] is 100 MiB of memory, and counts as 24 MiB of memory: the cgroup's memory.max";
    assert_eq!(budgets.excessive(&bounds), [why]);
}

#[test]
fn budgets_that_cannot_be_are_refused() {
    for (text, part) in [
        ("[[budget]]\nrequests = 0\n", "nonzero"),
        ("[[budget]]\nring = 1\n", "unknown field"),
        ("[[budget]]\nrings = -1\n", "invalid value"),
        ("[[budget]]\nmemory = \"2Mbit\"\n", "memory is `2Mbit`: give MiB"),
        ("[[budget]]\nmemory = -1\n", "memory is `-1`: give MiB"),
        ("[[budget]]\nusers = [\"nobody\"]\n", "there is no user `nobody`"),
        ("[total]\nusers = [7]\n", "[total] is about all users together"),
        ("[total]\nrequests = 7\n", "[total] is about all users together"),
    ] {
        let wrong = parse(text, fixed).expect_err(text);
        assert!(wrong.why.contains(part), "{text}: {}", wrong.why);
    }
}

#[test]
fn a_share_gives_names_of_pipes_to_one_user_and_those_that_it_lists() {
    use PipeOwner::{Denied, Each, Shared};
    let p = policy(
        "[[share]]\npipes = [\"bus*\", \"a-pipe-with-a-long-name\"]\nowner = \"alice\"\nusers = [\"bob\"]\ngroups = [\"staff\"]\n\
         [[share]]\npipes = [\"*\"]\nowner = \"bob\"\nusers = [\"*\"]\n[[share]]\npipes = [\"b*\"]\nowner = 7\n",
    );
    let all = [user(ALICE), user(BOB), who(2000, &[STAFF]), user(2000), ROOT];
    for (parent, owners) in [
        ("bus1", [Shared(ALICE), Shared(ALICE), Shared(ALICE), Denied(ALICE), Shared(ALICE)]),
        ("a-pipe-with-a-long-name", [Shared(ALICE), Shared(ALICE), Shared(ALICE), Denied(ALICE), Shared(ALICE)]),
        ("c", [Shared(BOB); 5]),
    ] {
        assert_eq!(all.map(|who| p.pipe_owner(&who, parent)), owners, "{parent}");
    }
    let p = policy("[[share]]\npipes = [\"bus*\"]\nowner = 1000\nusers = [1001]\n");
    assert_eq!([ROOT, user(BOB)].map(|who| p.pipe_owner(&who, "b")), [Each; 2]);
    assert!(p.admits_anything(&user(BOB)) && !p.pipes(&user(BOB)) && !p.admits_anything(&user(2000)));
    for (text, part) in [
        ("[[share]]\nowner = 1", "has no pipes"),
        ("[[share]]\npipes = [\"a\"]", "missing field `owner`"),
        ("[[share]]\npipes = [\"a:b\"]\nowner = 1", "no such name has"),
        ("[[share]]\npipes = [\"a\"]\nowner = \"nobody-here\"", "no user `nobody-here`"),
        ("[[share]]\npipes = [\"a\"]\nowner = 1\naccess = \"none\"", "unknown field"),
    ] {
        let why = parse(text, fixed).map(drop).unwrap_err().why;
        assert!(why.contains(part), "{text}: {why}");
    }
}
