#!/bin/sh
# Copies what packages contain into a folder, as it is installed below /. Builds nothing; packaging/deb/build.sh and packaging/rpm/build.sh
# use it.
#     packaging/stage.sh FOLDER LIBDIR PYTHONDIR
# LIBDIR and PYTHONDIR are absolute paths on the machine that installs the package, such as /usr/lib/x86_64-linux-gnu. From the environment:
#     BUILT    the programs and libraries that cargo has built
#     MANUAL   what `keyway manual` wrote (pages, completions, configuration), and `licences`, what licences.py wrote
#     VERSION  the version in keyway.pc and of the library's file
#     STRIP    the program that removes debug information
set -eu

to=${1:?} libdir=${2:?} pythondir=${3:?}
: "${BUILT:?}" "${MANUAL:?}" "${VERSION:?}" "${STRIP:=strip}"
cd "$(dirname "$0")/.."

# The library's part of the version that programs are linked to; crates/keyway-capi/build.rs has it too.
soname=libkeyway.so.0

program() { install -D -m 755 "$1" "$2" && "$STRIP" --strip-unneeded "$2"; }
library() { install -D -m 644 "$1" "$2" && "$STRIP" --strip-unneeded "$2"; }
data() { install -D -m 644 "$1" "$2"; }

program "$BUILT/keyway" "$to/usr/bin/keyway"
data "$MANUAL/keyway.toml" "$to/etc/keyway/keyway.toml"
for page in "$MANUAL"/man/*.1; do
    data "$page" "$to/usr/share/man/man1/${page##*/}"
    gzip -9n "$to/usr/share/man/man1/${page##*/}"
done
data "$MANUAL/completions/keyway.bash" "$to/usr/share/bash-completion/completions/keyway"
data "$MANUAL/completions/_keyway" "$to/usr/share/zsh/vendor-completions/_keyway"
data "$MANUAL/completions/keyway.fish" "$to/usr/share/fish/vendor_completions.d/keyway.fish"
data packaging/sysusers.conf "$to/usr/lib/sysusers.d/keyway.conf"
data packaging/tmpfiles.conf "$to/usr/lib/tmpfiles.d/keyway.conf"
install -D -m 755 packaging/systemd/reload "$to/usr/lib/keyway/reload"
for unit in packaging/systemd/*.service packaging/systemd/*.socket; do
    data "$unit" "$to/usr/lib/systemd/system/${unit##*/}"
done

library "$BUILT/libkeyway_capi.so" "$to$libdir/libkeyway.so.$VERSION"
ln -s "libkeyway.so.$VERSION" "$to$libdir/$soname"
ln -s "$soname" "$to$libdir/libkeyway.so"
install -D -m 644 "$BUILT/libkeyway_capi.a" "$to$libdir/libkeyway.a"
"$STRIP" --strip-debug --enable-deterministic-archives "$to$libdir/libkeyway.a"
data crates/keyway-capi/include/keyway.h "$to/usr/include/keyway.h"
install -d "$to$libdir/pkgconfig"
sed "s|@PREFIX@|/usr|; s|@VERSION@|$VERSION|; s|^libdir=.*|libdir=$libdir|" crates/keyway-capi/keyway.pc.in >"$to$libdir/pkgconfig/keyway.pc"

library "$BUILT/libmemcached.so" "$to$libdir/keyway/libmemcached.so.11"
library "$BUILT/libmemcachedutil.so" "$to$libdir/keyway/libmemcachedutil.so.2"

library "$BUILT/lib_keyway.so" "$to$pythondir/keyway_cache/_keyway.abi3.so"
for module in bindings/python/keyway_cache/*.py bindings/python/keyway_cache/*.pyi bindings/python/keyway_cache/py.typed; do
    data "$module" "$to$pythondir/keyway_cache/${module##*/}"
done
install -d "$to$pythondir/keyway_cache-$VERSION.dist-info"
printf 'Metadata-Version: 2.1\nName: keyway-cache\nVersion: %s\n' "$VERSION" >"$to$pythondir/keyway_cache-$VERSION.dist-info/METADATA"
