//! `keyway kernel`: attaches the kernel door's program to interfaces and pins it, as a separate step for a privileged user; the server
//! then needs no capability.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use keyway_cache::Door as Measured;
use keyway_server::kernel::{interface, kernel_settings};
use keyway_server::{Kernel, LOOPBACK, Network};
use keyway_xdp::door::{Door, DoorError, PinnedFilters, reset_left_behind, unpin};
use keyway_xdp::{Counts, PIN_FOLDER, Times};
use nix::net::if_::if_indextoname;
use nix::unistd::User;
use serde_json::json;

use crate::exit::{self, Failure};
use crate::serve::parse_rate;
use crate::{commands, listen, place, size};

#[derive(Subcommand)]
pub(crate) enum KernelCommand {
    /// Load the program, put it on interfaces, and pin it. It is silent until `keyway serve --kernel-pinned` feeds it
    Attach(Attach),
    /// Take the pinned program off its interfaces and remove it. While TCP connections that it has answered for are open, it stays, because it
    /// has to translate their sequence numbers; it answers no request then
    Detach {
        #[command(flatten)]
        pin: Pin,
        /// End these connections; and those that servers which have ended left, with the programs that they left for them
        #[arg(long)]
        reset: bool,
    },
    /// Print where the pinned program is, what became of the packets that it saw, and the CPU time that it took from other programs
    /// that use the interfaces
    Status {
        #[command(flatten)]
        pin: Pin,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub(crate) struct Pin {
    /// Folder in a BPF file system in which the program is pinned
    #[arg(long, value_name = "FOLDER", default_value = PIN_FOLDER)]
    pin: PathBuf,
}

#[derive(Args)]
pub(crate) struct Attach {
    /// Interfaces, such as eth0,lo
    #[arg(value_name = "IFACE", required = true, value_delimiter = ',')]
    interfaces: Vec<String>,
    #[command(flatten)]
    pin: Pin,
    /// The server's --udp
    #[arg(long, value_name = "ADDR[:PORT]", required_unless_present = "tcp")]
    udp: Option<String>,
    /// Experimental: the server's --listen, for TCP connections; the same address as --udp. The server needs --kernel-tcp
    #[arg(long, value_name = "ADDR[:PORT]")]
    tcp: Option<String>,
    /// The server's --udp-allow [default: loopback]
    #[arg(long, value_name = "CIDR", requires = "udp", value_delimiter = ',')]
    udp_allow: Vec<Network>,
    /// The server's --kernel-memory
    #[arg(long, value_name = "SIZE", default_value = "64m", value_parser = size::parse_mebibytes)]
    kernel_memory: u64,
    /// The server's --kernel-rate
    #[arg(long, value_name = "N[:BURST]", value_parser = parse_rate)]
    kernel_rate: Option<(u32, u32)>,
    /// Who may use the pinned program: the user that the server runs as
    #[arg(long, value_name = "USER")]
    user: Option<String>,
}

pub(crate) fn run(command: KernelCommand) -> Result<(), Failure> {
    match command {
        KernelCommand::Attach(attach) => attach.run(),
        KernelCommand::Detach { pin, reset } => detach(&pin.pin, reset),
        KernelCommand::Status { pin, json } => status(&pin.pin, json),
    }
}

impl Attach {
    fn run(self) -> Result<(), Failure> {
        let refused = |why: String| Failure::new(exit::SYSTEM, why);
        let udp = self.udp.as_deref().map(|text| address("--udp", text)).transpose()?;
        let tcp = self.tcp.as_deref().map(|text| address("--tcp", text)).transpose()?;
        let user = match &self.user {
            None => None,
            Some(name) => {
                let found = User::from_name(name).ok().flatten();
                let unknown = || Failure::new(exit::NO_USER, format_args!("--user {name}: no such user"));
                Some(found.ok_or_else(unknown)?.uid.as_raw())
            }
        };
        let allow = if self.udp_allow.is_empty() {
            LOOPBACK.to_vec()
        } else {
            self.udp_allow
        };
        let kernel = Kernel {
            memory: usize::try_from(self.kernel_memory).unwrap_or(usize::MAX),
            rate: self.kernel_rate,
            ..Kernel::default()
        };
        let allow = allow
            .iter()
            .map(|network| (network.address(), network.prefix_len()))
            .collect();
        let settings = kernel_settings(udp, tcp, allow, &kernel).map_err(refused)?;
        let numbers: Vec<i32> = self
            .interfaces
            .iter()
            .map(|name| interface(name))
            .collect::<Result<_, _>>()
            .map_err(refused)?;
        let folder = &self.pin.pin;
        let door = Door::load(&settings).map_err(|error| refused(error.to_string()))?;
        door.pin(folder, user).map_err(|error| refused(error.to_string()))?;
        for (name, number) in self.interfaces.iter().zip(numbers) {
            if let Err(error) = door.attach_for_good(folder, number) {
                // Either all interfaces or none.
                let _ = unpin(folder, false);
                return Err(refused(format!("{name}: {error}")));
            }
        }
        let served: Vec<String> = [("udp", udp), ("tcp", tcp)]
            .into_iter()
            .filter_map(|(name, address)| Some(format!("{name} {}", address?)))
            .collect();
        commands::say(format_args!(
            "attached to {} for {}, pinned at {}",
            self.interfaces.join(","),
            served.join(" and "),
            folder.display()
        ))
    }
}

fn detach(folder: &std::path::Path, reset: bool) -> Result<(), Failure> {
    let mut ended = 0;
    if reset {
        ended = reset_left_behind().map_err(refused)?;
    }
    match unpin(folder, reset) {
        Ok(count) => {
            ended += count;
            commands::say("detached")?;
        }
        // What other servers left was to be removed, too.
        Err(DoorError::NothingPinned(_)) if reset => {}
        Err(error) => return Err(refused(error)),
    }
    match reset {
        true => commands::say(format_args!("{ended} TCP connections were ended")),
        false => Ok(()),
    }
}

/// What is not there is a negative result.
fn refused(error: DoorError) -> Failure {
    let code = match error {
        DoorError::NothingPinned(_) => exit::NO,
        _ => exit::SYSTEM,
    };
    Failure::new(code, error)
}

/// The only address that an option names.
fn address(option: &str, text: &str) -> Result<SocketAddr, Failure> {
    let addresses = listen::parse(text, place::DEFAULT_PORT).map_err(|why| Failure::usage(format_args!("{option}: {why}")))?;
    match addresses.as_slice() {
        [address] => Ok(*address),
        _ => Err(Failure::usage(format_args!(
            "{option} names no address, or more than one: the program answers for one"
        ))),
    }
}

fn status(folder: &std::path::Path, is_json: bool) -> Result<(), Failure> {
    let counted = Counts::pinned(folder).map_err(refused)?;
    let (counts, cpu_time) = (counted.per_cpu().map_err(refused)?, counted.cpu_time().map_err(refused)?);
    let times = Times::pinned(folder).map_err(refused)?;
    let interfaces = PinnedFilters::of(folder)
        .interfaces()
        .map_err(|error| Failure::new(exit::SYSTEM, format_args!("listing the filters of interfaces: {error}")))?;
    let named = |number: i32| {
        let name = u32::try_from(number).ok().and_then(|number| if_indextoname(number).ok());
        name.map_or_else(|| number.to_string(), |name| name.to_string_lossy().into_owned())
    };
    let interfaces: Vec<(String, bool)> = interfaces
        .into_iter()
        .map(|(number, is_there)| (named(number), is_there))
        .collect();
    let mut numbers: Vec<(String, u64)> = Vec::new();
    for (verdict, counts) in counts {
        numbers.push((verdict.word().to_owned(), counts.iter().sum()));
    }
    for (protocol, time) in ["udp", "tcp"].into_iter().zip(cpu_time) {
        numbers.push((
            format!("{protocol}_cpu_us"),
            u64::try_from(time.as_micros()).unwrap_or(u64::MAX),
        ));
    }
    for (door, times) in [Measured::KernelUdp, Measured::KernelTcp].into_iter().zip(times) {
        numbers.push((format!("{}:get:measured", door.name()), times.count()));
    }
    if is_json {
        let interfaces: Vec<_> = interfaces
            .iter()
            .map(|(name, is_there)| json!({ "name": name, "is_there": is_there }))
            .collect();
        let numbers: serde_json::Map<_, _> = numbers.into_iter().map(|(name, number)| (name, number.into())).collect();
        return commands::say(json!({ "pinned_at": folder.to_string_lossy(), "interfaces": interfaces, "counts": numbers }));
    }
    let names: Vec<String> = interfaces
        .into_iter()
        .map(|(name, is_there)| if is_there { name } else { format!("{name} (gone)") })
        .collect();
    let mut lines = vec![
        format!("pinned at {}", folder.display()),
        format!("interfaces {}", names.join(",")),
    ];
    lines.extend(numbers.iter().map(|(name, number)| format!("{name} {number}")));
    commands::tell(lines.join("\n"))
}
