//! The table "What an operator does with memcached" of docs/operating.md: each command is run as it stands there, in the table's order,
//! in one shell. Only ports and folders are others. Enemy: a command in the document that does not do what it says.
//! Guards: P50

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use harness::{DEADLINE, Scratch, free_port, program_on_path, skip, wait_until};

/// What `/run/keyway` and others are in the test.
const FOLDERS: [&str; 3] = ["/run/keyway", "/etc/keyway", "/var/backups"];
/// The ports of the table.
const PORTS: [&str; 3] = ["11211", "11212", "11213"];
const PROGRAMS: [&str; 5] = ["bash", "nc", "curl", "openssl", "awk"];

/// A row: what for, the command, and what it shows.
struct Row {
    purpose: String,
    command: String,
    shows: String,
}

fn rows() -> Vec<Row> {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating.md");
    let document = std::fs::read_to_string(document).expect("docs/operating.md");
    let section = document.split("\n## What an operator does with memcached\n").nth(1);
    let section = section.and_then(|rest| rest.split("\n## ").next()).expect("the section");
    let row = |line: &str| {
        // A bar within a cell is escaped.
        let line = line.replace("\\|", "\u{1}");
        let cells: Vec<String> = line.split('|').map(|cell| cell.trim().replace('\u{1}', "|")).collect();
        let [_, purpose, command, shows, _] = cells.as_slice() else {
            panic!("a row has three cells: {line}");
        };
        let command = command.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
        Row {
            purpose: purpose.clone(),
            command: command.unwrap_or_else(|| panic!("a command in backticks: {line}")).to_owned(),
            shows: shows.clone(),
        }
    };
    let lines = section.lines().filter(|line| line.starts_with("| "));
    lines.skip(1).map(row).collect()
}

/// A shell that an operator works in.
struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    fn start() -> Self {
        let keyway = Path::new(env!("CARGO_BIN_EXE_keyway")).parent().expect("a folder");
        let path = format!("{}:{}", keyway.display(), std::env::var("PATH").unwrap_or_default());
        let mut child = Command::new("bash")
            .env("PATH", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("bash");
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Self {
            child,
            input,
            output: BufReader::new(output),
        }
    }

    /// What a command prints on both channels, and its exit code. Programs that it leaves running print to a file.
    fn run(&mut self, command: &str, to: &Path) -> (String, i32) {
        let file = to.display();
        writeln!(self.input, "{{ {command}\n}} >{file} 2>&1 </dev/null; echo \"code $?\"").expect("a shell that reads");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a shell that answers");
        let code = line.trim().strip_prefix("code ").and_then(|code| code.parse().ok());
        let printed = std::fs::read(to).unwrap_or_default();
        (
            String::from_utf8_lossy(&printed).into_owned(),
            code.unwrap_or_else(|| panic!("{command}: the shell ended: {line}")),
        )
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // The servers that it has started, then the shell. Errors mean that they have ended already.
        let _ = writeln!(self.input, "kill $(jobs -p) 2>/dev/null; wait; exit");
        let _ = self.child.wait();
    }
}

#[test]
fn each_command_of_the_table_does_what_it_says() {
    let test = "the commands of docs/operating.md";
    if let Some(absent) = PROGRAMS.iter().find(|name| program_on_path(name).is_none()) {
        return skip(test, &format!("{absent} is not installed"));
    }
    let rows = rows();
    assert_eq!(rows.len(), 36, "rows");
    let scratch = Scratch::new();
    let here = |text: &str| {
        let mut text = text.to_owned();
        for folder in FOLDERS {
            text = text.replace(folder, &scratch.join(&folder[1..]).display().to_string());
        }
        text
    };
    FOLDERS
        .iter()
        .for_each(|folder| std::fs::create_dir_all(here(folder)).expect("a folder"));
    let ports = PORTS.map(|port| (port, free_port().to_string()));
    let mut shell = Shell::start();
    for (number, row) in rows.iter().enumerate() {
        let command = ports
            .iter()
            .fold(here(&row.command), |text, (from, to)| text.replace(from, to));
        let about = format!("row {}, {}: {command}", number + 1, row.purpose);
        let output = scratch.join(&format!("output-{number}"));
        let (printed, code) = shell.run(&command, &output);
        assert_eq!(code, 0, "{about}\n{printed}");
        if command.trim_end().ends_with('&') {
            wait_until(&about, DEADLINE, || {
                let printed = std::fs::read_to_string(&output).unwrap_or_default();
                assert!(!printed.contains("keyway: "), "{about}\n{printed}");
                printed.contains(" ready: ").then_some(())
            });
        }
        let printed = std::fs::read(&output).unwrap_or_default();
        let printed = String::from_utf8_lossy(&printed);
        // What the last cell has in backticks is in the output.
        for shown in row.shows.split('`').skip(1).step_by(2).filter(|shown| *shown != "set") {
            assert!(printed.contains(&here(shown)), "{about}: it does not show {shown}\n{printed}");
        }
        for bad in ["ERROR", "error:"] {
            assert!(!printed.contains(bad), "{about}\n{printed}");
        }
    }
    // What the rows have made.
    let users = std::fs::read_to_string(here("/etc/keyway/users")).expect("a file of users");
    assert!(users.starts_with("ann:") && !users.contains("secret"), "{users}");
    let items = std::fs::read_to_string(here("/var/backups/items")).expect("a backup");
    assert!(items.contains("\nset greeting 0 0 5\r\n"), "{items:?}");
}
