//! Attacks that go on while an ordinary client is measured: carried on by this program, started again as a process of low priority,
//! so that what is measured is the server and not who gets a processor.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use harness::{Kind, ServeOptions, Server, Transport};

use crate::attack::{Form, Outcome, judge};
use crate::ordinary::{Ordinary, median};
use crate::{crowd, time};

/// Starts this program as the one that carries on a siege: its name and the server's address follow.
pub const OPTION: &str = "--carry-on";
/// What an ordinary client may wait longer than it does without the attack.
pub const WAIT_MAX: Duration = Duration::from_millis(10);

/// An attack that goes on.
pub struct Siege {
    /// what the process gets
    pub name: &'static str,
    /// what the server is given first, through TCP
    pub prepare: fn(&Server, Form),
    /// what is sent, over and over
    pub weapons: fn() -> Vec<Weapon>,
}

/// One connection, or socket, of the attacker.
#[derive(Clone)]
pub enum Weapon {
    /// sends these bytes over and over, and takes what comes
    Sends(Vec<u8>),
    /// sends them over and over, and never reads
    Deaf(Vec<u8>),
    /// sends them once, slowly, a byte now and then, and begins again
    Slow(Vec<u8>),
    /// sends them once and takes what comes
    Listens(Vec<u8>),
    /// sends them over and over, on a new connection each time
    Knocks(Vec<u8>),
    /// sends them on a new connection each time, and waits for the first bytes of the answer
    Greets(Vec<u8>),
    /// sends this datagram over and over, and takes what comes
    Datagrams(Vec<u8>),
}

/// A siege under way; it ends with this.
pub struct Running(Child);

/// The siege of this name.
pub fn find(name: &str) -> Option<&'static Siege> {
    time::SIEGES.iter().chain(crowd::SIEGES).find(|siege| siege.name == name)
}

impl Siege {
    /// Carries it on until this process is killed; says so when it has begun.
    pub fn carry_on(&self, address: SocketAddr) -> ExitCode {
        let threads: Vec<_> = (self.weapons)()
            .into_iter()
            .map(|weapon| std::thread::spawn(move || weapon.use_on(address)))
            .collect();
        println!("begun");
        for thread in threads {
            let _ = thread.join();
        }
        ExitCode::SUCCESS
    }

    /// Begins it.
    pub fn begin(&self, server: &Server) -> Running {
        self.begin_at(server.address())
    }

    /// Begins it at this address of a server.
    pub fn begin_at(&self, address: SocketAddr) -> Running {
        let program = std::env::current_exe().expect("this program's own path");
        let mut child = Command::new("nice")
            .args(["-n", "19"])
            .arg(program)
            .args([OPTION, self.name, &address.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("nice is installed");
        let mut line = String::new();
        let output = child.stdout.take().expect("a pipe was asked for");
        BufReader::new(output).read_line(&mut line).expect("the attacker speaks");
        assert_eq!(line, "begun\n", "{} begins", self.name);
        Running(child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Weapon {
    fn use_on(&self, address: SocketAddr) {
        loop {
            let _ = match self {
                Self::Datagrams(payload) => send_datagrams(address, payload),
                Self::Sends(bytes) => send_and_take(address, bytes),
                Self::Deaf(bytes) => send_for_ever(&mut connect(address), bytes),
                Self::Slow(bytes) => send_slowly(&mut connect(address), bytes),
                Self::Listens(bytes) => listen(connect(address), bytes),
                Self::Knocks(bytes) => connect(address).write_all(bytes),
                Self::Greets(bytes) => greet(connect(address), bytes),
            };
        }
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    loop {
        if let Ok(stream) = TcpStream::connect(address) {
            return stream;
        }
        // The server is busy, or has as many connections as it may have.
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn listen(mut stream: TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(bytes)?;
    take(stream)
}

fn greet(mut stream: TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(bytes)?;
    stream.read(&mut [0; 64]).map(|_| ())
}

fn send_for_ever(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    loop {
        stream.write_all(bytes)?;
    }
}

fn send_slowly(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    for byte in bytes {
        stream.write_all(&[*byte])?;
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn send_and_take(address: SocketAddr, bytes: &[u8]) -> std::io::Result<()> {
    let mut stream = connect(address);
    let reader = stream.try_clone()?;
    std::thread::scope(|scope| {
        scope.spawn(|| take(reader));
        send_for_ever(&mut stream, bytes)
    })
}

fn take(mut stream: TcpStream) -> std::io::Result<()> {
    let mut room = vec![0; 64 << 10];
    while stream.read(&mut room)? > 0 {}
    Err(ErrorKind::UnexpectedEof.into())
}

fn send_datagrams(address: SocketAddr, payload: &[u8]) -> std::io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(Duration::from_millis(5)))?;
    let datagram = [&[0, 1, 0, 0, 0, 1, 0, 0], payload].concat();
    let mut room = [0; 2048];
    loop {
        let _ = socket.send(&datagram);
        while socket.recv(&mut room).is_ok_and(|len| len == 1408) {}
    }
}

/// How a server under siege is started: with one worker, so that the ordinary client shares it with the attacker.
pub fn one_worker(arguments: &[&str]) -> ServeOptions {
    ServeOptions {
        threads: 1,
        memory_mb: 128,
        transport: Transport::Udp,
        keyway_arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
        ..ServeOptions::default()
    }
}

/// What an ordinary client waits at worst beside a siege, beside what it waits without.
pub fn worst_wait(siege: &Siege, form: Form) -> Outcome {
    let server = Server::start(Kind::Keyway, &one_worker(&[]));
    worst_wait_on(&server, server.address(), siege, form)
}

/// The same on this server, with the siege at this one of its addresses.
pub fn worst_wait_on(server: &Server, address: SocketAddr, siege: &Siege, form: Form) -> Outcome {
    (siege.prepare)(server, form);
    let mut ordinary = Ordinary::new(server);
    let (rounds, period) = form.pick((3, Duration::from_millis(300)), (7, Duration::from_secs(1)));
    let (mut control, mut attacked) = (Vec::new(), Vec::new());
    // Before all else: what was sent to a server keeps it at work for a while.
    (0..rounds).for_each(|_| control.push(ordinary.waits(period).worst()));
    for _ in 0..rounds {
        let running = siege.begin_at(address);
        attacked.push(ordinary.waits(period).worst());
        drop(running);
    }
    let (control, attacked) = (median(&control), median(&attacked));
    judge(
        attacked.work <= control.work + WAIT_MAX,
        format!("the longest wait is {attacked}; {control} without (medians of {rounds} rounds; at most {WAIT_MAX:?} more)"),
    )
}
