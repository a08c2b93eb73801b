//! The packages for Debian in a clean Debian 12: enemy, a package that does not start, loses items or an administrator's changes when it is
//! upgraded, or leaves something behind.
//! Guards: P49

use harness::{Scratch, Wire, free_port, program_on_path, skip};
use packages::{ALL, System, build, file_name, missing, run};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command};

/// A server in a system, started as user `keyway`, without systemd.
struct Serving(Child);

impl Serving {
    fn start(system: &System) -> (Self, String) {
        let mut child = system.spawn(&[
            "runuser",
            "-u",
            "keyway",
            "--",
            "keyway",
            "serve",
            "--config",
            "/etc/keyway/keyway.toml",
        ]);
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (Self(child), line)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // With unshare everything in its process namespace ends.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wire(port: u16) -> Wire {
    Wire::from_tcp(TcpStream::connect(("127.0.0.1", port)).unwrap()).unwrap()
}

#[test]
fn a_package_is_installed_serves_is_upgraded_and_leaves_nothing() {
    if let Some(why) = missing() {
        return skip("the packages for Debian", why);
    }
    let (old, new) = (Scratch::new(), Scratch::new());
    build(old.path(), 1);
    build(new.path(), 2);
    let system = System::new();
    let before = system.files();
    system.install(
        old.path(),
        &["keyway", "keyway-libmemcached", "python3-keyway-cache", "libkeyway0"],
        1,
    );
    assert!(system.run(&["id", "keyway"]).contains("(keyway)"));

    // The file that an administrator changes.
    let port = free_port();
    let file = system.root().join("etc/keyway/keyway.toml");
    let edited = format!(
        "{}\nlisten = \"127.0.0.1:{port}\"\nmemory = \"3m\"\n",
        fs::read_to_string(&file).unwrap()
    );
    fs::write(&file, &edited).unwrap();

    let (serving, line) = Serving::start(&system);
    assert!(line.contains("3 MiB, empty"), "{line}");
    let mut client = wire(port);
    assert_eq!(client.ask("set kept 5 0 3\r\none").unwrap().trim_end(), "STORED");
    let place = format!("/dev/shm/keyway-{}-{port}", system.run(&["id", "-u", "keyway"]).trim());
    let script = format!("import keyway_cache as k; print(k.Client('{place}').get('kept'))");
    assert_eq!(
        system.run(&["runuser", "-u", "keyway", "--", "python3", "-c", &script]),
        "b'one'\n"
    );
    drop(serving);

    let said = system.install(
        new.path(),
        &["keyway", "keyway-libmemcached", "python3-keyway-cache", "libkeyway0"],
        2,
    );
    assert!(said.contains("-2) over ("), "{said}");
    assert_eq!(fs::read_to_string(&file).unwrap(), edited);
    let (serving, line) = Serving::start(&system);
    assert!(line.contains("warm: 1 items"), "{line}");
    assert_eq!(wire(port).ask("get kept").unwrap().trim_end(), "VALUE kept 5 3");
    drop(serving);

    // Removal keeps the file and the items; reclaim does not.
    system.run(&["dpkg", "--remove", "keyway"]);
    assert!(!system.root().join("usr/bin/keyway").exists());
    assert!(file.exists() && system.root().join(&place[1..]).exists());
    fs::create_dir(system.root().join("run/keyway-other")).unwrap();
    system.run(&[
        "dpkg",
        "--purge",
        "keyway",
        "keyway-libmemcached",
        "python3-keyway-cache",
        "libkeyway0",
    ]);
    let after = system.files();
    let left: Vec<_> = after.iter().filter(|file| !before.contains(file)).collect();
    let lost: Vec<_> = before.iter().filter(|file| !after.contains(file)).collect();
    assert!(left.is_empty() && lost.is_empty(), "left behind: {left:?}; lost: {lost:?}");
}

#[test]
fn where_systemd_runs_the_service_starts_restarts_and_stops() {
    if let Some(why) = missing() {
        return skip("the packages for Debian", why);
    }
    let folder = Scratch::new();
    build(folder.path(), 1);
    let system = System::new();
    // Its manager is a program that writes down what it is asked for.
    fs::create_dir_all(system.root().join("run/systemd/system")).unwrap();
    let systemctl = "#!/bin/sh\necho \"$@\" >>/asked\ncase \"$*\" in *is-enabled*) echo enabled ;; *is-active*) exit 3 ;; \
                     *list-units*) echo 'keyway.service loaded active running'; echo 'keyway@one.service loaded active running' ;; \
                     reload*) exit 1 ;; esac\n";
    fs::write(system.root().join("usr/bin/systemctl"), systemctl).unwrap();
    run(Command::new("chmod").arg("755").arg(system.root().join("usr/bin/systemctl")));
    let asked = || {
        let asked = fs::read_to_string(system.root().join("asked")).unwrap_or_default();
        let _ = fs::remove_file(system.root().join("asked"));
        asked.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let has = |asked: &[String], words: &str| asked.iter().any(|line| line.contains(words));
    system.install(folder.path(), &["keyway"], 1);
    let first = asked();
    assert!(
        has(&first, "daemon-reload") && has(&first, "preset keyway.service") && has(&first, " start keyway.service"),
        "{first:?}"
    );
    system.install(folder.path(), &["keyway"], 1);
    let second = asked();
    for unit in ["keyway.service", "keyway@one.service"] {
        let place = |words: &str| second.iter().position(|line| *line == format!("{words} {unit}"));
        assert!(
            place("reload").is_some() && place("reload") < place("try-restart"),
            "{second:?}"
        );
    }
    assert!(
        !has(&second, "stop") && !has(&second, " start "),
        "an upgrade neither stops the service first nor starts a stopped one: {second:?}"
    );
    system.run(&["dpkg", "--remove", "keyway"]);
    let third = asked();
    assert!(has(&third, "stop keyway.socket keyway.service keyway@*.service"), "{third:?}");
    system.run(&["dpkg", "--purge", "keyway"]);
    assert!(!has(&asked(), "start"));
}

#[test]
fn the_same_build_gives_the_same_bytes_and_debians_checker_finds_no_error() {
    if let Some(why) = missing() {
        return skip("the packages for Debian", why);
    }
    let (one, two) = (Scratch::new(), Scratch::new());
    build(one.path(), 1);
    build(two.path(), 1);
    for package in ALL {
        let bytes = |folder: &Path| fs::read(folder.join(file_name(package, 1))).unwrap();
        assert!(
            bytes(one.path()) == bytes(two.path()),
            "{package} differs from one build to the next"
        );
    }
    // It disassembles every program.
    if std::env::var_os("KEYWAY_TESTS_FULL").is_none() {
        return;
    }
    if program_on_path("lintian").is_none() {
        return skip("Debian's checker", "there is no lintian");
    }
    let mut command = Command::new("lintian");
    let own = "uses-no-compression-for-data-tarball,uses-no-compression-for-control-tarball";
    command.args([
        "--fail-on",
        "error",
        "--allow-root",
        "--tag-display-limit",
        "0",
        "--suppress-tags",
        own,
    ]);
    run(command.args(ALL.map(|package| one.path().join(file_name(package, 1)))));
}
