//! `cargo xtask mutants`: one-line faults of the region, each of which some form of the checks must detect.
//!
//! The list is `xtask/mutants.txt`; `docs/testing.md` has the rules by which it was made. All faults are compiled at once, into a copy of
//! the tree. Each is placed beside the line that it replaces, and an environment variable selects the active one. So the list
//! costs two builds of the region, and for each fault the time until one form of the checks fails.
//!
//! Faults with a name in `testing/mutants` (`known`) go into a second copy ([`known`]), from which the tools of the promises are built: each
//! tool switches on, one after the other, those that it must reject.

use crate::run::{Context, Outcome};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const LIST: &str = "xtask/mutants.txt";
/// What chooses the active fault, in the copy's region; and what hands a tool's choice to it.
const SWITCH: &str = include_str!("../faults/switch.rs");
const FORWARD: &str = include_str!("../faults/forward.rs");
const FORWARD_TO: &str = "testing/mutants/src/switch.rs";
/// The sources that have the faults.
const SOURCES: &str = "crates/keyway-region/src";
/// The variable that selects the active fault, by its place in the list, from 1 on.
const VARIABLE: &str = "KEYWAY_MUTANT";
/// How long a form may print nothing before its fault counts as one that hangs.
const SILENCE_MAX: Duration = Duration::from_secs(300);
/// Of the faults that are not marked as equivalent, this percentage must be caught.
const CAUGHT_MIN_PERCENT: usize = 95;
/// The region's tests that take minutes.
const SLOW: &str = "room::";
/// The rule of edits that are no faults: they are in every copy, and count accesses.
const COUNTED: &str = "counted";
/// The rule of faults that only the tools of the promises switch on.
const KNOWN: &str = "known";

const HELP: &str = "\
cargo xtask mutants: one-line faults of the region, each of which one of the checks must find

    cargo xtask mutants            all of xtask/mutants.txt, except those that are argued to be harmless, and those that the tools of
                                   the promises reject themselves (`known`)
    cargo xtask mutants NAME...    the faults with one of these names or rules
    cargo xtask mutants --argued   also those that are argued to be harmless, and whether they are caught nevertheless
    cargo xtask mutants --list     list the faults, by rule, with their numbers for KEYWAY_MUTANT
    cargo xtask mutants --copy     make the copy with all faults, and print where it is
    --jobs N                       number of faults at a time [default: 2]

The checks run on each fault until one fails: first the part that found it before, as the list says, then all, the cheapest first.
The exit status is 0 if at least 95 of 100 faults are caught. For faults that are argued to be harmless the list has the reason.
";

/// A fault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Mutant {
    name: String,
    rule: String,
    /// relative to [`SOURCES`]; the last one, if there are several
    file: String,
    /// the file, the replaced text, between « and » in a text that occurs once, and its replacement
    edits: Vec<(String, String, String)>,
    /// its name in `testing/mutants`
    known: String,
    /// the same fault in `model/region_protocol.py`, by its name there
    model: String,
    /// the part of a form that detected it last, which is tried first: `FORM: SCENARIO` or `FORM: TEST`
    seen: String,
    /// the reason why it changes nothing
    equivalent: String,
}

/// A replacement in a file: these bytes, by this text, for the fault with this number; 0: always.
#[derive(Clone, Debug)]
struct Edit {
    at: Range<usize>,
    number: usize,
    with: String,
}

/// The command.
pub fn run(context: &Context<'_>, args: &[&str]) -> Outcome {
    if args.iter().any(|arg| matches!(*arg, "--help" | "-h")) {
        print!("{HELP}");
        return Outcome::Passed;
    }
    let all = match read_list(context.root) {
        Ok(all) => all,
        Err(why) => return Outcome::Failed(why),
    };
    if args.contains(&"--list") {
        for (at, mutant) in all.iter().enumerate().filter(|(_, mutant)| mutant.rule != COUNTED) {
            let model = if mutant.model.is_empty() {
                String::new()
            } else {
                format!(" (the model's {})", mutant.model)
            };
            println!("{:3} {:14} {:16} {}{model}", at + 1, mutant.rule, mutant.file, mutant.name);
        }
        println!("{} faults", all.iter().filter(|mutant| mutant.rule != COUNTED).count());
        return Outcome::Passed;
    }
    if args.contains(&"--copy") {
        return match with_all(context, &all) {
            Ok(tree) => {
                println!("{}", tree.display());
                Outcome::Passed
            }
            Err(why) => Outcome::Failed(why),
        };
    }
    let jobs_at = args.iter().position(|arg| *arg == "--jobs");
    let jobs = jobs_at.and_then(|at| args.get(at + 1)?.parse().ok()).unwrap_or(2);
    let names: Vec<&str> = args
        .iter()
        .enumerate()
        .filter(|(at, arg)| **arg != "--argued" && jobs_at.is_none_or(|jobs_at| *at != jobs_at && *at != jobs_at + 1))
        .map(|(_, name)| *name)
        .collect();
    let with_argued = args.contains(&"--argued");
    let wanted = |mutant: &Mutant| {
        let is_fault = mutant.rule != COUNTED && (with_argued || mutant.equivalent.is_empty());
        let is_fault = is_fault && mutant.rule != KNOWN;
        names.contains(&mutant.name.as_str()) || is_fault && (names.is_empty() || names.contains(&mutant.rule.as_str()))
    };
    let chosen: Vec<usize> = (0..all.len()).filter(|at| wanted(&all[*at])).collect();
    if chosen.is_empty() {
        return Outcome::Failed(format!("no fault in {LIST} has one of these names: {}", names.join(", ")));
    }
    let forms = match build(context, &all) {
        Ok(forms) => forms,
        Err(why) => return Outcome::Failed(why),
    };
    // Checks the forms without a fault; skipped for a few named faults, because the checks themselves have run them.
    for form in forms.iter().filter(|_| names.is_empty()) {
        let began = Instant::now();
        if let Verdict::Caught(why) = form.tries(0, None) {
            return Outcome::Failed(format!("{} fails without any fault: {why}", form.name));
        }
        println!("{:6.1} s  {}, without any fault", began.elapsed().as_secs_f64(), form.name);
    }
    try_all(&all, &chosen, &forms, jobs)
}

/// The duration of a form's trials, and how many faults it caught.
#[derive(Default)]
struct Tally {
    caught: usize,
    took: Duration,
}

/// Tries these faults, `jobs` at a time, and reports each one's result.
fn try_all(all: &[Mutant], chosen: &[usize], forms: &[Form], jobs: usize) -> Outcome {
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let tallies: Mutex<BTreeMap<&str, Tally>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(at) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (mutant, began) = (&all[*at], Instant::now());
                    let before = forms
                        .iter()
                        .filter_map(|form| Some((form, Some(mutant.seen.strip_prefix(&form.name)?.strip_prefix(": ")?))));
                    let caught = before.chain(forms.iter().map(|form| (form, None))).find_map(|(form, part)| {
                        let form_began = Instant::now();
                        let why = match form.tries(at + 1, part) {
                            Verdict::Passed => None,
                            Verdict::Caught(why) => Some((form.name.clone(), why)),
                        };
                        let mut tallies = tallies.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                        let tally = tallies.entry(&form.name).or_default();
                        tally.took += form_began.elapsed();
                        tally.caught += usize::from(why.is_some());
                        why
                    });
                    let by = match &caught {
                        Some((form, why)) => format!("{form}: {why}"),
                        None if mutant.equivalent.is_empty() => "NOT CAUGHT".to_owned(),
                        None => format!("not caught, and no fault: {}", mutant.equivalent),
                    };
                    let seconds = began.elapsed().as_secs_f64();
                    println!("{:14} {:44} {seconds:6.1} s  {by:.220}", mutant.rule, mutant.name);
                    rows.lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .push((caught.map(|(form, _)| form), mutant));
                }
            });
        }
    });
    let rows = rows.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    for (form, tally) in &tallies.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        println!("{:4} caught in {:6.0} s by {form}", tally.caught, tally.took.as_secs_f64());
    }
    let mut rules: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (form, mutant) in &rows {
        let (tried, caught) = rules.entry(&mutant.rule).or_default();
        *tried += 1;
        *caught += usize::from(form.is_some());
    }
    for (rule, (tried, caught)) in rules {
        println!("{rule:14} {tried:4} tried, {caught:4} caught");
    }
    let left_out =
        all.iter().filter(|m| !m.equivalent.is_empty()).count() - rows.iter().filter(|(_, m)| !m.equivalent.is_empty()).count();
    println!("{left_out} others are argued to be none");
    let caught = rows.iter().filter(|(form, _)| form.is_some()).count();
    let argued = rows
        .iter()
        .filter(|(form, m)| form.is_none() && !m.equivalent.is_empty())
        .count();
    let (faults, missed) = (rows.len() - argued, rows.len() - argued - caught);
    println!(
        "{} tried: {caught} caught, {argued} argued to be no faults, {missed} not caught",
        rows.len()
    );
    if caught * 100 >= faults * CAUGHT_MIN_PERCENT {
        Outcome::Passed
    } else {
        Outcome::Failed(format!(
            "{missed} of {faults} faults are not caught, more than {} in 100 are not allowed: a test is missing",
            100 - CAUGHT_MIN_PERCENT
        ))
    }
}

/// A form of the checks, built from the copy with all the faults.
#[derive(Clone)]
struct Form {
    name: String,
    program: PathBuf,
    args: &'static [&'static str],
    /// the arguments before and after the name of one of its parts, to run that part alone
    of_part: [&'static str; 2],
}

enum Verdict {
    Passed,
    Caught(String),
}

impl Form {
    /// Runs it, or one of its parts, with the fault with this number (0: none), until it ends or reports a failure.
    fn tries(&self, number: usize, part: Option<&str>) -> Verdict {
        let mut command = Command::new(&self.program);
        command.args(self.args).env(VARIABLE, number.to_string());
        if let Some(part) = part {
            let [before, behind] = self.of_part;
            command.args([before, part, behind]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(e) => return Verdict::Caught(format!("cannot start {}: {e}", self.program.display())),
        };
        let Some(out) = child.stdout.take() else {
            return Verdict::Caught("no output to read".to_owned());
        };
        let (ended, child) = (AtomicBool::new(false), Mutex::new(child));
        let end = || {
            ended.store(true, Ordering::Release);
            let _ = child.lock().unwrap_or_else(std::sync::PoisonError::into_inner).kill();
        };
        let (said, is_silent) = (Mutex::new(Instant::now()), AtomicBool::new(false));
        let last_said = || said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let failure = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Acquire) {
                    if last_said().elapsed() > SILENCE_MAX {
                        is_silent.store(true, Ordering::Release);
                        end();
                    }
                    std::thread::park_timeout(Duration::from_millis(200));
                }
            });
            let failure = BufReader::new(out)
                .lines()
                .map_while(Result::ok)
                .inspect(|_| *last_said() = Instant::now())
                .find(|line| line.contains("FAILED"))
                .map(|line| line.trim().to_owned());
            if failure.is_some() {
                end();
            }
            ended.store(true, Ordering::Release);
            failure
        });
        let status = child.lock().unwrap_or_else(std::sync::PoisonError::into_inner).wait();
        match (failure, status) {
            (Some(why), _) => Verdict::Caught(why),
            (None, _) if is_silent.into_inner() => Verdict::Caught(format!("nothing more for {} s", SILENCE_MAX.as_secs())),
            (None, Ok(status)) if status.success() => Verdict::Passed,
            (None, Ok(status)) => Verdict::Caught(status.to_string()),
            (None, Err(e)) => Verdict::Caught(e.to_string()),
        }
    }
}

/// Compiles the region with all faults: one that does not compile would hide the others.
pub fn compile(context: &Context<'_>) -> Outcome {
    match read_list(context.root).and_then(|all| with_all(context, &all)) {
        Ok(tree) => {
            let mut check = context.command("cargo", &["check", "--quiet", "--package", "keyway-region"]);
            check.current_dir(tree);
            context.expect(check)
        }
        Err(why) => Outcome::Failed(why),
    }
}

/// A copy of the tree with all faults.
fn with_all(context: &Context<'_>, all: &[Mutant]) -> Result<PathBuf, String> {
    copy(context, &context.target.join("mutants/tree"), all, |_| true)
}

/// A copy of the tree with the faults that the tools of the promises must reject.
pub fn known(context: &Context<'_>) -> Result<PathBuf, String> {
    let all = read_list(context.root)?;
    copy(context, &context.target.join("known/tree"), &all, |mutant| {
        !mutant.known.is_empty()
    })
}

/// Makes a copy of the tree that has the faults that are `wanted`, and counts accesses. Its packages have another version: in the target
/// directory of the tree it uses others' packages as they are built there, and replaces none of the tree's own.
fn copy(context: &Context<'_>, tree: &Path, all: &[Mutant], wanted: impl Fn(&Mutant) -> bool) -> Result<PathBuf, String> {
    let mut edits: BTreeMap<String, Vec<Edit>> = BTreeMap::new();
    let is_in = |mutant: &Mutant| mutant.rule == COUNTED || wanted(mutant);
    for (at, mutant) in all.iter().enumerate().filter(|(_, mutant)| is_in(mutant)) {
        for (file, find, with) in &mutant.edits {
            let file = format!("{SOURCES}/{file}");
            let place = place(&read(&context.root.join(&file))?, find).map_err(|why| format!("{}: {why}", mutant.name))?;
            edits.entry(file).or_default().push(Edit {
                at: place,
                number: if mutant.rule == COUNTED { 0 } else { at + 1 },
                with: with.clone(),
            });
        }
    }
    let (library, version) = (format!("{SOURCES}/lib.rs"), own_version(context.root)?);
    copy_tree(context.root, tree, |file, bytes| {
        match file {
            FORWARD_TO => return Ok(FORWARD.into()),
            "Cargo.toml" | "Cargo.lock" => return Ok(as_copy(&String::from_utf8_lossy(&bytes), &version).into_bytes()),
            _ => {}
        }
        let (edits, is_library) = (edits.get(file).cloned(), file == library);
        if edits.is_none() && !is_library {
            return Ok(bytes);
        }
        let source = String::from_utf8(bytes).map_err(|e| format!("{file}: {e}"))?;
        let (begin, end) = if is_library {
            ("#![allow(warnings)]\n", "pub mod mutants;\n")
        } else {
            ("", "")
        };
        Ok(format!("{begin}{}{end}", switched(&source, edits.unwrap_or_default())?).into_bytes())
    })?;
    let names: String = all
        .iter()
        .enumerate()
        .filter(|(_, mutant)| !mutant.known.is_empty())
        .map(|(at, mutant)| format!("(\"{}\", {}), ", mutant.known, at + 1))
        .collect();
    let switch = format!("{SWITCH}\nconst KNOWN: &[(&str, u32)] = &[{names}];\n");
    let path = tree.join(SOURCES).join("mutants.rs");
    if std::fs::read_to_string(&path).is_ok_and(|there| there == switch) {
        return Ok(tree.to_owned());
    }
    std::fs::write(&path, switch).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(tree.to_owned())
}

/// The version of the copy's packages; what comes after the plus means nothing to those that depend on them.
const COPYS_VERSION: &str = concat!("version = \"", env!("CARGO_PKG_VERSION"), "+faults\"");

/// A manifest or lock file with the version of the copy's packages. In a lock file others' packages have a line `source` after theirs.
fn as_copy(text: &str, version: &str) -> String {
    let mut lines = text.lines().peekable();
    let mut changed = String::new();
    while let Some(line) = lines.next() {
        let is_own = line == version && !lines.peek().is_some_and(|next| next.starts_with("source = "));
        changed.push_str(if is_own { COPYS_VERSION } else { line });
        changed.push('\n');
    }
    changed
}

/// The line of the workspace's manifest with the version of its packages.
fn own_version(root: &Path) -> Result<String, String> {
    let manifest = read(&root.join("Cargo.toml"))?;
    let line = manifest.lines().find(|line| line.starts_with("version = "));
    line.map(str::to_owned).ok_or_else(|| "Cargo.toml has no version".to_owned())
}

/// Builds the forms from a copy of the tree that has all the faults.
fn build(context: &Context<'_>, all: &[Mutant]) -> Result<Vec<Form>, String> {
    let folder = context.target.join("mutants");
    let tree = with_all(context, all)?;
    let cargo = |args: &[&str]| {
        let mut command = context.command("cargo", args);
        command.current_dir(&tree).env("CARGO_TARGET_DIR", folder.join("target"));
        command.env("RUSTFLAGS", "-Awarnings");
        command
    };
    let built = context.expect(cargo(&[
        "build",
        "--quiet",
        "--package",
        "schedules",
        "--features",
        "schedules/watched",
    ]));
    if let Outcome::Failed(why) = built {
        return Err(why);
    }
    let tests_of = |kind: &str, more: &[&str]| {
        let mut tests = cargo(
            &[
                &["test", "--no-run", "--package", "keyway-region", "--message-format", "json"],
                more,
            ]
            .concat(),
        );
        let output = tests.stderr(Stdio::inherit()).output().map_err(|e| e.to_string())?;
        if !output.status.success() {
            return Err(format!("the tests of keyway-region do not compile with the faults of {LIST}"));
        }
        let programs = executables(&String::from_utf8_lossy(&output.stdout)).into_iter();
        let forms = programs.map(|(name, program)| Form {
            name: format!("{kind} {name}"),
            program,
            args: &["--test-threads", "1", "--skip", SLOW],
            of_part: ["--exact", "--nocapture"],
        });
        Ok(forms.collect::<Vec<Form>>())
    };
    // The cheapest first: those that take a second each, then some that take minutes, and last those that catch few faults that the others miss.
    let mut forms = tests_of("keyway-region", &[])?;
    let mut slow = forms.clone();
    slow.retain(|form| form.name.ends_with(" it"));
    for form in &mut slow {
        form.name.push_str(", slow");
        form.args = &["--test-threads", "1", SLOW];
    }
    forms.extend(tests_of("watched", &["--features", "observe", "--lib", "--test", "chains"])?);
    forms.push(Form {
        name: "schedules".to_owned(),
        program: folder.join("target/debug/schedules"),
        args: &["--short", "--sound"],
        of_part: ["--only", "--sound"],
    });
    forms.extend(slow);
    Ok(forms)
}

/// Names and paths of the test programs that cargo has built, from its messages.
fn executables(messages: &str) -> Vec<(String, PathBuf)> {
    let field = |line: &str, name: &str| {
        let from = line.find(&format!("\"{name}\":\""))? + name.len() + 4;
        let rest = line.get(from..)?;
        rest.find('"').map(|end| rest[..end].to_owned())
    };
    messages
        .lines()
        .filter_map(|line| {
            let program = PathBuf::from(field(line, "executable")?);
            let stem = program.file_stem()?.to_string_lossy().into_owned();
            let name = stem.rsplit_once('-').map_or(stem.as_str(), |(name, _)| name).to_owned();
            Some((name, program))
        })
        .collect()
}

/// Copies and changes the files of the tree that git tracks or would track. A file whose copy is the same already is not written, so that
/// cargo builds it once.
fn copy_tree(root: &Path, to: &Path, change: impl Fn(&str, Vec<u8>) -> Result<Vec<u8>, String>) -> Result<(), String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("git: {e}"))?;
    for file in String::from_utf8_lossy(&output.stdout).lines() {
        // A file that was removed without a commit.
        let Ok(bytes) = std::fs::read(root.join(file)) else { continue };
        let (bytes, path) = (change(file, bytes)?, to.join(file));
        if std::fs::read(&path).is_ok_and(|there| there == bytes) {
            continue;
        }
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|e| format!("{}: {e}", parent.display()))?;
        }
        std::fs::write(&path, bytes).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

/// Reads the list and checks that each fault's text occurs once in the sources.
fn read_list(root: &Path) -> Result<Vec<Mutant>, String> {
    let all = parse(&read(&root.join(LIST))?)?;
    for mutant in &all {
        for (file, find, _) in &mutant.edits {
            let source = read(&root.join(SOURCES).join(file))?;
            place(&source, find).map_err(|why| format!("{LIST}: {}: in {file}: {why}", mutant.name))?;
        }
    }
    Ok(all)
}

/// The list from its text: blocks of `field: value`, separated by empty lines; lines that begin with `#` are comments.
fn parse(text: &str) -> Result<Vec<Mutant>, String> {
    let mut all: Vec<Mutant> = Vec::new();
    let mut begun = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            begun = false;
            continue;
        }
        if line.starts_with('#') {
            continue;
        }
        let (field, value) = line
            .split_once(':')
            .ok_or_else(|| format!("{LIST}:{}: no `field: value`: {line}", number + 1))?;
        let value = value.trim().to_owned();
        if !begun {
            all.push(Mutant::default());
            begun = true;
        }
        let Some(mutant) = all.last_mut() else { continue };
        match field {
            "name" => mutant.name = value,
            "rule" => mutant.rule = value,
            "file" => mutant.file = value,
            "find" => mutant.edits.push((mutant.file.clone(), value, String::new())),
            "with" => match mutant.edits.last_mut() {
                Some((.., with)) => *with = value,
                None => return Err(format!("{LIST}:{}: a `with` without a `find`", number + 1)),
            },
            "model" => mutant.model = value,
            "seen" => mutant.seen = value,
            "known" => mutant.known = value,
            "equivalent" => mutant.equivalent = value,
            other => return Err(format!("{LIST}:{}: no field is called '{other}'", number + 1)),
        }
    }
    Ok(all)
}

/// The position in the source of the text between « and », found with its surroundings; white space counts as one blank.
fn place(source: &str, find: &str) -> Result<Range<usize>, String> {
    let (before, rest) = find.split_once('«').ok_or("no « says where it begins")?;
    let (inside, after) = rest.split_once('»').ok_or("no » says where it ends")?;
    let wanted = format!("{before}{inside}{after}");
    // For each byte of the text with single blanks, its position in the source.
    let (mut plain, mut places) = (String::new(), Vec::new());
    for (at, c) in source.char_indices() {
        if c.is_whitespace() {
            if plain.ends_with(' ') {
                continue;
            }
            plain.push(' ');
        } else {
            plain.push(c);
        }
        places.resize(plain.len(), at);
    }
    let mut found = plain.match_indices(&wanted).map(|(at, _)| at);
    let at = found.next().ok_or_else(|| format!("not found: {wanted}"))?;
    if found.next().is_some() {
        return Err(format!("found more than once: {wanted}"));
    }
    let (start, end) = (at + before.len(), at + before.len() + inside.len());
    let last = places.get(end.saturating_sub(1)).copied().unwrap_or(0);
    let width = source[last..].chars().next().map_or(1, char::len_utf8);
    Ok(places.get(start).copied().unwrap_or(0)..last + width)
}

/// The source with each edit beside the text that it replaces, and a condition before it.
fn switched(source: &str, mut edits: Vec<Edit>) -> Result<String, String> {
    // Outer edits come before those inside them.
    edits.sort_by_key(|edit| (edit.at.start, usize::MAX - edit.at.end));
    render(source, 0..source.len(), &edits)
}

fn render(source: &str, all: Range<usize>, edits: &[Edit]) -> Result<String, String> {
    let mut text = String::new();
    let (mut from, mut rest) = (all.start, edits);
    while let Some(first) = rest.first() {
        let same = rest.iter().take_while(|edit| edit.at == first.at).count();
        let (here, behind) = rest.split_at(same);
        let within = behind.iter().take_while(|edit| edit.at.start < first.at.end).count();
        let (inner, behind) = behind.split_at(within);
        if let Some(other) = inner.iter().find(|edit| edit.at.end > first.at.end) {
            return Err(format!(
                "{LIST}: faults {} and {} replace parts of each other: make one of them longer",
                first.number, other.number
            ));
        }
        text.push_str(&source[from..first.at.start]);
        if let Some(always) = here.iter().find(|edit| edit.number == 0) {
            text.push_str(&always.with);
            (from, rest) = (first.at.end, behind);
            continue;
        }
        let original = render(source, first.at.clone(), inner)?;
        let is_statement = source[first.at.clone()].ends_with([';', '}']);
        let mut choice = String::new();
        for edit in here {
            choice.push_str(&format!(
                "if crate::mutants::listed({}) {{ {} }} else ",
                edit.number, edit.with
            ));
        }
        choice.push_str(&format!("{{ {original} }}"));
        text.push_str(&if is_statement { choice } else { format!("({choice})") });
        (from, rest) = (first.at.end, behind);
    }
    text.push_str(&source[from..all.end]);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const SOURCE: &str = "fn f() {\n    if a()\n        && b() {\n        c();\n    }\n}\n";

    fn edit(find: &str, number: usize, with: &str) -> Edit {
        Edit {
            at: place(SOURCE, find).unwrap(),
            number,
            with: with.to_owned(),
        }
    }

    #[test]
    fn every_fault_of_the_list_has_its_text_in_the_sources_once() {
        let all = read_list(&crate::root()).unwrap();
        assert!(all.len() >= 80, "{} faults", all.len());
        let mut names: Vec<&str> = all.iter().map(|mutant| mutant.name.as_str()).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|two| two[0] != two[1]), "a name is there twice");
        assert!(all.iter().all(|m| !m.rule.is_empty() && !m.edits.is_empty()));
        let listed: BTreeSet<&str> = all
            .iter()
            .map(|mutant| mutant.known.as_str())
            .filter(|known| !known.is_empty())
            .collect();
        let names = read(&crate::root().join("testing/mutants/src/lib.rs")).unwrap();
        let (_, names) = names.split_once("pub enum Mutant {").unwrap();
        let (names, _) = names.split_once("\n}").unwrap();
        let is_name = |line: &&str| line.starts_with(|c: char| c.is_ascii_uppercase());
        let names: BTreeSet<&str> = names.lines().map(str::trim).filter(is_name).collect();
        let names: BTreeSet<&str> = names.iter().filter_map(|line| line.split([',', ' ']).next()).collect();
        assert_eq!(
            names, listed,
            "the faults of testing/mutants, and those of the list with `known`"
        );
    }

    #[test]
    fn text_is_found_whatever_its_white_space_and_only_once() {
        assert_eq!(&SOURCE[place(SOURCE, "a() && «b()» {").unwrap()], "b()");
        assert!(place(SOURCE, "«d()»").unwrap_err().contains("not found"));
        assert!(place(SOURCE, "«()»").unwrap_err().contains("more than once"));
    }

    #[test]
    fn faults_stand_beside_what_they_replace() {
        let edits = vec![edit("«b()»", 2, "true"), edit("«c();»", 3, ""), edit("«b()»", 4, "false")];
        let text = switched(SOURCE, edits).unwrap();
        assert!(
            text.contains("(if crate::mutants::listed(2) { true } else if crate::mutants::listed(4) { false } else { b() })")
        );
        assert!(text.contains("if crate::mutants::listed(3) {  } else { c(); }"));
    }

    #[test]
    fn a_fault_may_lie_in_another_one_and_not_across() {
        let inner = switched(SOURCE, vec![edit("«a() && b()»", 1, "b()"), edit("«b()»", 2, "true")]).unwrap();
        assert!(inner.contains("(if crate::mutants::listed(1) { b() } else { a()\n        && (if crate::mutants::listed(2)"));
        let across = switched(SOURCE, vec![edit("«a() && b()»", 1, "b()"), edit("«b() { c();»", 2, "{")]);
        assert!(across.unwrap_err().contains("parts of each other"));
    }

    #[test]
    fn a_line_that_says_nothing_is_an_error() {
        assert!(parse("name: a\nrubbish\n").is_err());
        assert!(parse("with: a\n").is_err());
        assert!(parse("colour: red\n").is_err());
    }
}
