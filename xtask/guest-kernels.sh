#!/usr/bin/env bash
# Fetches the kernels that the guests of `cargo xtask vm` boot: Debian's 6.1, and the 6.12 of its backports, in the form for
# virtual machines. They are unpacked into a cache of this user and not installed; the host's own lists of packages are not touched.
# What is there already is left alone. Needs apt-get, dpkg-deb and Debian's keyring.
set -euo pipefail

store=${XDG_CACHE_HOME:-$HOME/.cache}/keyway/guest-kernels
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
mirror=$(apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    awk '$1 == "Debian" && $2 == "main" && $3 !~ /security/ { print $3; exit }' || true)
mirror=${mirror:-http://deb.debian.org/debian/}

say() { echo "[$(date +%H:%M:%S)] guest kernels: $*"; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# fetch VERSION SUITE: the newest kernel of the suite becomes $store/VERSION, with `vmlinuz` and `modules`.
fetch() {
    local version=$1 suite=$2 apt=$work/$1 package options
    [ -e "$store/$version/vmlinuz" ] && return
    say "$version, from $suite"
    mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$apt/unpacked"
    echo "deb [arch=amd64 signed-by=$keyring] $mirror $suite main" >"$apt/sources.list"
    options=(-qq
        -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null
        -o "Dir::State=$apt" -o Dir::State::status=/dev/null -o "Dir::State::Lists=$apt/lists" -o "Dir::Cache=$apt"
        -o APT::Architecture=amd64 -o "APT::Sandbox::User=$(id -un)")
    apt-get "${options[@]}" update
    package=$(apt-cache "${options[@]}" depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: \(linux-image-\)/\1/p' | head -n 1)
    (cd "$apt" && apt-get "${options[@]}" download "$package")
    dpkg-deb --fsys-tarfile "$apt"/linux-image-*.deb | tar -x -C "$apt/unpacked"
    mkdir -p "$store"
    rm -rf "$store/$version" "$store/$version.new"
    mkdir "$store/$version.new"
    mv "$apt"/unpacked/boot/vmlinuz-* "$store/$version.new/vmlinuz"
    # in /lib, or in /usr/lib where the two are one
    mv "$(find "$apt/unpacked" -type d -path '*lib/modules/*' -name kernel -print -quit)" "$store/$version.new/modules"
    mv "$store/$version.new" "$store/$version"
}

fetch 6.1 bookworm
fetch 6.12 bookworm-backports
