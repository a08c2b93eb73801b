//! The judge of the matrix, shown cells in which the odd process lies: it must find each lie, and call it by its name.

use conditions::cell::{self, Action, Spec, Verdict};
use conditions::condition::Condition;
use conditions::hand::{Fault, Kind};
use harness::Scratch;
use std::path::PathBuf;

fn run(fault: Option<Fault>, action: Action, condition: Condition) -> Verdict {
    let scratch = Scratch::new();
    cell::run(&Spec {
        program: PathBuf::from(env!("CARGO_BIN_EXE_conditions")),
        place: scratch.path().to_path_buf(),
        condition,
        action,
        kind: Some(Kind::Lasting),
        memory_besides: 0,
        fault,
        seed: 7,
        scale: 1,
    })
}

#[test]
fn every_lie_is_found() {
    for (fault, name, due) in Fault::ALL {
        let (action, condition) = match fault {
            Fault::Undead => (Action::Die, Condition::Plain),
            Fault::Closes => (Action::Work, Condition::Reused),
            _ => (Action::Work, Condition::Plain),
        };
        match run(Some(fault), action, condition) {
            Verdict::Violated(counts, notes) => {
                assert!(counts.iter().any(|(what, _)| *what == due), "{name}: {counts:?}; {notes}");
            }
            verdict => panic!("{name}: {verdict:?}"),
        }
    }
}

#[test]
fn the_truth_is_believed() {
    assert_eq!(run(None, Action::Work, Condition::Plain), Verdict::Sound);
}
