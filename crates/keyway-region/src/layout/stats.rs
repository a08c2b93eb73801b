//! The counters of a thread slot. Each has one writer at a time. They belong to the slot, not to its tenant: what a thread
//! counted stays when the next one gets the slot. The sum over all slots is the region's.

macro_rules! counters {
    ($($name:ident: $text:literal,)*) => {
        /// Number of a counter in its thread slot.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        #[allow(non_camel_case_types, reason = "memcached's own names")]
        pub enum Counter { $(#[doc = $text] $name,)* }

        /// The counters summed over all thread slots: all doors, since the region was created.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters { $(#[doc = $text] pub $name: u64,)* }

        impl Counters {
            /// Number of counters.
            pub const COUNT: usize = [$(Counter::$name),*].len();

            /// The counters' names, by number.
            pub const NAMES: [&'static str; Self::COUNT] = [$(stringify!($name)),*];

            /// Each counter's name and value, and the two sums.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                let sums = [("cmd_get", self.cmd_get()), ("cmd_touch", self.cmd_touch())];
                [$((stringify!($name), self.$name)),*].into_iter().chain(sums)
            }

            /// Keys looked up, without get-and-touch.
            pub fn cmd_get(&self) -> u64 {
                self.get_hits.wrapping_add(self.get_misses)
            }

            /// Touches, get-and-touch included.
            pub fn cmd_touch(&self) -> u64 {
                self.touch_hits.wrapping_add(self.touch_misses)
            }

            /// Adds one thread slot's values, read by `value`.
            pub(crate) fn add(&mut self, value: impl Fn(Counter) -> u64) {
                $(self.$name = self.$name.wrapping_add(value(Counter::$name));)*
            }

            /// What `self` has counted since `earlier`. Gauges stay as they are.
            pub fn since(&self, earlier: &Self) -> Self {
                let mut d = Self { $($name: self.$name.wrapping_sub(earlier.$name),)* };
                d.curr_items = self.curr_items;
                d.bytes = self.bytes;
                d
            }
        }
    };
}

counters! {
    curr_items: "items that are in the index (a gauge; drifts by what a killed thread did not count)",
    bytes: "bytes of those items in the region, headers and padding included (a gauge)",
    cmd_set: "store operations",
    cmd_flush: "flushes",
    get_hits: "keys found",
    get_misses: "keys not found",
    get_expired: "keys not found because their item's time was over",
    get_flushed: "keys not found because of a flush",
    delete_hits: "deletes that deleted",
    delete_misses: "deletes of what was not there",
    incr_hits: "increments of something",
    incr_misses: "increments of nothing",
    decr_hits: "decrements of something",
    decr_misses: "decrements of nothing",
    cas_hits: "stores with a CAS unique that matched",
    cas_misses: "stores with a CAS unique for a key that was not there",
    cas_badval: "stores with a CAS unique that did not match",
    touch_hits: "touches of something",
    touch_misses: "touches of nothing",
    total_items: "items stored",
    evictions: "items evicted for room",
    evicted_unfetched: "items evicted that no client had fetched",
    expired_unfetched: "items found expired, when their segment was reclaimed, that no client had fetched",
    reclaimed: "expired or flushed items whose place was reclaimed",
    store_too_large: "stores refused because the item is larger than allowed",
    store_no_memory: "stores refused because nothing could be evicted",
    relocations: "live items copied when their segment was reclaimed: compacted, or spared because they had been hit",
    purged: "items looked at while segments were purged, dead ones included",
    ghost_hits: "items admitted to the main pool at once, because they had been evicted lately",
    reserve_empty: "times that no free segment was in reserve, and a whole one was reclaimed on the spot",
    segments_recycled: "segments purged and given a new generation",
    splits: "buckets split while the index grew",
    recoveries: "thread slots of the dead taken back",
    fences: "sessions fenced because their process seemed to be dead",
    events_lost: "events that were watched and that had no room: their session had no ring, or died before it had written one",
    corrupt: "slots or items that could not be what they said",
}
