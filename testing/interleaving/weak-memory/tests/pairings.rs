//! Enemies: an ordering in the code without its pairing, and a comment that names what is not there. `cargo xtask weak-memory` shows that the
//! pairings are sound and each of their orderings is needed.
//! Guards: P5
use std::path::Path;
use weak_memory::pairings::{ALL, Shape};
use weak_memory::sources::{differences, ordered, read};

#[test]
fn the_sources_name_the_pairings_and_have_their_orderings() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../crates");
    let of = |name: &str| read(&crates.join(name).join("src")).unwrap();
    let found = [of("keyway-region"), of("keyway-cache")].concat();
    assert!(found.len() > 60, "{}: the sources are not where they were", found.len());
    let problems = differences(&found, ALL);
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn an_ordering_that_its_pairing_does_not_have_is_found() {
    let of = |text: &str| differences(&ordered("a.rs", text), ALL);
    let at = |problems: Vec<String>| problems.into_iter().filter(|p| p.starts_with("a.rs")).count();
    assert_eq!(at(of("// PAIRS: tail: the load.\nx.store(1, Release);\n")), 0);
    assert_eq!(
        at(of("// PAIRS: tail: the load.\nx.compare_exchange(0, 1, Release, Relaxed);\n")),
        1
    );
    assert_eq!(at(of("// PAIRS: no-such: the load.\nx.store(1, Release);\n")), 1);
    assert_eq!(at(of("x.store(1, Release);\n")), 1);
    assert_eq!(at(of("x.store(1, Relaxed);\n")), 0);
    assert_eq!(at(of("// PAIRS: tail: the load.\nx.store(1, Relaxed);\n")), 1);
    // Both names are of the load; one of them has it.
    let two = ordered(
        "a.rs",
        "// PAIRS: tail, extent: the stores.\n// PAIRS: closed: that too.\nx.load(Acquire);\n",
    );
    assert_eq!(two[0].pairings, ["tail", "extent", "closed"]);
    assert!(matches!(two[0].shape, Shape::Load(_)));
}

#[test]
fn the_page_has_a_row_for_each_pairing() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/concurrency.md");
    let page = std::fs::read_to_string(path).unwrap();
    let table = page.split("## Pairs").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows: Vec<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    for pairing in ALL {
        assert!(rows.contains(&pairing.name), "{} has no row", pairing.name);
    }
    assert_eq!(rows.len(), ALL.len(), "{rows:?}");
}

#[test]
fn a_pairing_whose_ordering_has_gone_from_the_code_is_found() {
    let problems = differences(&[], ALL);
    assert!(
        problems.iter().any(|problem| problem.contains("the pairing tail")),
        "{problems:#?}"
    );
}
