#!/usr/bin/env python3
"""Prints the licences of the crates that are linked into Keyway's programs and libraries, with their texts, for packages.

    packaging/licences.py [TARGET]

TARGET is what they are built for, as rustc names it [default: this machine]. Fails if a crate names no licence. Needs cargo, and the
crates' sources, which a build has fetched.
"""

import json
import os
import re
import subprocess
import sys

PACKAGES = ["keyway-cli", "keyway-capi", "keyway-libmemcached", "keyway-libmemcachedutil", "keyway-python"]
TEXT = re.compile(r"(?i)^(licen[cs]e|copying|copyright|notice|unlicense)")
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def cargo(*arguments):
    return subprocess.run(["cargo", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def machine():
    """This machine, as rustc names it."""
    output = subprocess.run(["rustc", "-vV"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return re.search(r"host: (\S+)", output)[1]


def linked(target):
    """Name and version of each crate that is linked; what only builds or tests is left out."""
    roots = [word for name in PACKAGES for word in ("--package", name)]
    what = ["--edges=normal,no-proc-macro", "--prefix=none", "--no-dedupe", "--format={p}", "--target", target]
    tree = cargo("tree", "--locked", *what, *roots)
    return sorted({tuple(line.split()[:2]) for line in tree.splitlines() if line})


def texts(folder):
    """The texts of a crate's licences, and of the library in C that libbpf-sys contains."""
    names = sorted(os.listdir(folder))
    if "libbpf" in names:
        names += ["libbpf/" + name for name in sorted(os.listdir(os.path.join(folder, "libbpf")))]
    for name in names:
        path = os.path.join(folder, name)
        if TEXT.match(os.path.basename(name)) and os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                yield "\n".join(line.rstrip() for line in file.read().strip().splitlines())


def main():
    target = sys.argv[1] if len(sys.argv) > 1 else machine()
    metadata = json.loads(cargo("metadata", "--locked", "--format-version=1", "--filter-platform", target))
    found = {(package["name"], "v" + package["version"]): package for package in metadata["packages"]}
    groups = {}
    names = []
    for crate in linked(target):
        package = found[crate]
        if package["source"] is None:
            continue
        licence = package["license"] or sys.exit(f"{crate[0]}: it names no licence")
        names.append(f"{crate[0]} {crate[1][1:]}: {licence}; {package['repository'] or 'https://crates.io/crates/' + crate[0]}")
        for text in texts(os.path.dirname(package["manifest_path"])):
            groups.setdefault(text, []).append(crate[0])
    print("Keyway is under the Apache License, version 2.0. These crates are linked into its programs and libraries:\n")
    print("\n".join(names))
    print("\nlibbpf (https://github.com/libbpf/libbpf), inside libbpf-sys: LGPL-2.1 OR BSD-2-Clause")
    print("Rust's standard library (https://github.com/rust-lang/rust): MIT OR Apache-2.0")
    for text, crates in groups.items():
        print("\n" + "-" * 79 + "\n" + ", ".join(crates) + "\n\n" + text)


main()
