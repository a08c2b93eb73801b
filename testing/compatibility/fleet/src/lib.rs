//! Several Keyways, and the clients that distribute keys over them: the configurations of docs/fleet.md as they stand there.
//!
//! [`Shards`] are servers that a test kills and starts again at their addresses. A [`Program`] uses one client's
//! configuration from the document, and follows orders: `set KEY VALUE` and `get KEY`.

use harness::{DEADLINE, Scratch, Wire, wait_until};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

/// The port of the next shard of this process.
static NEXT_PORT: AtomicU16 = AtomicU16::new(11211);

/// Servers that have a part of the keys each.
#[derive(Debug)]
pub struct Shards {
    running: Vec<Option<Child>>,
    addresses: Vec<SocketAddr>,
    scratch: Scratch,
}

impl Shards {
    /// So many addresses, and none running. They stay free while no shard has them: no other program uses this process's part of the
    /// loopback network.
    pub fn new(count: usize) -> Self {
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let own = Ipv4Addr::new(127, 1 + high, middle, low);
        let address = |_| SocketAddr::from((own, NEXT_PORT.fetch_add(1, Ordering::Relaxed)));
        Self {
            running: (0..count).map(|_| None).collect(),
            addresses: (0..count).map(address).collect(),
            scratch: Scratch::new(),
        }
    }

    /// Starts a shard, with the region that it had.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn start(&mut self, shard: usize) {
        let mut child = self.spawn(shard, &[]);
        wait_until("a shard that answers", DEADLINE, || {
            let ended = child.try_wait().expect("a child");
            assert!(ended.is_none(), "shard {shard} ended: {ended:?}");
            self.try_connect(shard)?.ask("version").ok()
        });
        self.running[shard] = Some(child);
    }

    /// Another server takes over from the one of this shard. Calls `meanwhile` again and again until that one has ended.
    ///
    /// # Panics
    ///
    /// When the take-over fails.
    pub fn take_over(&mut self, shard: usize, mut meanwhile: impl FnMut()) {
        let mut old = self.running[shard].take().expect("a shard that runs");
        let mut new = self.spawn(shard, &["--take-over"]);
        let status = wait_until("the old server ends", DEADLINE, || {
            meanwhile();
            assert!(
                new.try_wait().expect("a child").is_none(),
                "the new server of shard {shard} ended"
            );
            old.try_wait().expect("a child")
        });
        assert!(status.success(), "the old server: {status}");
        self.running[shard] = Some(new);
    }

    fn spawn(&self, shard: usize, more: &[&str]) -> Child {
        let mut command = Command::new(harness::keyway_binary());
        command.args([
            "serve",
            "--memory",
            "16m",
            "--listen",
            &self.addresses[shard].to_string(),
            "--region",
        ]);
        command.arg(self.scratch.join(&format!("shard-{shard}"))).args(more);
        command.stdout(Stdio::null()).spawn().expect("a server")
    }

    /// SIGKILL.
    pub fn kill(&mut self, shard: usize) {
        if let Some(mut child) = self.running[shard].take() {
            // An error means that it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGTERM, and waits for the end.
    ///
    /// # Panics
    ///
    /// When it does not end well.
    pub fn stop(&mut self, shard: usize) {
        let mut child = self.running[shard].take().expect("a shard that runs");
        let status = Command::new("/bin/sh")
            .args(["-c", &format!("kill -TERM {}", child.id())])
            .status();
        assert!(status.is_ok_and(|status| status.success()));
        let ended = wait_until("a shard that ends", DEADLINE, || child.try_wait().ok().flatten());
        assert!(ended.success(), "{ended}");
    }

    fn try_connect(&self, shard: usize) -> Option<Wire> {
        Wire::from_tcp(TcpStream::connect(self.addresses[shard]).ok()?).ok()
    }

    /// Whether a shard has this key.
    ///
    /// # Panics
    ///
    /// When it does not answer.
    pub fn has(&self, shard: usize, key: &str) -> bool {
        let mut wire = self.try_connect(shard).expect("a shard that runs");
        !wire.get(false, &[key]).expect("an answer").is_empty()
    }
}

impl Drop for Shards {
    fn drop(&mut self) {
        (0..self.running.len()).for_each(|shard| self.kill(shard));
    }
}

/// The configuration in this language of docs/fleet.md, with the addresses of the first `count` shards.
///
/// # Panics
///
/// When the document has none, or not one server in each line.
pub fn configuration(language: &str, shards: &Shards, count: usize) -> String {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/fleet.md");
    let document = std::fs::read_to_string(&document).unwrap_or_else(|e| panic!("{}: {e}", document.display()));
    let block = document
        .split(&format!("```{language}\n"))
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let block = block.unwrap_or_else(|| panic!("docs/fleet.md has no block of {language}"));
    let mut text = String::new();
    for line in block.lines() {
        text.push_str(line);
        text.push('\n');
        if line.contains("10.0.0.2") {
            // Further shards are written as the second is.
            for number in 4..=count {
                let more = line.replace("10.0.0.2", &format!("10.0.0.{number}"));
                text.push_str(&more.replace("shard-2", &format!("shard-{number}")));
                text.push('\n');
            }
        }
    }
    for (index, address) in shards.addresses.iter().take(count).enumerate() {
        for between in [":", "', ", "\", "] {
            let written = format!("10.0.0.{}{between}11211", index + 1);
            text = text.replace(&written, &format!("{}{between}{}", address.ip(), address.port()));
        }
    }
    assert!(!text.contains("10.0.0."), "an address that no shard has:\n{text}");
    text
}

/// Something that distributes keys over shards.
pub trait Fleet {
    /// `set`
    fn set(&mut self, key: &str, value: &str) -> Answer;
    /// `get`
    fn get(&mut self, key: &str) -> Answer;
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// stored
    Stored,
    /// no item
    Miss,
    /// its value
    Value(String),
    /// a shard that is away, in the client's words
    Failed(String),
}

/// A program that uses a client, and follows orders.
#[derive(Debug)]
pub struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _scratch: Scratch,
}

impl Program {
    /// Runs a program of `programs/` with a client's configuration in it. `make` builds the command from the program's path.
    ///
    /// # Panics
    ///
    /// When it cannot be written or started.
    pub fn start(name: &str, client: &str, make: impl FnOnce(&Path) -> Command) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name);
        let text = std::fs::read_to_string(&source).unwrap_or_else(|e| panic!("{}: {e}", source.display()));
        let scratch = Scratch::new();
        let program: PathBuf = scratch.join(name);
        std::fs::write(&program, text.replace("@CLIENT@", client.trim_end())).expect("a program");
        let mut command = make(&program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{name}: {e}"));
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Self {
            child,
            input,
            output: BufReader::new(output),
            _scratch: scratch,
        }
    }

    fn ask(&mut self, order: &str) -> Answer {
        let mut answer = String::new();
        let asked = writeln!(self.input, "{order}").and_then(|()| self.output.read_line(&mut answer));
        assert!(
            asked.is_ok_and(|len| len > 0),
            "the program ended: {:?}",
            self.child.try_wait()
        );
        match answer.trim_end() {
            "OK" => Answer::Stored,
            "MISS" => Answer::Miss,
            text => match text.strip_prefix("ERROR ") {
                Some(why) => Answer::Failed(why.to_owned()),
                None => Answer::Value(text.to_owned()),
            },
        }
    }
}

impl Fleet for Program {
    fn set(&mut self, key: &str, value: &str) -> Answer {
        self.ask(&format!("set {key} {value}"))
    }

    fn get(&mut self, key: &str) -> Answer {
        self.ask(&format!("get {key}"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A proxy, and a connection to it.
#[derive(Debug)]
pub struct Proxy {
    child: Child,
    address: SocketAddr,
    _scratch: Scratch,
}

impl Proxy {
    /// Starts nutcracker with the configuration of docs/fleet.md.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn start(program: &Path, configuration: &str) -> Self {
        let scratch = Scratch::new();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, harness::free_port()));
        let file = scratch.join("nutcracker.yml");
        let text = configuration.replace("127.0.0.1:22121", &address.to_string());
        assert!(text.contains(&address.to_string()), "the address to listen at");
        std::fs::write(&file, text).expect("a file");
        let log = std::fs::File::create(scratch.join("log")).expect("a file");
        let mut command = Command::new(program);
        command
            .arg("-c")
            .arg(&file)
            .args(["--stats-addr", "127.0.0.1", "--stats-port"]);
        command.arg(harness::free_port().to_string());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let own = Self {
            child: child.expect("a proxy"),
            address,
            _scratch: scratch,
        };
        wait_until("a proxy that answers", DEADLINE, || TcpStream::connect(address).ok());
        own
    }

    fn ask(&self, request: &str) -> std::io::Result<Answer> {
        let mut wire = Wire::from_tcp(TcpStream::connect(self.address)?)?;
        let line = wire.ask(request)?;
        if line == "STORED" {
            return Ok(Answer::Stored);
        }
        if line == "END" {
            return Ok(Answer::Miss);
        }
        match line.strip_prefix("VALUE ") {
            Some(_) => Ok(Answer::Value(String::from_utf8_lossy(&wire.line()?).trim_end().to_owned())),
            None => Ok(Answer::Failed(line)),
        }
    }
}

impl Fleet for Proxy {
    fn set(&mut self, key: &str, value: &str) -> Answer {
        let request = format!("set {key} 0 0 {}\r\n{value}", value.len());
        self.ask(&request).unwrap_or_else(|error| Answer::Failed(error.to_string()))
    }

    fn get(&mut self, key: &str) -> Answer {
        self.ask(&format!("get {key}"))
            .unwrap_or_else(|error| Answer::Failed(error.to_string()))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
