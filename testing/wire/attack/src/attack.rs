//! What an attack is, and what an attack may say of its outcome.

/// How much is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// in the gate
    Short,
    /// by hand
    Long,
}

impl Form {
    /// `short` in the gate's form, `long` otherwise.
    pub fn pick<T>(self, short: T, long: T) -> T {
        match self {
            Form::Short => short,
            Form::Long => long,
        }
    }
}

/// An attack: an entry in a table.
pub struct Attack {
    /// what it is called on the command line
    pub name: &'static str,
    /// what the attacker does
    pub attack: &'static str,
    /// what holds all the same
    pub promise: &'static str,
    /// tries it: what was seen, or how the promise was broken (a panic says that too)
    pub run: fn(Form) -> Outcome,
}

/// What was seen: the promise kept, or broken.
pub type Outcome = Result<String, String>;

/// `Err` with what was seen, unless the promise holds.
pub fn judge(holds: bool, seen: String) -> Outcome {
    if holds { Ok(seen) } else { Err(seen) }
}
