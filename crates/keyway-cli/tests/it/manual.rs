//! What packages install beside the program: manual pages, completions of shells and a commented configuration file are complete, and
//! the tools that read them accept them.
//! Guards: P50

use harness::{Scratch, program_on_path, skip};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn keyway(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_keyway")).args(arguments).output().unwrap()
}

fn help(arguments: &[&str]) -> String {
    let output = keyway(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A folder with everything that the program writes for packages.
fn manual() -> Scratch {
    let scratch = Scratch::new();
    let output = keyway(&["manual", scratch.path().to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    scratch
}

/// The options at the beginnings of lines, such as `-m, --memory <SIZE>`, of a help from its first list of options on, or of a page.
fn options(text: &str) -> BTreeSet<String> {
    let list = text.split_once("Options:\n").map_or(text, |(_, list)| list);
    let list = list.split("\nExamples:").next().unwrap_or(list);
    let first = |line: &str| {
        line.split_whitespace()
            .take(2)
            .find_map(|word| word.strip_prefix("--").map(name))
    };
    list.lines()
        .filter(|line| line.trim_start().starts_with('-'))
        .filter_map(first)
        .collect()
}

/// An option's name, without the value that is attached to it.
fn name(word: &str) -> String {
    let is_name = |sign: char| sign.is_ascii_alphanumeric() || sign == '-';
    word.split(|sign| !is_name(sign)).next().unwrap_or_default().to_owned()
}

/// The commands that a help lists.
fn commands(help: &str) -> Vec<String> {
    let list = help.split("Commands:\n").nth(1).unwrap_or_default();
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    names
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

/// Every command with its words, its help, and whether it has commands of its own.
fn every_command(words: &[&str]) -> Vec<(Vec<String>, String)> {
    let flag = if words == ["memcached"] { "-h" } else { "--help" };
    let text = help(&[words, &[flag]].concat());
    let mut all = vec![(words.iter().map(|word| (*word).to_owned()).collect(), text.clone())];
    for inner in commands(&text) {
        all.extend(every_command(&[words, &[inner.as_str()]].concat()));
    }
    all
}

/// A page as a terminal shows it.
fn shown(page: &Path) -> String {
    let output = Command::new("man")
        .args(["--warnings=all", "--encoding=ascii", "-l"])
        .arg(page)
        .env("MANWIDTH", "200")
        .env("MAN_KEEP_FORMATTING", "")
        .output()
        .unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && complaints.is_empty(),
        "{}: {complaints}",
        page.display()
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_command_has_a_page_with_every_option_of_its_help() {
    if program_on_path("man").is_none() {
        return skip("the manual pages", "there is no man");
    }
    let folder = manual();
    let every = every_command(&[]);
    assert!(every.len() > 10, "{every:?}");
    let mut pages = BTreeSet::new();
    for (words, help) in every {
        let page = format!("{}.1", [&["keyway".to_owned()], &words[..]].concat().join("-"));
        let text = shown(&folder.path().join("man").join(&page));
        let listed = options(&text);
        let missing: Vec<_> = options(&help).difference(&listed).cloned().collect();
        assert!(!options(&help).is_empty() && missing.is_empty(), "{page} lacks {missing:?}");
        for command in commands(&help) {
            assert!(
                text.contains(&format!("keyway-{}(1)", [&words[..], &[command]].concat().join("-"))),
                "{page}"
            );
        }
        pages.insert(page);
    }
    let written = fs::read_dir(folder.path().join("man")).unwrap();
    let written: BTreeSet<_> = written.map(|page| page.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(written, pages);
    let page = shown(&folder.path().join("man/keyway.1"));
    assert!(
        page.contains("\n         keyway serve --listen 0.0.0.0 --memory 4g\n"),
        "{page}"
    );
}

#[test]
fn shells_take_their_completions() {
    let folder = manual();
    let file = |name: &str| folder.path().join("completions").join(name);
    for (shell, name) in [("bash", "keyway.bash"), ("zsh", "_keyway"), ("fish", "keyway.fish")] {
        if program_on_path(shell).is_none() {
            skip(name, &format!("there is no {shell}"));
            continue;
        }
        let output = Command::new(shell).arg("-n").arg(file(name)).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{name}: {output:?}");
    }
    let complete = |words: &[&str]| {
        let line = words.join(" ");
        let last = words.len() - 1;
        let script = format!(
            "source {}; COMP_WORDS=({line}); COMP_CWORD={last}; _keyway keyway {} {}; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            file("keyway.bash").display(),
            words[last],
            words[last - 1]
        );
        let output = Command::new("bash").args(["-c", &script]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(complete(&["keyway", "serve", "--mem"]), "--memory\n");
    assert_eq!(
        complete(&["keyway", "memcached", "--enable-s"]),
        "--enable-shutdown\n--enable-sasl\n--enable-ssl\n"
    );
    assert_eq!(complete(&["keyway", "memc"]), "memcached\n");
    // Words where words belong, files where files do, and nothing elsewhere.
    assert_eq!(complete(&["keyway", "serve", "--gap", "s"]), "serve\nstale\n");
    assert_eq!(complete(&["keyway", "serve", "--event-loop", "e"]), "epoll\n");
    assert_eq!(complete(&["keyway", "watch", "--door", "drop"]), "drop_in\n");
    assert_eq!(complete(&["keyway", "get", "--port", "1"]), "1\n");
    assert_eq!(complete(&["keyway", "bench", "--workload", "ycsb-a"]), "ycsb-a\n");
    let users = folder.path().join("users");
    fs::write(&users, "").unwrap();
    let begun = folder.path().join("use");
    assert_eq!(
        complete(&["keyway", "serve", "--auth-file", begun.to_str().unwrap()]),
        format!("{}\n", users.display())
    );
}

#[test]
fn the_commented_configuration_file_has_every_option() {
    let folder = manual();
    let file = folder.path().join("keyway.toml");
    let text = fs::read_to_string(&file).unwrap();
    let named: BTreeSet<_> = text
        .lines()
        .filter_map(|line| {
            line.strip_prefix('#')
                .filter(|line| !line.starts_with(' '))?
                .split_once(" = ")
        })
        .map(|(name, _)| name.to_owned())
        .collect();
    let mut wanted = options(&help(&["serve", "--help"]));
    for other in ["config", "check", "help"] {
        assert!(wanted.remove(other), "{other}");
    }
    assert_eq!(named, wanted);
    assert!(
        text.contains("\n#memory = \"64m\"\n") && text.contains("\n#checksums = true\n") && text.contains("\n#threads = 4\n")
    );
    let output = keyway(&["serve", "--check", "--config", file.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    // Without the remarks' signs each line is right by itself or with the one that it needs, or names a file that this machine lacks.
    let line_of = |name: &str| text.lines().find(|line| line.starts_with(&format!("#{name} = "))).unwrap()[1..].to_owned();
    let needs = [
        ("region-writers", "region-socket"),
        ("region-readers", "region-socket"),
        ("udp-allow", "udp"),
        ("udp-answer-max", "udp"),
        ("kernel-pinned", "udp"),
        ("kernel", "udp"),
        ("gap", "max-gap"),
        ("kernel-tcp", "kernel"),
        ("kernel-tcp", "udp"),
        ("http-host", "http"),
        ("http-keys", "http"),
        ("auth-without-tls", "auth-file"),
        ("tls-cert", "tls-key"),
        ("tls-key", "tls-cert"),
        ("tls-client-ca", "tls-cert"),
        ("tls-client-ca", "tls-key"),
        ("tls-client-optional", "tls-client-ca"),
        ("tls-client-optional", "tls-cert"),
        ("tls-client-optional", "tls-key"),
    ];
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("# ") || line.is_empty() {
            continue;
        }
        let name = line[1..].split_once(" = ").unwrap().0;
        let mut lines = vec![line[1..].to_owned()];
        lines.extend(needs.iter().filter(|(of, _)| *of == name).map(|(_, other)| line_of(other)));
        if name.starts_with("tls-") && name != "tls-min-version" {
            lines.push("listen = [\"tls://127.0.0.1:11213\"]".to_owned());
        }
        fs::write(&file, lines.join("\n")).unwrap();
        let output = keyway(&["serve", "--check", "--config", file.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&output.stderr);
        let lacks_a_file = ["/etc/keyway", "/sys/fs/", "/run/keyway"]
            .iter()
            .any(|folder| said.contains(folder));
        assert!(
            output.status.success() || lacks_a_file,
            "line {}, {lines:?}: {said}",
            number + 1
        );
    }
}
