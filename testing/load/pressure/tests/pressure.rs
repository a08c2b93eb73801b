//! A `set` never fails for lack of memory while anything is evictable: many times the region's size is written into 64 MB, in
//! sizes from 1 byte to 512 KB whose mix shifts, over four connections.
//! Guards: P8

use std::time::Instant;

use harness::{Kind, Random, ServeOptions, Server, Transport, full_run, liar, say};
use pressure::{PHASES, Style, Writer, block};

const REGION_MB: u32 = 64;
const STYLES: [Style; 4] = [Style::Answered, Style::Quiet, Style::Silent, Style::Answered];

#[test]
fn no_set_fails_while_anything_is_evictable() {
    if !Kind::keyway_is_wanted() {
        return;
    }
    // 50 times the region is the promise; the gate is content with 5
    let times = if full_run() { 50 } else { 5 };
    let seed = Random::seed_for("memory pressure");
    let mut random = Random::new(seed);
    let block = block(&mut random);
    let server = Server::start(
        Kind::Keyway,
        &ServeOptions {
            memory_mb: REGION_MB,
            ..ServeOptions::default()
        },
    );
    let budget = REGION_MB as usize * (1 << 20) * times / STYLES.len() / PHASES.len();

    let start = Instant::now();
    let (mut sets, mut present, mut absent) = (0, 0, 0);
    std::thread::scope(|scope| {
        let writers: Vec<_> = STYLES
            .into_iter()
            .enumerate()
            .map(|(number, style)| {
                let mut writer = Writer::new(number, style, random.fork(number as u64), block.clone());
                let transport = if number % 2 == 0 { Transport::Tcp } else { Transport::Unix };
                let mut wire = server.connect(transport);
                scope.spawn(move || {
                    for sizes in PHASES {
                        writer
                            .write(&mut wire, sizes, budget)
                            .map_err(|why| format!("{sizes:?}: {why}"))?;
                    }
                    writer.read_back_all(&mut wire)?;
                    Ok::<_, String>(writer)
                })
            })
            .collect();
        for writer in writers {
            let writer = writer.join().expect("a writer does not panic");
            let writer = writer.unwrap_or_else(|why| panic!("seed {seed}: {why}\n{}", server.log()));
            sets += writer.sets;
            present += writer.present;
            absent += writer.absent;
        }
    });
    say(&format!(
        "memory pressure: {times} times {REGION_MB} MB in {sets} sets, none refused, in {:.1?}; read back: {present} right, {absent} evicted",
        start.elapsed()
    ));
    assert!(present > 0, "a cache that keeps nothing is none");
}

#[test]
fn the_checker_sees_refusals_and_wrong_values() {
    let mut random = Random::new(1);
    let block = block(&mut random);
    let writer = |style| Writer::new(0, style, Random::new(2), block.clone());
    let refused = b"STORED\r\nSERVER_ERROR out of memory storing object\r\n";
    assert!(writer(Style::Answered).replies(&mut liar(refused), 2).is_err());
    assert!(
        writer(Style::Quiet)
            .replies(&mut liar(b"SERVER_ERROR out of memory storing object\r\nMN\r\n"), 2)
            .is_err()
    );
    assert!(writer(Style::Answered).replies(&mut liar(b"STORED\r\nSTORED\r\n"), 2).is_ok());
    assert!(writer(Style::Quiet).replies(&mut liar(b"MN\r\n"), 2).is_ok());

    // nothing was written: any value is a wrong one
    assert!(
        writer(Style::Answered)
            .read_back(&mut liar(b"VALUE writer0:7 1 3\r\nabc\r\nEND\r\n"), 7)
            .is_err()
    );
    assert!(
        writer(Style::Answered)
            .read_back(&mut liar(b"VALUE writer0:7 0 3\r\nabc\r\nEND\r\n"), 7)
            .is_err()
    );
    assert!(
        writer(Style::Answered)
            .read_back(&mut liar(b"VALUE writer0:8 0 3\r\nabc\r\nEND\r\n"), 7)
            .is_err()
    );
    assert!(writer(Style::Answered).read_back(&mut liar(b"END\r\n"), 7).is_ok());
}
