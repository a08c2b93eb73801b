//! What was acknowledged, what was sent after it, and what may therefore be found after a crash.
//!
//! Every key has one writer, which sends its operations over one connection, so that they take effect in the order sent. When
//! the server dies, some prefix of the operations that were not acknowledged has taken effect: the key must hold one of the
//! states that such prefixes leave. Any other state is a loss, a torn write, or a value risen from the dead.

use std::collections::BTreeMap;

use harness::printable;

/// What a key holds: `None` when it is absent.
pub type State = Option<Vec<u8>>;

/// An operation that changes a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `set`
    Set(Vec<u8>),
    /// `cas` with the unique that the key has
    Swap(Vec<u8>),
    /// `delete`
    Delete,
    /// `append`
    Append(Vec<u8>),
    /// `prepend`
    Prepend(Vec<u8>),
    /// `incr`
    Increment(u64),
}

impl Operation {
    /// The state that it leaves.
    pub fn apply(&self, state: &State) -> State {
        match (self, state) {
            (Operation::Set(value), _) => Some(value.clone()),
            (Operation::Delete, _) | (_, None) => None,
            (Operation::Swap(value), Some(_)) => Some(value.clone()),
            (Operation::Append(more), Some(value)) => Some([value.as_slice(), more].concat()),
            (Operation::Prepend(more), Some(value)) => Some([more.as_slice(), value].concat()),
            (Operation::Increment(delta), Some(value)) => {
                let number = as_number(value).map(|n| n.wrapping_add(*delta).to_string().into_bytes());
                Some(number.unwrap_or_else(|| value.clone()))
            }
        }
    }

    /// The reply line that it must get in this state.
    pub fn reply(&self, state: &State) -> String {
        match (self, state) {
            (Operation::Set(_), _) => "STORED".into(),
            (Operation::Swap(_) | Operation::Append(_) | Operation::Prepend(_), Some(_)) => "STORED".into(),
            (Operation::Append(_) | Operation::Prepend(_), None) => "NOT_STORED".into(),
            (Operation::Delete, Some(_)) => "DELETED".into(),
            (Operation::Swap(_) | Operation::Delete | Operation::Increment(_), None) => "NOT_FOUND".into(),
            (Operation::Increment(delta), Some(value)) => match as_number(value) {
                Some(n) => n.wrapping_add(*delta).to_string(),
                None => "CLIENT_ERROR cannot increment or decrement non-numeric value".into(),
            },
        }
    }
}

fn as_number(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// One key: its acknowledged state and what was sent since.
#[derive(Clone, Debug, Default)]
struct Key {
    acknowledged: State,
    pending: Vec<Operation>,
}

/// All keys of one writer.
#[derive(Clone, Debug, Default)]
pub struct History {
    keys: BTreeMap<String, Key>,
    /// the region may evict: absent is always a possible state
    pub may_evict: bool,
}

impl History {
    /// Nothing written yet.
    pub fn new(may_evict: bool) -> Self {
        Self {
            keys: BTreeMap::new(),
            may_evict,
        }
    }

    /// The state of a key as its writer must see it: everything that was sent has taken effect.
    pub fn current(&self, key: &str) -> State {
        self.keys.get(key).and_then(|k| {
            k.pending
                .iter()
                .fold(k.acknowledged.clone(), |state, operation| operation.apply(&state))
        })
    }

    /// An operation is about to be sent.
    pub fn sent(&mut self, key: &str, operation: Operation) {
        self.keys.entry(key.into()).or_default().pending.push(operation);
    }

    /// The reply to the oldest operation that waits for one; `Err` when it is not the reply that is due.
    pub fn replied(&mut self, key: &str, reply: &str) -> Result<(), String> {
        let may_evict = self.may_evict;
        let entry = self.keys.get_mut(key).filter(|entry| !entry.pending.is_empty());
        let entry = entry.ok_or_else(|| format!("{key}: {reply} answers nothing"))?;
        let operation = entry.pending.remove(0);
        let due = operation.reply(&entry.acknowledged);
        if reply == due {
            entry.acknowledged = operation.apply(&entry.acknowledged);
            return Ok(());
        }
        if may_evict && reply == operation.reply(&None) {
            entry.acknowledged = operation.apply(&None);
            return Ok(());
        }
        Err(format!("{key}: {} was answered with {reply}, not {due}", short(&operation)))
    }

    /// All keys that were ever written.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(String::as_str)
    }

    /// Judges what was found after a restart; if it is a possible state, it is the acknowledged one from now on.
    pub fn found(&mut self, key: &str, found: State) -> Result<(), String> {
        let may_evict = self.may_evict;
        let entry = self.keys.get_mut(key).ok_or_else(|| format!("{key} was never written"))?;
        let mut possible = vec![entry.acknowledged.clone()];
        for operation in &entry.pending {
            let last = possible.last().cloned().flatten();
            possible.push(operation.apply(&last));
        }
        if may_evict {
            // a set leaves the same whether or not it came upon an evicted item; the others leave nothing of nothing
            possible.push(None);
        }
        if possible.contains(&found) {
            entry.acknowledged = found;
            entry.pending.clear();
            return Ok(());
        }
        let states: Vec<String> = possible.iter().map(describe).collect();
        Err(format!(
            "{key} holds {}, but only this is possible: {}",
            describe(&found),
            states.join(" | ")
        ))
    }
}

fn describe(state: &State) -> String {
    match state {
        Some(value) => format!("{} bytes `{}`", value.len(), printable(&value[..value.len().min(60)])),
        None => "nothing".into(),
    }
}

fn short(operation: &Operation) -> String {
    match operation {
        Operation::Set(value) => format!("set of {}", describe(&Some(value.clone()))),
        Operation::Swap(value) => format!("cas to {}", describe(&Some(value.clone()))),
        Operation::Append(value) => format!("append of {}", describe(&Some(value.clone()))),
        Operation::Prepend(value) => format!("prepend of {}", describe(&Some(value.clone()))),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(value: &str) -> Operation {
        Operation::Set(value.into())
    }

    /// A key with one value acknowledged, then another, then two operations under way.
    fn crashed() -> History {
        let mut history = History::default();
        for value in ["old", "new"] {
            history.sent("k", set(value));
            history.replied("k", "STORED").expect("it is due");
        }
        history.sent("k", Operation::Append(b"+".to_vec()));
        history.sent("k", set("newest"));
        history
    }

    #[test]
    fn every_prefix_of_what_was_sent_is_possible() {
        for value in ["new", "new+", "newest"] {
            assert_eq!(crashed().found("k", Some(value.into())), Ok(()), "{value}");
        }
    }

    #[test]
    fn a_lost_key_is_caught() {
        assert!(crashed().found("k", None).is_err());
    }

    #[test]
    fn an_older_value_is_caught() {
        assert!(crashed().found("k", Some("old".into())).is_err());
        let mut evicting = crashed();
        evicting.may_evict = true;
        assert!(evicting.found("k", Some("old".into())).is_err());
    }

    #[test]
    fn a_torn_value_and_one_never_sent_are_caught() {
        for value in ["ne", "newes", "newest+", "else", ""] {
            assert!(crashed().found("k", Some(value.into())).is_err(), "{value}");
        }
    }

    #[test]
    fn a_deleted_key_that_rises_again_is_caught() {
        let mut history = crashed();
        for reply in ["STORED", "STORED"] {
            history.replied("k", reply).expect("it is due");
        }
        history.sent("k", Operation::Delete);
        history.replied("k", "DELETED").expect("it is due");
        assert!(history.clone().found("k", Some("newest".into())).is_err());
        assert_eq!(history.found("k", None), Ok(()));
    }

    #[test]
    fn a_wrong_reply_is_caught() {
        let mut history = crashed();
        assert!(history.clone().replied("k", "NOT_STORED").is_err());
        assert!(history.clone().replied("other", "STORED").is_err());
        history.may_evict = true;
        assert_eq!(history.replied("k", "NOT_STORED"), Ok(()));
        assert!(
            history
                .clone()
                .replied("k", "SERVER_ERROR out of memory storing object")
                .is_err()
        );
    }

    #[test]
    fn numbers_are_followed() {
        let mut history = History::default();
        history.sent("n", set("41"));
        history.sent("n", Operation::Increment(1));
        history.replied("n", "STORED").expect("it is due");
        assert!(history.clone().replied("n", "43").is_err());
        assert_eq!(history.replied("n", "42"), Ok(()));
        assert!(history.clone().found("n", Some("41".into())).is_err());
        assert_eq!(history.found("n", Some("42".into())), Ok(()));
    }
}
