//! The container image: enemy, an image that starts only on the machine that made it, and a user of memcached's image whose command line does
//! not work with this one. buildah builds the last stage of the real Containerfile, with this build's program in the place of the first stage;
//! what runs in it has its root, its user, a network of its own and 64 MiB of shared memory, as a container of Docker has.
//! Guards: P49

use harness::{DEADLINE, Scratch, Wire, keyway_binary, program_on_path, skip, wait_until};
use packages::{is_root, make_manual, root, run};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// Makes what a container's runtime makes, and runs the arguments after the root and the user there.
const ENTER: &str = r#"
ip link set lo up
root=$1 user=$2
shift 2
mkdir -p "$root/proc" "$root/dev"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/dev"
mkdir "$root/dev/shm"
mount -t tmpfs -o size=64m,mode=1777 shm "$root/dev/shm"
for device in null urandom; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
cd /
exec chroot --userspec="$user" "$root" "$@"
"#;

fn missing() -> Option<&'static str> {
    let tools = [
        ("buildah", "there is no buildah"),
        ("unshare", "there is no unshare"),
        ("nsenter", "there is no nsenter"),
        ("ip", "there is no ip (Debian: iproute2)"),
        ("python3", "there is no python3"),
    ];
    let tool = tools.into_iter().find(|(tool, _)| program_on_path(tool).is_none());
    tool.map(|(_, why)| why)
        .or((!is_root()).then_some("only root can make namespaces without more"))
}

/// The image, in a store of its own.
struct Image {
    scratch: Scratch,
    root: PathBuf,
    config: Value,
}

impl Image {
    fn build() -> Self {
        let scratch = Scratch::new();
        let context = scratch.join("built");
        fs::create_dir_all(scratch.join("sources")).unwrap();
        make_manual(&scratch.join("manual"));
        run(Command::new(root().join("packaging/image/root.sh"))
            .arg(context.join("image"))
            .env("BUILT", keyway_binary().parent().unwrap())
            .env("MANUAL", scratch.join("manual")));
        let buildah = |arguments: &[&str]| {
            let mut command = Command::new("buildah");
            command
                .arg("--root")
                .arg(scratch.join("store"))
                .arg("--runroot")
                .arg(scratch.join("run"));
            command.args(["--storage-driver", "vfs"]).args(arguments);
            run(&mut command)
        };
        let stage = format!("build={}", context.display());
        let file = root().join("packaging/image/Containerfile");
        buildah(&[
            "build",
            "--format",
            "docker",
            "--isolation",
            "chroot",
            "--build-context",
            &stage,
            "--tag",
            "keyway:test",
            "--file",
            file.to_str().unwrap(),
            scratch.join("sources").to_str().unwrap(),
        ]);
        let inspected: Value = serde_json::from_str(&buildah(&["inspect", "--type", "image", "keyway:test"])).unwrap();
        let container = buildah(&["from", "--pull-never", "keyway:test"]);
        let root = PathBuf::from(buildah(&["mount", container.trim()]).trim());
        Self {
            root,
            config: inspected["Docker"]["config"].clone(),
            scratch,
        }
    }

    fn words(value: &Value) -> Vec<String> {
        let words = value.as_array().unwrap_or_else(|| panic!("{value} is no list")).iter();
        words.map(|word| word.as_str().unwrap().to_owned()).collect()
    }

    /// `docker run IMAGE WORDS`; without words, the image's own command.
    fn run(&self, words: &[&str]) -> Container<'_> {
        let entry = Self::words(&self.config["Entrypoint"]);
        let own = Self::words(&self.config["Cmd"]);
        let words = if words.is_empty() {
            own
        } else {
            words.iter().map(|&word| word.to_owned()).collect()
        };
        let log = self.scratch.join("log");
        let file = File::create(&log).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "sh", "-ec", ENTER, "sh"]).arg(&self.root);
        command.arg(self.config["User"].as_str().unwrap()).args(entry).args(words);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null());
        let child = command.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
        Container { child, image: self, log }
    }
}

struct Container<'a> {
    child: Child,
    image: &'a Image,
    log: PathBuf,
}

impl Container<'_> {
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// The image's health check.
    fn is_healthy(&self) -> bool {
        let check = Image::words(&self.image.config["Healthcheck"]["Test"]);
        assert_eq!(check[0], "CMD");
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.child.id().to_string(), "--mount", "--net", "chroot"]);
        command.arg(&self.image.root).args(&check[1..]);
        command.output().unwrap().status.success()
    }

    fn wait_healthy(&mut self) {
        wait_until("a healthy container", DEADLINE, || {
            assert!(self.child.try_wait().unwrap().is_none(), "{}", self.log());
            self.is_healthy().then_some(())
        });
    }

    fn wait(&mut self) -> ExitStatus {
        wait_until("a container ends", DEADLINE, || self.child.try_wait().unwrap())
    }

    /// `docker stop`.
    fn stop(mut self) -> (ExitStatus, String) {
        run(Command::new("kill").args(["-TERM", &self.child.id().to_string()]));
        (self.wait(), self.log())
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_image_serves_a_user_of_memcacheds_image() {
    if let Some(why) = missing() {
        return skip("the container image", why);
    }
    let image = Image::build();
    assert_eq!(image.config["User"], "11211:11211", "not root");
    assert_eq!(image.config["ExposedPorts"], serde_json::json!({"11211/tcp": {}}));
    assert!(!image.root.join("bin/sh").exists(), "a shell is there");

    // Without words, as memcached's image.
    let mut container = image.run(&[]);
    container.wait_healthy();
    let (status, log) = container.stop();
    assert!(status.success() && log.contains("tcp 0.0.0.0:11211"), "{status}: {log}");

    // Its shared memory of 64 MiB is enough for memcached's default.
    // The whole path is too long for a socket's.
    std::os::unix::fs::symlink(image.root.join("run/keyway"), image.scratch.join("run-keyway")).unwrap();
    let socket = image.scratch.join("run-keyway/socket");
    let wire = || {
        wait_until("a socket", DEADLINE, || {
            UnixStream::connect(&socket)
                .ok()
                .and_then(|stream| Wire::from_unix(stream).ok())
        })
    };
    let limit = |memory: &str| {
        let mut container = image.run(&[
            "memcached",
            "-s",
            "/run/keyway/socket",
            "-a",
            "777",
            "-p",
            "11211",
            "-m",
            memory,
        ]);
        container.wait_healthy();
        let mut wire = wire();
        let mut line = wire.ask("stats").unwrap();
        while !line.contains("limit_maxbytes") {
            assert_ne!(line, "END");
            line = String::from_utf8(wire.line().unwrap()).unwrap();
        }
        let (status, log) = container.stop();
        assert!(status.success(), "{log}");
        (line.trim_end().rsplit(' ').next().unwrap().parse::<u64>().unwrap() >> 20, log)
    };
    let (mebibytes, log) = limit("64");
    assert!(
        (62..=64).contains(&mebibytes) && log.contains("region /dev/shm/keyway-11211-11211"),
        "{mebibytes}: {log}"
    );
    // More is without a file, and the log says how it gets one.
    let (mebibytes, log) = limit("1024");
    assert!(
        (1000..=1024).contains(&mebibytes) && log.contains("region memfd"),
        "{mebibytes}: {log}"
    );
    assert!(log.contains("memory without a file") && log.contains("--shm-size"), "{log}");

    // A region that shall outlive the server is in a file, or refused with the remedies.
    let mut container = image.run(&["serve", "--memory", "1g"]);
    let status = container.wait();
    let log = container.log();
    assert_eq!(status.code(), Some(2), "{log}");
    assert!(log.contains("--shm-size") && log.contains("memfd"), "{log}");

    // Nothing on the default port: not healthy.
    let container = image.run(&["memcached", "-s", "/run/keyway/socket", "-m", "8"]);
    drop(wire());
    assert!(!container.is_healthy());
}

#[test]
fn the_image_is_built_with_the_compiler_that_the_workspace_names() {
    let text = |path: &str| fs::read_to_string(Path::new(&root()).join(path)).unwrap();
    let manifest = text("Cargo.toml");
    let version = manifest
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'));
    let builder = format!("ARG BUILDER=rust:{}-bookworm", version.unwrap());
    assert!(
        text("packaging/image/Containerfile").lines().any(|line| line == builder),
        "{builder}"
    );
}
