//! `keyway serve --config FILE`: what a file may say, what takes precedence, and how a mistake is reported.
//! Guards: P50

use harness::Scratch;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

/// A scratch folder with a configuration file, and a file of users.
struct File(Scratch);

impl File {
    fn new(text: &str) -> Self {
        let scratch = Scratch::new();
        fs::write(scratch.path().join("k.toml"), text).unwrap();
        let users = scratch.path().join("users");
        fs::write(&users, "ann:secret\n").unwrap();
        fs::set_permissions(&users, PermissionsExt::from_mode(0o600)).unwrap();
        Self(scratch)
    }

    fn serve(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
        command
            .current_dir(self.0.path())
            .args(["serve", "--config", "k.toml"])
            .args(arguments);
        command
    }

    /// The line that a server with this file says when it is ready.
    fn ready_line(&self, arguments: &[&str]) -> String {
        let mut child = self.serve(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        line
    }
}

/// The exit code of `--check` with a file that contains `text`, and what it says.
fn check(text: &str, arguments: &[&str]) -> (i32, String) {
    let file = File::new(text);
    let output = file.serve(&[&["--check"], arguments].concat()).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(said).unwrap())
}

#[test]
fn a_server_has_the_options_of_its_file_and_those_of_the_command_line_before_them() {
    let text = "listen = [\"127.0.0.1:0\"]\nsocket = \"one\"\nregion = \"memfd\"\nmemory = 3\nthreads = 1 # few\nverbose = 0\n";
    let file = File::new(text);
    let line = file.ready_line(&[]);
    assert!(line.contains("/one, ") && line.contains("3 MiB"), "{line}");
    let line = file.ready_line(&["--socket", "two", "-m", "4m"]);
    assert!(
        line.contains("/two, ") && !line.contains("/one") && line.contains("4 MiB"),
        "{line}"
    );
}

#[test]
fn options_are_checked_together() {
    for (text, arguments) in [
        ("", &[][..]),
        (
            "listen = \"127.0.0.1:1\"\nkernel = [\"lo\", \"lo\"]\nudp = \"127.0.0.1\"",
            &[],
        ),
        // what one option needs may be at the other place
        ("auth-file = \"users\"", &["--auth-without-tls"]),
        ("auth-without-tls = true", &["--auth-file", "users"]),
        // a wrong value that the command line replaces is not used
        ("memory = \"x\"", &["--memory", "8m"]),
        ("checksums = false\nverbose = 3\nsocket-mode = 770\nidle-timeout = 1_000", &[]),
    ] {
        assert_eq!(
            check(text, arguments),
            (0, "every option is right\n".to_owned()),
            "{text} {arguments:?}"
        );
    }
    // What is wrong on the command line is not the file's, whatever the usage names.
    for arguments in [&["--memory", "x"][..], &["--kernel", "lo", "--kernel-pinned", "/nowhere"]] {
        let (code, said) = check("listen = \"127.0.0.1:1\"", arguments);
        assert!(code == 64 && !said.contains("k.toml"), "{said}");
    }
    let (code, said) = check("kernel = \"lo\"\nkernel-pinned = \"/nowhere\"", &[]);
    assert!(
        code == 64 && said.contains("cannot be used with") && !said.contains("Usage"),
        "{said}"
    );
}

#[test]
fn a_mistake_is_reported_with_its_line() {
    for (text, expected) in [
        (
            "memroy = 1",
            "k.toml, line 1: no option is called \"memroy\"; is \"memory\" meant?",
        ),
        (
            "\n\nzzz = 1",
            "k.toml, line 3: no option is called \"zzz\"; `keyway serve --help` lists them",
        ),
        ("[serve]\nmemory = 1", "k.toml, line 1: no option is called \"serve\""),
        (
            "local-bypass = \"/sys/fs/cgroup\"",
            "k.toml, line 1: invalid value '/sys/fs/cgroup' for '--local-bypass <CGROUP>': the same-machine bypass no longer exists. \
             Faster than TCP on this machine are a Unix socket (--socket PATH) and the library",
        ),
        (
            "# x\nmemory = \"x\"",
            "k.toml, line 2: invalid value 'x' for '--memory <SIZE>'",
        ),
        ("threads = 0", "k.toml, line 1: invalid value '0' for '--threads <N>'"),
        ("threads = 1\nlisten = [\"::1\",\n  \"x:y\"]", "k.toml, line 2: --listen: "),
        ("memory = 1\nmemory = 2", "k.toml, line 2: not TOML: duplicate key"),
        ("threads = 1\nmemory 2", "k.toml, line 2: not TOML: "),
        ("checksums = \"yes\"", "k.toml, line 1: checksums must be true or false"),
        ("memory = true", "k.toml, line 1: memory must be a text or a whole number"),
        ("memory = 1.5", "k.toml, line 1: memory must be a text or a whole number"),
        (
            "socket-mode = 0o770",
            "k.toml, line 1: socket-mode must be a text or a whole number",
        ),
        (
            "listen = [[1]]",
            "k.toml, line 1: listen must be a text, a whole number, or an array of these",
        ),
        ("verbose = true", "k.toml, line 1: verbose must be a number from 0 to 255"),
        (
            "threads = 2\ntls-cert = \"c\"",
            "k.toml, line 2: the following required arguments were not provided",
        ),
        (
            "config = \"other\"",
            "k.toml, line 1: \"config\" can only be on the command line",
        ),
        ("help = true", "k.toml, line 1: \"help\" can only be on the command line"),
    ] {
        let (code, said) = check(text, &[]);
        assert!(
            code == 64 && said.starts_with(&format!("keyway: {expected}")),
            "{text}: {code} {said}"
        );
    }
    let file = File::new("");
    fs::remove_file(file.0.path().join("k.toml")).unwrap();
    let said = file.serve(&["--check"]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&said.stderr).contains("--config: cannot read k.toml: "),
        "{said:?}"
    );
    assert_eq!(said.status.code(), Some(64));
}
