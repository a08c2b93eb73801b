//! The workloads that have names.

use crate::mix::{Access, Kind, Workload};
use crate::workload::{Pool, Sizes};

/// A workload as the table below has it: name, what tables and plots call it, mix, sizes, access.
type Line = (&'static str, &'static str, &'static [(Kind, u32)], Sizes, Access);

const GET: (Kind, u32) = (Kind::Get, 1);
const SET: (Kind, u32) = (Kind::Set, 1);
/// 19 gets to one set.
const READ_MOSTLY: &[(Kind, u32)] = &[(Kind::Get, 19), SET];
const ZIPF: Access = Access::YCSB;

/// YCSB: ten fields of 100 bytes, "user" and up to 19 digits (Cooper et al., SoCC 2010).
const YCSB: Sizes = Sizes::Both(23, 1000);

#[rustfmt::skip]
const TABLE: &[Line] = &[
    ("ycsb-a", "YCSB A: 50 % gets, 50 % sets", &[GET, SET], YCSB, ZIPF),
    ("ycsb-b", "YCSB B: 95 % gets, 5 % sets", READ_MOSTLY, YCSB, ZIPF),
    ("ycsb-c", "YCSB C: gets", &[GET], YCSB, ZIPF),
    ("ycsb-d", "YCSB D: 95 % gets of the latest, 5 % new items", &[(Kind::Get, 19), (Kind::Insert, 1)], YCSB, Access::Latest),
    ("ycsb-f", "YCSB F: 50 % gets, 50 % gets followed by a set", &[GET, (Kind::ReadModifyWrite, 1)], YCSB, ZIPF),
    ("128b-95", "128 B, 95 % gets", READ_MOSTLY, Sizes::Fixed(128), ZIPF),
    ("128b-50", "128 B, 50 % gets", &[GET, SET], Sizes::Fixed(128), ZIPF),
    ("5k-95", "5 KB, 95 % gets", READ_MOSTLY, Sizes::Fixed(5 << 10), ZIPF),
    ("5k-50", "5 KB, 50 % gets", &[GET, SET], Sizes::Fixed(5 << 10), ZIPF),
    ("20b", "gets of 20 B", &[GET], Sizes::Both(20, 20), ZIPF),
    ("get-128b", "gets of 128 B", &[GET], Sizes::Fixed(128), ZIPF),
    ("get-5k", "gets of 5 KB", &[GET], Sizes::Fixed(5 << 10), ZIPF),
    ("get-100k", "gets of 100 KB", &[GET], Sizes::Fixed(100 << 10), ZIPF),
    ("set-128b", "sets of 128 B", &[SET], Sizes::Fixed(128), ZIPF),
    ("set-5k", "sets of 5 KB", &[SET], Sizes::Fixed(5 << 10), ZIPF),
    ("set-100k", "sets of 100 KB", &[SET], Sizes::Fixed(100 << 10), ZIPF),
    // A set before it counts in throughput and CPU time and not in latency.
    ("delete", "deletes, each of an item stored just before", &[(Kind::Delete, 1)], Sizes::Fixed(128), Access::Uniform),
    ("incr", "increments of numbers of ten digits", &[(Kind::Incr, 1)], Sizes::Fixed(10), ZIPF),
    ("etc", "Facebook's ETC (Atikoglu et al. 2012), 30 gets to 1 set", &[(Kind::Get, 30), SET], Sizes::Etc, ZIPF),
    ("fb-usr", "Facebook's USR: 99.7 % gets, 0.2 % sets, 0.1 % deletes", &[(Kind::Get, 997), (Kind::Set, 2), (Kind::Remove, 1)], Sizes::Pool(Pool::Usr), ZIPF),
    ("fb-etc", "Facebook's ETC: 73.4 % gets, 2.3 % sets, 24 % deletes", &[(Kind::Get, 734), (Kind::Set, 23), (Kind::Remove, 240)], Sizes::Etc, ZIPF),
    ("fb-app", "Facebook's APP: 83.4 % gets, 5.2 % sets, 11.4 % deletes", &[(Kind::Get, 834), (Kind::Set, 52), (Kind::Remove, 114)], Sizes::Pool(Pool::App), ZIPF),
    ("fb-var", "Facebook's VAR: 18 % gets, 82 % sets", &[(Kind::Get, 18), (Kind::Set, 82)], Sizes::Pool(Pool::Var), ZIPF),
    ("fb-sys", "Facebook's SYS: 67.5 % gets, 32.5 % sets", &[(Kind::Get, 675), (Kind::Set, 325)], Sizes::Pool(Pool::Sys), ZIPF),
];

/// Every workload that has a name.
pub fn all() -> Vec<Workload> {
    let line = |&(name, about, mix, sizes, access): &Line| Workload {
        name: name.to_owned(),
        about: about.to_owned(),
        mix: mix.to_vec(),
        sizes,
        access,
        // What was deleted is stored again when it is missed; otherwise nothing would be left after a while.
        fill: mix.iter().any(|(kind, _)| *kind == Kind::Remove),
    };
    TABLE.iter().map(line).collect()
}

/// The workload of that name.
///
/// # Errors
///
/// There is none; the reason says which there are.
pub fn find(name: &str) -> Result<Workload, String> {
    if name == "ycsb-e" {
        return Err("YCSB E scans ranges of keys, which no memcached protocol has".to_owned());
    }
    all().into_iter().find(|workload| workload.name == name).ok_or_else(|| {
        let names: Vec<_> = TABLE.iter().map(|line| line.0).collect();
        format!("there is no workload \"{name}\"; there are {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_an_error_lists_the_known_ones() {
        let all = all();
        let names: HashSet<_> = all.iter().map(|workload| workload.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
        assert_eq!(find("etc").unwrap().name, "etc");
        assert!(find("ycsb-e").unwrap_err().contains("scans"));
        assert!(find("x").unwrap_err().contains("ycsb-d"));
    }
}
