//! Sites whose workers are recycled, and killed all the time: enemy, a value of another key, a count that is lost or made twice, a page
//! that fails because a process died or a server is away.
//! Guards: P36

use applications::load::{Pages, browse};
use applications::{CacheOf, Site};
use harness::{DEADLINE, Kind, Random, ServeOptions, Server, Transport, full_run, skip, wait_until};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Connections to a site.
const BROWSERS: usize = 6;
/// Pages that a worker makes before it is replaced.
const RECYCLED: u64 = 60;
/// Pages between two deaths of workers.
const BETWEEN_DEATHS: u64 = 40;

fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// How many workers are killed.
fn deaths() -> u64 {
    if full_run() { 400 } else { 24 }
}

/// A Keyway that is killed and started again at its address.
struct Keyway {
    child: Child,
    address: SocketAddr,
}

impl Keyway {
    fn start(address: SocketAddr, region: &Path) -> Self {
        let mut command = Command::new(harness::keyway_binary());
        command.args(["serve", "--memory", "32m", "--listen", &address.to_string(), "--region"]);
        let child = command.arg(region).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let own = Self {
            child: child.expect("a server"),
            address,
        };
        wait_until("a server that answers", DEADLINE, || own.try_connect()?.ask("version").ok());
        own
    }

    fn try_connect(&self) -> Option<harness::Wire> {
        harness::Wire::from_tcp(TcpStream::connect(self.address).ok()?).ok()
    }

    fn counter(&self, name: &str) -> u64 {
        let mut wire = self.try_connect().expect("a server");
        let found = wire.get(false, &[name]).expect("an answer");
        let text = String::from_utf8_lossy(&found[0].value).trim().to_owned();
        text.parse().expect("a number")
    }
}

impl Drop for Keyway {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Workers die under load. The server dies a few times too, if `serve` starts it again.
fn torment(site: &Site, mut server_dies: impl FnMut(&applications::load::Progress)) -> Pages {
    let mut random = Random::new(Random::seed_for("sites"));
    let pages = browse(site.address(), BROWSERS, |progress| {
        for death in 0..deaths() {
            assert!(progress.wait_for(BETWEEN_DEATHS), "the load goes on");
            site.kill_worker(&mut random);
            if death % 6 == 5 {
                server_dies(progress);
            }
        }
        assert!(progress.wait_for(BETWEEN_DEATHS), "the load goes on");
    });
    assert!(
        pages.wrongs == 0,
        "{} wrong pages, such as {:#?}\n{}",
        pages.wrongs,
        pages.wrong,
        site.log()
    );
    assert!(
        pages.numbers.len() as u64 > pages.lost,
        "{} pages, {} lost",
        pages.numbers.len(),
        pages.lost
    );
    // Each death takes the page with it that the worker was making, and those that wait for it.
    let lost_max = deaths() * BROWSERS as u64;
    assert!(
        pages.lost <= lost_max,
        "{} pages lost by {} deaths\n{}",
        pages.lost,
        deaths(),
        site.log()
    );
    pages
}

#[test]
fn a_php_page_with_the_servers_own_socket() {
    let test = "a PHP page on a socket";
    for kind in Kind::to_test(test) {
        let server = Server::start(kind, &ServeOptions::default());
        let site = match Site::php(CacheOf::Server(server.address()), RECYCLED) {
            Ok(site) => site,
            Err(because) => return skip(test, &because),
        };
        let pages = torment(&site, |_| {});
        let found = server.connect(Transport::Tcp).get(false, &["pages"]).expect("an answer");
        pages.check(String::from_utf8_lossy(&found[0].value).trim().parse().expect("a number"));
    }
}

/// With the drop-in a page needs no server: while the server is away, no page fails, not even those of new workers.
#[test]
fn a_php_page_with_the_drop_in_goes_on_without_its_server() {
    let test = "a PHP page with the drop-in";
    let scratch = harness::Scratch::new();
    let region = scratch.join("region");
    let address = SocketAddr::from(([127, 0, 0, 1], harness::free_port()));
    let mut server = Some(Keyway::start(address, &region));
    let site = match Site::php(CacheOf::DropIn(address), RECYCLED) {
        Ok(site) => site,
        Err(because) => return skip(test, &because),
    };
    let pages = torment(&site, |progress| {
        drop(server.take());
        // Long enough for every worker to be replaced.
        assert!(progress.wait_for(RECYCLED * 6), "the load goes on");
        server = Some(Keyway::start(address, &region));
    });
    let server = server.expect("it was started again");
    pages.check(server.counter("pages"));
    drop(site);
    drop(server);
    let (status, told) = harness::keyway_check(&region);
    assert!(status.success(), "{told}");
}

#[test]
fn a_django_page_with_the_library_goes_on_without_its_server() {
    let test = "a Django page";
    let scratch = harness::Scratch::new();
    let region = scratch.join("region");
    let address = SocketAddr::from(([127, 0, 0, 1], harness::free_port()));
    let mut server = Some(Keyway::start(address, &region));
    let site = match Site::django(target(), CacheOf::Region(&region), RECYCLED) {
        Ok(site) => site,
        Err(because) => return skip(test, &because),
    };
    let pages = torment(&site, |progress| {
        drop(server.take());
        assert!(progress.wait_for(RECYCLED * 2), "the load goes on");
        server = Some(Keyway::start(address, &region));
    });
    let server = server.expect("it was started again");
    // Django's key of `pages`: no prefix, version 1.
    pages.check(server.counter(":1:pages"));
    drop(site);
    drop(server);
    let (status, told) = harness::keyway_check(&region);
    assert!(status.success(), "{told}");
}
