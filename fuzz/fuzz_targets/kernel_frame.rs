//! Any frame, and any request: the kernel program's C reads nothing outside its memory, and what it answers is what user space
//! would.
//! Guards: P41
#![no_main]

use std::cell::RefCell;

use kernel::frame::{Checksum, Frame, seal};
use kernel::world::{Hot, Memory, NOW_NS, NOW_S, fill, hold_answer, items, settings};
use keyway_xdp::config::Verdict;
use keyway_xdp::host::{Program, World};
use libfuzzer_sys::fuzz_target;

/// One family's cache, and the program.
struct Side {
    memory: Memory,
    items: Vec<Hot>,
    program: Program,
}

thread_local! {
    static SIDES: RefCell<[Side; 2]> = RefCell::new([false, true].map(side));
}

fn side(v6: bool) -> Side {
    let (settings, items) = (settings(v6), items());
    let memory = Memory::new(&settings).unwrap();
    fill(&memory.hot(), &items);
    memory.hot().renew(NOW_NS + 1, u64::from(NOW_S) * 1_000_000_000 - NOW_NS);
    Side {
        memory,
        items,
        program: Program::default(),
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&mode, data)) = data.split_first() else { return };
    let v6 = mode & 1 != 0;
    // the input is a payload in a sound frame, or a frame from its EtherType on, whose sums are made right or left
    let frame = if mode & 2 != 0 {
        if data.len() > 1392 {
            return;
        }
        Frame::new(v6, data).bytes(if mode & 4 != 0 { Checksum::Partial } else { Checksum::Full })
    } else {
        let mut frame = [&[0; 12], data].concat();
        if mode & 4 != 0 {
            seal(&mut frame, v6);
        }
        frame
    };
    SIDES.with_borrow_mut(|sides| {
        let Side { memory, items, program } = &mut sides[usize::from(v6)];
        let world = World {
            config: &memory.config,
            hot: memory.hot(),
            now_ns: NOW_NS,
            over_rate: false,
            no_path: false,
        };
        if let (Verdict::Hit, answer) = program.decide(&world, &frame) {
            // the source's MAC address in a frame of the fuzzer's is 0, in those of the tests it is not
            let mut answer = answer.to_vec();
            answer[..6].copy_from_slice(b"\x02\0\0\0\0\x07");
            hold_answer(&frame, &answer, items, v6).unwrap();
        }
    });
});
