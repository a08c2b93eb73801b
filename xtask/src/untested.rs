//! Targets of which cargo builds no program of tests (`test = false`), because they have none: a test in one of their files would never run.

use std::path::{Component, Path, PathBuf};

/// A manifest's problems, one line each. `read` gives the text of a file that is there.
pub fn check(manifest: &str, text: &str, read: &dyn Fn(&Path) -> Option<String>) -> Vec<String> {
    let folder = Path::new(manifest).parent().unwrap_or(Path::new(""));
    let mut problems = Vec::new();
    for root in untested(text) {
        let mut todo = vec![(folder.join(root), true)];
        while let Some((file, is_root)) = todo.pop() {
            // Another package's file has its tests there.
            if file.components().any(|part| part == Component::ParentDir) {
                continue;
            }
            let Some(source) = read(&file) else { continue };
            if source.lines().any(|line| line.trim() == "#[test]") {
                problems.push(format!(
                    "{}: its tests never run, as {manifest} says `test = false` of its target",
                    file.display()
                ));
            }
            todo.extend(modules(&file, is_root, &source).into_iter().map(|module| (module, false)));
        }
    }
    problems
}

/// The first files of these targets.
fn untested(manifest: &str) -> Vec<String> {
    let tables = manifest
        .split("\n[")
        .filter(|table| table.lines().any(|line| line == "test = false"));
    let path = |table: &str| {
        let path = table.lines().find_map(|line| line.strip_prefix("path = "));
        path.map_or_else(|| "src/lib.rs".to_owned(), |path| path.trim_matches('"').to_owned())
    };
    tables.map(path).collect()
}

/// Where the modules may be that a file declares.
fn modules(file: &Path, is_root: bool, source: &str) -> Vec<PathBuf> {
    let beside = file.parent().unwrap_or(Path::new(""));
    let within = match is_root || file.ends_with("mod.rs") {
        true => beside.to_path_buf(),
        false => file.with_extension(""),
    };
    let (mut found, mut elsewhere) = (Vec::new(), None);
    for line in source.lines().map(str::trim) {
        if let Some(path) = line.strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]")) {
            elsewhere = Some(beside.join(path));
        } else if let Some((before, name)) = line.strip_suffix(';').and_then(|line| line.rsplit_once("mod "))
            && (before.is_empty() || before.starts_with("pub"))
        {
            match elsewhere.take() {
                Some(path) => found.push(path),
                None => found.extend([within.join(format!("{name}.rs")), within.join(name).join("mod.rs")]),
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_would_never_run_is_named() {
        let manifest = "[package]\nname = \"a\"\n\n[lib]\ntest = false\n\n[[bin]]\nname = \"a\"\npath = \"src/main.rs\"\n";
        let found = |tested: &str| {
            let read = |path: &Path| {
                let text = match path.to_str()? {
                    "t/a/src/lib.rs" => {
                        "pub mod one;\nmod four;\n#[path = \"other/two.rs\"]\nmod two;\n#[path = \"../../b/src/three.rs\"]\nmod b;\n"
                    }
                    "t/a/src/main.rs" => "mod three;\n",
                    "t/a/src/one.rs" => "mod deep;\n",
                    "t/a/src/four/mod.rs" => "mod five;\n",
                    "t/a/src/four/five.rs" => "",
                    "t/a/src/one/deep.rs" | "t/a/src/other/two.rs" | "t/a/src/three.rs" | "t/a/src/../../b/src/three.rs" => "",
                    _ => return None,
                };
                let test = if path.ends_with(tested) { "    #[test]\n" } else { "" };
                Some(format!("{text}{test}"))
            };
            check("t/a/Cargo.toml", manifest, &read)
        };
        assert_eq!(found("src/three.rs"), [""; 0], "the program's tests are run");
        for tested in [
            "src/lib.rs",
            "src/one.rs",
            "src/one/deep.rs",
            "src/four/five.rs",
            "src/other/two.rs",
        ] {
            assert_eq!(
                found(tested),
                [format!(
                    "t/a/{tested}: its tests never run, as t/a/Cargo.toml says `test = false` of its target"
                )]
            );
        }
    }
}
