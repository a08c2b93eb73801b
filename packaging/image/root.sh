#!/bin/sh
# Makes the root of the container image: packaging/image/root.sh FOLDER copies the program there, the libraries that it is linked to, and a user
# for it. Nothing else is in the image, not even a shell. From the environment:
#     BUILT   where cargo has built the program
#     MANUAL  the folder with `licences`, what licences.py wrote
#     STRIP   the program that removes debug information [default: strip]
set -eu

to=${1:?}
: "${BUILT:?}" "${MANUAL:?}" "${STRIP:=strip}"
cd "$(dirname "$0")/../.."
umask 022

install -D -m 755 "$BUILT/keyway" "$to/usr/bin/keyway"
"$STRIP" --strip-unneeded "$to/usr/bin/keyway"
# For those who change only the image's name: `memcached` is this program with memcached's options.
ln -s keyway "$to/usr/bin/memcached"
ldd "$to/usr/bin/keyway" | sed -n 's/^[^/]*\(\/[^ ]*\) (0x.*/\1/p' | while read -r library; do
    install -D -m 755 "$(readlink -f "$library")" "$to$library"
done
# memcached's image has this user's number, too. `nobody` is there for -u.
install -d "$to/etc"
printf '%s\n' 'root:x:0:0:root:/:/sbin/nologin' 'keyway:x:11211:11211:Keyway:/:/sbin/nologin' 'nobody:x:65534:65534:nobody:/:/sbin/nologin' \
    'memcache:x:11211:11211:Keyway:/:/sbin/nologin' >"$to/etc/passwd"
printf '%s\n' 'root:x:0:' 'keyway:x:11211:' 'nogroup:x:65534:' >"$to/etc/group"
install -D -m 644 LICENSE "$to/usr/share/doc/keyway/LICENSE"
install -D -m 644 "$MANUAL/licences" "$to/usr/share/doc/keyway/licences"
install -d -m 1777 "$to/tmp"
# Unix sockets, in a volume that is shared with other containers.
install -d -m 1777 "$to/run/keyway"
