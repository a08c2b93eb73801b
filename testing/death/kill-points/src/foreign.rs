//! Operations as programs in C have them: through the built `libkeyway` and the built drop-in for libmemcached, stepped from call to
//! return on a region in a file. The child opens it as any program does, under the lock of its process slot; the parent sees the
//! file's memory, which no gate of the child's closes.

use crate::door::Way;
use crate::ground::Ground;
use crate::operation::{Cas, Door, Op, cas_of};
use crate::scenario::{self, PART, furnish, large};
use crate::step::{Child, Work};
use crate::trial::{Begun, Stage};
use keyway_region::Region;
use keyway_region::verbs::StoreMode;
use std::path::PathBuf;
use std::sync::Arc;

/// Segments of a region that the drop-in can open: it wants room for items of a MiB.
const SEGMENTS_OF_DROPIN: usize = 124;

/// An operation through a library.
#[derive(Clone)]
pub struct Call {
    /// for people
    pub name: String,
    way: Way,
    op: Op,
    /// whether the short form has it
    pub is_short: bool,
}

/// The built libraries.
pub struct Libraries {
    /// `libkeyway`
    pub c: PathBuf,
    /// `libmemcached.so.11`
    pub dropin: PathBuf,
}

impl Libraries {
    /// Builds them.
    ///
    /// # Panics
    ///
    /// When that is impossible.
    pub fn build() -> Self {
        Self {
            c: harness::workspace_library("keyway-capi", "libkeyway_capi.so"),
            dropin: harness::workspace_library("keyway-libmemcached", "libmemcached.so"),
        }
    }

    /// All calls.
    pub fn calls(&self) -> Vec<Call> {
        let (gated, open) = (Way::C(self.c.clone(), true), Way::C(self.c.clone(), false));
        let dropin = Way::Dropin(self.dropin.clone());
        let key = |text: &str| text.as_bytes().to_vec();
        let big = |version| large(version, 2 * PART - 500);
        let call = |name: &str, way: &Way, op, is_short| Call {
            name: name.to_owned(),
            way: way.clone(),
            op,
            is_short,
        };
        let incr = |key| Op::Count {
            key,
            decrement: false,
            vivify: false,
        };
        let compared = Op::Store(key("by-3"), key("compared"), StoreMode::Set, Cas::Noted);
        vec![
            call("keyway_get, present", &gated, Op::Get(key("by-3")), true),
            call("keyway_get, absent", &gated, Op::Get(key("nobody")), false),
            call("keyway_get, large", &gated, Op::Get(key("big")), false),
            call("keyway_get, present, no gate", &open, Op::Get(key("by-3")), false),
            call("keyway_set, absent", &gated, Op::set(b"new", b"fresh value"), true),
            call("keyway_set, present", &gated, Op::set(b"by-3", b"another value"), true),
            call("keyway_set, a kilobyte", &gated, Op::set(b"by-4", &[0xA5; 1024]), false),
            call("keyway_set, large, absent", &gated, Op::set(b"new", &big(3)), false),
            call("keyway_set, large over large", &gated, Op::set(b"big", &big(4)), false),
            call("keyway_set, absent, no gate", &open, Op::set(b"new", b"fresh value"), false),
            call(
                "keyway_set, present, no gate",
                &open,
                Op::set(b"by-3", b"another value"),
                false,
            ),
            call(
                "keyway_append, present",
                &gated,
                Op::store(b"by-3", b"tail", StoreMode::Append),
                false,
            ),
            call("keyway_cas, matching", &gated, compared, false),
            call("keyway_delete, large", &gated, Op::Delete(key("big")), false),
            call("keyway_incr, present", &gated, incr(key("n")), false),
            call("keyway_touch, large", &gated, Op::Touch(key("big")), false),
            call("memcached_get, present", &dropin, Op::Get(key("by-3")), true),
            call("memcached_get, large", &dropin, Op::Get(key("big")), false),
            call("memcached_set, absent", &dropin, Op::set(b"new", b"fresh value"), true),
            call("memcached_set, present", &dropin, Op::set(b"by-3", b"another value"), false),
            call("memcached_set, large over large", &dropin, Op::set(b"big", &big(4)), false),
            call(
                "memcached_append, present",
                &dropin,
                Op::store(b"by-3", b"tail", StoreMode::Append),
                false,
            ),
            call("memcached_delete, large", &dropin, Op::Delete(key("big")), false),
            call("memcached_increment, present", &dropin, incr(key("n")), false),
        ]
    }

    /// Broken doors, with calls that show it.
    pub fn broken(&self) -> Vec<Call> {
        let ways = [Way::C(self.c.clone(), true), Way::Dropin(self.dropin.clone())];
        let names = ["keyway_set, present, as two calls", "memcached_set, present, as two calls"];
        let broken = ways.into_iter().zip(names).map(|(way, name)| Call {
            name: name.to_owned(),
            way: Way::InTwoCalls(Box::new(way)),
            op: Op::set(b"by-3", b"another value"),
            is_short: true,
        });
        broken.collect()
    }

    /// The ways that real processes with other fates take.
    pub fn ways(&self) -> [(&'static str, Way); 2] {
        [
            ("libkeyway", Way::C(self.c.clone(), true)),
            ("libmemcached", Way::Dropin(self.dropin.clone())),
        ]
    }
}

impl Stage for Call {
    fn op(&self) -> &Op {
        &self.op
    }

    fn segments(&self) -> usize {
        match self.way.is_dropin() {
            true => SEGMENTS_OF_DROPIN,
            false => scenario::SEGMENTS,
        }
    }

    /// The drop-in keeps a region open when its last handle is freed.
    fn leaves_nothing(&self) -> bool {
        !self.way.is_dropin()
    }

    fn begin(&self) -> Result<Begun, String> {
        let (ground, region, file) = Ground::in_file(self.segments()).map_err(|e| format!("a region in a file: {e}"))?;
        let child = Child::at_call(Caller {
            call: self.clone(),
            place: ground.path().map(PathBuf::from).unwrap_or_default(),
            region: Some(Arc::clone(&region)),
            door: None,
            noted_cas: 0,
        })?;
        Ok(Begun {
            child,
            region,
            ground,
            file: Some(file),
        })
    }
}

/// The child.
struct Caller {
    call: Call,
    place: PathBuf,
    /// the parent's view of it, which the child has inherited
    region: Option<Arc<Region>>,
    door: Option<Box<dyn Door>>,
    noted_cas: u64,
}

impl Work for Caller {
    fn setup(&mut self) {
        let Some(region) = self.region.take() else { return };
        let mut door = self.call.way.open(&self.place);
        furnish(&mut *door, &region);
        self.noted_cas = self.call.op.key().map_or(0, |key| cas_of(&mut *door, key));
        self.door = Some(door);
    }

    fn operate(&mut self) -> String {
        let (op, noted_cas) = (&self.call.op, self.noted_cas);
        self.door
            .as_mut()
            .map_or_else(String::new, |door| op.perform(&mut **door, noted_cas))
    }

    fn end(&mut self) {
        self.door = None;
    }
}
