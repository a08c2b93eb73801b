//! Three shards behind each client and proxy of docs/fleet.md. Enemy: an item that is not there after its shard was killed, a call that
//! fails because another server takes over a shard, a key that goes to another shard meanwhile, a shard whose absence the others' keys notice, a configuration in the document that does not work.
//! Guards: P51

use clients::prepare;
use fleet::{Answer, Fleet, Program, Proxy, Shards, configuration};
use harness::{DEADLINE, full_run, program_on_path, run_to_end, skip, wait_until};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Keys that are stored.
fn keys() -> Vec<String> {
    let count = if full_run() { 5000 } else { 200 };
    (0..count).map(|number| format!("key-{number}")).collect()
}

fn value(key: &str) -> String {
    format!("value-of-{key}")
}

fn store(fleet: &mut dyn Fleet, key: &str) {
    // A client may still hold a connection to a shard that was restarted.
    wait_until(&format!("a set of {key}"), DEADLINE, || match fleet.set(key, &value(key)) {
        Answer::Stored => Some(()),
        Answer::Failed(_) => None,
        other => panic!("set {key}: {other:?}"),
    });
}

/// The first answer that is no failure.
fn answered(fleet: &mut dyn Fleet, key: &str, when: &str) -> Answer {
    wait_until(&format!("{key}, {when}"), DEADLINE, || {
        Some(fleet.get(key)).filter(|answer| !matches!(answer, Answer::Failed(_)))
    })
}

/// Every key is there, with its value: a client may fail until it has connected again, and may not miss.
fn all_there(fleet: &mut dyn Fleet, when: &str) {
    for key in &keys() {
        let found = answered(fleet, key, when);
        assert_eq!(found, Answer::Value(value(key)), "{key}, {when}");
    }
}

/// What docs/fleet.md promises.
fn keeps_its_promises<F: Fleet>(shards: &mut Shards, connect: impl Fn(&Shards, usize) -> F) {
    (0..3).for_each(|shard| shards.start(shard));
    let mut fleet = connect(shards, 3);
    keys().iter().for_each(|key| store(&mut fleet, key));
    let of_shard = |shards: &Shards, shard| {
        let has = |key: &String| shards.has(shard, key);
        keys().into_iter().filter(has).collect::<Vec<_>>()
    };
    let parts: Vec<_> = (0..3).map(|shard| of_shard(shards, shard)).collect();
    assert_eq!(
        parts.iter().map(Vec::len).sum::<usize>(),
        keys().len(),
        "each key is in one shard"
    );
    assert!(
        parts.iter().all(|part| part.len() > keys().len() / 20),
        "each shard has its part"
    );

    // The client's connections stay: no call fails, not even once.
    let mut all = keys().into_iter().cycle();
    shards.take_over(0, || {
        let key = all.next().expect("there are keys");
        assert_eq!(
            fleet.get(&key),
            Answer::Value(value(&key)),
            "{key}, while another server takes over"
        );
    });
    for key in &keys() {
        assert_eq!(
            fleet.get(key),
            Answer::Value(value(key)),
            "{key}, after another server has taken over"
        );
    }

    shards.kill(1);
    for key in parts[0].iter().chain(&parts[2]).take(40) {
        assert_eq!(fleet.get(key), Answer::Value(value(key)), "{key}, of a shard that runs");
    }
    for away in parts[1].iter().take(20) {
        let answer = fleet.get(away);
        assert!(matches!(answer, Answer::Failed(_) | Answer::Miss), "{away}: {answer:?}");
        let answer = fleet.set(away, "elsewhere");
        assert!(
            matches!(answer, Answer::Failed(_)),
            "{away}, of a shard that is away: {answer:?}"
        );
    }
    shards.start(1);
    all_there(&mut fleet, "after a shard was killed");

    shards.stop(2);
    shards.start(2);
    all_there(&mut fleet, "after a shard was restarted");
    for (shard, part) in parts.iter().enumerate() {
        assert_eq!(&of_shard(shards, shard), part, "no key has moved from shard {shard}");
    }

    drop(fleet);
    shards.start(3);
    let mut fleet = connect(shards, 4);
    let mut moved = 0;
    for key in &keys() {
        let found = answered(&mut fleet, key, "with four shards");
        if found == Answer::Miss {
            moved += 1;
            store(&mut fleet, key);
            assert!(shards.has(3, key), "{key} has moved to another shard than the new one");
        } else {
            assert_eq!(found, Answer::Value(value(key)));
        }
    }
    // A quarter, roughly: a client without consistent hashing would lose three of four.
    let share = moved * 100 / keys().len();
    assert!((8..50).contains(&share), "{moved} of {} keys moved", keys().len());
    all_there(&mut fleet, "with four shards");
}

#[test]
fn behind_twemproxy() {
    let test = "shards behind twemproxy";
    let system = Some(PathBuf::from("/usr/sbin/nutcracker")).filter(|path| path.is_file());
    let Some(nutcracker) = program_on_path("nutcracker").or(system) else {
        return skip(test, "nutcracker is not installed");
    };
    let mut shards = Shards::new(4);
    keeps_its_promises(&mut shards, |shards, count| {
        Proxy::start(&nutcracker, &configuration("yaml", shards, count))
    });
}

#[test]
fn in_the_list_of_php_and_libmemcached() {
    let test = "shards in the list of php-memcached";
    let Some(php) = program_on_path("php") else {
        return skip(test, "php is not installed");
    };
    let mut shards = Shards::new(4);
    keeps_its_promises(&mut shards, |shards, count| {
        Program::start("fleet.php", &configuration("php", shards, count), |program| {
            let mut command = Command::new(&php);
            command.arg(program);
            command
        })
    });
}

#[test]
fn in_the_list_of_pymemcache() {
    let test = "shards in the list of pymemcache";
    let python = match prepare::python(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        Ok(python) => python,
        Err(because) => return skip(test, &because),
    };
    let mut shards = Shards::new(4);
    keeps_its_promises(&mut shards, |shards, count| {
        Program::start("fleet.py", &configuration("python", shards, count), |program| {
            let mut command = Command::new(&python);
            command.arg(program);
            command
        })
    });
}

#[test]
fn in_the_list_of_dalli() {
    let test = "shards in the list of Dalli";
    let ruby = program_on_path("ruby");
    let has_dalli = |ruby: &PathBuf| {
        run_to_end(Command::new(ruby).args(["-e", "require 'dalli'"]), DEADLINE)
            .0
            .success()
    };
    let Some(ruby) = ruby.filter(has_dalli) else {
        return skip(test, "ruby, or its package dalli, is not installed");
    };
    let mut shards = Shards::new(4);
    keeps_its_promises(&mut shards, |shards, count| {
        Program::start("fleet.rb", &configuration("ruby", shards, count), |program| {
            let mut command = Command::new(&ruby);
            command.arg(program);
            command
        })
    });
}

/// Where Debian has the client.
const SPYMEMCACHED: &str = "/usr/share/java/spymemcached.jar";

#[test]
fn in_the_list_of_spymemcached() {
    let test = "shards in the list of spymemcached";
    let (Some(javac), Some(java)) = (program_on_path("javac"), program_on_path("java")) else {
        return skip(test, "there is no JDK");
    };
    if !Path::new(SPYMEMCACHED).is_file() {
        return skip(test, "libspymemcached-java is not installed");
    }
    let mut shards = Shards::new(4);
    keeps_its_promises(&mut shards, |shards, count| {
        Program::start("Fleet.java", &configuration("java", shards, count), |program| {
            let folder = program.parent().expect("a folder");
            let mut compile = Command::new(&javac);
            compile.args(["-cp", SPYMEMCACHED, "-d"]).arg(folder).arg(program);
            let (status, said) = run_to_end(&mut compile, DEADLINE);
            assert!(status.success(), "javac: {status}\n{said}");
            let mut command = Command::new(&java);
            command
                .arg("-cp")
                .arg(format!("{SPYMEMCACHED}:{}", folder.display()))
                .arg("Fleet");
            command
        })
    });
}
