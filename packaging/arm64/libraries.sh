#!/bin/sh
# Fetches what programs for arm64 are linked to besides the C library: libelf and zlib of Debian 12, with their headers. They are unpacked
# into FOLDER and not installed; this machine's own lists of packages are not touched. What is there already is left alone. Needs apt-get,
# dpkg-deb and Debian's keyring.
#     packaging/arm64/libraries.sh FOLDER
set -eu

folder=${1:?}
suite=bookworm
packages='libelf1 libelf-dev zlib1g zlib1g-dev'
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ ! -e "$folder/complete" ] || exit 0

# This machine's mirror, if it is one of Debian.
mirror=$(apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    awk '$1 == "Debian" && $2 == "main" && $3 !~ /security/ { print $3; exit }' || true)
mirror=${mirror:-http://deb.debian.org/debian/}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/unpacked"
echo "deb [arch=arm64 signed-by=$keyring] $mirror $suite main" >"$work/sources.list"
get() {
    apt-get -qq -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null \
        -o "Dir::State=$work" -o Dir::State::status=/dev/null -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work" \
        -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "APT::Sandbox::User=$(id -un)" "$@"
}
get update
(cd "$work" && get download $packages)
for package in "$work"/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$work/unpacked"
done
mkdir -p "$folder/include" "$folder/lib"
# In /lib, or in /usr/lib, or in both.
find "$work/unpacked" -path '*/aarch64-linux-gnu/lib*.so*' -exec cp -P -t "$folder/lib" {} +
find "$work/unpacked/usr/include" -name '*.h' -exec cp -t "$folder/include" {} +
# Links between the two folders.
for link in elf z; do ln -sf "$(cd "$folder/lib" && ls -d "lib$link.so".[0-9] | head -n 1)" "$folder/lib/lib$link.so"; done
touch "$folder/complete"
