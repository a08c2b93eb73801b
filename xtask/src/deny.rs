//! The stages `deny` and `msrv`: what the dependencies are (licences, sources, versions that occur twice, advisories), and the
//! oldest compiler that builds the workspace. Installs nothing and needs no network.

use crate::run::{Context, Outcome};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Licences that may be linked into what is published under Apache-2.0 (SPDX identifiers).
const LICENCES: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// Packages with another licence, and why that does not matter.
const OTHER_LICENCES: &[(&str, &str, &str)] = &[(
    "cbindgen",
    "MPL-2.0",
    "it writes keyway.h in a test, and is linked to nothing that is shipped",
)];

/// Packages that are built in two versions, and the package that needs the older one.
const TWICE: &[(&str, &str)] = &[
    ("getrandom", "rand 0.8 of shuttle, in the schedules"),
    ("hashbrown", "dashmap, which the benches compare with"),
    ("miniz_oxide", "png, beside the flate2 that png also uses"),
    ("syn", "macros are on their way from 2 to 3: enumflags2 of landlock, maud"),
    ("winnow", "toml 0.9 of cbindgen"),
];

/// The only source of packages.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The stage `deny`.
pub fn deny(context: &Context<'_>) -> Outcome {
    let mut problems = Vec::new();
    let arguments = [
        "tree",
        "--locked",
        "--workspace",
        "--all-features",
        "--edges=normal,build,dev",
        "--prefix=none",
        "--no-dedupe",
    ];
    let mut command = context.command("cargo", &arguments);
    match command.arg("--format={p}|{l}").output() {
        Ok(output) if output.status.success() => {
            let tree = String::from_utf8_lossy(&output.stdout);
            problems.extend(licences(&tree).into_iter().chain(twice(&tree, TWICE)));
        }
        Ok(output) => return Outcome::Failed(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(e) => return Outcome::Failed(format!("cargo tree: {e}")),
    }
    for lock in ["Cargo.lock", "fuzz/Cargo.lock"] {
        match std::fs::read_to_string(context.root.join(lock)) {
            Ok(text) => problems.extend(sources(&text)),
            Err(e) => return Outcome::Failed(format!("{lock}: {e}")),
        }
    }
    problems.iter().for_each(|problem| println!("   {problem}"));
    match problems.first() {
        Some(first) => Outcome::Failed(format!("{} problems, the first: {first}", problems.len())),
        None => advisories(context),
    }
}

/// Reported security faults of dependencies, if cargo-deny and its database are there.
fn advisories(context: &Context<'_>) -> Outcome {
    if !context.works("cargo", &["deny", "--version"]) {
        println!("   advisories are not checked: no cargo-deny (cargo install cargo-deny --locked)");
    } else if !context.works("cargo", &["deny", "fetch", "db"]) {
        println!("   advisories are not checked: their database, github.com/RustSec/advisory-db, cannot be fetched");
    } else {
        return context.expect(context.command("cargo", &["deny", "--offline", "check", "advisories"]));
    }
    Outcome::Passed
}

/// Packages whose licence is not on the list. Each line of `tree` is a package (`name vVERSION …`), `|`, and its licence.
fn licences(tree: &str) -> Vec<String> {
    let packages: BTreeMap<&str, &str> = tree.lines().filter_map(|line| line.split_once('|')).collect();
    let is_bad = |(package, licence): &(&str, &str)| {
        let name = package.split(' ').next().unwrap_or(package);
        let other = OTHER_LICENCES.iter().find(|(known, _, _)| *known == name);
        !is_allowed(&licence.replace('/', " OR "), other.map(|(_, licence, _)| *licence))
    };
    let say = |(package, licence)| format!("{package}: licence \"{licence}\" is not on the list in xtask/src/deny.rs");
    packages.into_iter().filter(is_bad).map(say).collect()
}

/// Whether an SPDX expression permits use under one of [`LICENCES`], or under `other`.
fn is_allowed(expression: &str, other: Option<&str>) -> bool {
    let parts = |word: &str| {
        let (mut depth, mut parts, mut start) = (0, Vec::new(), 0);
        for (at, sign) in expression.char_indices() {
            match sign {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ if depth == 0 && expression[at..].starts_with(word) => {
                    parts.push(&expression[start..at]);
                    start = at + word.len();
                }
                _ => {}
            }
        }
        parts.push(&expression[start..]);
        parts
    };
    // AND binds closer than OR.
    let (any, all) = (parts(" OR "), parts(" AND "));
    if any.len() > 1 {
        any.into_iter().any(|part| is_allowed(part.trim(), other))
    } else if all.len() > 1 {
        all.into_iter().all(|part| is_allowed(part.trim(), other))
    } else if let Some(inner) = expression.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        is_allowed(inner, other)
    } else {
        LICENCES.contains(&expression) || other == Some(expression)
    }
}

/// Packages in several versions that `listed` does not have; also what it lists without need. `tree` is as in [`licences`].
fn twice(tree: &str, listed: &[(&str, &str)]) -> Vec<String> {
    let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in tree.lines() {
        let mut words = line.split([' ', '|']);
        if let (Some(name), Some(version)) = (words.next(), words.next()) {
            found.entry(name).or_default().insert(version);
        }
    }
    found.retain(|_, versions| versions.len() > 1);
    let is_listed = |name: &str| listed.iter().any(|(known, _)| *known == name);
    let missing = found.iter().filter(|(name, _)| !is_listed(name));
    let missing = missing.map(|(name, versions)| {
        let versions = Vec::from_iter(versions.iter().copied()).join(" and ");
        format!("{name}: is built as {versions}; use one version, or list it with its reason in xtask/src/deny.rs")
    });
    let idle = listed.iter().filter(|(known, _)| !found.contains_key(known));
    let idle = idle.map(|(known, _)| format!("{known}: is built in one version; take it off the list in xtask/src/deny.rs"));
    missing.chain(idle).collect()
}

/// Packages of a lock file from another source than the registry.
fn sources(lock: &str) -> Vec<String> {
    let source = |line: &str| Some(line.strip_prefix("source = \"")?.strip_suffix('"')?.to_owned());
    let others = lock.lines().filter_map(source).filter(|source| source != REGISTRY);
    others
        .map(|source| format!("a package comes from {source}; only crates.io is allowed"))
        .collect()
}

/// The stage `msrv`: the compiler of `rust-version` builds the workspace. If it is the one that runs the checks, they show that.
pub fn msrv(context: &Context<'_>) -> Outcome {
    let oldest = match oldest(context.root) {
        Ok(version) => version,
        Err(why) => return Outcome::Failed(why),
    };
    let used = context.command("rustc", &["--version"]).output();
    let used = used
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    if is_version(&used, &oldest) {
        println!("   rust-version is {oldest}, and so is the compiler that runs the checks");
        return Outcome::Passed;
    }
    let toolchain = format!("+{oldest}");
    if !context.works("cargo", &[&toolchain, "--version"]) {
        return Outcome::Skipped(format!(
            "no compiler {oldest}; rustup toolchain install {oldest} --profile minimal"
        ));
    }
    // A target directory of its own: otherwise the next stage would compile everything again.
    let mut command = context.command("cargo", &[&toolchain, "check", "--locked", "--workspace", "--lib", "--bins"]);
    command.env("CARGO_TARGET_DIR", context.target.join("msrv"));
    context.expect(command)
}

/// The workspace's `rust-version`, which every package must have.
fn oldest(root: &Path) -> Result<String, String> {
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).map_err(|e| format!("Cargo.toml: {e}"))?;
    let version = manifest
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'));
    version
        .map(str::to_owned)
        .ok_or_else(|| "Cargo.toml: [workspace.package] has no rust-version".to_owned())
}

/// Whether this output of `rustc --version` is of `version`, whatever its patch level.
fn is_version(used: &str, version: &str) -> bool {
    let used = used.strip_prefix("rustc ").unwrap_or_default();
    used.strip_prefix(version).is_some_and(|rest| rest.starts_with(['.', ' ']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_judged_as_spdx_has_them() {
        for good in [
            "MIT",
            "MIT OR GPL-3.0",
            "GPL-3.0/MIT",
            "(MIT OR GPL-3.0) AND Unicode-3.0",
            "GPL-2.0 OR MIT AND ISC",
        ] {
            assert_eq!(licences(&format!("a v1.0.0|{good}")), [""; 0], "{good}");
        }
        for bad in [
            "",
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT OR ISC) AND GPL-3.0",
            "MIT AND (GPL-3.0 OR AGPL-3.0)",
            "MIT WITH x",
        ] {
            assert_eq!(licences(&format!("a v1.0.0|{bad}")).len(), 1, "{bad}");
        }
        assert_eq!(licences("cbindgen v1.0.0|MPL-2.0").len(), 0);
        assert_eq!(licences("other v1.0.0|MPL-2.0").len(), 1);
    }

    #[test]
    fn versions_and_sources_are_judged() {
        let tree = "a v1.0.0|MIT\nb v1.0.0|MIT\nb v2.0.0 (proc-macro)|MIT\na v1.0.0|MIT";
        assert_eq!(twice(tree, &[("b", "for c")]), [""; 0]);
        assert_eq!(twice(tree, &[]).len(), 1, "b is there twice");
        assert_eq!(twice(tree, &[("a", ""), ("b", "")]).len(), 1, "a is listed without need");
        let from = |source| sources(&format!("[[package]]\nname = \"a\"\nsource = \"{source}\"\n")).len();
        assert_eq!(from(REGISTRY), 0);
        assert_eq!(
            (from("git+https://example.org/a"), from("registry+https://example.org/index")),
            (1, 1)
        );
    }

    #[test]
    fn compilers_are_told_apart() {
        assert!(is_version("rustc 1.95.0 (59807616e 2026-04-14)", "1.95"));
        assert!(!is_version("rustc 1.95.0 (59807616e 2026-04-14)", "1.9"));
        assert!(!is_version("rustc 1.96.0-nightly", "1.95") && !is_version("", "1.95"));
    }
}
