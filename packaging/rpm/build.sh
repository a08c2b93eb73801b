#!/bin/sh
# Makes the packages for Fedora and its relatives from what cargo has built: packaging/rpm/build.sh FOLDER writes them to FOLDER. Needs rpmbuild
# and binutils. From the environment: the same as for packaging/deb/build.sh. COMPRESSION is rpm's payload mode [default: w9.xzdio].
set -eu

out=${1:?}
: "${ARCH:?}" "${VERSION:?}" "${BUILT:?}" "${MANUAL:?}" "${SOURCE_DATE_EPOCH:?}" "${MAINTAINER:?}" "${REVISION:=1}" "${COMPRESSION:=w9.xzdio}"
export BUILT MANUAL VERSION SOURCE_DATE_EPOCH
mkdir -p "$out"
out=$(cd "$out" && pwd) here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
case $ARCH in
    amd64) machine=x86_64 ;;
    arm64) machine=aarch64 ;;
    *) echo "ARCH=$ARCH: packages are made for amd64 and arm64" >&2; exit 2 ;;
esac
STRIP=strip
[ "$machine" = "$(uname -m)" ] || STRIP=$machine-linux-gnu-strip
export STRIP
libdir=/usr/lib64
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
umask 022

staged=$scratch/staged
"$here/../stage.sh" "$staged" "$libdir" /python
# Fedora's name of Cyrus SASL, which is as long as Debian's.
LC_ALL=C sed -i 's/libsasl2\.so\.2/libsasl2.so.3/g' "$staged$libdir/keyway/libmemcached.so.11"
# Each release of Fedora has another folder for Python's packages: users install the wheel.
rm -rf "$staged/python"
mkdir -p "$staged/usr/share/zsh/site-functions"
mv "$staged/usr/share/zsh/vendor-completions/_keyway" "$staged/usr/share/zsh/site-functions/_keyway"
rm -rf "$staged/usr/share/zsh/vendor-completions"
for package in keyway keyway-libs keyway-libmemcached; do
    install -D -m 644 LICENSE "$staged/usr/share/licenses/$package/LICENSE"
    gzip -9n <"$MANUAL/licences" >"$staged/usr/share/licenses/$package/licences.gz"
done
find "$staged" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +

sed "s|@VERSION@|$VERSION|; s|@REVISION@|$REVISION|; s|@LIBDIR@|$libdir|; s|@STAGED@|$staged|; s|@MAINTAINER@|$MAINTAINER|" \
    "$here/keyway.spec.in" >"$scratch/keyway.spec"
# A file that no package has is an error of rpmbuild.
rpmbuild -bb --quiet --target "$machine" --define "_topdir $scratch" --define "_rpmdir $out" --define "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" \
    --define "_binary_payload $COMPRESSION" "$scratch/keyway.spec"
