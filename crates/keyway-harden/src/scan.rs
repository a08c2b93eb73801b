//! Which instructions in the mapped code can change PKRU: WRPKRU, and XRSTOR with the right mask.
//!
//! Every byte offset counts, because a jump may lead into the middle of an instruction. Such bytes may also occur by
//! chance, inside other instructions. For code that jumps to them, they are as good as the real instruction.

use std::fmt;

/// An instruction that can open the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 0F 01 EF (Intel SDM, volume 2, WRPKRU)
    Wrpkru,
    /// 0F AE /5 with an operand in memory (XRSTOR)
    Xrstor,
}

/// A file, or another executable mapping, and how many such instructions are in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// its name in /proc/self/maps
    pub name: String,
    /// number of WRPKRU instructions
    pub wrpkru: usize,
    /// number of XRSTOR instructions
    pub xrstor: usize,
    /// executable but not readable: its instructions are unknown
    pub is_unreadable: bool,
}

impl Finding {
    /// Whether it is the C library: `pkey_set`, and the loader's lazy binding.
    pub fn is_of_c_library(&self) -> bool {
        let file = self.name.rsplit('/').next().unwrap_or_default();
        file.starts_with("libc.so.") || file.starts_with("libc-2.") || file.starts_with("ld-linux") || file.starts_with("ld-2.")
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_unreadable {
            return write!(f, "{} (cannot be read)", self.name);
        }
        write!(f, "{} ({} WRPKRU, {} XRSTOR)", self.name, self.wrpkru, self.xrstor)
    }
}

/// The places of such instructions in code.
pub fn find(code: &[u8]) -> impl Iterator<Item = (usize, Kind)> + '_ {
    code.windows(3).enumerate().filter_map(|(at, bytes)| match *bytes {
        [0x0F, 0x01, 0xEF] => Some((at, Kind::Wrpkru)),
        [0x0F, 0xAE, modrm] if modrm >> 3 & 7 == 5 && modrm >> 6 != 3 => Some((at, Kind::Xrstor)),
        _ => None,
    })
}

/// One line of /proc/self/maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapped<'l> {
    pub range: std::ops::Range<usize>,
    pub is_readable: bool,
    pub is_executable: bool,
    pub name: &'l str,
}

/// A line of /proc/self/maps (`proc(5)`).
pub(crate) fn parse(line: &str) -> Option<Mapped<'_>> {
    let mut fields = line.splitn(6, ' ');
    let (from, to) = fields.next()?.split_once('-')?;
    let range = usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?;
    let rights = fields.next()?.as_bytes();
    let name = fields.nth(3).unwrap_or_default().trim();
    Some(Mapped {
        range,
        is_readable: rights.first() == Some(&b'r'),
        is_executable: rights.get(2) == Some(&b'x'),
        name: if name.is_empty() { "memory without a name" } else { name },
    })
}

/// What is in this process's code, except in the mapping that contains `own`.
///
/// # Errors
///
/// There is no /proc.
pub fn process(own: usize) -> std::io::Result<Vec<Finding>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let mut findings: Vec<Finding> = Vec::new();
    for mapped in maps.lines().filter_map(parse) {
        // The kernel's page at a fixed address is emulated, not executed (Linux, Documentation/arch/x86/x86_64/mm.rst).
        if !mapped.is_executable || mapped.range.contains(&own) || mapped.name == "[vsyscall]" {
            continue;
        }
        let mut finding = Finding {
            name: mapped.name.to_owned(),
            wrpkru: 0,
            xrstor: 0,
            is_unreadable: !mapped.is_readable,
        };
        if mapped.is_readable {
            for (_, kind) in find(code(&mapped)) {
                match kind {
                    Kind::Wrpkru => finding.wrpkru += 1,
                    Kind::Xrstor => finding.xrstor += 1,
                }
            }
        }
        if finding.wrpkru + finding.xrstor > 0 || finding.is_unreadable {
            findings.push(finding);
        }
    }
    Ok(findings)
}

#[allow(unsafe_code, reason = "code is read where it lies")]
fn code<'m>(mapped: &Mapped<'_>) -> &'m [u8] {
    let start = std::ptr::with_exposed_provenance(mapped.range.start);
    // SAFETY: mapped readable and executable; before `main`, when this is the only thread, so no other thread unmaps it
    // or writes code.
    unsafe { std::slice::from_raw_parts(start, mapped.range.end - mapped.range.start) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_offset_counts_and_fences_do_not() {
        // WRPKRU; LFENCE; XRSTOR [rdi]; XRSTOR64 [rsp + 64]; a MOV whose constant is a WRPKRU
        let code = [
            0x0F, 0x01, 0xEF, 0x0F, 0xAE, 0xE8, 0x0F, 0xAE, 0x2F, 0x48, 0x0F, 0xAE, 0x6C, 0x24, 0x40, 0xB8, 0x0F, 0x01, 0xEF,
            0x00,
        ];
        let found: Vec<_> = find(&code).collect();
        let wanted = [(0, Kind::Wrpkru), (6, Kind::Xrstor), (10, Kind::Xrstor), (16, Kind::Wrpkru)];
        assert_eq!(found, wanted);
        assert_eq!(find(&[0x0F, 0x01]).count(), 0);
    }

    #[test]
    fn lines_of_maps() {
        let line = "7f00-7fff r-xp 00001000 fe:00 123    /usr/lib/a library.so";
        let mapped = parse(line).unwrap();
        assert_eq!((mapped.range, mapped.name), (0x7F00..0x7FFF, "/usr/lib/a library.so"));
        assert!(mapped.is_readable && mapped.is_executable);
        assert!(!parse("0-1000 rw-p 00000000 00:00 0 ").unwrap().is_executable);
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn this_process_has_the_c_librarys() {
        let found = process(0).unwrap();
        assert!(found.iter().any(Finding::is_of_c_library), "{found:?}");
        let other = Finding {
            name: "/usr/lib/libcrypto.so.3".to_owned(),
            ..found[0].clone()
        };
        assert!(!other.is_of_c_library());
    }
}
