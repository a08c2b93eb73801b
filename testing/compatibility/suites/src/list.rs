//! The suites.

use std::path::Path;
use std::process::Command;

use crate::cases::{self, Cases};
use crate::obtain;
use crate::run::Side;

/// Makes the command that runs a suite, for one side.
pub type Runner = Box<dyn Fn(&Side) -> Command + Sync + Send>;

/// What Keyway stands in for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// memcached
    Server,
    /// libmemcached, by LD_PRELOAD, with its server
    Library(Handles),
}

/// What handles a program with the drop-in has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handles {
    /// of one server, and no libmemcached can be found: all that works is the drop-in's work, on the region
    Alone,
    /// of one server: they are on its region
    OneServer,
    /// of two servers: they are libmemcached's
    TwoServers,
}

/// A suite.
#[derive(Clone, Copy)]
pub struct Suite {
    pub name: &'static str,
    /// where it comes from
    pub source: &'static str,
    pub replaced: Replaced,
    /// the servers that it asks beside that of memcached's port: a port or a Unix socket, and more arguments
    pub others: &'static [&'static str],
    /// it takes less than a minute: the checks run it
    pub is_short: bool,
    /// it has at least so many cases; fewer mean that it did not run
    pub cases_min: usize,
    /// gets it. `Err`: why it cannot be had
    pub obtain: fn(&Path) -> Result<Runner, String>,
    /// what the program that runs it has printed
    pub read: fn(&str) -> Cases,
}

/// All suites.
pub const ALL: &[Suite] = &[
    Suite {
        name: "pymemcache",
        source: "PyPI: pymemcache 4.0.0",
        replaced: Replaced::Server,
        others: &[],
        is_short: true,
        cases_min: 570,
        obtain: obtain::pymemcache,
        read: cases::of_pytest,
    },
    Suite {
        name: "python-binary-memcached",
        source: "PyPI: python-binary-memcached 0.33.0",
        replaced: Replaced::Server,
        others: &["/tmp/memcached.sock"],
        is_short: true,
        cases_min: 240,
        obtain: obtain::binary_memcached,
        read: cases::of_pytest,
    },
    Suite {
        name: "dogpile.cache",
        source: "PyPI: dogpile.cache 1.4.1, its tests of memcached's backends",
        replaced: Replaced::Server,
        others: &[],
        is_short: true,
        cases_min: 400,
        obtain: obtain::dogpile,
        read: cases::of_pytest,
    },
    Suite {
        name: "gomemcache",
        source: "Go's module proxy: gomemcache 20260422",
        replaced: Replaced::Server,
        others: &[],
        is_short: true,
        cases_min: 16,
        obtain: obtain::gomemcache,
        read: cases::of_go,
    },
    Suite {
        name: "pylibmc",
        source: "PyPI: pylibmc 1.6.3",
        replaced: Replaced::Library(Handles::Alone),
        others: &[],
        is_short: true,
        cases_min: 40,
        obtain: obtain::pylibmc,
        read: cases::of_pytest,
    },
    Suite {
        name: "pylibmc, two servers",
        source: "PyPI: pylibmc 1.6.3, each client with a second server",
        replaced: Replaced::Library(Handles::TwoServers),
        others: &[],
        is_short: true,
        cases_min: 40,
        obtain: obtain::pylibmc_with_two_servers,
        read: cases::of_pytest,
    },
    Suite {
        name: "Memcached::libmemcached",
        source: "Debian's source package libmemcached-libmemcached-perl: t/*.t",
        replaced: Replaced::Library(Handles::OneServer),
        others: &[],
        is_short: true,
        cases_min: 33,
        obtain: obtain::perl_libmemcached,
        read: cases::of_tap,
    },
    Suite {
        name: "Memcached::libmemcached, alone",
        source: "Debian's source package libmemcached-libmemcached-perl: t/*.t",
        replaced: Replaced::Library(Handles::Alone),
        others: &[],
        is_short: true,
        cases_min: 33,
        obtain: obtain::perl_libmemcached,
        read: cases::of_tap,
    },
    Suite {
        name: "memcached",
        source: "Debian's source package memcached: t/*.t",
        replaced: Replaced::Server,
        others: &[],
        is_short: false,
        cases_min: 60,
        obtain: obtain::memcached,
        read: cases::of_tap,
    },
    Suite {
        name: "libmemcached",
        source: "Debian's source package libmemcached: runtests, linked to the shared library",
        replaced: Replaced::Library(Handles::OneServer),
        others: &[],
        is_short: false,
        cases_min: 63,
        obtain: obtain::libmemcached,
        read: cases::of_named_checks,
    },
    Suite {
        name: "Debian's pylibmc",
        source: "Debian: python3-pylibmc, with the tests of PyPI's pylibmc 1.6.3",
        replaced: Replaced::Library(Handles::Alone),
        others: &[],
        is_short: true,
        cases_min: 40,
        obtain: obtain::debians_pylibmc,
        read: cases::of_pytest,
    },
    Suite {
        name: "memcached of npm",
        source: "npm: memcached 2.2.2",
        replaced: Replaced::Server,
        others: &["11212", "11213"],
        is_short: true,
        cases_min: 40,
        obtain: obtain::node_memcached,
        read: cases::of_named_checks,
    },
];

/// Suites of others that are not run, and why.
pub const NOT_HAD: &[(&str, &str)] = &[
    ("aiomcache", "PyPI's source distribution has no tests"),
    ("emcache", "PyPI has no source distribution"),
    ("Dalli", "Debian's source archive of `ruby-dalli` could not be had"),
    ("memjs", "the tests in npm's package ask no server"),
    ("spymemcached, xmemcached", "Maven Central has no artifact with their tests"),
    (
        "memcache of crates.io",
        "its cases need eleven servers, two of them with its certificates",
    ),
];
