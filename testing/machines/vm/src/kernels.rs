//! The guests' kernels: where `xtask/guest-kernels.sh` put them, and their modules.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// the oldest that the kernel door is for: Debian 12's
    V6_1,
    /// has `mseal` and `PR_SET_MDWE`: of Debian 12's backports
    V6_12,
}

impl Version {
    /// As its folder is called, and as its release begins.
    pub fn name(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
        }
    }
}

/// An unpacked kernel.
pub struct Kernel {
    /// what boots
    pub vmlinuz: PathBuf,
    /// all modules by name
    modules: BTreeMap<String, PathBuf>,
}

impl Kernel {
    /// Finds it.
    ///
    /// # Errors
    ///
    /// When it is not there.
    pub fn find(version: Version) -> Result<Self, String> {
        let folder = store().join(version.name());
        let vmlinuz = folder.join("vmlinuz");
        if !vmlinuz.is_file() {
            return Err(format!(
                "there is no {}: xtask/guest-kernels.sh fetches it",
                vmlinuz.display()
            ));
        }
        let mut modules = BTreeMap::new();
        collect(&folder.join("modules"), &mut modules).map_err(|e| format!("{}: {e}", folder.display()))?;
        Ok(Self { vmlinuz, modules })
    }

    /// These modules and those that they need, in an order in which they can be loaded: name and contents.
    ///
    /// # Errors
    ///
    /// When one is not there or cannot be read.
    pub fn modules(&self, names: &[&str]) -> Result<Vec<(String, Vec<u8>)>, String> {
        let mut loaded = Vec::new();
        for name in names {
            self.load(name, &mut loaded)?;
        }
        Ok(loaded)
    }

    fn load(&self, name: &str, loaded: &mut Vec<(String, Vec<u8>)>) -> Result<(), String> {
        let name = name.replace('-', "_");
        if loaded.iter().any(|(there, _)| *there == name) {
            return Ok(());
        }
        let path = self
            .modules
            .get(&name)
            .ok_or_else(|| format!("this kernel has no module {name}"))?;
        let module = contents(path)?;
        for needed in needs(&module) {
            self.load(&needed, loaded)?;
        }
        loaded.push((name, module));
        Ok(())
    }
}

/// A folder of the user's cache.
fn store() -> PathBuf {
    let of = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = of("XDG_CACHE_HOME").or_else(|| Some(of("HOME")?.join(".cache")));
    cache.unwrap_or_default().join("keyway/guest-kernels")
}

fn collect(folder: &Path, modules: &mut BTreeMap<String, PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, modules)?;
        } else if let Some((name, _)) = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.split_once(".ko")) {
            modules.insert(name.replace('-', "_"), path);
        }
    }
    Ok(())
}

fn contents(path: &Path) -> Result<Vec<u8>, String> {
    if path.extension().is_none_or(|e| e != "xz") {
        return std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
    }
    let output = Command::new("xz").arg("-dc").arg(path).output();
    match output {
        Ok(output) if output.status.success() => Ok(output.stdout),
        Ok(output) => Err(format!("xz -dc {}: {}", path.display(), output.status)),
        Err(e) => Err(format!("xz -dc {}: {e}", path.display())),
    }
}

/// The names in the field `depends` of a module's section `.modinfo`.
fn needs(module: &[u8]) -> Vec<String> {
    let field = b"\0depends=";
    let Some(start) = module.windows(field.len()).position(|w| w == field) else {
        return Vec::new();
    };
    let list = module[start + field.len()..].split(|&b| b == 0).next().unwrap_or_default();
    let names = list.split(|&b| b == b',').filter(|name| !name.is_empty());
    names.map(|name| String::from_utf8_lossy(name).replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_module_needs_is_read() {
        assert_eq!(
            needs(b"x\0license=GPL\0depends=libnvdimm,nd-btt\0name=y\0"),
            ["libnvdimm", "nd_btt"]
        );
        assert!(needs(b"x\0depends=\0name=y\0").is_empty());
        assert!(needs(b"nothing of the kind").is_empty());
    }
}
