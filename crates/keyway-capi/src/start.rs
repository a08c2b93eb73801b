//! What runs when the library is loaded: nothing, unless `keyway exec` has asked for it.

/// The dynamic loader calls what this section lists, before `main` (elf(5), DT_INIT_ARRAY).
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

extern "C" fn at_start() {
    keyway_harden::at_start((at_start as extern "C" fn()) as usize);
}
