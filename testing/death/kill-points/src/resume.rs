//! Points at which the stopped process is not killed: the others work, and then it goes on.
//!
//! At worst it loses its own unfinished operation: what it answers and what is there then is what the operation would have done
//! before the others came, or what it would do now.

use crate::ground::{Ground, OTHER, RECOVERER, STOPPED};
use crate::judge::{Brief, Others, nothing_lost};
use crate::operation::{Op, Player, View, view};
use crate::step::Stepped;
use crate::trial::{Begun, Stage};
use keyway_region::check::check;

/// Stops a process after `steps` instructions, lets others work and evict, and lets it go on. The others leave its key absent, or
/// `is_set`.
///
/// # Errors
///
/// What is wrong then.
pub fn after(stage: &dyn Stage, brief: &Brief, stepped: &Stepped, steps: u64, is_set: bool) -> Result<(), String> {
    let Begun {
        child,
        region,
        ground,
        file: _file,
    } = {
        mutants::set(None);
        let begun = stage.begin()?;
        mutants::set(stage.mutant());
        begun
    };
    child.steps(steps)?;
    ground.dead.are(&[]);
    let mut others = Others::new(Player::attach(region.clone(), OTHER));
    others.work(brief, false).map_err(|e| format!("while it is stopped: {e}"))?;
    others
        .fill(ground.bytes().len())
        .map_err(|e| format!("while it is stopped: {e}"))?;
    if is_set {
        others
            .set(&brief.key, b"the others'")
            .map_err(|e| format!("while it is stopped: {e}"))?;
    }
    let mut endings = endings(stage, ground.bytes(), &brief.key)?;
    let now = own(&mut others.player, &brief.key)?;
    endings.extend([(stepped.outcome.clone(), now), (stepped.outcome.clone(), None)]);
    let outcome = child.finish().map_err(|e| format!("when it went on: {e}"))?;
    let ending = (outcome, own(&mut others.player, &brief.key)?);
    // A flush, an upkeep have no key of their own.
    let is_known = endings.contains(&ending) || (stage.op().key().is_none() && endings.iter().any(|e| e.0 == ending.0));
    if !is_known {
        return Err(format!("it answered and left {ending:?}; possible are {endings:?}"));
    }
    if !stage.leaves_nothing() {
        ground.dead.are(&[STOPPED]);
        region.recovery().recover();
    }
    let report = check(&region, |_| {});
    if !report.is_sound() {
        return Err(format!("check, when it had gone on: {}", report.problems.join("; ")));
    }
    others.work(brief, false).map_err(|e| format!("when it had gone on: {e}"))?;
    others
        .fill(ground.bytes().len())
        .map_err(|e| format!("when it had gone on: {e}"))?;
    nothing_lost(others.player)
}

type Ending = (String, Option<crate::operation::Seen>);

fn own(player: &mut Player, key: &[u8]) -> Result<Option<crate::operation::Seen>, String> {
    let seen: View = view(player, [&key.to_vec()])?;
    Ok(seen.into_values().next().flatten())
}

/// What the operation would answer and leave if it began now, with the key as it is or evicted.
fn endings(stage: &dyn Stage, image: &[u8], key: &[u8]) -> Result<Vec<Ending>, String> {
    let mut ground = Ground::new(stage.segments(), false);
    let mut endings = Vec::new();
    for evicted in [false, true] {
        ground.restore(image);
        let mut player = Player::attach(ground.open(), RECOVERER);
        if evicted {
            Op::Delete(key.to_vec()).perform(&mut player, 0);
        }
        // No process can have the CAS unique that was noted: the others have rewritten the key.
        let outcome = stage.op().perform(&mut player, 1);
        endings.push((outcome, own(&mut player, key)?));
    }
    Ok(endings)
}
