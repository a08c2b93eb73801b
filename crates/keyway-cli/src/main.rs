//! `keyway`: runs a Keyway cache, and inspects one. It only connects the other crates: every rule is the server's or the library's.
//!
//! This is the only crate that prints, by [`commands::say`], [`commands::written`] and [`commands::remark`]; exit codes are in [`exit`].

mod allowed;
mod background;
mod backup;
mod bench;
mod big;
mod commands;
mod config;
mod cpus;
mod doctor;
mod exec;
mod exit;
mod hot;
mod inherited;
mod items;
#[cfg(feature = "kernel")]
mod kernel;
mod left;
mod listen;
mod logger;
mod manual;
mod memcached;
mod memory;
mod notify;
mod numbers;
mod password;
mod ping;
mod place;
mod plan;
mod regions;
mod serve;
mod shell;
mod shown;
mod size;
mod stats;
mod terminal;
mod top;
mod trace;
mod verbs;
mod watch;
mod wire;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use keyway_cache::Owners;
use keyway_server::{KEYWAY_VERSION, PROTOCOL_VERSION};

use exit::Failure;
use items::At;
use serve::Serve;

const EXAMPLES: &str = "\
Examples:
  keyway serve
      serve on 127.0.0.1:11211; the cache survives restarts and kill -9
  keyway serve --listen 0.0.0.0 --memory 4g
      serve on every interface, with 4 GiB
  keyway serve --socket /run/keyway.sock --listen 127.0.0.1:0
      serve a Unix socket only
  keyway serve --http 127.0.0.1:11212
      also metrics for Prometheus, health checks, and a page for people
  keyway serve --config /etc/keyway/keyway.toml
      take the options from a file
  keyway memcached -m 64 -p 11211 -u nobody
      take memcached's own command line
  keyway get greeting
      read the default region, with or without a server
  keyway check /dev/shm/keyway-0-11211
      verify a region
  keyway top
      watch the default region, with or without a server
  keyway doctor
      look for what is wrong with it and the machine, with remedies
  keyway watch mutations --prefix user:
      print each store of a key that begins with user:
  keyway regions
      list the regions of this machine
  keyway ping 127.0.0.1:11211
      ask a running server whether it works
  keyway bench --quick
      measure it, and memcached if that is installed
  keyway copy /dev/shm/keyway-0-11211 /mnt/warm
      copy a region while it is in use
  keyway --server 10.0.0.7
      a shell on a server, with a history and completion of commands

Exit codes:
  0   done
  1   negative result (key absent, region damaged, no answer to a ping, `doctor`
      found something), or the server ended badly
  2   the region cannot be opened
  3   `check` of a region in use: no problem found, but not everything can be
      verified
  64  wrong command line
  67  no such user
  71  the system refused something";

/// A memcached-compatible cache in shared memory. Its items are in a region, a file that survives every process
#[derive(Parser)]
#[command(name = "keyway", version, about, after_help = EXAMPLES, max_term_width = 110, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(flatten)]
    at: At,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Serve memcached clients, in the foreground, until SIGTERM or SIGINT
    Serve(Box<Serve>),
    /// Serve with memcached's own command line (`keyway memcached -h` lists it)
    #[command(disable_help_flag = true)]
    Memcached {
        /// memcached's options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Verify every invariant of a region; if one does not hold, report it and exit with 1. If the region is in use, only its items are
    /// read; exit with 3 if all can be read
    #[command(after_help = "Example: keyway check /dev/shm/keyway-0-11211")]
    Check {
        /// The region's file [default: as --region of `get`]
        path: Option<PathBuf>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        owner: Owner,
    },
    /// Print the value of a key
    #[command(after_help = verbs::GET)]
    Get(WithItems<verbs::Get>),
    /// Store a value
    #[command(after_help = verbs::SET)]
    Set(WithItems<verbs::Set>),
    /// Delete a key
    #[command(after_help = "Example: keyway delete greeting")]
    Delete(WithItems<verbs::Key>),
    /// Let an item live for another time from now on
    #[command(after_help = "Example: keyway touch session:17 30m")]
    Touch(WithItems<verbs::Touch>),
    /// Add to a number, and print it
    #[command(after_help = "Example: keyway incr visits 10 --initial 0")]
    Incr(WithItems<verbs::Count>),
    /// Subtract from a number, not below 0, and print it
    #[command(after_help = "Example: keyway decr stock")]
    Decr(WithItems<verbs::Count>),
    /// Print how many seconds an item still lives; -1: it does not expire
    #[command(after_help = "Example: keyway ttl session:17")]
    Ttl(WithItems<verbs::Key>),
    /// Remove all items, now or later (`flush_all`)
    #[command(after_help = "Example: keyway flush --server 127.0.0.1:11211")]
    Flush(WithItems<verbs::Flush>),
    /// List all keys, one per line
    #[command(after_help = verbs::KEYS)]
    Keys(WithItems<verbs::Keys>),
    /// Print all items as commands, which `keyway load` brings back: for a backup
    #[command(after_help = backup::DUMP)]
    Dump {
        #[command(flatten)]
        at: At,
    },
    /// Store the items that `keyway dump` has printed, and say how many, and which were refused
    #[command(after_help = backup::LOAD)]
    Load(WithItems<backup::Load>),
    /// Print a region's properties and counters: on a terminal in groups, with units, rates and ratios; otherwise a line for each
    #[command(after_help = stats::HELP)]
    Stats(WithRegion<stats::How>),
    /// Show a region in use, live: operations and their latencies by door, hit ratio, memory, evictions, and the processes
    Top(top::Top),
    /// Look at a region and at the machine, and say what is wrong and what to do; if something is, exit with 1
    #[command(after_help = doctor::HELP)]
    Doctor(doctor::Doctor),
    /// Say why a key is not there: never set, deleted, expired, evicted or flushed, or there under another name; and what cannot be known
    #[command(after_help = trace::HELP)]
    Trace(WithRegion<trace::Asked>),
    /// Show the hottest keys: by gets, by sets, and by the bytes that gets give out; in the last seconds, and since the region was made
    #[command(after_help = hot::HELP)]
    Hot(WithRegion<hot::HotKeys>),
    /// Show how many misses there would be with more memory, or less, and what evictions cost
    #[command(after_help = memory::HELP)]
    Memory(WithRegion<memory::HowMuch>),
    /// Print a line for each event in a region: look-ups, stores, deletions, evictions, connections, through every door
    #[command(after_help = watch::HELP)]
    Watch(WithRegion<watch::Events>),
    /// Show the largest items, or what the keys of each prefix take
    #[command(after_help = big::HELP)]
    Big(WithRegion<big::BigKeys>),
    /// List the regions of this machine: place, owner, memory, items, processes, last use and version. With --prune, remove those
    /// that no process has used for long
    #[command(after_help = regions::HELP)]
    Regions(regions::Regions),
    /// Copy a region, which may be in use, to another path, for example to warm another host
    #[command(after_help = "Example: keyway copy /dev/shm/keyway-0-11211 /mnt/warm --force")]
    Copy {
        /// The region's file
        from: PathBuf,
        /// The copy's file; it appears when the copy is complete
        to: PathBuf,
        /// Replace an existing file
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        owner: Owner,
    },
    /// Make a line of an authentication file (--auth-file) with a hash of the password, which is read from the terminal or from standard
    /// input
    #[command(after_help = "Example: keyway password ann --prefix shop: >>/etc/keyway/users")]
    Password {
        /// The user's name
        user: String,
        /// The user may read only
        #[arg(long)]
        read_only: bool,
        /// The user may use only keys that begin with this
        #[arg(long, value_name = "PREFIX")]
        prefix: Option<String>,
    },
    /// Ask a running server whether it works: store, read and delete an item as any client does; if that fails, exit with 1. For health
    /// checks
    #[command(after_help = ping::HELP)]
    Ping {
        /// The server: [tls://]ADDR[:PORT], the path of a Unix socket, or http://ADDR[:PORT] for the HTTP port's /readyz, which needs no
        /// login [default: 127.0.0.1:11211]
        #[arg(value_name = "PLACE")]
        server: Option<String>,
        #[command(flatten)]
        access: wire::Access,
    },
    /// Measure Keyway's doors, and memcached or another server for comparison
    Bench(Box<bench::Bench>),
    /// Attach the kernel door's program to interfaces and pin it, separately from the server
    #[cfg(feature = "kernel")]
    Kernel {
        #[command(subcommand)]
        command: kernel::KernelCommand,
    },
    /// Start a program that can access the region only through the library's calls
    #[command(after_help = exec::HELP)]
    Exec(exec::Exec),
    /// Write manual pages, completions of shells and a commented configuration file, for packages
    #[command(hide = true)]
    Manual {
        /// The folder, made if absent
        folder: PathBuf,
    },
    /// Print the version
    Version,
}

/// A command on items.
#[derive(Args)]
struct WithItems<V: Args> {
    #[command(flatten)]
    verb: V,
    #[command(flatten)]
    at: At,
}

/// A command on a region.
#[derive(Args)]
struct WithRegion<H: Args> {
    #[command(flatten)]
    how: H,
    #[command(flatten)]
    region: Region,
}

#[derive(Args, Clone)]
struct Region {
    /// The region's file, or a server's --region-socket [default: what the environment variable KEYWAY_REGION names, or else
    /// /dev/shm/keyway-UID-11211]
    #[arg(long, value_name = "PATH")]
    region: Option<PathBuf>,
    /// The region of this user's server on this port: /dev/shm/keyway-UID-PORT
    #[arg(long, value_name = "PORT", conflicts_with = "region", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    #[command(flatten)]
    owner: Owner,
}

impl Region {
    fn place(self) -> commands::Which {
        commands::Which {
            path: place::chosen(self.region, self.port),
            owners: self.owner.owners(),
        }
    }

    /// The one that the command line names, or else the one of the server that is asked.
    fn place_of(self, server: Option<&str>, access: &wire::Access) -> Result<commands::Which, Failure> {
        match server {
            Some(server) if !self.is_named() => Ok(commands::Which {
                path: top::server::region_of(server, access)?,
                owners: self.owner.owners(),
            }),
            _ => Ok(self.place()),
        }
    }

    /// Whether the command line says which.
    fn is_named(&self) -> bool {
        self.region.is_some() || self.port.is_some()
    }
}

#[derive(Args, Clone)]
struct Owner {
    /// Use the region even if another user owns its file, or its mode lets every user write to it. Such a user can change items at any time,
    /// and end this process by truncating the file (SIGBUS)
    #[arg(long)]
    any_owner: bool,
}

impl Owner {
    fn owners(&self) -> Owners {
        if self.any_owner { Owners::Any } else { Owners::AsNamed }
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::from(exit::DONE),
        Err(failure) => {
            commands::remark(format_args!("keyway: {}\n", failure.printable()));
            ExitCode::from(failure.code)
        }
    }
}

fn run() -> Result<(), Failure> {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    // Started through a link named memcached, this program takes memcached's options, for users who cannot change the command line.
    if Path::new(&name).file_name().is_some_and(|name| name == "memcached") {
        return memcached_main(arguments);
    }
    let expanded = config::Expanded::new(whole(), std::env::args_os().collect())?;
    let cli = parsed(&expanded)?;
    match cli.command {
        None => shell(cli.at),
        Some(Command::Serve(options)) => serve(*options, &expanded),
        Some(Command::Memcached { arguments }) => memcached_main(arguments),
        Some(command) => {
            logger::start(0, logger::Format::Text);
            execute(command)
        }
    }
}

/// The command line; help is printed at once, and so is what is wrong without a file of options.
fn parsed(expanded: &config::Expanded) -> Result<Cli, Failure> {
    let parsed = whole().try_get_matches_from(&expanded.arguments);
    let error = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => return Ok(cli),
        Err(error) => error,
    };
    if !error.use_stderr() {
        let _ = error.print();
        std::process::exit(exit::DONE.into());
    }
    let whole = explained(&error.to_string());
    let reason = whole.trim_start_matches("error: ");
    let brief = reason.split("\n\nUsage: ").next().unwrap_or_default().trim_end();
    // What an option lacks is said without the option, which only the usage names; otherwise that may name every option.
    let names = match error.kind() {
        clap::error::ErrorKind::MissingRequiredArgument => reason,
        _ => brief,
    };
    if let Some(place) = expanded.place_of(names) {
        return Err(Failure::usage(format_args!("{place}: {brief}")));
    }
    commands::remark(whole);
    std::process::exit(exit::USAGE.into());
}

fn serve(options: serve::Serve, expanded: &config::Expanded) -> Result<(), Failure> {
    logger::start(options.verbose, options.log_format);
    let is_check = options.check;
    let inherited = inherited::take()?;
    let plan = options
        .plan(&inherited.sockets)
        .map_err(|failure| match expanded.place_of(&failure.reason) {
            Some(place) => Failure::new(failure.code, format_args!("{place}: {}", failure.reason)),
            None => failure,
        })?;
    if is_check {
        plan.check_here()?;
        return commands::say("every option is right");
    }
    plan.run(inherited)
}

/// Every command but the servers.
fn execute(command: Command) -> Result<(), Failure> {
    match command {
        Command::Check { path, json, owner } => {
            let which = commands::Which {
                path: place::chosen(path, None),
                owners: owner.owners(),
            };
            commands::check(which, json)
        }
        Command::Exec(exec) => Err(exec.run()),
        Command::Copy { from, to, force, owner } => {
            let from = commands::Which {
                path: from,
                owners: owner.owners(),
            };
            commands::copy(from, &to, force)
        }
        Command::Get(of) => of.verb.run(&mut *of.at.open()?),
        Command::Set(of) => of.verb.run(&mut *of.at.open()?),
        Command::Delete(of) => of.verb.delete(&mut *of.at.open()?),
        Command::Touch(of) => of.verb.run(&mut *of.at.open()?),
        Command::Incr(of) => of.verb.run(&mut *of.at.open()?, false),
        Command::Decr(of) => of.verb.run(&mut *of.at.open()?, true),
        Command::Ttl(of) => of.verb.ttl(&mut *of.at.open()?),
        Command::Flush(of) => of.verb.run(&mut *of.at.open()?),
        Command::Keys(of) => of.verb.run(&mut *of.at.open()?),
        Command::Dump { at } => backup::dump(&mut *at.open()?),
        Command::Load(of) => of.verb.run(&mut *of.at.open()?),
        Command::Stats(of) => stats::run(of.region, &of.how),
        Command::Top(top) => top.run(),
        Command::Trace(of) => trace::run(of.region.place(), &of.how),
        Command::Doctor(doctor) => doctor.run(),
        Command::Hot(of) => hot::run(of.region.place(), &of.how),
        Command::Memory(of) => memory::run(of.region.place(), &of.how),
        Command::Watch(of) => watch::run(of.region.place(), &of.how),
        Command::Big(of) => big::run(of.region.place(), &of.how),
        Command::Regions(how) => regions::run(&how),
        Command::Ping { server, access } => ping::run(server.as_deref(), &access),
        Command::Password { user, read_only, prefix } => password::run(&user, read_only, prefix.as_deref()),
        Command::Bench(bench) => bench.run(),
        Command::Manual { folder } => manual::write(whole(), &folder),
        #[cfg(feature = "kernel")]
        Command::Kernel { command } => kernel::run(command),
        _ => commands::say(format_args!(
            "keyway {KEYWAY_VERSION} (speaks the protocol of memcached {PROTOCOL_VERSION})"
        )),
    }
}

/// The command line.
fn whole() -> clap::Command {
    shown::grouped(Cli::command())
}

/// clap's message, with words for people where it has those of the standard library.
fn explained(message: &str) -> String {
    // Words that other programs have for what this one can.
    const OTHERS: [(&str, &str); 6] = [
        (
            "argument '--port'",
            "an address with its port: --listen ADDR:PORT; memcached's own options: `keyway memcached -p PORT`",
        ),
        (
            "argument '-p'",
            "an address with its port: --listen ADDR:PORT; memcached's own options: `keyway memcached -p PORT`",
        ),
        ("subcommand 'start'", "`keyway serve` starts a server"),
        (
            "subcommand 'run'",
            "`keyway serve` starts a server, and `keyway exec` a program",
        ),
        (
            "subcommand 'monitor'",
            "`keyway top` shows a region live, and `keyway watch` each event",
        ),
        (
            "subcommand 'backup'",
            "`keyway dump` writes all items, and `keyway load` restores them",
        ),
    ];
    let mut text = message.to_owned();
    if let Some((_, tip)) = OTHERS.iter().find(|(word, _)| text.contains(word)) {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("tip: "));
        let kept: Vec<&str> = lines.collect();
        text = kept.join("\n").replacen("\n", &format!("\n\n  tip: {tip}\n"), 1) + "\n";
    }
    for (words, meant) in [
        ("invalid digit found in string", "it is a whole number"),
        ("cannot parse integer from empty string", "it is a whole number"),
        (
            "number too large to fit in target type",
            "it is too large: it does not fit in 64 bits",
        ),
        (
            "number too small to fit in target type",
            "it is too small: it does not fit in 64 bits",
        ),
    ] {
        text = text.replace(words, meant);
    }
    // The largest numbers of the types are no limits that a user could want to know.
    for most in [u32::MAX.into(), i64::MAX.unsigned_abs(), u64::MAX] {
        for range in ["..", "..="] {
            text = text.replace(&format!(" is not in 1{range}{most}"), ": it is at least 1");
        }
    }
    text
}

/// Without a command: a shell on what the command line names, or on a terminal on the default server or region. If there is none, the help.
fn shell(at: At) -> Result<(), Failure> {
    logger::start(0, logger::Format::Text);
    if at.is_named() {
        return shell::run(&at);
    }
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if is_terminal && let Some(at) = at.default() {
        return shell::run(&at);
    }
    let _ = whole().print_help();
    std::process::exit(exit::USAGE.into())
}

fn memcached_main(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    match memcached::parse(arguments)? {
        memcached::CommandLine::Print(text) => commands::say(text.trim_end()),
        memcached::CommandLine::Serve(plan) => {
            logger::start(plan.config.verbosity, plan.log_format);
            if inherited::is_any() {
                return Err(Failure::usage(
                    "memcached's command line takes no sockets from a service manager (LISTEN_FDS): use keyway serve, which does",
                ));
            }
            plan.run(inherited::Inherited::default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    /// Wider lines are broken in the middle, by clap on a terminal of 80 columns and by man(1).
    #[test]
    fn help_fits_a_terminal() {
        let all = whole();
        for command in std::iter::once(&all).chain(all.get_subcommands()) {
            let texts = [command.get_after_help(), command.get_after_long_help()];
            let after: Vec<String> = texts.iter().flatten().map(ToString::to_string).collect();
            for line in after.iter().flat_map(|text| text.lines()) {
                assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
            }
        }
    }
}
