//! TCP: any options, any frame, and any seed of two ends. The kernel program's C reads and writes nothing outside its memory; of options it
//! changes the numbers of selective acknowledgements only; segments get the numbers of the reference.
#![no_main]

use std::cell::RefCell;

use harness::Random;
use kernel::session;
use keyway_xdp::host::Connection;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static CONNECTION: RefCell<Connection> = RefCell::default();
}

fuzz_target!(|data: &[u8]| {
    let Some((&mode, data)) = data.split_first() else { return };
    CONNECTION.with_borrow_mut(|connection| match mode % 3 {
        0 if data.len() <= 40 => {
            // nothing was answered on this connection, so every number is translated to itself
            let mut options = data.to_vec();
            connection.translate(&mut options, mode & 64 != 0);
            assert_eq!(options, data);
        }
        1 if (96..=1400).contains(&data.len()) => {
            let answer = &data[..data.len() - 90];
            if let Some(made) = connection.make(data, [1, 2, 3], answer, mode & 64 != 0) {
                assert!(made.ends_with(answer));
            }
        }
        2 => {
            if let Some(seed) = data.first_chunk() {
                session::hold(&mut Random::new(u64::from_le_bytes(*seed)), 500).unwrap();
            }
        }
        _ => {}
    });
});
