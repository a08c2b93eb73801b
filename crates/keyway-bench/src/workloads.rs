//! The workloads that have names.

use crate::mix::{Access, Kind, Workload};
use crate::twitter;
use crate::workload::{Pool, Sizes};

/// A workload as the table below has it: name, about, mix, sizes, access.
type Line = (&'static str, &'static str, &'static [(Kind, u32)], Sizes, Access);

const GET: (Kind, u32) = (Kind::Get, 1);
const SET: (Kind, u32) = (Kind::Set, 1);
/// 19 gets to one set.
const READ_MOSTLY: &[(Kind, u32)] = &[(Kind::Get, 19), SET];

/// YCSB: ten fields of 100 bytes, "user" and up to 19 digits (Cooper et al., SoCC 2010).
const YCSB: Sizes = Sizes::Both(23, 1000);

#[rustfmt::skip]
const TABLE: &[Line] = &[
    ("ycsb-a", "YCSB A: 50 % get, 50 % set", &[GET, SET], YCSB, Access::Zipf),
    ("ycsb-b", "YCSB B: 95 % get, 5 % set", READ_MOSTLY, YCSB, Access::Zipf),
    ("ycsb-c", "YCSB C: get only", &[GET], YCSB, Access::Zipf),
    ("ycsb-d", "YCSB D: 95 % get of the latest, 5 % new items", &[(Kind::Get, 19), (Kind::Insert, 1)], YCSB, Access::Latest),
    ("ycsb-f", "YCSB F: 50 % get, 50 % get and then set", &[GET, (Kind::ReadModifyWrite, 1)], YCSB, Access::Zipf),
    ("128b-95", "protected library (ICPP 2020): 95 % get, 5 % set", READ_MOSTLY, Sizes::Fixed(128), Access::Zipf),
    ("128b-50", "protected library: 50 % get, 50 % set", &[GET, SET], Sizes::Fixed(128), Access::Zipf),
    ("5k-95", "protected library: 95 % get, 5 % set", READ_MOSTLY, Sizes::Fixed(5 << 10), Access::Zipf),
    ("5k-50", "protected library: 50 % get, 50 % set", &[GET, SET], Sizes::Fixed(5 << 10), Access::Zipf),
    ("get-128b", "one verb", &[GET], Sizes::Fixed(128), Access::Zipf),
    ("get-5k", "one verb", &[GET], Sizes::Fixed(5 << 10), Access::Zipf),
    ("set-128b", "one verb", &[SET], Sizes::Fixed(128), Access::Zipf),
    ("set-5k", "one verb", &[SET], Sizes::Fixed(5 << 10), Access::Zipf),
    ("delete", "one verb; each item is stored before, which counts in throughput and CPU time and not in latency", &[(Kind::Delete, 1)], Sizes::Fixed(128), Access::Uniform),
    ("incr", "one verb, on numbers of ten digits", &[(Kind::Incr, 1)], Sizes::Fixed(10), Access::Zipf),
    ("20b", "Hippos (2014): get only", &[GET], Sizes::Both(20, 20), Access::Zipf),
    ("unbuckle", "Unbuckle (2014): 90 % get, 10 % set", &[(Kind::Get, 9), SET], Sizes::UpTo(64, 1024), Access::Zipf),
    ("mica-small", "MICA's small items: 95 % get, 5 % set", READ_MOSTLY, Sizes::Both(16, 64), Access::Zipf),
    ("mica-large", "MICA's large items: 95 % get, 5 % set", READ_MOSTLY, Sizes::Both(128, 1024), Access::Zipf),
    ("get-100k", "one verb, large values", &[GET], Sizes::Fixed(100 << 10), Access::Zipf),
    ("set-100k", "one verb, large values", &[SET], Sizes::Fixed(100 << 10), Access::Zipf),
    ("fb-usr", "Facebook's USR (Hippos, table 3): 99.7 % get, 0.2 % set, 0.1 % delete", &[(Kind::Get, 997), (Kind::Set, 2), (Kind::Remove, 1)], Sizes::Pool(Pool::Usr), Access::Zipf),
    ("fb-etc", "Facebook's ETC (Hippos, table 3): 73.4 % get, 2.3 % set, 24 % delete", &[(Kind::Get, 734), (Kind::Set, 23), (Kind::Remove, 240)], Sizes::Etc, Access::Zipf),
    ("fb-app", "Facebook's APP (Hippos, table 3): 83.4 % get, 5.2 % set, 11.4 % delete", &[(Kind::Get, 834), (Kind::Set, 52), (Kind::Remove, 114)], Sizes::Pool(Pool::App), Access::Zipf),
    ("fb-var", "Facebook's VAR (Hippos, table 3): 18 % get, 82 % set", &[(Kind::Get, 18), (Kind::Set, 82)], Sizes::Pool(Pool::Var), Access::Zipf),
    ("fb-sys", "Facebook's SYS (Hippos, table 3): 67.5 % get, 32.5 % set", &[(Kind::Get, 675), (Kind::Set, 325)], Sizes::Pool(Pool::Sys), Access::Zipf),
    ("zipf-scans", "zipf 0.99, one get in five of a sequential sweep over as many other items; what is missed is stored", &[GET], Sizes::Fixed(64), Access::Scans),
    ("web-churn", "zipf 0.99 whose ranks drift, 2 % new items, 10 % asked for once; what is missed is stored", &[GET], Sizes::Fixed(64), Access::Churn),
    ("etc", "Facebook's ETC as fitted by Atikoglu et al. (2012): 30 get to 1 set", &[(Kind::Get, 30), SET], Sizes::Etc, Access::Zipf),
];

/// Every workload that has a name.
pub fn all() -> Vec<Workload> {
    let line = |&(name, about, mix, sizes, access): &Line| Workload {
        name: name.to_owned(),
        about: about.to_owned(),
        mix: mix.to_vec(),
        sizes,
        access,
        ttls: Vec::new(),
        // What was deleted is stored again when it is missed; otherwise nothing would be left after a while.
        fill: mix.iter().any(|(kind, _)| *kind == Kind::Remove) || matches!(access, Access::Scans | Access::Churn),
        trace: None,
    };
    TABLE.iter().map(line).chain(twitter::clusters()).collect()
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
        format!(
            "there is no workload \"{name}\"; there are {}, and twitter-1 to twitter-54",
            names.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_an_unknown_one_is_told_the_known() {
        let all = all();
        let names: HashSet<_> = all.iter().map(|workload| workload.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
        assert_eq!(find("etc").unwrap().name, "etc");
        assert!(find("ycsb-e").unwrap_err().contains("scans"));
        assert!(find("x").unwrap_err().contains("ycsb-d"));
    }
}
