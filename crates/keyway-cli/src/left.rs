//! Small files that the server leaves at a given path: its process id (`-P`), and its ports (`MEMCACHED_PORT_FILENAME`).
//!
//! The path may be in a folder where other users write, and the server may be root. So no link at the path is followed, and no file is
//! overwritten that cannot be of the same kind.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc::{ELOOP, O_NOFOLLOW, O_NONBLOCK};

/// A file with a process id has fewer bytes.
const PID_LEN_MAX: u64 = 32;
/// Mode of the files: everybody may read them.
const MODE: u32 = 0o644;

/// Writes the ports to a file for the process that started this one with port -1, as memcached does for test harnesses. They are written
/// to a new file, which then takes the place of what is there, so that a process that waits for the file never reads half of it.
pub(crate) fn leave_ports(path: &Path, lines: &str) -> io::Result<()> {
    let aside = path.with_extension("lck");
    // One that an earlier process has left, or a link: a new file is made, which none of them can be.
    let _ = fs::remove_file(&aside);
    let mut file = File::options().write(true).create_new(true).mode(MODE).open(&aside)?;
    file.write_all(lines.as_bytes()).and_then(|()| fs::rename(&aside, path))
}

/// The file with this process's id, removed when this is dropped.
pub(crate) struct PidFile(PathBuf);

impl PidFile {
    /// `None`: it cannot be written, which is logged.
    pub(crate) fn write(path: &Path) -> Option<Self> {
        match write_pid(path) {
            Ok(()) => Some(Self(path.to_owned())),
            Err(error) => {
                log::warn!("cannot write the process id to {} (-P): {error}", path.display());
                None
            }
        }
    }
}

fn write_pid(path: &Path) -> io::Result<()> {
    let refused = |why: &str| {
        io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("{why}; remove it, or give another path"),
        )
    };
    let opened = open(path, File::options().write(true).create(true).truncate(false).mode(MODE));
    let mut file = opened.map_err(|error| match error.raw_os_error() {
        Some(ELOOP) => refused("it is a symbolic link, which is not followed"),
        _ => error,
    })?;
    let there = file.metadata()?;
    // A file with two names may be another user's, in whose folder the other name is.
    if !there.is_file() || there.nlink() > 1 || !is_pid(&read(&file)?) {
        return Err(refused("another file is there"));
    }
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

/// Opens a file, but not what a link leads to, and without waiting for a writer if it is a pipe.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path)
}

/// The first bytes of a file.
fn read(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(PID_LEN_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether a file with these bytes holds a process id, or is still empty.
fn is_pid(bytes: &[u8]) -> bool {
    bytes.trim_ascii().iter().all(u8::is_ascii_digit)
}

impl Drop for PidFile {
    fn drop(&mut self) {
        let there = open(&self.0, &mut File::options());
        let text = there.and_then(|file| {
            if file.metadata()?.is_file() {
                read(&file)
            } else {
                Ok(Vec::new())
            }
        });
        let is_ours = text.is_ok_and(|text| text.trim_ascii() == std::process::id().to_string().as_bytes());
        if is_ours && let Err(error) = fs::remove_file(&self.0) {
            log::warn!("cannot remove {} (-P): {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use harness::Scratch;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    fn read_text(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_pid_file_takes_the_place_of_an_older_one_and_goes_at_the_end() {
        let folder = Scratch::new();
        let path = folder.join("pid");
        let own = format!("{}\n", std::process::id());
        for before in [None, Some(""), Some("1\n"), Some("123456\r\n")] {
            if let Some(before) = before {
                fs::write(&path, before).unwrap();
            }
            let file = PidFile::write(&path);
            assert_eq!(read_text(&path), own, "{before:?}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else stays");
            drop(file);
            assert!(!path.exists());
        }
        // A server that took over has written its own.
        let file = PidFile::write(&path);
        fs::write(&path, "1\n").unwrap();
        drop(file);
        assert_eq!(read_text(&path), "1\n");
    }

    #[test]
    fn no_link_is_followed_and_nothing_else_is_overwritten() {
        let folder = Scratch::new();
        let (path, precious) = (folder.join("pid"), folder.join("precious"));
        let is_refused = |expected: &str| {
            assert!(write_pid(&path).unwrap_err().to_string().contains(expected));
            assert!(PidFile::write(&path).is_none());
        };
        // Even a file whose text would do.
        for text in ["precious", "7\n", ""] {
            fs::write(&precious, text).unwrap();
            symlink(&precious, &path).unwrap();
            is_refused("a symbolic link, which is not followed");
            fs::remove_file(&path).unwrap();
            fs::hard_link(&precious, &path).unwrap();
            is_refused("another file is there");
            fs::remove_file(&path).unwrap();
            assert_eq!(read_text(&precious), text);
        }
        let missing = folder.join("missing");
        symlink(&missing, &path).unwrap();
        is_refused("a symbolic link");
        assert!(!missing.exists());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "some text").unwrap();
        is_refused("another file is there");
        assert_eq!(read_text(&path), "some text");
        fs::remove_file(&path).unwrap();
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        is_refused("another file is there");
        fs::remove_file(&path).unwrap();
        // What takes its place later stays, and is not waited for.
        let file = PidFile::write(&path).unwrap();
        fs::remove_file(&path).unwrap();
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        drop(file);
        assert!(fs::symlink_metadata(&path).is_ok());
    }

    #[test]
    fn ports_go_where_a_harness_waits_for_them_and_through_no_link() {
        let folder = Scratch::new();
        let (path, precious) = (folder.join("ports"), folder.join("precious"));
        fs::write(&precious, "precious").unwrap();
        symlink(&precious, path.with_extension("lck")).unwrap();
        leave_ports(&path, "TCP INET: 1\n").unwrap();
        assert_eq!(read_text(&path), "TCP INET: 1\n");
        fs::remove_file(&path).unwrap();
        symlink(&precious, &path).unwrap();
        leave_ports(&path, "UDP INET: 2\n").unwrap();
        assert_eq!((read_text(&path), path.is_symlink()), ("UDP INET: 2\n".to_owned(), false));
        assert_eq!(read_text(&precious), "precious");
    }
}
