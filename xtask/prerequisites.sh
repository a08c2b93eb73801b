#!/usr/bin/env bash
# Installs what is missing to build Keyway (`run`), to build it for arm64 on another machine (`arm64`), for `make test` (`test`), or for
# `make gate` (`gate`): with apt on Debian and Ubuntu; elsewhere it lists what to install and exits 1. What is there already is left alone,
# so a second run does nothing and needs no network.
set -euo pipefail

usage="usage: $0 run|arm64|test|gate"
purpose=${1:?$usage}
case $purpose in run | arm64 | test | gate) ;; *) echo "$usage" >&2; exit 2 ;; esac

cd "$(dirname "$0")/.."
export PATH="$HOME/.cargo/bin:$PATH"
rust_version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

tests() { [ "$purpose" = test ] || [ "$purpose" = gate ]; }
arm64() { [ "$purpose" = arm64 ] || [ "$purpose" = gate ]; }

say() { echo "[$(date +%H:%M:%S)] prerequisites: $*"; }
have() { command -v "$1" >/dev/null 2>&1; }
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif have sudo; then sudo "$@"; else
        say "needs root for: $*; run it as root, or install sudo"
        exit 1
    fi
}

# Each line: what it is for, how to see that it is there, its name in Debian.
packages=()
wanted=()
want() {
    local reason=$1 package=$2
    packages+=("$package")
    wanted+=("$package: $reason")
}
have gcc || want "links Rust programs" gcc
[ -e /usr/include/stdio.h ] || want "the C library's headers" libc6-dev
have clang-19 || want "compiles the kernel door's program" clang-19
[ -e /usr/include/linux/bpf.h ] || want "Linux's headers, for the kernel door's program" linux-libc-dev
have make || want "builds libbpf, which loads it" make
have pkg-config || want "finds what libbpf needs" pkg-config
[ -e /usr/include/libelf.h ] || want "libbpf reads the program with it" libelf-dev
[ -e /usr/include/zlib.h ] || want "libbpf's other library" zlib1g-dev
if arm64; then
    have aarch64-linux-gnu-gcc || want "links programs for arm64" gcc-aarch64-linux-gnu
    [ -e /usr/aarch64-linux-gnu/lib/libc.so.6 ] || want "the C library for arm64" libc6-dev-arm64-cross
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || ! have apt-get || want "signs packages of Debian" debian-archive-keyring
fi
if tests; then
    have ip || want "makes the kernel door's network namespaces" iproute2
    have ethtool || want "segments as a wire has them, for the kernel door's tests" ethtool
    have tc || want "shows which filters the kernel door leaves" iproute2
    have mkfs.ext4 || [ -e /usr/sbin/mkfs.ext4 ] || want "makes file systems, for guests and for regions on a disk" e2fsprogs
    have mkfs.btrfs || [ -e /usr/sbin/mkfs.btrfs ] || want "makes a disk that copies on write, for regions" btrfs-progs
    have mkfs.xfs || [ -e /usr/sbin/mkfs.xfs ] || want "makes a disk whose files share blocks, for regions" xfsprogs
    have fuse-overlayfs || want "a FUSE file system that regions are tried on" fuse-overlayfs
    have mount || want "mounts file systems for tests" mount
    have git || want "the source checks read the list of files" git
    have g++ || want "builds libFuzzer, and reads keyway.h as C++" g++
    have memcached || want "the peer that conformance and benchmarks compare with" memcached
    compgen -G '/usr/lib/*/sasl2/libplain.so' >/dev/null || want "memcached's logins by SASL" libsasl2-modules
    have memccat || want "memccat, memccp and memcstat as clients" libmemcached-tools
    [ -e /usr/include/libmemcached/memcached.h ] || want "what the drop-in for libmemcached is compared with" libmemcached-dev
    have nm || want "reads which functions and probes a program has" binutils
    have php || want "runs php-memcached" php-cli
    { have php && php -m 2>/dev/null | grep -qx memcached; } || want "uses libmemcached from PHP" php-memcached
    have nutcracker || [ -e /usr/sbin/nutcracker ] || want "a proxy before several servers" nutcracker
    have ruby || want "runs the Ruby client" ruby
    compgen -G '/usr/share/rubygems-integration/all/specifications/dalli-*' >/dev/null || want "the Ruby client" ruby-dalli
    have javac || want "builds the program for the Java client" default-jdk-headless
    [ -e /usr/share/java/spymemcached.jar ] || want "the Java client, spymemcached" libspymemcached-java
    compgen -G '/usr/lib/postgresql/*/lib/pgmemcache.so' >/dev/null || want "uses libmemcached from PostgreSQL" postgresql-15-pgmemcache
    have nc || want "sends the commands of docs/operating.md" netcat-openbsd
    have curl || want "reads the HTTP port as docs/operating.md does" curl
    have openssl || want "a client with TLS" openssl
    have systemd-socket-activate || want "hands sockets to a server, and checks the units" systemd
    have perl || want "runs memcached-tool" perl
    have python3 || want "runs the protocol's model and the Python clients" python3
    python3 -c 'import venv, ensurepip' 2>/dev/null || want "holds the Python clients" python3-venv
    have go || want "builds the Go client" golang-go
    have node || want "runs the Node client" nodejs
    have man || want "shows the manual pages" man-db
    have zsh || want "reads the completions for zsh" zsh
    have fish || want "reads the completions for fish" fish
    have npm || want "installs the Node client" npm
fi
if [ "$purpose" = gate ]; then
    have qemu-system-x86_64 || want "the guests of cargo xtask vm" qemu-system-x86
    have xz || want "unpacks the guests' modules" xz-utils
    have bpftrace || want "looks at the probes" bpftrace
    compgen -G '/usr/sbin/php-fpm*' >/dev/null || want "runs a PHP site" php-fpm
    have nginx || [ -e /usr/sbin/nginx ] || want "stands before web applications" nginx-light
    have prometheus || want "collects metrics" prometheus
    have chromium-headless-shell || have chromium || want "shows the benchmark's page" chromium-headless-shell
    have qemu-aarch64-static || want "runs tests for arm64" qemu-user-static
    have mmdebstrap || ! have apt-get || want "a clean system that packages are installed in" mmdebstrap
    have arch-test || ! have apt-get || want "what mmdebstrap asks about the machine" arch-test
    have dpkg-deb || want "makes packages for Debian" dpkg
    have rpmbuild || want "makes packages for Fedora" rpm
    have buildah || want "builds the container image" buildah
    have lintian || ! have apt-get || want "checks packages for Debian" lintian
fi

if [ ${#packages[@]} -gt 0 ]; then
    if ! have apt-get; then
        say "please install these (named as in Debian), then start again:"
        printf '    %s\n' "${wanted[@]}"
        exit 1
    fi
    say "installing ${packages[*]}"
    # Debian starts these services at once, some on the port that Keyway serves; only their programs are wanted.
    services=()
    for service in memcached postgresql nginx nutcracker php8.2-fpm prometheus; do
        if [ -d /run/systemd/system ] && ! systemctl cat "$service.service" >/dev/null 2>&1; then
            services+=("$service.service")
        fi
    done
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
    for service in "${services[@]}"; do
        if systemctl cat "$service" >/dev/null 2>&1; then
            as_root systemctl disable --now "$service" || true
            say "$service, which its package starts, was stopped and disabled again: the tests start their own"
        fi
    done
fi

if [ "$purpose" = gate ] && have apt-get && [ "$(uname -m)" = x86_64 ]; then
    xtask/guest-kernels.sh
fi

# Rust: rustup, because distributions carry older compilers than the workspace's rust-version.
if ! have cargo; then
    if ! have rustup && have apt-get && apt-cache show rustup >/dev/null 2>&1; then
        say "installing rustup"
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends rustup
    fi
    if have rustup; then
        rustup default stable
    else
        if ! have curl; then
            have apt-get || { say "please install Rust $rust_version or newer (rustup.rs), then start again"; exit 1; }
            as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends curl ca-certificates
        fi
        say "installing Rust for $(id -un) with rustup's installer"
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --no-modify-path --profile default
    fi
fi
found=$(cargo --version | cut -d' ' -f2)
if ! at_least "$rust_version" "$found"; then
    have rustup || { say "cargo is $found; please install Rust $rust_version or newer (rustup.rs), then start again"; exit 1; }
    say "cargo is $found, $rust_version is needed: updating the stable toolchain"
    rustup update stable
    found=$(cargo --version | cut -d' ' -f2)
    at_least "$rust_version" "$found" || { say "cargo is still $found: another toolchain overrides stable (rustup show)"; exit 1; }
fi

if arm64 && have rustup && [ "$(uname -m)" = x86_64 ] &&
    ! rustup target list --installed | grep -qx aarch64-unknown-linux-gnu; then
    rustup target add aarch64-unknown-linux-gnu || say "no Rust for arm64: the stage arm will be skipped"
fi
if tests; then
    if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
        have rustup || { say "please install rustfmt and clippy for cargo $found, then start again"; exit 1; }
        rustup component add rustfmt clippy
    fi
fi
if [ "$purpose" = gate ]; then
    # The stage `msrv` builds with the oldest supported compiler.
    if ! rustc --version | grep -q "^rustc $rust_version[. ]" && have rustup && ! cargo "+$rust_version" --version >/dev/null 2>&1; then
        say "installing Rust $rust_version, the oldest supported version"
        rustup toolchain install "$rust_version" --profile minimal || say "no Rust $rust_version: the stage msrv will be skipped"
    fi
    # The fuzz targets need a nightly compiler for its sanitizers.
    if ! cargo +nightly --version >/dev/null 2>&1 && have rustup; then
        say "installing the nightly toolchain"
        rustup toolchain install nightly --profile minimal || say "no nightly toolchain: the fuzz stage will be skipped"
    fi
    if cargo +nightly --version >/dev/null 2>&1 && ! cargo fuzz --version >/dev/null 2>&1; then
        say "building cargo-fuzz (one to two minutes, once)"
        cargo install cargo-fuzz --locked --quiet
    fi
fi
say "everything is there"
