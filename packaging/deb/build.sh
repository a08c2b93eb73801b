#!/bin/sh
# Makes the packages for Debian from what cargo has built: packaging/deb/build.sh FOLDER writes them to FOLDER. Needs dpkg-deb and binutils.
# The same input gives the same bytes. From the environment, besides BUILT and MANUAL (packaging/stage.sh):
#     ARCH               amd64 or arm64
#     VERSION            Keyway's version
#     REVISION           the package's, after a hyphen in its version [default: 1]
#     MAINTAINER         who answers for the packages: NAME <ADDRESS>
#     COMPRESSION        as dpkg-deb's -Z has it: xz, gzip, none [default: xz]
#     SOURCE_DATE_EPOCH  the time of every file, seconds since 1970
set -eu

out=${1:?}
: "${ARCH:?}" "${VERSION:?}" "${BUILT:?}" "${MANUAL:?}" "${SOURCE_DATE_EPOCH:?}" "${MAINTAINER:?}" "${REVISION:=1}" "${COMPRESSION:=xz}"
export BUILT MANUAL VERSION SOURCE_DATE_EPOCH
mkdir -p "$out"
out=$(cd "$out" && pwd) here=$(cd "$(dirname "$0")" && pwd)
case $ARCH in
    amd64) triplet=x86_64-linux-gnu ;;
    arm64) triplet=aarch64-linux-gnu ;;
    *) echo "ARCH=$ARCH: packages are made for amd64 and arm64" >&2; exit 2 ;;
esac
STRIP=strip
[ "$ARCH" = "$(dpkg --print-architecture)" ] || STRIP=$triplet-strip
export STRIP
libdir=/usr/lib/$triplet
full=$VERSION-$REVISION
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
umask 022

"$here/../stage.sh" "$scratch/all" "$libdir" /usr/lib/python3/dist-packages
# Debian 12 has the units here.
mkdir -p "$scratch/all/lib"
mv "$scratch/all/usr/lib/systemd" "$scratch/all/lib/systemd"

# The packages that a package's programs and libraries are linked to.
libraries() {
    find "$1" -type f \( -name '*.so' -o -name '*.so.*' -o -path '*/bin/*' \) | sort >"$scratch/linked"
    xargs -r readelf --version-info --wide <"$scratch/linked" | sed -n 's/.*Name: GLIBC_\([0-9.]*\).*/\1/p' | sort -V | tail -n 1 >"$scratch/glibc"
    printf 'libc6 (>= %s)' "$(cat "$scratch/glibc")"
    xargs -r readelf --dynamic --wide <"$scratch/linked" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u | while read -r name; do
        case $name in
            libc.so.6 | libm.so.6 | libdl.so.2 | libpthread.so.0 | librt.so.1 | libutil.so.1 | ld-linux*) ;;
            # The drop-in itself, beside it.
            libmemcached.so.11) ;;
            libgcc_s.so.1) printf ', libgcc-s1' ;;
            libelf.so.1) printf ', libelf1' ;;
            libz.so.1) printf ', zlib1g' ;;
            libhashkit.so.2) printf ', libhashkit2' ;;
            libsasl2.so.2) printf ', libsasl2-2' ;;
            *) echo "$name: no package is known for this library; add it to packaging/deb/build.sh" >&2; exit 1 ;;
        esac
    done
}

documents() {
    doc=$1/usr/share/doc/$2
    install -d "$doc"
    {
        echo "keyway ($full) unstable; urgency=medium"
        echo
        echo "  * CHANGELOG.md of the sources says what is new."
        echo
        echo " -- $MAINTAINER  $(date --utc --date="@$SOURCE_DATE_EPOCH" '+%a, %d %b %Y %H:%M:%S +0000')"
    } | gzip -9n >"$doc/changelog.Debian.gz"
    install -m 644 "$here/copyright" "$doc/copyright"
    gzip -9n <"$MANUAL/licences" >"$doc/licences.gz"
}

# Packages are paragraphs of the file `control`.
build() {
    package=$1 root=$scratch/$1
    install -d "$root/DEBIAN"
    sed "s|@LIBDIR@|$libdir|" "$here/files" | while read -r owner path; do
        [ "$owner" = "$package" ] || continue
        (cd "$scratch/all" && find . -path ".$path" \( -type f -o -type l \) -print0 | xargs -0 cp --parents --no-dereference -t "$root")
    done
    documents "$root" "$package"
    libraries=$(libraries "$root")
    {
        sed -n "/^Package: $package\$/,/^\$/p" "$here/control" | sed "s|@LIBRARIES@|$libraries|; s|@VERSION@|$full|" |
            sed "/^Package:/a Version: $full\nArchitecture: $ARCH\nMaintainer: $MAINTAINER\nPriority: optional\nSource: keyway\nInstalled-Size: $(du -sk --apparent-size "$root" | cut -f1)" |
            sed '/^$/d'
    } >"$root/DEBIAN/control"
    if [ "$package" = keyway ]; then
        echo /etc/keyway/keyway.toml >"$root/DEBIAN/conffiles"
        install -m 755 "$here/postinst" "$here/prerm" "$here/postrm" "$root/DEBIAN"
    fi
    if [ "$package" = libkeyway0 ]; then
        echo "libkeyway 0 libkeyway0 (>= $VERSION)" >"$root/DEBIAN/shlibs"
        echo "activate-noawait ldconfig" >"$root/DEBIAN/triggers"
    fi
    (cd "$root" && find . -type f ! -path './DEBIAN/*' ! -path './etc/*' -printf '%P\0' | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
    dpkg-deb --root-owner-group -Z"$COMPRESSION" --build "$root" "$out" >/dev/null
}

for package in $(sed -n 's/^Package: //p' "$here/control"); do build "$package"; done

# A file that no package has would be missing on every machine.
find "$scratch/all" \( -type f -o -type l \) -printf '/%P\n' | sort >"$scratch/staged"
for package in $(sed -n 's/^Package: //p' "$here/control"); do
    (cd "$scratch/$package" && find . \( -type f -o -type l \) ! -path './DEBIAN/*' ! -path './usr/share/doc/*' -printf '/%P\n')
done | sort | comm -3 "$scratch/staged" - >"$scratch/different"
[ ! -s "$scratch/different" ] || { echo "packaging/deb/files: in no package, or in two:" >&2; cat "$scratch/different" >&2; exit 1; }
