//! A worker never waits for the HTTP port's thread: the thread is stopped at random moments of its work (ptrace(2)), and as long as it is
//! stopped, memcached clients are served, and new ones come and go.
//! Guards: P45

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use harness::{DEADLINE, Kind, Random, ServeOptions, Server, Transport, say, skip, wait_until};
use monitoring::Monitored;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// How often the thread is stopped.
const STOPS: usize = 150;

/// The thread of this name of a server, which may be about to name itself.
fn thread(server: &Server, name: &str) -> Pid {
    let has_name =
        |task: &std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name);
    let number = wait_until("the thread has its name", DEADLINE, || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).expect("the server's threads");
        let found = tasks.filter_map(Result::ok).find(has_name)?;
        found.file_name().to_str()?.parse().ok()
    });
    Pid::from_raw(number)
}

/// What clients do that takes every way through a worker except `stats`.
fn use_the_cache(server: &Server, round: usize) {
    for transport in [Transport::Tcp, Transport::Unix] {
        let mut wire = server.connect(transport);
        let value = format!("value {round}");
        let request = format!("set key 0 0 {}\r\n{value}", value.len());
        assert_eq!(wire.ask(&request).expect("a set is answered"), "STORED");
        assert_eq!(wire.get(false, &["key"]).expect("a get is answered").len(), 1);
        assert_eq!(wire.ask("delete key").expect("a delete is answered"), "DELETED");
    }
}

/// The thread while it is traced. At the end, also of a test that fails, it goes on, and the askers end.
struct Traced<'a> {
    port: Pid,
    asks: &'a AtomicBool,
}

impl Drop for Traced<'_> {
    fn drop(&mut self) {
        self.asks.store(false, SeqCst);
        // Only a stopped thread can be released.
        let _ = ptrace::detach(self.port, None);
    }
}

#[test]
fn workers_serve_while_the_port_is_stopped_anywhere() {
    if !Kind::keyway_is_wanted() {
        return;
    }
    let monitored = Monitored::start(&ServeOptions::default());
    let mut random = Random::new(Random::seed_for("the HTTP port stopped"));
    let asks = AtomicBool::new(true);
    let outcome = std::thread::scope(|scope| {
        let traced = Traced {
            port: thread(&monitored.server, "keyway-http"),
            asks: &asks,
        };
        for path in ["/metrics", "/readyz", "/", "/state.json"] {
            let (asks, monitored) = (&asks, &monitored);
            scope.spawn(move || {
                while asks.load(SeqCst) {
                    assert_eq!(monitored.get(path).status, 200);
                }
            });
        }
        stop_often(&monitored, traced.port, &mut random)
    });
    match outcome {
        Ok(at_work) => say(&format!(
            "the port's thread was stopped {STOPS} times, {at_work} of them at work"
        )),
        Err(why) => skip("stopping the HTTP port's thread", &why),
    }
}

/// Stops the thread again and again, and leaves it stopped. Returns how often it was not waiting in a system call.
fn stop_often(monitored: &Monitored, port: Pid, random: &mut Random) -> Result<usize, String> {
    let failed = |error| format!("ptrace: {error}");
    ptrace::seize(port, Options::empty()).map_err(failed)?;
    let mut at_work = 0;
    for round in 0..STOPS {
        std::thread::sleep(Duration::from_micros(random.below(3000)));
        stop(port).map_err(failed)?;
        let waiting = std::fs::read_to_string(format!("/proc/{}/task/{port}/syscall", monitored.server.pid()));
        at_work += usize::from(waiting.is_ok_and(|text| text.starts_with("-1")));
        // The kernel takes connections of the port, and it does not answer them now; the clients are served.
        let _silent = TcpStream::connect(monitored.http).expect("a connection");
        use_the_cache(&monitored.server, round);
        ptrace::cont(port, None).map_err(failed)?;
    }
    stop(port).map_err(failed)?;
    Ok(at_work)
}

/// Stops the thread, and returns when it is.
fn stop(port: Pid) -> nix::Result<()> {
    ptrace::interrupt(port)?;
    wait_until("the thread is stopped", DEADLINE, || {
        let seen = waitpid(port, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)).expect("the thread's state");
        (seen != WaitStatus::StillAlive).then_some(())
    });
    Ok(())
}
