// SPDX-License-Identifier: BSD-2-Clause
//! The archives for apt and dnf that `make repository` makes: these take them by the file beside them, and refuse a
//! changed one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use conformance::home::{Home, summary};
use conformance::isolated;

/// Programs of Debian that the archive, or its test, needs.
const NEEDED: [&str; 4] = ["gpg", "dpkg-deb", "dpkg-scanpackages", "apt-get"];

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat()
}

#[track_caller]
fn done(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, said(&output));
    said(&output)
}

/// An archive in the making, with a key of its own.
struct Archive<'a> {
    home: &'a Home,
}

impl Archive<'_> {
    fn file(&self, name: &str) -> PathBuf {
        self.home.folder().join(name)
    }

    /// gpg, with the keys of one person.
    fn gpg(&self, person: &str) -> Command {
        let folder = self.file(person);
        if !folder.exists() {
            fs::create_dir(&folder).expect("our own folder");
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
            fs::set_permissions(&folder, mode).expect("our own folder");
        }
        let mut gpg = Command::new("gpg");
        gpg.args(["--batch", "--quiet", "--homedir"]).arg(folder);
        gpg
    }

    fn key(&self, person: &str) {
        let key = format!("{person}@example.org");
        done(self.gpg(person).args(["--passphrase", "", "--quick-generate-key", &key, "ed25519", "sign", "never"]));
    }

    /// A package of one file.
    fn package(&self, name: &str) {
        let tree = self.file("tree");
        let _ = fs::remove_dir_all(&tree);
        fs::create_dir_all(tree.join("DEBIAN")).expect("our own folder");
        let control = format!(
            "Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: a <a@example.org>\nDescription: for a test\n"
        );
        fs::write(tree.join("DEBIAN/control"), control).expect("our own folder");
        fs::create_dir_all(self.file("debs")).expect("our own folder");
        let package = self.file(&format!("debs/{name}_1_all.deb"));
        done(Command::new("dpkg-deb").args(["--root-owner-group", "--build"]).arg(tree).arg(package));
    }

    /// An rpm package of one file.
    fn rpm(&self, name: &str) {
        let spec = format!(
            "Name: {name}\nVersion: 1\nRelease: 1\nSummary: for a test\nLicense: BSD-2-Clause\nBuildArch: noarch\n\
             %description\nfor a test\n%install\nmkdir -p %{{buildroot}}/usr/share\necho {name} \
             >%{{buildroot}}/usr/share/{name}\n%files\n/usr/share/{name}\n"
        );
        fs::write(self.file("one.spec"), spec).expect("our own folder");
        let top = format!("_topdir {}", self.file("rpm").display());
        done(Command::new("rpmbuild").args(["-bb", "--quiet", "--define", &top]).arg(self.file("one.spec")));
    }

    /// dnf on a machine that has nothing but the file of the archive; `Ok` if it installs the package.
    fn dnf(&self, name: &str) -> Result<(), String> {
        let _ = fs::remove_dir_all(self.file("machine"));
        fs::create_dir_all(self.file("machine/repos")).expect("our own folder");
        fs::copy(self.file("archive/unetmap.repo"), self.file("machine/repos/unetmap.repo")).expect("the file");
        let set = |key: &str, name: &str| format!("--setopt={key}={}", self.file(name).display());
        let mut dnf = Command::new("dnf");
        dnf.args(["--assumeyes", "--quiet", "--releasever=1", &set("reposdir", "machine/repos")]);
        dnf.args([set("cachedir", "machine/cache"), set("logdir", "machine"), set("persistdir", "machine/persist")]);
        dnf.arg(format!("--installroot={}", self.file("machine/root").display())).args(["install", name]);
        let output = dnf.env("LC_ALL", "C").output().expect("dnf");
        let is_there = self.file(&format!("machine/root/usr/share/{name}")).exists();
        assert_eq!(output.status.success(), is_there, "{}", said(&output));
        if is_there { Ok(()) } else { Err(said(&output)) }
    }

    fn script(&self) -> Command {
        let mut script = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.ci/repository"));
        script
            .env("DEBS", self.file("debs"))
            .env("RPMS", self.file("rpm/RPMS"))
            .env("OUT", self.file("archive"))
            .env_remove("URL")
            .env_remove("KEY");
        script
    }

    fn make(&self, person: &str) -> String {
        done(self.script().env("GNUPGHOME", self.file(person)).env("KEY", format!("{person}@example.org")))
    }

    /// Gives apt the file of the archive.
    fn add(&self) {
        fs::create_dir_all(self.file("etc/sources.list.d")).expect("our own folder");
        fs::copy(self.file("archive/unetmap.sources"), self.file("etc/sources.list.d/unetmap.sources"))
            .expect("the file");
    }

    /// apt on a machine that has nothing but that file.
    fn apt(&self, what: &[&str]) -> Output {
        for folder in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(self.file(folder)).expect("our own folder");
        }
        fs::write(self.file("state/status"), "").expect("our own folder");
        let set = |key: &str, name: &str| format!("{key}={}", self.file(name).display());
        let mut apt = Command::new("apt-get");
        for option in [
            set("Dir::State", "state"),
            set("Dir::State::status", "state/status"),
            set("Dir::Cache", "cache"),
            set("Dir::Etc::sourceparts", "etc/sources.list.d"),
            "Dir::Etc::sourcelist=/dev/null".into(),
            "Dir::Etc::trusted=/dev/null".into(),
            "Dir::Etc::trustedparts=/dev/null".into(),
            // It may read the folders of this test.
            "APT::Sandbox::User=root".into(),
            "APT::Update::Error-Mode=any".into(),
        ] {
            apt.arg("-o").arg(option);
        }
        apt.args(what).env("LC_ALL", "C").current_dir(self.home.folder()).output().expect("apt-get")
    }

    #[track_caller]
    fn refused(&self, why: &str) {
        let output = self.apt(&["update"]);
        assert!(!output.status.success() && said(&output).contains(why), "not {why}: {}", said(&output));
    }
}

#[test]
fn apt_takes_the_archive_by_its_file_and_refuses_a_changed_one() {
    isolated(|home| {
        let missing = NEEDED.iter().find(|name| Command::new(name).arg("--version").output().is_err());
        if let Some(missing) = missing {
            return summary(&format!("skipped: no {missing}"));
        }
        let archive = Archive { home };
        archive.key("publisher");
        archive.package("unetmap-one");
        archive.package("unetmap-other");
        assert!(archive.make("publisher").contains("unetmap.sources /etc/apt/sources.list.d/"));
        archive.add();
        let updated = archive.apt(&["update"]);
        assert!(updated.status.success() && !said(&updated).contains("W:"), "{}", said(&updated));
        let fetched = archive.apt(&["download", "unetmap-one", "unetmap-other"]);
        assert!(fetched.status.success(), "{}", said(&fetched));
        assert!(archive.file("unetmap-one_1_all.deb").exists() && archive.file("unetmap-other_1_all.deb").exists());

        // Another person's archive in the place of this one.
        archive.key("stranger");
        archive.make("stranger");
        archive.refused("NO_PUBKEY");
        // A list of packages that is not the signed one, where none has been fetched yet.
        archive.make("publisher");
        fs::remove_dir_all(archive.file("state")).expect("our own folder");
        for list in
            fs::read_dir(archive.file("archive/dists/stable/main")).expect("lists").map(|entry| entry.expect("a list"))
        {
            let packages = list.path().join("Packages");
            let text = fs::read_to_string(&packages).expect("a list").replace("for a test", "changed");
            fs::write(&packages, text).expect("a list");
            fs::remove_file(list.path().join("Packages.gz")).expect("a list");
        }
        archive.refused("Hash Sum mismatch");
        for person in ["publisher", "stranger"] {
            // Its agent listens in the folder, which goes away.
            let _ =
                Command::new("gpgconf").args(["--homedir"]).arg(archive.file(person)).args(["--kill", "all"]).output();
        }
    });
}

#[test]
fn dnf_takes_the_archive_by_its_file_and_refuses_a_changed_one() {
    isolated(|home| {
        let needed = ["gpg", "dpkg-deb", "dpkg-scanpackages", "createrepo_c", "rpmbuild", "dnf"];
        if let Some(missing) = needed.iter().find(|name| Command::new(name).arg("--version").output().is_err()) {
            return summary(&format!("skipped: no {missing}"));
        }
        let archive = Archive { home };
        archive.key("publisher");
        archive.package("unetmap-one");
        archive.rpm("unetmap-one");
        assert!(archive.make("publisher").contains("unetmap.repo in /etc/yum.repos.d"));
        archive.dnf("unetmap-one").expect("it is signed");
        // A package, and the list of lists, that are not those of the publisher.
        let package = archive.file("archive/rpm/unetmap-one-1-1.noarch.rpm");
        let mut bytes = fs::read(&package).expect("a package");
        *bytes.last_mut().expect("bytes") ^= 1;
        fs::write(&package, bytes).expect("our own folder");
        archive.dnf("unetmap-one").expect_err("another package");
        archive.make("publisher");
        archive.dnf("unetmap-one").expect("it is the publisher's again");
        let list = archive.file("archive/rpm/repodata/repomd.xml");
        let text = fs::read_to_string(&list).expect("a list");
        fs::write(&list, text.replace("</repomd>", "<!-- --></repomd>")).expect("our own folder");
        archive.dnf("unetmap-one").expect_err("another list");
        let agent = archive.file("publisher");
        let _ = Command::new("gpgconf").arg("--homedir").arg(agent).args(["--kill", "all"]).output();
    });
}

#[test]
fn an_archive_is_signed_by_a_key_that_was_named() {
    isolated(|home| {
        let archive = Archive { home };
        let output = archive.script().output().expect("a shell");
        assert!(!output.status.success() && said(&output).contains("KEY=ID must name"), "{}", said(&output));
        // Anybody on the way could replace the key.
        for url in ["http://example.org/unetmap", "HTTP://example.org", "https:example.org", "ftp://example.org"] {
            let output = archive.script().env("KEY", "nobody").env("URL", url).output().expect("a shell");
            assert!(!output.status.success() && said(&output).contains("https:"), "{url}: {}", said(&output));
        }
        assert!(!archive.file("archive").exists());
    });
}
