//! Other people's conditions × what processes do, and file systems × the same: no cell may show a violation. Enemy: a program that
//! is innocent of everything but sharing a machine, and reads a wrong value because another one closed a descriptor.
//! Guards: P2, P26

use conditions::cell::{Action, Spec, Verdict};
use conditions::condition::{Condition, private_mounts};
use conditions::matrix::{self, Row};
use conditions::place::{FileSystem, HugePages};
use harness::{Random, Scratch, full_run, say, skip};
use std::path::{Path, PathBuf};

/// How many times as long the long form takes.
const FULL: u64 = 20;
/// The conditions that are tried on every file system.
const EVERYWHERE: [Condition; 6] = [
    Condition::Plain,
    Condition::CloseFrom,
    Condition::Reused,
    Condition::NoProc,
    Condition::BootId,
    Condition::Forks,
];

fn spec(place: &Path, condition: Condition, action: Action, random: &mut Random) -> Spec {
    Spec {
        program: PathBuf::from(env!("CARGO_BIN_EXE_conditions")),
        place: place.to_path_buf(),
        condition,
        action,
        kind: None,
        memory_besides: 0,
        fault: None,
        seed: random.next(),
        scale: if full_run() { FULL } else { 1 },
    }
}

fn row(name: &str, place: &Path, condition: Condition, random: &mut Random) -> Row {
    let only = std::env::var("KEYWAY_TESTS_ONLY").unwrap_or_default();
    let wanted = |action: &str| format!("{name} {action}").contains(&only);
    // The region's server stays to the end, so nothing here is about the last one that leaves, or about more memory.
    let fits = |action: Action| {
        condition != Condition::Served || matches!(action, Action::Attach | Action::Work | Action::Die | Action::Recover)
    };
    let actions = Action::ALL.into_iter().filter(|(action, name)| fits(*action) && wanted(name));
    let specs = actions.map(|(action, _)| spec(place, condition, action, random)).collect();
    (name.to_owned(), specs)
}

/// Runs the cells in a mount namespace of their own, prints the table, and fails with it.
fn judge(title: &str, rows: &[Row]) {
    let rows: Vec<Row> = rows.iter().filter(|(_, specs)| !specs.is_empty()).cloned().collect();
    let verdicts = matrix::run(&rows);
    let table = matrix::table(&rows, &verdicts);
    say(&format!("{title}\n{table}"));
    for ((row, column), verdict) in &verdicts {
        if let Verdict::Impossible(why) = verdict {
            let (name, action) = (&rows[*row].0, Action::ALL[*column].1);
            skip(&format!("{name} × {action}"), why);
        }
    }
    let violated = verdicts.values().filter(|v| matches!(v, Verdict::Violated(..))).count();
    assert_eq!(violated, 0, "{violated} cells of {}: see the table", verdicts.len());
}

/// `None`: said aloud why not.
fn namespace(test: &str) -> Option<()> {
    private_mounts()
        .map_err(|e| skip(test, &format!("it needs root, for mount namespaces ({e})")))
        .ok()
}

#[test]
fn every_condition_meets_every_action() {
    let title = "conditions on tmpfs";
    if namespace(title).is_none() {
        return;
    }
    let mut random = Random::new(Random::seed_for(title));
    let scratch = Scratch::new();
    let rows: Vec<Row> = Condition::ALL
        .into_iter()
        .map(|(condition, name)| row(name, scratch.path(), condition, &mut random))
        .collect();
    judge(title, &rows);
}

#[test]
fn every_file_system_meets_every_action() {
    let title = "file systems";
    if namespace(title).is_none() {
        return;
    }
    let mut random = Random::new(Random::seed_for(title));
    let scratch = Scratch::new();
    let huge_pages = HugePages::allow();
    let (mut rows, mut places) = (Vec::new(), Vec::new());
    for (file_system, name) in FileSystem::ALL {
        // The other table is about it.
        if file_system == FileSystem::Tmpfs && !full_run() {
            continue;
        }
        let mounted = match (&huge_pages, file_system) {
            (Err(why), FileSystem::Hugetlbfs) => Err(why.clone()),
            _ => file_system.mount(scratch.path()),
        };
        match mounted {
            Ok(mounted) => {
                for condition in EVERYWHERE {
                    // fuse-overlayfs drops a file's pages at each open: what opens all the time takes minutes there.
                    if (file_system, condition) == (FileSystem::Fuse, Condition::Forks) && !full_run() {
                        continue;
                    }
                    let name = format!("{name} {}", condition.name());
                    let (name, mut specs) = row(&name, mounted.path(), condition, &mut random);
                    specs
                        .iter_mut()
                        .for_each(|spec| spec.memory_besides = file_system.memory_besides());
                    rows.push((name, specs));
                }
                places.push(mounted);
            }
            Err(why) => skip(&format!("regions on {name}"), &why),
        }
    }
    judge(title, &rows);
}
