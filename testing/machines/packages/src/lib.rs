//! A clean Debian 12 in a folder, and the packages that this workspace's build makes.
//!
//! [`System`] is a minimal installation by mmdebstrap; commands run in it as in a container, without systemd. [`build`] makes packages of
//! the programs that are built already, so nothing is compiled here.

use harness::{Scratch, keyway_binary, program_on_path, run_to_end};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long a step may take that installs or packs something: mmdebstrap fetches some 30 MB.
pub const LONG: Duration = Duration::from_secs(900);

/// Makes the devices and processes of a root visible in it, and runs the arguments after the root there.
const ENTER: &str = r#"
for device in null urandom; do mount --bind "/dev/$device" "$1/dev/$device"; done
mount -t proc proc "$1/proc"
exec chroot "$@"
"#;

/// What the packages for Debian depend on, besides the C library.
const DEPENDENCIES: &str = "adduser,libelf1,libhashkit2,libsasl2-2,zlib1g,python3";

/// What is missing to make a clean system, if something is.
pub fn missing() -> Option<&'static str> {
    let tools = [
        ("mmdebstrap", "there is no mmdebstrap"),
        ("unshare", "there is no unshare"),
        ("dpkg-deb", "there is no dpkg-deb"),
    ];
    let tool = tools.into_iter().find(|(tool, _)| program_on_path(tool).is_none());
    tool.map(|(_, why)| why)
        // Users and groups of the system are files of several owners.
        .or((!is_root()).then_some("only root can make a system with users of its own"))
}

/// Whether this process is root's.
pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// The workspace's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// Runs a command to its end.
///
/// # Panics
///
/// When it cannot be started, takes longer than [`LONG`], or fails.
pub fn run(command: &mut Command) -> String {
    let (status, output) = run_to_end(command, LONG);
    assert!(status.success(), "{command:?}: {status}\n{output}");
    output
}

/// The folder of the workspace's programs and libraries, and cargo's target directory above it.
fn built() -> (PathBuf, PathBuf) {
    let program = keyway_binary();
    let folder = program.parent().expect("a program is in a folder").to_path_buf();
    let target = folder
        .parent()
        .expect("cargo builds below its target directory")
        .to_path_buf();
    (folder, target)
}

/// Cargo's target directory, where what was fetched once stays.
pub fn target() -> PathBuf {
    built().1
}

/// The packages for Debian.
pub const ALL: [&str; 5] = [
    "keyway",
    "libkeyway0",
    "libkeyway-dev",
    "keyway-libmemcached",
    "python3-keyway-cache",
];

/// Programs and libraries that packages are made of.
pub struct Built {
    /// as Debian names it
    pub architecture: &'static str,
    /// where they are
    pub folder: PathBuf,
}

impl Built {
    /// Makes the packages for Debian with this revision, in `to`; the same build with a higher revision is an upgrade.
    ///
    /// # Panics
    ///
    /// When the script fails.
    pub fn pack(&self, to: &Path, revision: u32) {
        let manual = to.join("manual");
        make_manual(&manual);
        run(Command::new(root().join("packaging/deb/build.sh"))
            .arg(to)
            .env("BUILT", &self.folder)
            .env("MANUAL", manual)
            .env("ARCH", self.architecture)
            .env("VERSION", env!("CARGO_PKG_VERSION"))
            .env("REVISION", revision.to_string())
            .env("MAINTAINER", "A packager <packager@keyway.invalid>")
            // Packed and unpacked once; users' packages are compressed.
            .env("COMPRESSION", "none")
            .env("SOURCE_DATE_EPOCH", "1700000000"));
    }
}

/// Makes those of the workspace's programs, for this machine.
///
/// # Panics
///
/// As [`Built::pack`].
pub fn build(folder: &Path, revision: u32) {
    let built = Built {
        architecture: "amd64",
        folder: built().0,
    };
    built.pack(folder, revision);
}

/// Writes the manual pages, completions, configuration and licences of packages into this folder.
///
/// # Panics
///
/// When that fails.
pub fn make_manual(folder: &Path) {
    run(Command::new(keyway_binary()).arg("manual").arg(folder));
    let mut command = Command::new(root().join("packaging/licences.py"));
    let output = command.stderr(Stdio::inherit()).output().expect("python3 starts");
    assert!(output.status.success(), "{command:?}: {}", output.status);
    fs::write(folder.join("licences"), output.stdout).expect("a file");
}

/// A package's file name.
pub fn file_name(package: &str, revision: u32) -> String {
    format!("{package}_{}-{revision}_amd64.deb", env!("CARGO_PKG_VERSION"))
}

/// A clean Debian 12.
pub struct System(Scratch);

impl System {
    /// Makes one. What mmdebstrap fetched stays in the target directory for the next time.
    ///
    /// # Panics
    ///
    /// When that fails.
    pub fn new() -> Self {
        // One test makes it, and the others wait.
        static MAKING: Mutex<()> = Mutex::new(());
        let making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        let archive = built().1.join(format!("debian-12-{}.tar", DEPENDENCIES.replace(',', "-")));
        if !archive.exists() {
            let partial = archive.with_extension("partial.tar");
            run(Command::new("mmdebstrap")
                .args(["--quiet", "--variant=essential", &format!("--include={DEPENDENCIES}")])
                .args([
                    "--dpkgopt=path-exclude=/usr/share/locale/*",
                    "--dpkgopt=path-exclude=/usr/share/doc/*",
                ])
                .arg("bookworm")
                .arg(&partial));
            fs::rename(&partial, &archive).expect("a finished archive");
        }
        drop(making);
        let system = Self(Scratch::new());
        run(Command::new("tar")
            .args(["--numeric-owner", "--exclude=./dev/*", "-xf"])
            .arg(&archive)
            .arg("-C")
            .arg(system.root()));
        fs::create_dir(system.root().join("dev/shm")).expect("a folder");
        fs::set_permissions(system.root().join("dev/shm"), Permissions::from_mode(0o1777)).expect("a folder for everyone");
        for device in ["null", "urandom"] {
            fs::write(system.root().join("dev").join(device), "").expect("a file");
        }
        system
    }

    /// Its root.
    pub fn root(&self) -> &Path {
        self.0.path()
    }

    /// A command in it, in process and mount namespaces of its own; whatever it leaves running ends with it.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", ENTER, "sh"])
            .arg(self.root());
        command.args(words).env_clear().stdin(Stdio::null());
        command
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("LC_ALL", "C.UTF-8");
        command
    }

    /// What a command prints that succeeds.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub fn run(&self, words: &[&str]) -> String {
        run(&mut self.command(words))
    }

    /// What a command prints, however it ends.
    pub fn output(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("unshare starts")
    }

    /// Starts a command that goes on; its standard output is a pipe.
    pub fn spawn(&self, words: &[&str]) -> Child {
        self.command(words).stdout(Stdio::piped()).spawn().expect("unshare starts")
    }

    /// Copies packages into it, and installs them by dpkg.
    pub fn install(&self, folder: &Path, packages: &[&str], revision: u32) -> String {
        let names: Vec<String> = packages.iter().map(|package| file_name(package, revision)).collect();
        for name in &names {
            fs::copy(folder.join(name), self.root().join(name)).expect("a package");
        }
        let paths: Vec<String> = names.iter().map(|name| format!("/{name}")).collect();
        let words = ["dpkg", "--force-confdef", "--force-confold", "-i"];
        let said = self.run(&words.into_iter().chain(paths.iter().map(String::as_str)).collect::<Vec<_>>());
        names
            .iter()
            .for_each(|name| fs::remove_file(self.root().join(name)).expect("a package"));
        said
    }

    /// Every file, with the contents of the lists of users and groups; without what dpkg and adduser keep as a record.
    pub fn files(&self) -> Vec<String> {
        let is_record = |path: &str| {
            ["./var/lib/dpkg/", "./var/log/", "./var/cache/"]
                .iter()
                .any(|folder| path.starts_with(folder))
                || path.starts_with("./etc/") && path.ends_with('-')
                || path == "./run/adduser"
        };
        let list = run(Command::new("find").current_dir(self.root()).args([".", "-xdev"]));
        let mut files: Vec<String> = list.lines().filter(|path| !is_record(path)).map(str::to_owned).collect();
        files.sort();
        for name in ["passwd", "group", "shadow", "gshadow"] {
            files.push(fs::read_to_string(self.root().join("etc").join(name)).unwrap_or_default());
        }
        files
    }
}

impl Default for System {
    fn default() -> Self {
        Self::new()
    }
}
