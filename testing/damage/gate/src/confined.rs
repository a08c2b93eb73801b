//! `confined`: confines itself as a server does, and tries what a server that is taken over is not to do. It says of each whether it is
//! refused, on one line: `NAME refused`, or `NAME open: what was got`; of what serving takes, `NAME works` or `NAME broken: why`.
//!
//! Its arguments: the file that stands for the region, the one that is read again, and `rings` or `door` for what else it needs. Both
//! files' folders have others in them, `other` by name.
//!
//! # Safety
//!
//! System calls that are to fail, or that make what serving makes.
#![allow(unsafe_code, reason = "system calls that are to be refused; contract above")]
#![allow(clippy::print_stdout, reason = "its answers")]

use keyway_harden::confine::{Needs, confine};
use std::ffi::CString;
use std::fs::File;
use std::io::Error;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [region, read_again, more @ ..] = arguments.as_slice() else {
        println!("confined REGION FILE [rings] [door]");
        std::process::exit(64);
    };
    let wants = |word: &str| more.iter().any(|one| one == Path::new(word));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let own = File::options().read(true).write(true).open(region).expect("the region");
    let confined = confine(&Needs {
        files: vec![region.clone()],
        read_again: vec![read_again.clone()],
        removed_at_end: vec![read_again.clone()],
        io_uring: wants("rings"),
        kernel_door: wants("door"),
        ..Needs::default()
    });
    match &confined {
        Ok(confined) if confined.landlock => println!("confine works"),
        other => println!("confine broken: {other:?}"),
    }
    refusals(region, read_again, address);
    for (name, number) in [("io-uring", libc::SYS_io_uring_setup), ("bpf", libc::SYS_bpf)] {
        call(name, number, [0; 4]);
    }
    socket("netlink", libc::AF_NETLINK);
    works(region, read_again, &own);
    // The last: what is confined once stays so.
    println!("end");
}

fn refusals(region: &Path, read_again: &Path, address: std::net::SocketAddr) {
    let refused = |name: &str, got: Result<String, Error>| match got {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => println!("{name} refused"),
        other => println!("{name} open: {other:?}"),
    };
    let beside = |path: &Path| path.with_file_name("other");
    refused("exec", Command::new("/bin/true").status().map(|status| status.to_string()));
    refused("connect", TcpStream::connect(address).map(|_| "a connection".to_owned()));
    refused("listen", TcpListener::bind("127.0.0.1:0").map(|_| "a port".to_owned()));
    refused("udp", UdpSocket::bind("127.0.0.1:0").map(|_| "a port".to_owned()));
    let open = |path: &Path, write: bool| {
        File::options()
            .read(true)
            .write(write)
            .open(path)
            .map(|_| path.display().to_string())
    };
    refused("other-file", open(Path::new("/etc/passwd"), false));
    refused("beside-region", open(&beside(region), false));
    refused("write-beside", open(&beside(read_again), true));
    refused("write-again", open(read_again, true));
    refused(
        "new-file",
        File::create_new(region.with_file_name("new")).map(|_| "a file".to_owned()),
    );
    refused(
        "remove-region",
        std::fs::remove_file(region).map(|()| "it is gone".to_owned()),
    );
    refused(
        "rename",
        std::fs::rename(region, read_again.with_file_name("moved")).map(|()| "it is moved".to_owned()),
    );
    // SAFETY: a call that is to be refused; a child would end at once.
    let forked = unsafe { libc::fork() };
    if forked == 0 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    refused(
        "fork",
        if forked < 0 {
            Err(Error::last_os_error())
        } else {
            Ok("a child".into())
        },
    );
    let path = CString::new(region.as_os_str().as_encoded_bytes()).unwrap_or_default();
    let path = path.as_ptr() as usize;
    let own = std::process::id() as usize;
    let here = (libc::AT_FDCWD as isize).cast_unsigned();
    call("chmod", libc::SYS_fchmodat, [here, path, 0o600, 0]);
    call("chown", libc::SYS_fchownat, [here, path, 0, 0]);
    call("xattr", libc::SYS_removexattr, [path, path, 0, 0]);
    call("link", libc::SYS_linkat, [here, path, here, path]);
    call("mknod", libc::SYS_mknodat, [here, path, 0o020600, 0]);
    call("mount", libc::SYS_mount, [path, path, path, 0]);
    call("unshare", libc::SYS_unshare, [0; 4]);
    call("setns", libc::SYS_setns, [0; 4]);
    call("setuid", libc::SYS_setuid, [0; 4]);
    call("ptrace", libc::SYS_ptrace, [libc::PTRACE_ATTACH as usize, 1, 0, 0]);
    call("process-vm", libc::SYS_process_vm_readv, [own, 0, 0, 0]);
    call("kill", libc::SYS_kill, [own, 0, 0, 0]);
    call("userfaultfd", libc::SYS_userfaultfd, [0; 4]);
    call("perf", libc::SYS_perf_event_open, [0; 4]);
    call("keys", libc::SYS_keyctl, [0; 4]);
    call("modules", libc::SYS_finit_module, [0; 4]);
    call("x32", libc::SYS_getpid | 0x4000_0000, [0; 4]);
    let (read, execute) = (libc::PROT_READ as usize, libc::PROT_EXEC as usize);
    let anonymous = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    call("map-code", libc::SYS_mmap, [0, 4096, read | execute, anonymous]);
    call("make-code", libc::SYS_mprotect, [0, 4096, read | execute, 0]);
    socket("packet", libc::AF_PACKET);
}

/// A call that must be refused for what it is.
fn call(name: &str, number: libc::c_long, [a, b, c, d]: [usize; 4]) {
    // SAFETY: a call that is to be refused, with arguments that would do no harm.
    let got = unsafe { libc::syscall(number, a, b, c, d, usize::MAX, 0) };
    let error = Error::last_os_error().raw_os_error();
    if got == -1 && error == Some(libc::EPERM) {
        println!("{name} refused");
    } else {
        println!("{name} open: {got}, {error:?}");
    }
}

fn socket(name: &str, family: libc::c_int) {
    call(
        name,
        libc::SYS_socket,
        [usize::try_from(family).unwrap_or(0), libc::SOCK_RAW as usize, 0, 0],
    );
}

fn works(region: &Path, read_again: &Path, own: &File) {
    let works = |name: &str, done: Result<(), Error>| match done {
        Ok(()) => println!("{name} works"),
        Err(error) => println!("{name} broken: {error}"),
    };
    works(
        "thread",
        std::thread::Builder::new().spawn(|| ()).map(|thread| drop(thread.join())),
    );
    works("grow", own.set_len(1 << 20));
    works("region-again", File::options().read(true).write(true).open(region).map(drop));
    let anew = format!("/proc/self/fd/{}", own.as_raw_fd());
    works("descriptor-again", File::open(anew).map(drop));
    // Replaced, as editors do: not by this process, which may not.
    works("read-again", std::fs::read(read_again).map(drop));
    works("memory-left", std::fs::read("/proc/meminfo").map(drop));
    works("remove", std::fs::remove_file(read_again));
}
