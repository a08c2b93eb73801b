//! `include/keyway.h` is what the sources say. Nobody who uses it needs the generator; whoever changes the sources runs
//! `KEYWAY_TESTS_RENEW=1 cargo test -p keyway-capi --test it header`.
//! Guards: P29

use std::path::Path;

/// The header as the sources make it.
fn generated() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let sources = ["types", "open", "read", "write", "fetch", "about"];
    let builder = sources
        .iter()
        .fold(cbindgen::Builder::new().with_config(config), |builder, name| {
            builder.with_src(root.join("src").join(name).with_extension("rs"))
        });
    let mut text = Vec::new();
    builder.generate().expect("the sources make a header").write(&mut text);
    String::from_utf8(text).expect("a header is text")
}

#[test]
fn the_header_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/keyway.h");
    let wanted = generated();
    if std::env::var_os("KEYWAY_TESTS_RENEW").is_some() {
        std::fs::write(&path, &wanted).expect("the header can be written");
    }
    let found = std::fs::read_to_string(&path).expect("include/keyway.h");
    let differing = found.lines().zip(wanted.lines()).position(|(a, b)| a != b);
    assert!(
        found == wanted,
        "include/keyway.h is out of date from line {} on; KEYWAY_TESTS_RENEW=1 cargo test -p keyway-capi --test it header",
        differing.unwrap_or_else(|| found.lines().count().min(wanted.lines().count())) + 1
    );
}
