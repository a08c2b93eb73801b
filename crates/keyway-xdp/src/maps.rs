//! The program's maps in this process: those of a program that was loaded here, or of a pinned one.
//!
//! A pinned program has a folder in a BPF file system (bpf(2), "BPF_OBJ_PIN"): a file for each map and for each program, with its name, and
//! a folder for each interface that it is attached to. A process that may open the files may use the maps, without any capability.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::config::{Config, Settings, Verdict};
use crate::door::DoorError;
use crate::hot::{CONTROL_WORDS, HotSet, STRIPES};
use crate::memory::Mapping;
use crate::tcp::Connections;

/// The default folder for a pinned program.
pub const PIN_FOLDER: &str = "/sys/fs/bpf/keyway";
/// The map with the program's configuration; it cannot be changed once the program is loaded.
pub(crate) const CONFIG: &str = ".rodata.config";
/// The name under which it is pinned: names in a BPF file system have no dots.
const CONFIG_PIN: &str = "kw_config";
/// The maps that a server needs.
pub(crate) const SHARED: [&str; 7] = [
    "kw_index",
    "kw_pages",
    "kw_stripes",
    "kw_controls",
    "kw_counts",
    "kw_times",
    CONFIG,
];
/// Those that it needs for TCP, and the iterator that lists the connections whose numbers are translated.
pub(crate) const FOR_TCP: [&str; 3] = ["kw_rests", "kw_connections", CLOSING];
pub(crate) const CLOSING: &str = "kw_closing";
pub(crate) const TRANSLATED: &str = "kw_translated";

/// The hot set of a program, and its counters.
pub struct Maps {
    index: Mapping,
    pages: Mapping,
    stripes: Mapping,
    control: Mapping,
    stripes_map: MapHandle,
    counts: MapHandle,
    times: MapHandle,
    pages_count: usize,
    connections: Option<Arc<Connections>>,
    /// held while this process uses the pinned program
    lock: Option<File>,
}

/// What the program has counted, for a process that only reads it: packets by verdict, and the CPU time that it took.
pub struct Counts {
    packets: MapHandle,
    times: MapHandle,
}

/// How long answers took; none of it ever falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// answers, by bucket
    pub counts: [u64; Times::BUCKETS],
    /// the sum of their times, nanoseconds
    pub sum_ns: u64,
}

impl Maps {
    /// `translated` makes the iterator, for a program that serves TCP.
    pub(crate) fn new(
        config: &Config,
        map: impl Fn(&'static str) -> Result<MapHandle, DoorError>,
        translated: impl FnOnce(&MapHandle) -> Result<Link, DoorError>,
    ) -> Result<Self, DoorError> {
        let (index, pages) = config.words();
        let mapped = |name: &'static str, words| {
            Mapping::new(map(name)?.as_fd(), words)
                .map_err(|error: io::Error| DoorError::Kernel("mapping the hot set", format!("{name}: {error}")))
        };
        let (_, tcp) = config.serves();
        let connections = tcp.then(|| {
            let (rests, connections) = (mapped("kw_rests", Connections::WORDS)?, map("kw_connections")?);
            let translated = translated(&connections)?;
            Ok(Arc::new(Connections::new(rests, connections, translated)))
        });
        Ok(Self {
            connections: connections.transpose()?,
            index: mapped("kw_index", index)?,
            pages: mapped("kw_pages", pages)?,
            stripes: mapped("kw_stripes", STRIPES + 1)?,
            control: mapped("kw_controls", CONTROL_WORDS)?,
            stripes_map: map("kw_stripes")?,
            counts: map("kw_counts")?,
            times: map("kw_times")?,
            pages_count: config.pages(),
            lock: None,
        })
    }

    /// Opens the maps of the program pinned in this folder, if it was loaded with these settings. One process uses it at a time; `held` is
    /// the lock of a process that gives the program to this one ([`Self::lock`]).
    pub fn pinned(folder: &Path, settings: &Settings, held: Option<File>) -> Result<Self, DoorError> {
        let config = Config::new(settings).map_err(DoorError::Settings)?;
        let lock = match held {
            Some(held) if is_same(&held, folder) => held,
            _ => lock(folder)?,
        };
        let found = map_at(folder, CONFIG)?
            .lookup(&0_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|error| DoorError::Kernel("reading the pinned program's settings", format!("{error:#}")))?;
        if found.as_deref() != Some(&config.bytes()) {
            return Err(DoorError::OtherSettings(folder.to_owned()));
        }
        Ok(Self {
            lock: Some(lock),
            ..Self::new(&config, |name| map_at(folder, name), |_| translated_at(folder))?
        })
    }

    /// The connections for which the program may answer, if it serves TCP.
    pub fn connections(&self) -> Option<Arc<Connections>> {
        self.connections.clone()
    }

    /// The iterator over connections whose numbers are translated, if it serves TCP.
    pub(crate) fn translated(&self) -> Option<&Link> {
        self.connections.as_deref().map(Connections::iterator)
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

    /// Number of pages of copies.
    pub fn pages(&self) -> usize {
        self.pages_count
    }

    /// The array of the stripes, for the process that counts changes in it.
    pub fn stripes_file(&self) -> io::Result<File> {
        Ok(self.stripes_map.as_fd().try_clone_to_owned()?.into())
    }

    /// The lock on a pinned program, as a descriptor of its own.
    pub fn lock(&self) -> io::Result<Option<File>> {
        self.lock.as_ref().map(File::try_clone).transpose()
    }

    /// How long the program's answers took, of those that it has timed since it was loaded; over UDP, and over TCP.
    pub fn times(&self) -> Result<[Times; 2], DoorError> {
        times(&self.times, ANSWERS)
    }

    /// The counts of packets alone.
    pub fn counts(&self) -> Result<Counts, DoorError> {
        let copy =
            |map| MapHandle::try_from(map).map_err(|error| DoorError::Kernel("reading the counters", format!("{error:#}")));
        Ok(Counts {
            packets: copy(&self.counts)?,
            times: copy(&self.times)?,
        })
    }
}

impl Default for Times {
    fn default() -> Self {
        Self {
            counts: [0; Self::BUCKETS],
            sum_ns: 0,
        }
    }
}

impl Times {
    /// Buckets: half octaves of nanoseconds from 64 on, and one at either end (`KW_TIME_BUCKETS`).
    pub const BUCKETS: usize = 48;
    /// One packet in so many is timed (`KW_TIMED_ONE_IN`).
    pub const ONE_IN: u64 = 256;

    /// Those of the program pinned in this folder, over UDP and over TCP.
    pub fn pinned(folder: &Path) -> Result<[Self; 2], DoorError> {
        times(&map_at(folder, "kw_times")?, ANSWERS)
    }

    /// Answers that were timed.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }

    /// Adds those of one CPU: a `struct kw_times`.
    fn add(&mut self, of_cpu: &[u8]) {
        let (words, _) = of_cpu.as_chunks();
        let words = words.iter().map(|word| u64::from_ne_bytes(*word));
        for (sum, word) in self.counts.iter_mut().chain([&mut self.sum_ns]).zip(words) {
            *sum = sum.wrapping_add(word);
        }
    }
}

impl Counts {
    /// Opens the counts of the program pinned in this folder.
    pub fn pinned(folder: &Path) -> Result<Self, DoorError> {
        Ok(Self {
            packets: map_at(folder, "kw_counts")?,
            times: map_at(folder, "kw_times")?,
        })
    }

    /// CPU time that the programs took for packets of the served port since they were loaded, over UDP and over TCP: that of one run in
    /// [`Times::ONE_IN`], chosen at random, times that. They run in softirq, or in the context of whoever sends.
    pub fn cpu_time(&self) -> Result<[Duration; 2], DoorError> {
        let runs = times(&self.times, RUNS)?;
        Ok(runs.map(|runs| Duration::from_nanos(runs.sum_ns.saturating_mul(Times::ONE_IN))))
    }

    /// How many packets got each verdict since the program was loaded, on each CPU.
    pub fn per_cpu(&self) -> Result<Vec<(Verdict, Vec<u64>)>, DoorError> {
        let refused = |error: libbpf_rs::Error| DoorError::Kernel("reading the counters", format!("{error:#}"));
        Verdict::ALL
            .iter()
            .zip(0_u32..)
            .map(|(verdict, key)| {
                let values = self
                    .packets
                    .lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY)
                    .map_err(refused)?
                    .unwrap_or_default();
                let count = |value: Vec<u8>| value.try_into().map_or(0, u64::from_ne_bytes);
                Ok((*verdict, values.into_iter().map(count).collect()))
            })
            .collect()
    }
}

/// Rows of the times (`enum kw_timed`): those of UDP and TCP.
const ANSWERS: [u32; 2] = [0, 1];
const RUNS: [u32; 2] = [2, 3];

fn times(map: &MapHandle, rows: [u32; 2]) -> Result<[Times; 2], DoorError> {
    let [udp, tcp] = rows.map(|row| {
        let read = map.lookup_percpu(&row.to_ne_bytes(), MapFlags::ANY);
        let read = read.map_err(|error| DoorError::Kernel("reading the times", format!("{error:#}")))?;
        let mut sum = Times::default();
        read.unwrap_or_default().iter().for_each(|of_cpu| sum.add(of_cpu));
        Ok(sum)
    });
    Ok([udp?, tcp?])
}

/// The numbers of the interfaces that the program pinned in this folder was attached to, with the handles of its filters there.
pub(crate) fn filters_at(folder: &Path) -> Vec<(i32, u32)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let filters = entries.filter_map(|entry| {
        let name = entry.file_name();
        let (interface, handle) = name.to_str()?.strip_prefix("tc-")?.split_once('-')?;
        Some((interface.parse().ok()?, u32::from_str_radix(handle, 16).ok()?))
    });
    filters.collect()
}

/// The folder that records that the program is attached to this interface, with filters of this handle.
pub(crate) fn interface_folder(folder: &Path, interface: i32, handle: u32) -> PathBuf {
    folder.join(format!("tc-{interface}-{handle:x}"))
}

/// The file of a pinned map.
pub(crate) fn pin_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(if name == CONFIG { CONFIG_PIN } else { name })
}

/// Creates the folder, in a BPF file system.
pub(crate) fn make_folder(folder: &Path) -> Result<(), DoorError> {
    let parent = folder.parent().unwrap_or(folder);
    let is_bpf = statfs(parent).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC);
    if !is_bpf {
        return Err(DoorError::NoBpfFileSystem(parent.to_owned()));
    }
    fs::create_dir(folder).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => DoorError::AlreadyPinned(folder.to_owned()),
        _ => DoorError::Kernel("making the folder to pin in", format!("{}: {error}", folder.display())),
    })
}

/// Makes the program pinned in this folder answer nothing, until a server renews its lease.
pub(crate) fn silence(folder: &Path) -> Result<(), DoorError> {
    map_at(folder, "kw_controls")?
        .update(&0_u32.to_ne_bytes(), &[0; CONTROL_WORDS * 8], MapFlags::ANY)
        .map_err(|error| DoorError::Kernel("silencing the pinned program", format!("{error:#}")))
}

/// The pinned iterator over connections whose numbers are translated.
pub(crate) fn translated_at(folder: &Path) -> Result<Link, DoorError> {
    let path = pin_of(folder, TRANSLATED);
    Link::open(&path).map_err(|error| DoorError::Kernel("opening a pinned iterator", format!("{}: {error:#}", path.display())))
}

pub(crate) fn map_at(folder: &Path, name: &str) -> Result<MapHandle, DoorError> {
    let path = pin_of(folder, name);
    if !folder.exists() {
        return Err(DoorError::NothingPinned(folder.to_owned()));
    }
    MapHandle::from_pinned_path(&path)
        .map_err(|error| DoorError::Kernel("opening a pinned map", format!("{}: {error:#}", path.display())))
}

/// Whether the file is this folder.
fn is_same(file: &File, folder: &Path) -> bool {
    let identity = |meta: fs::Metadata| (meta.dev(), meta.ino());
    let (own, there) = (file.metadata().map(identity), fs::metadata(folder).map(identity));
    matches!((own, there), (Ok(own), Ok(there)) if own == there)
}

/// Locks the folder; the lock lasts as long as the file is open.
fn lock(folder: &Path) -> Result<File, DoorError> {
    let file = File::open(folder).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => DoorError::NothingPinned(folder.to_owned()),
        _ => DoorError::Kernel("opening the pinned program", format!("{}: {error}", folder.display())),
    })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(DoorError::InUse(folder.to_owned())),
        Err(fs::TryLockError::Error(error)) => Err(DoorError::Kernel("locking the pinned program", error.to_string())),
    }
}
