//! `keyway`: runs a Keyway cache, and inspects one. It only connects the other crates: every rule is the server's or the library's.
//!
//! This is the only crate that prints, by [`commands::say`], [`commands::written`] and [`commands::remark`]; exit codes are in [`exit`].

mod allowed;
mod background;
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
#[cfg(feature = "kernel")]
mod kernel;
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
mod size;
mod stats;
mod top;
mod trace;
mod watch;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use keyway_cache::Owners;
use keyway_server::{KEYWAY_VERSION, PROTOCOL_VERSION};

use exit::Failure;
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
#[command(name = "keyway", version, about, after_help = EXAMPLES, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
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
    Check {
        /// The region's file
        path: PathBuf,
        #[command(flatten)]
        owner: Owner,
    },
    /// Print the value of a key
    Get {
        /// The key
        key: String,
        #[command(flatten)]
        region: Region,
    },
    /// Store a value
    Set {
        /// The key
        key: String,
        /// The value [default: standard input]
        value: Option<String>,
        /// Seconds until it expires; above 30 days a Unix time; 0 never
        #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
        ttl: i64,
        /// Client flags
        #[arg(long, default_value_t = 0)]
        flags: u32,
        #[command(flatten)]
        region: Region,
    },
    /// Delete a key
    Delete {
        /// The key
        key: String,
        #[command(flatten)]
        region: Region,
    },
    /// List all keys, one per line
    Keys {
        #[command(flatten)]
        region: Region,
    },
    /// Print all items as `set` commands, which `nc` can send to a server. Left out are stale items, and those whose keys a command cannot name
    Dump {
        #[command(flatten)]
        region: Region,
    },
    /// Print a region's properties and counters: on a terminal in groups, with units, rates and ratios; otherwise a line for each
    #[command(after_help = stats::HELP)]
    Stats {
        #[command(flatten)]
        how: stats::How,
        #[command(flatten)]
        region: Region,
    },
    /// Show a region in use, live: operations and their latencies by door, hit ratio, memory, evictions, and the processes
    Top(top::Top),
    /// Look at a region and at the machine, and say what is wrong and what to do; if something is, exit with 1
    #[command(after_help = doctor::HELP)]
    Doctor(doctor::Doctor),
    /// Say why a key is not there: never set, deleted, expired, evicted or flushed, or there under another name; and what cannot be known
    #[command(after_help = trace::HELP)]
    Trace {
        #[command(flatten)]
        asked: trace::Asked,
        #[command(flatten)]
        region: Region,
    },
    /// Show the hottest keys: by gets, by sets, and by the bytes that gets give out; in the last seconds, and since the region was made
    #[command(after_help = hot::HELP)]
    Hot {
        #[command(flatten)]
        how: hot::HotKeys,
        #[command(flatten)]
        region: Region,
    },
    /// Show how many misses there would be with more memory, or less, and what evictions cost
    #[command(after_help = memory::HELP)]
    Memory {
        #[command(flatten)]
        how: memory::HowMuch,
        #[command(flatten)]
        region: Region,
    },
    /// Print a line for each event in a region: look-ups, stores, deletions, evictions, connections, through every door
    #[command(after_help = watch::HELP)]
    Watch {
        #[command(flatten)]
        how: watch::Events,
        #[command(flatten)]
        region: Region,
    },
    /// Show the largest items, or what the keys of each prefix take
    #[command(after_help = big::HELP)]
    Big {
        #[command(flatten)]
        how: big::BigKeys,
        #[command(flatten)]
        region: Region,
    },
    /// List the regions of this machine: place, owner, memory, items, processes, last use and version. With --prune, remove those
    /// that no process has used for long
    Regions(regions::Regions),
    /// Copy a region, which may be in use, to another path, for example to warm another host
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
    Ping {
        /// The server: ADDR[:PORT], the path of a Unix socket, or http://ADDR[:PORT] for the HTTP port's /readyz, which also knows a server
        /// with logins or TLS [default: 127.0.0.1:11211]
        place: Option<String>,
    },
    /// Measure Keyway's doors, and memcached or another server for comparison
    Bench(Box<bench::Bench>),
    /// Attach the kernel door's program to interfaces and pin it, separately from the server
    #[cfg(feature = "kernel")]
    Kernel {
        #[command(subcommand)]
        command: kernel::Command,
    },
    /// Start a program that can access the region only through the library's calls
    #[command(after_help = exec::HELP)]
    Exec {
        /// The region's file, made if absent [default: /dev/shm/keyway-UID-11211]
        #[arg(long, value_name = "PATH", conflicts_with = "region_socket")]
        region: Option<PathBuf>,
        /// The server's Unix socket that hands out its region
        #[arg(long, value_name = "PATH")]
        region_socket: Option<PathBuf>,
        #[command(flatten)]
        owner: Owner,
        /// Refuse to start if code that could open the gate is mapped (except the C library's own), and forbid mapping code later (dlopen)
        #[arg(long)]
        strict_scan: bool,
        /// Allow memory to be written and then executed, for programs with a just-in-time compiler
        #[arg(long)]
        allow_jit: bool,
        /// Allow changes of modes, owners and extended attributes of files (chmod, chown, setxattr). This includes the region's file, so other
        /// users could get access to it
        #[arg(long)]
        allow_chmod: bool,
        /// The library that contains the program's cache [default: the libkeyway beside this program]
        #[arg(long, value_name = "PATH")]
        library: Option<PathBuf>,
        /// Print more
        #[arg(long, short = 'v')]
        verbose: bool,
        /// The program and its arguments
        #[arg(
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "PROGRAM"
        )]
        program: Vec<OsString>,
    },
    /// Write manual pages, completions of shells and a commented configuration file, for packages
    #[command(hide = true)]
    Manual {
        /// The folder, made if absent
        folder: PathBuf,
    },
    /// Print the version
    Version,
}

#[derive(Args)]
struct Region {
    /// The region's file [default: /dev/shm/keyway-UID-11211]
    #[arg(long, value_name = "PATH")]
    region: Option<PathBuf>,
    #[command(flatten)]
    owner: Owner,
}

impl Region {
    fn place(self) -> commands::Which {
        commands::Which {
            path: self.region,
            owners: self.owner.owners(),
        }
    }
}

#[derive(Args)]
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
        Err(Failure { code, reason }) => {
            commands::remark(format_args!("keyway: {reason}\n"));
            ExitCode::from(code)
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
    let expanded = config::Expanded::new(Cli::command(), std::env::args_os().collect())?;
    let cli = match Cli::try_parse_from(&expanded.arguments) {
        Ok(cli) => cli,
        Err(error) => {
            if let Some(reason) = expanded.explain(error.to_string().trim_start_matches("error: ")) {
                return Err(Failure::usage(reason.trim_end()));
            }
            let code = if error.use_stderr() { exit::USAGE } else { exit::DONE };
            let _ = error.print();
            std::process::exit(code.into());
        }
    };
    match cli.command {
        Command::Serve(serve) => {
            logger::start(serve.verbose, serve.log_format);
            let is_check = serve.check;
            let inherited = inherited::take()?;
            let plan = serve
                .plan(&inherited.sockets)
                .map_err(|failure| match expanded.explain(&failure.reason) {
                    Some(reason) => Failure::new(failure.code, reason),
                    None => failure,
                })?;
            if is_check {
                return commands::say("every option is right");
            }
            plan.run(inherited)
        }
        Command::Memcached { arguments } => memcached_main(arguments),
        other => {
            logger::start(0, logger::Format::Text);
            match other {
                Command::Check { path, owner } => commands::check(commands::Which {
                    path: Some(path),
                    owners: owner.owners(),
                }),
                Command::Exec {
                    region,
                    region_socket,
                    owner,
                    strict_scan,
                    allow_jit,
                    allow_chmod,
                    library,
                    verbose,
                    program,
                } => {
                    let place = region.or(region_socket);
                    let spec = keyway_harden::spec::Spec {
                        place: place.unwrap_or_else(|| place::default_path(place::DEFAULT_PORT)),
                        library: PathBuf::new(),
                        any_owner: owner.any_owner,
                        strict_scan,
                        allow_jit,
                        allow_chmod,
                        verbose,
                    };
                    Err(exec::run(&spec, library, &program))
                }
                Command::Copy { from, to, force, owner } => {
                    let from = commands::Which {
                        path: Some(from),
                        owners: owner.owners(),
                    };
                    commands::copy(from, &to, force)
                }
                Command::Get { key, region } => commands::get(region.place(), &key),
                Command::Set {
                    key,
                    value,
                    ttl,
                    flags,
                    region,
                } => commands::set(region.place(), &key, value, ttl, flags),
                Command::Delete { key, region } => commands::delete(region.place(), &key),
                Command::Keys { region } => commands::keys(region.place()),
                Command::Dump { region } => commands::dump(region.place()),
                Command::Stats { how, region } => stats::run(region.place(), &how),
                Command::Top(top) => top.run(),
                Command::Trace { asked, region } => trace::run(region.place(), &asked),
                Command::Doctor(doctor) => doctor.run(),
                Command::Hot { how, region } => hot::run(region.place(), &how),
                Command::Memory { how, region } => memory::run(region.place(), &how),
                Command::Watch { how, region } => watch::run(region.place(), &how),
                Command::Big { how, region } => big::run(region.place(), &how),
                Command::Regions(how) => regions::run(&how),
                Command::Ping { place } => ping::run(place.as_deref()),
                Command::Password { user, read_only, prefix } => password::run(&user, read_only, prefix.as_deref()),
                Command::Bench(bench) => bench.run(),
                Command::Manual { folder } => manual::write(Cli::command(), &folder),
                #[cfg(feature = "kernel")]
                Command::Kernel { command } => kernel::run(command),
                _ => commands::say(format_args!(
                    "keyway {KEYWAY_VERSION} (speaks the protocol of memcached {PROTOCOL_VERSION})"
                )),
            }
        }
    }
}

fn memcached_main(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    match memcached::parse(arguments)? {
        memcached::Asked::Print(text) => commands::say(text.trim_end()),
        memcached::Asked::Serve(plan) => {
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
        let all = Cli::command();
        for command in std::iter::once(&all).chain(all.get_subcommands()) {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in after.lines() {
                assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
            }
        }
    }
}
