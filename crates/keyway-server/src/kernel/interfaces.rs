//! The interfaces that the program is on. Its filters vanish with the interface, and with clsact, and nothing tells the server: so it looks, says
//! it, and attaches the program again, also to a new interface of the same name.
//!
//! Never: attaches a pinned program, which needs capabilities that this process need not have. That one is only looked at.

use keyway_xdp::door::{Attached, Door, PinnedFilters};
use nix::net::if_::if_nametoindex;

/// An interface of the command line.
pub(super) struct Interface {
    name: String,
    /// the number that it had last
    number: i32,
    /// `None`: the program is not there
    attached: Option<Attached>,
    /// that it cannot be attached again has been logged
    has_complained: bool,
}

/// The number of an interface.
pub fn interface(name: &str) -> Result<i32, String> {
    let number = if_nametoindex(name).map_err(|error| format!("the kernel door: there is no interface {name} ({error})"))?;
    i32::try_from(number).map_err(|_| format!("the kernel door: the number of {name} is too high"))
}

impl Interface {
    /// Attaches the program to the interface of this name.
    pub(super) fn attach(door: &Door, name: &str) -> Result<Self, String> {
        let number = interface(name)?;
        let attached = door.attach(number).map_err(|error| format!("{name}: {error}"))?;
        say_others(name, &attached);
        Ok(Self {
            name: name.to_owned(),
            number,
            attached: Some(attached),
            has_complained: false,
        })
    }

    pub(super) fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    /// Attaches the program again if it is not there any more; returns whether it did.
    pub(super) fn keep(&mut self, door: &Door) -> bool {
        let name = &self.name;
        if let Some(attached) = &self.attached {
            match attached.is_there() {
                Ok(true) => return false,
                Ok(false) => {}
                Err(error) => {
                    log::debug!("looking for the kernel door on {name}: {error}");
                    return false;
                }
            }
            log::warn!(
                "the kernel door is off on {name}: its filters have vanished, because the interface was removed, or something has deleted \
                 them or clsact; until it is attached again, the server's sockets answer what comes there"
            );
            // What is left of them.
            self.attached = None;
        }
        let attached = interface(name).and_then(|number| {
            door.attach_again(number, self.number)
                .map_err(|error| format!("{name}: {error}"))
        });
        match attached {
            Ok(attached) => {
                log::warn!("the kernel door is on {name} again");
                say_others(name, &attached);
                self.number = attached.interface();
                self.attached = Some(attached);
                self.has_complained = false;
                true
            }
            Err(why) => {
                if !std::mem::replace(&mut self.has_complained, true) {
                    log::warn!("{why}; trying again every second");
                }
                false
            }
        }
    }

    /// Takes the program off it.
    pub(super) fn detach(&mut self) {
        self.attached = None;
    }

    /// Leaves the program on it.
    pub(super) fn leave(&mut self) {
        if let Some(attached) = self.attached.take() {
            attached.leave();
        }
    }
}

fn say_others(name: &str, attached: &Attached) {
    let others = attached.others();
    if !others.is_empty() {
        log::warn!(
            "other programs see packets before or after the kernel door on {name}: {}",
            others.join(", ")
        );
    }
}

/// On how many interfaces a pinned program is, of `before`; says it if there are fewer.
pub(super) fn look_at_pinned(filters: &PinnedFilters, before: usize) -> usize {
    match filters.interfaces() {
        Ok(found) => {
            let there = found.values().filter(|is_there| **is_there).count();
            if there < before {
                log::warn!(
                    "the pinned program is on {there} of the {before} interfaces that it was on: its filters have vanished from the others, where \
                     the server's sockets answer; `keyway kernel detach --reset`, `keyway kernel attach` and a restart put it back"
                );
            }
            there
        }
        Err(error) => {
            log::debug!("looking for the pinned program: {error}");
            before
        }
    }
}
