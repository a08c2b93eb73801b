//! `cargo xtask check`: what says within minutes that a change is right, before it is committed: format, source rules, lints, and the tests
//! of the crates that it touches and of those that depend on them.
//!
//! Everything is built without default features, so neither clang nor libelf is needed (the kernel door's tests are those of the gate), and
//! as one workspace: cargo compiles only what depends on the change.

use crate::run::{Context, Outcome};
use crate::stages;
use crate::testing;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const HELP: &str = "\
cargo xtask check: format, lints and tests of the crates that a change touches, and of those that depend on them

    cargo xtask check [--since REV]

A change is what differs from REV (HEAD, if none is given), and files that git does not know yet. What the whole tree must pass are
`make test` and `make gate`.
";

/// A crate of the workspace.
#[derive(Debug)]
struct Package {
    name: String,
    folder: PathBuf,
    /// names of the packages that it needs, for its tests or build too
    needs: BTreeSet<String>,
}

impl Package {
    fn from_metadata(value: &Value) -> Option<Self> {
        let needs = value["dependencies"].as_array()?.iter();
        Some(Self {
            name: value["name"].as_str()?.to_owned(),
            folder: Path::new(value["manifest_path"].as_str()?).parent()?.to_path_buf(),
            needs: needs.filter_map(|need| Some(need["name"].as_str()?.to_owned())).collect(),
        })
    }
}

/// The command.
pub fn run(context: &Context<'_>, args: &[&str]) -> Outcome {
    let since = match args {
        [] => "HEAD",
        ["--since", revision] => revision,
        ["--help" | "-h"] => {
            print!("{HELP}");
            return Outcome::Passed;
        }
        _ => {
            return Outcome::Failed(format!(
                "check takes --since REV, and not '{}'; --help says more",
                args.join(" ")
            ));
        }
    };
    match plan(context, since) {
        Ok(affected) => all(context, &affected),
        Err(why) => Outcome::Failed(why),
    }
}

/// The files that differ from a revision, and those that git does not know yet.
fn changed(context: &Context<'_>, since: &str) -> Result<Vec<PathBuf>, String> {
    let mut names = context.output("git", &["diff", "--name-only", since, "--"])?;
    names += &context.output("git", &["ls-files", "--others", "--exclude-standard"])?;
    Ok(names.lines().map(|name| context.root.join(name)).collect())
}

/// The packages whose tests run.
fn plan(context: &Context<'_>, since: &str) -> Result<Vec<Package>, String> {
    let changed = changed(context, since)?;
    let metadata = context.output("cargo", &["metadata", "--locked", "--no-deps", "--format-version=1"])?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|e| format!("cargo metadata: {e}"))?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let packages = packages.filter_map(Package::from_metadata).collect();
    let (affected, elsewhere) = affected(packages, &changed);
    println!(
        "   {} changed files since {since}: tests of {}",
        changed.len(),
        match affected.len() {
            0 => "no crate".to_owned(),
            _ => affected.iter().map(|one| &*one.name).collect::<Vec<_>>().join(", "),
        }
    );
    for file in elsewhere {
        println!("   {} belongs to no crate: `make test` says what it breaks", file.display());
    }
    Ok(affected)
}

/// The packages that these files belong to, with all that depend on them, and the files that belong to none (documents, which the source
/// rules read, left out).
fn affected(packages: Vec<Package>, changed: &[PathBuf]) -> (Vec<Package>, Vec<PathBuf>) {
    let mut names = BTreeSet::new();
    let mut elsewhere = Vec::new();
    for file in changed {
        let owners = packages.iter().filter(|package| file.starts_with(&package.folder));
        match owners.max_by_key(|package| package.folder.components().count()) {
            Some(owner) => _ = names.insert(owner.name.clone()),
            None if file.extension().is_some_and(|e| e == "md") => {}
            None => elsewhere.push(file.clone()),
        }
    }
    loop {
        let next = packages
            .iter()
            .find(|package| !names.contains(&package.name) && !package.needs.is_disjoint(&names));
        match next {
            Some(package) => _ = names.insert(package.name.clone()),
            None => break,
        }
    }
    let affected = packages.into_iter().filter(|package| names.contains(&package.name));
    (affected.collect(), elsewhere)
}

fn all(context: &Context<'_>, affected: &[Package]) -> Outcome {
    let steps: [&dyn Fn() -> Outcome; 4] = [
        &|| stages::fmt(context),
        &|| stages::source_rules(context),
        &|| stages::clippy_with(context, &["--no-default-features"]),
        &|| testing::of(context, |folder| affected.iter().any(|package| package.folder == *folder)),
    ];
    let needed = if affected.is_empty() { 2 } else { steps.len() };
    let outcomes = steps.iter().take(needed).map(|step| step());
    outcomes
        .into_iter()
        .find(|outcome| *outcome != Outcome::Passed)
        .unwrap_or(Outcome::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, folder: &str, needs: &[&str]) -> Package {
        let needs = needs
            .iter()
            .map(|need| format!(r#"{{"name":"{need}"}}"#))
            .collect::<Vec<_>>()
            .join(",");
        let text = format!(r#"{{"name":"{name}","manifest_path":"/w/{folder}/Cargo.toml","dependencies":[{needs}]}}"#);
        Package::from_metadata(&serde_json::from_str(&text).unwrap()).unwrap()
    }

    fn tried(changed: &[&str]) -> (Vec<String>, usize) {
        let packages = vec![
            package("region", "crates/region", &["nix"]),
            package("server", "crates/server", &["region"]),
            package("program", "crates/program", &["server"]),
            package("harness", "testing/harness", &[]),
            package("inside", "crates/server/inside", &[]),
        ];
        let changed: Vec<_> = changed.iter().map(|file| Path::new("/w").join(file)).collect();
        let (affected, elsewhere) = affected(packages, &changed);
        (affected.into_iter().map(|one| one.name).collect(), elsewhere.len())
    }

    #[test]
    fn what_depends_on_a_change_is_tested_and_nothing_else() {
        assert_eq!(tried(&["crates/server/src/lib.rs"]).0, ["server", "program"]);
        assert_eq!(tried(&["crates/region/src/lib.rs"]).0, ["region", "server", "program"]);
        assert_eq!(
            tried(&["testing/harness/src/a.rs", "crates/program/a.rs"]).0,
            ["program", "harness"]
        );
        assert_eq!(tried(&["crates/server/inside/src/lib.rs"]).0, ["inside"]);
    }

    #[test]
    fn a_change_is_what_differs_and_what_is_new() {
        let folder = std::env::temp_dir().join(format!("keyway-xtask-check-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let context = Context::new(&folder, folder.clone());
        let git = |args: &[&str]| {
            context
                .output(
                    "git",
                    &[
                        &["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"],
                        args,
                    ]
                    .concat(),
                )
                .unwrap()
        };
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        git(&["init", "--quiet"]);
        ["same", "other"].iter().for_each(|name| write(name, "before"));
        git(&["add", "."]);
        git(&["commit", "--quiet", "--message", "both"]);
        write("other", "after");
        write("new", "");
        assert_eq!(
            changed(&context, "HEAD").unwrap(),
            ["other", "new"].map(|name| folder.join(name))
        );
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn files_of_no_crate_are_named_but_for_documents() {
        assert_eq!(
            tried(&["Makefile", "docs/library.md", "crates/serverless.rs"]),
            (Vec::new(), 2)
        );
    }
}
