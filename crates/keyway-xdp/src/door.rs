//! Loading the program, and attaching it to interfaces.
//!
//! Loading needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, or root. What is attached goes when its [`Attached`] is dropped; a
//! process that dies leaves the TC stage behind, silent as soon as its lease has run out, and the next [`Door::attach`] on the
//! interface replaces it.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::{
    ErrorKind, MapCore, Object, ObjectBuilder, PrintLevel, ProgramInput, TC_INGRESS, TcHook, TcHookBuilder, Xdp, XdpFlags,
    set_print,
};

use libbpf_rs::query::{ProgInfoIter, ProgramInfo};

use crate::config::{Config, Settings, TooManyNetworks, Verdict};
use crate::hot::{CONTROL_WORDS, HotSet, STRIPES};
use crate::memory::Mapping;

/// The compiled program. Aligned, because it is an ELF file that libbpf reads in place.
static PROGRAM: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/door.bpf.o")));

#[repr(align(8))]
struct Aligned<T: ?Sized>(T);

/// Name and handle of the filter, so that a successor finds it.
const TC_HANDLE: u32 = 0x4B57;
const TC_PRIORITY: u32 = 1;

/// A loaded program and its hot set.
pub struct Door {
    object: Object,
    index: Mapping,
    pages: Mapping,
    stripes: Mapping,
    control: Mapping,
}

/// The program on an interface, until this is dropped.
#[derive(Debug)]
pub enum Attached {
    /// at TC ingress
    Tc(TcHook),
    /// as XDP, before TC
    Xdp {
        /// the program
        program: OwnedFd,
        /// the interface's number
        interface: i32,
        /// how it was attached
        mode: XdpMode,
    },
}

/// Where XDP runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// in the driver, before the kernel has made a packet of it
    Driver,
    /// in the kernel's generic code, on any interface
    Generic,
}

/// Why the program is not there.
#[derive(Debug)]
pub enum DoorError {
    /// the settings cannot be
    Settings(TooManyNetworks),
    /// this process may not load programs
    NotPermitted,
    /// the kernel refused, with what it said
    Kernel(&'static str, String),
}

impl Door {
    /// Loads the program. Nothing is attached, and the program is silent until its lease is renewed.
    pub fn load(settings: &Settings) -> Result<Self, DoorError> {
        let config = Config::new(settings).map_err(DoorError::Settings)?;
        // libbpf writes to standard error otherwise.
        set_print(Some((PrintLevel::Warn, |_, text| log::debug!("libbpf: {}", text.trim_end()))));
        let refused = |what| move |error: libbpf_rs::Error| DoorError::Kernel(what, format!("{error:#}"));
        let mut open = ObjectBuilder::default()
            .open_memory(&PROGRAM.0)
            .map_err(refused("opening the program"))?;
        let buckets = config.bucket_mask + 1;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            match name.as_str() {
                "kw_index" => map.set_max_entries(buckets).map_err(refused("sizing the index"))?,
                "kw_pages" => map.set_max_entries(config.pages).map_err(refused("sizing the pages"))?,
                ".rodata.config" => {
                    let section = map.initial_value_mut().unwrap_or_default();
                    let bytes = config.bytes();
                    if section.len() != bytes.len() {
                        let lens = format!("{} bytes there, {} here", section.len(), bytes.len());
                        return Err(DoorError::Kernel("configuring the program", lens));
                    }
                    section.copy_from_slice(&bytes);
                }
                _ => {}
            }
        }
        let object = open.load().map_err(|error| match error.kind() {
            // Two codes are this kind: EPERM (1) is the capabilities', EACCES (13) the verifier's. Only the text tells which.
            ErrorKind::PermissionDenied if format!("{error:#}").contains("(os error 1)") => DoorError::NotPermitted,
            ErrorKind::PermissionDenied => refused(
                "the kernel's verifier refuses the program, as it does without CAP_PERFMON (libbpf's words are logged)",
            )(error),
            _ => refused("loading the program")(error),
        })?;
        let (index, pages) = config.words();
        let map = |name: &'static str, words| mapping(&object, name, words);
        Ok(Self {
            index: map("kw_index", index)?,
            pages: map("kw_pages", pages)?,
            stripes: map("kw_stripes", STRIPES)?,
            control: map("kw_controls", CONTROL_WORDS)?,
            object,
        })
    }

    /// The hot set that the program reads.
    pub fn hot(&self) -> HotSet<'_> {
        HotSet {
            index: self.index.words(),
            pages: self.pages.words(),
            stripes: self.stripes.words(),
            control: self.control.words(),
        }
    }

    /// Puts the program at the TC ingress of the interface with this number, in place of one that an earlier process left.
    pub fn attach(&self, interface: i32) -> Result<Attached, DoorError> {
        let refused = |error: libbpf_rs::Error| DoorError::Kernel("attaching to TC ingress", format!("{error:#}"));
        let program = self.program("kw_tc")?;
        let mut hook = TcHookBuilder::new(program.as_fd())
            .ifindex(interface)
            .replace(true)
            .handle(TC_HANDLE)
            .priority(TC_PRIORITY)
            .hook(TC_INGRESS);
        // The qdisc that filters hang on; one that is there already serves.
        hook.create().map_err(refused)?;
        hook.attach().map(Attached::Tc).map_err(refused)
    }

    /// Puts the program in front of the TC stage as XDP, on an interface that has no XDP program. What finds no room behind its
    /// packet there is left to TC.
    pub fn attach_xdp(&self, interface: i32, mode: XdpMode) -> Result<Attached, DoorError> {
        let refused = |error: String| DoorError::Kernel("attaching as XDP", error);
        let program = self.program("kw_xdp")?;
        let program = program
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| refused(error.to_string()))?;
        let flags = mode.flags() | XdpFlags::UPDATE_IF_NOEXIST;
        Xdp::new(program.as_fd())
            .attach(interface, flags)
            .map_err(|error| refused(format!("{error:#}")))?;
        Ok(Attached::Xdp {
            program,
            interface,
            mode,
        })
    }

    /// How many packets met each fate since the program was loaded, summed over all CPUs.
    pub fn counts(&self) -> Result<Vec<(Verdict, u64)>, DoorError> {
        let refused = |error: libbpf_rs::Error| DoorError::Kernel("reading the counters", format!("{error:#}"));
        let map = self.map("kw_counts")?;
        Verdict::ALL
            .iter()
            .zip(0_u32..)
            .map(|(verdict, key)| {
                let values = map
                    .lookup_percpu(&key.to_ne_bytes(), libbpf_rs::MapFlags::ANY)
                    .map_err(refused)?
                    .unwrap_or_default();
                let count = |value: Vec<u8>| value.try_into().map_or(0, u64::from_ne_bytes);
                Ok((*verdict, values.into_iter().map(count).sum()))
            })
            .collect()
    }

    /// Runs the TC program once on a frame, as if it had come in on `lo` (`BPF_PROG_TEST_RUN`): its action, the frame after it,
    /// and how long a run took on the average of `repeat` runs, ns. Above 1, runs see the frame as the one before left it.
    pub fn try_frame(&self, frame: &[u8], repeat: u32) -> Result<(i32, Vec<u8>, u32), DoorError> {
        let program = self.program("kw_tc")?;
        let mut after = vec![0; 4096];
        let input = ProgramInput {
            data_in: Some(frame),
            data_out: Some(&mut after),
            repeat,
            ..ProgramInput::default()
        };
        let output = program
            .test_run(input)
            .map_err(|error| DoorError::Kernel("running the program on a frame", format!("{error:#}")))?;
        let len = output.data.map_or(0, |data| data.len());
        let (action, took_ns) = (output.return_value.cast_signed(), output.duration.as_nanos());
        after.truncate(len);
        Ok((action, after, u32::try_from(took_ns).unwrap_or(u32::MAX)))
    }

    /// Instructions that the verifier walked through for the program that has most of them. The kernel's limit is a million.
    pub fn instructions_verified(&self) -> Option<u32> {
        let ours = |info: &ProgramInfo| info.name.as_encoded_bytes().starts_with(b"kw_");
        ProgInfoIter::default().filter(ours).map(|info| info.verified_insns).max()
    }

    fn program(&self, name: &'static str) -> Result<libbpf_rs::ProgramMut<'_>, DoorError> {
        self.object
            .progs_mut()
            .find(|program| program.name() == name)
            .ok_or_else(|| DoorError::Kernel("finding a program", name.to_owned()))
    }

    fn map(&self, name: &'static str) -> Result<libbpf_rs::Map<'_>, DoorError> {
        find_map(&self.object, name)
    }
}

fn find_map<'o>(object: &'o Object, name: &'static str) -> Result<libbpf_rs::Map<'o>, DoorError> {
    object
        .maps()
        .find(|map| map.name() == name)
        .ok_or_else(|| DoorError::Kernel("finding a map", name.to_owned()))
}

fn mapping(object: &Object, name: &'static str, words: usize) -> Result<Mapping, DoorError> {
    let map = find_map(object, name)?;
    Mapping::new(map.as_fd(), words).map_err(|error: io::Error| DoorError::Kernel("mapping the hot set", error.to_string()))
}

impl Drop for Attached {
    fn drop(&mut self) {
        // Nothing is to be done about an interface that has gone before. Of the hook, only our filter is taken: others may hang
        // on the same qdisc.
        match self {
            Self::Tc(hook) => drop(hook.detach()),
            Self::Xdp {
                program,
                interface,
                mode,
            } => drop(Xdp::new(program.as_fd()).detach(*interface, mode.flags())),
        }
    }
}

impl XdpMode {
    fn flags(self) -> XdpFlags {
        match self {
            Self::Driver => XdpFlags::DRV_MODE,
            Self::Generic => XdpFlags::SKB_MODE,
        }
    }
}

impl fmt::Display for DoorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settings(error) => error.fmt(f),
            Self::NotPermitted => {
                f.write_str("the kernel door: loading a program needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON")
            }
            Self::Kernel(what, error) => write!(f, "the kernel door: {what}: {error}"),
        }
    }
}

impl std::error::Error for DoorError {}
