//! The packages for Fedora: enemy, a package that lacks a file, has one twice, or asks for what no package provides. Nothing is installed:
//! rpm lists and unpacks them, and the unpacked program runs.
//! Guards: P49

use harness::{Scratch, keyway_binary, program_on_path, skip};
use packages::{make_manual, root, run};
use std::process::Command;

const ALL: [&str; 4] = ["keyway", "keyway-libs", "keyway-devel", "keyway-libmemcached"];

#[test]
fn the_packages_have_what_they_promise_and_no_more() {
    for tool in ["rpmbuild", "rpm", "rpm2archive", "python3"] {
        if program_on_path(tool).is_none() {
            return skip("the packages for Fedora", &format!("there is no {tool}"));
        }
    }
    let scratch = Scratch::new();
    make_manual(&scratch.join("manual"));
    run(Command::new(root().join("packaging/rpm/build.sh"))
        .arg(scratch.join("rpm"))
        .env("BUILT", keyway_binary().parent().unwrap())
        .env("MANUAL", scratch.join("manual"))
        .env("ARCH", "amd64")
        .env("VERSION", env!("CARGO_PKG_VERSION"))
        .env("MAINTAINER", "A packager <packager@keyway.invalid>")
        .env("COMPRESSION", "w0.ufdio")
        .env("SOURCE_DATE_EPOCH", "1700000000"));
    let path = |package: &str| {
        scratch
            .join("rpm")
            .join(format!("{package}-{}-1.x86_64.rpm", env!("CARGO_PKG_VERSION")))
    };
    let ask = |package: &str, arguments: &[&str]| run(Command::new("rpm").arg("-qp").args(arguments).arg(path(package)));
    assert_eq!(std::fs::read_dir(scratch.join("rpm")).unwrap().count(), ALL.len());

    let lists: Vec<String> = ALL.iter().map(|package| ask(package, &["--list"])).collect();
    let version = env!("CARGO_PKG_VERSION");
    for (package, files) in [
        (
            0,
            &[
                "/usr/bin/keyway",
                "/usr/lib/keyway/reload",
                "/etc/keyway/keyway.toml",
                "/usr/share/man/man1/keyway.1.gz",
                "/usr/share/man/man1/keyway-ping.1.gz",
                "/usr/share/bash-completion/completions/keyway",
                "/usr/share/zsh/site-functions/_keyway",
                "/usr/share/fish/vendor_completions.d/keyway.fish",
                "/usr/lib/systemd/system/keyway.service",
                "/usr/lib/systemd/system/keyway@.service",
                "/usr/lib/systemd/system/keyway.socket",
                "/usr/lib/sysusers.d/keyway.conf",
                "/usr/lib/tmpfiles.d/keyway.conf",
                "/usr/share/licenses/keyway/licences.gz",
            ][..],
        ),
        (
            1,
            &["/usr/lib64/libkeyway.so.0", &format!("/usr/lib64/libkeyway.so.{version}")],
        ),
        (
            2,
            &[
                "/usr/include/keyway.h",
                "/usr/lib64/libkeyway.so",
                "/usr/lib64/pkgconfig/keyway.pc",
            ],
        ),
        (
            3,
            &[
                "/usr/lib64/keyway/libmemcached.so.11",
                "/usr/lib64/keyway/libmemcachedutil.so.2",
            ],
        ),
    ] {
        for file in files {
            assert!(
                lists[package].lines().any(|line| line == *file),
                "{file} is not in {}:\n{}",
                ALL[package],
                lists[package]
            );
        }
    }
    let mut files: Vec<&str> = lists.iter().flat_map(|list| list.lines()).collect();
    files.sort_unstable();
    let twice: Vec<_> = files.windows(2).filter(|pair| pair[0] == pair[1]).collect();
    assert!(twice.is_empty(), "in two packages: {twice:?}");

    // The drop-in neither provides libmemcached nor asks for it.
    for what in ["--requires", "--provides"] {
        let list = ask("keyway-libmemcached", &[what]);
        assert!(
            !list.contains("libmemcached.so") && !list.contains("libmemcachedutil.so"),
            "{what}: {list}"
        );
    }
    assert!(ask("keyway-libs", &["--provides"]).contains("libkeyway.so.0()(64bit)"));
    assert!(ask("keyway-devel", &["--requires"]).contains(&format!("keyway-libs = {version}-1")));
    assert_eq!(ask("keyway", &["--configfiles"]).trim(), "/etc/keyway/keyway.toml");
    assert_eq!(
        ask("keyway", &["--queryformat", "%{PACKAGER}"]),
        "A packager <packager@keyway.invalid>"
    );

    // An upgrade has the new program take over, and restarts only what could not; the shell can read every script.
    let scripts = ask("keyway", &["--scripts"]);
    let place = |words: &str| scripts.find(words).unwrap_or_else(|| panic!("{words}: {scripts}"));
    assert!(place("systemctl reload") < place("systemctl try-restart"));
    for script in ["PREIN", "POSTIN", "PREUN", "POSTUN"] {
        let text = ask("keyway", &["--queryformat", &format!("%{{{script}}}")]);
        assert!(text.len() > 50, "{script}: {text}");
        run(Command::new("sh").args(["-nc", &text]));
    }

    run(Command::new("sh")
        .args(["-ec", "rpm2archive - <\"$1\" | tar -xz", "sh"])
        .arg(path("keyway"))
        .current_dir(scratch.path()));
    let said = run(Command::new(scratch.join("usr/bin/keyway")).arg("version"));
    assert!(said.contains(version), "{said}");
    let owner = ask("keyway", &["--queryformat", "[%{FILEUSERNAME} ]"]);
    assert!(owner.split_whitespace().all(|owner| owner == "root"), "{owner}");
}
