//! A system that forbids io_uring, as containers' seccomp filters do: the server uses epoll and says so, and one that is told to
//! use io_uring does not start.
//! Guards: P35

#![allow(
    unsafe_code,
    reason = "a seccomp filter is installed by two system calls that no safe crate here has"
)]

use harness::{Kind, ServeOptions, Server, Transport};
use hostile::is_served;

const LOAD_NUMBER: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const JUMP_IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// Answers EPERM to `io_uring_setup` from here on, in this thread and whatever it starts.
fn forbid_io_uring() {
    let step = |code, k, jt, jf| libc::sock_filter {
        code: u16::try_from(code).expect("codes have 16 bits"),
        jt,
        jf,
        k,
    };
    let number = u32::try_from(libc::SYS_io_uring_setup).expect("system calls have small numbers");
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
    // seccomp(2): the first word of its data is the system call's number.
    let mut steps = [
        step(LOAD_NUMBER, 0, 0, 0),
        step(JUMP_IF_EQUAL, number, 0, 1),
        step(RETURN, refused, 0, 0),
        step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let filter = libc::sock_fprog {
        len: 4,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: the filter lives until the calls return, which is all that prctl(2) asks for.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    };
    assert!(installed, "{}", std::io::Error::last_os_error());
}

fn verbose(event_loop: &str) -> ServeOptions {
    ServeOptions {
        keyway_arguments: vec!["-v".into(), "--event-loop".into(), event_loop.into()],
        ..ServeOptions::default()
    }
}

fn event_loop(server: &Server) -> String {
    let settings = server.connect(Transport::Tcp).stats("settings").expect("it takes a request");
    let named = settings.into_iter().find(|(name, _)| name == "keyway_event_loop");
    named.expect("stats settings names the event loop").1
}

#[test]
fn a_system_without_io_uring_is_served_by_epoll() {
    if std::env::var_os("KEYWAY_TESTS_EVENT_LOOP").is_some() {
        // Everybody's event loop is chosen there, and this test is about who chooses.
        return;
    }
    std::thread::spawn(|| {
        forbid_io_uring();
        let server = Server::start(Kind::Keyway, &verbose("auto"));
        is_served(&mut server.connect(Transport::Tcp), 1);
        is_served(&mut server.connect(Transport::Unix), 2);
        assert_eq!(event_loop(&server), "epoll");
        let log = server.log();
        assert_eq!(log.matches("io_uring is not available").count(), 1, "{log}");

        let refused = Server::try_start(Kind::Keyway, &verbose("io_uring")).expect_err("it is insisted on");
        assert!(refused.contains("--event-loop"), "{refused}");
    })
    .join()
    .expect("the thread with the filter");
}

#[test]
fn io_uring_is_taken_where_it_is_to_be_had() {
    if std::env::var_os("KEYWAY_TESTS_EVENT_LOOP").is_some() {
        return;
    }
    let server = match Server::try_start(Kind::Keyway, &verbose("io_uring")) {
        Ok(server) => server,
        Err(why) => return harness::skip("io_uring", &why),
    };
    assert_eq!(event_loop(&server), "io_uring");
    assert_eq!(event_loop(&Server::start(Kind::Keyway, &verbose("auto"))), "io_uring");
    assert_eq!(event_loop(&Server::start(Kind::Keyway, &verbose("epoll"))), "epoll");
}
