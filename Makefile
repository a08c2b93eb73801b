# Two commands: `make run` and `make test`. Both install what is missing on Debian and Ubuntu; elsewhere they say what to install.
# `make gate` runs the checks that `make test` leaves out: together they decide whether a change is merged.

PREFIX ?= /usr/local
# What `keyway serve` is given besides its defaults, for example: make run ARGS='--memory 1G --threads 8'
ARGS ?=

# A toolchain that rustup has only just installed is not yet on the caller's PATH.
export PATH := $(HOME)/.cargo/bin:$(PATH)
TARGET_DIR = $(or $(CARGO_TARGET_DIR),target)
# How to build, as cargo names it: release, or dev to have it sooner.
PROFILE ?= release
# What packages are for, as Debian names it: amd64 or arm64, and the tools of the other one.
ARCH ?= $(if $(filter aarch64,$(shell uname -m)),arm64,amd64)
CROSS = $(if $(filter arm64/x86_64,$(ARCH)/$(shell uname -m)),aarch64-unknown-linux-gnu)
# make takes a path with a blank for two.
NO_BLANK = $(if $(filter-out 2,$(words $(CURDIR) $(TARGET_DIR))),$(error "$(CURDIR)" or CARGO_TARGET_DIR has a blank, \
  which make takes for two paths: move it to a path without one (`cargo build` takes any)))
CARGO_DIR = $(NO_BLANK)$(abspath $(TARGET_DIR))$(if $(CROSS),/arm)
CARGO_BUILD = --profile $(PROFILE) --locked --target-dir $(CARGO_DIR) $(if $(CROSS),--target $(CROSS))
PROFILE_DIR = $(if $(CROSS),$(CROSS)/)$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
BUILT = $(CARGO_DIR)/$(PROFILE_DIR)
# It runs a make for libbpf, which would take PREFIX and DESTDIR for its own.
CARGO = env -u MAKEFLAGS -u PREFIX -u DESTDIR cargo
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# The part of the library's version that programs are linked to; crates/keyway-capi/build.rs has it too.
SONAME = libkeyway.so.0
TO = $(DESTDIR)$(PREFIX)

# The manual pages, completions and configuration of packages, and the licences of what they contain.
MANUAL = $(NO_BLANK)$(abspath $(TARGET_DIR))/manual
# Who answers for a package: set it to yourself if you give packages to others. This address reaches no one (RFC 2606).
MAINTAINER ?= Keyway's builders <packages@keyway.invalid>
# The name of the container image, and the tool that makes it: podman, docker or buildah.
IMAGE ?= keyway:$(VERSION)
# The image that it is built in: one with Rust, of the release of Debian that the packages are tested on.
BUILDER ?= rust:$(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)-bookworm
CONTAINERS ?= $(firstword $(foreach tool,podman docker buildah,$(if $(shell command -v $(tool)),$(tool))))

.PHONY: help run test gate program build install apart beside loader wheel packaged deb rpm image clean

help:
	@echo 'make run      build in release mode and serve on 127.0.0.1:11211 (ARGS=… is passed on)'
	@echo 'make test     run what says that the tree works: cargo xtask test'
	@echo 'make gate     run all other checks: cargo xtask gate'
	@echo 'make build    build the program, the library for C and the drop-in for libmemcached in $(TARGET_DIR)$(if $(CROSS),/arm)/$(PROFILE_DIR)'
	@echo 'make install  copy them, keyway.h and keyway.pc to PREFIX (PREFIX=$(PREFIX), DESTDIR is honoured)'
	@echo 'make wheel    build the package for Python in $(TARGET_DIR)/wheels (needs pip, which fetches maturin and zig)'
	@echo 'make deb      build the packages for Debian in $(TARGET_DIR)/deb (ARCH=arm64: for that processor)'
	@echo 'make rpm      build the packages for Fedora and its relatives in $(TARGET_DIR)/rpm (ARCH=arm64, too)'
	@echo 'make image    build the container image $(IMAGE) with $(or $(CONTAINERS),podman, docker or buildah)'
	@echo 'make clean    remove what the build made'

run: program
	exec $(BUILT)/keyway serve --listen 127.0.0.1:11211 $(ARGS)

test:
	xtask/prerequisites.sh test
	cargo xtask test $(if $(BEGIN_WITHIN),--begin-within $(BEGIN_WITHIN))

gate:
	xtask/prerequisites.sh gate
	cargo xtask gate $(if $(BEGIN_WITHIN),--begin-within $(BEGIN_WITHIN))

program:
	xtask/prerequisites.sh $(if $(CROSS),arm64,run)
	$(CROSS_LIBRARIES)
	$(CROSS_ENV) $(CARGO) build $(CARGO_BUILD) --package keyway-cli

# What programs for arm64 are linked to, besides the C library: fetched once, and not installed.
CROSS_FOLDER = $(CARGO_DIR)/libraries
CROSS_LIBRARIES = $(if $(CROSS),packaging/arm64/libraries.sh $(CROSS_FOLDER))
CROSS_ENV = $(if $(CROSS),CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
  CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc PYO3_CROSS=1 \
  LIBBPF_SYS_LIBRARY_PATH_aarch64_unknown_linux_gnu=$(CROSS_FOLDER)/lib LIBBPF_SYS_EXTRA_CFLAGS=-I$(CROSS_FOLDER)/include)

# The library without its form for Rust programs, which are tests: with it, nothing is optimized across crates.
build: program
	$(CROSS_ENV) $(CARGO) rustc $(CARGO_BUILD) --package keyway-capi --lib --crate-type cdylib,staticlib
	$(CROSS_ENV) $(CARGO) build $(CARGO_BUILD) --package keyway-libmemcached
	$(CROSS_ENV) $(CARGO) rustc $(CARGO_BUILD) --package keyway-libmemcachedutil --lib --crate-type cdylib

# Builds only if something is not there, so that `make build && sudo make install` does not build as root.
install:
	test -x $(BUILT)/keyway -a -f $(BUILT)/libkeyway_capi.so -a -f $(BUILT)/libkeyway_capi.a -a -f $(BUILT)/libmemcached.so -a -f $(BUILT)/libmemcachedutil.so || $(MAKE) build
	install -D -m 755 $(BUILT)/keyway $(TO)/bin/keyway
	@$(MAKE) --no-print-directory apart beside
	install -D -m 755 $(BUILT)/libkeyway_capi.so $(TO)/lib/libkeyway.so.$(VERSION)
	ln -sf libkeyway.so.$(VERSION) $(TO)/lib/$(SONAME)
	ln -sf $(SONAME) $(TO)/lib/libkeyway.so
	install -D -m 644 $(BUILT)/libkeyway_capi.a $(TO)/lib/libkeyway.a
	install -D -m 644 crates/keyway-capi/include/keyway.h $(TO)/include/keyway.h
	install -D -m 755 $(BUILT)/libmemcached.so $(TO)/lib/keyway/libmemcached.so.11
	install -D -m 755 $(BUILT)/libmemcachedutil.so $(TO)/lib/keyway/libmemcachedutil.so.2
	install -d $(TO)/lib/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' crates/keyway-capi/keyway.pc.in >$(TO)/lib/pkgconfig/keyway.pc
	@$(MAKE) --no-print-directory loader

# The program's line tables, which backtraces, perf and gdb look for in `.debug` beside it.
BINUTILS = $(if $(CROSS),aarch64-linux-gnu-)
apart:
	install -d $(TO)/bin/.debug
	$(BINUTILS)objcopy --only-keep-debug $(BUILT)/keyway $(TO)/bin/.debug/keyway.debug
	chmod 644 $(TO)/bin/.debug/keyway.debug
	$(BINUTILS)strip --strip-unneeded $(TO)/bin/keyway
	cd $(TO)/bin/.debug && $(BINUTILS)objcopy --add-gnu-debuglink=keyway.debug ../keyway

# Manual pages, completions of shells and a commented configuration file, as a program for this machine writes them.
beside:
	@folder=$$(mktemp -d) && trap 'rm -r "$$folder"' EXIT && \
	  $(if $(KEYWAY),$(KEYWAY),$(BUILT)/keyway) manual "$$folder" && \
	  install -d $(TO)/share/man/man1 && install -m 644 "$$folder"/man/*.1 $(TO)/share/man/man1 && \
	  install -D -m 644 "$$folder/completions/keyway.bash" $(TO)/share/bash-completion/completions/keyway && \
	  install -D -m 644 "$$folder/completions/_keyway" $(TO)/share/zsh/site-functions/_keyway && \
	  install -D -m 644 "$$folder/completions/keyway.fish" $(TO)/share/fish/vendor_completions.d/keyway.fish && \
	  install -D -m 644 "$$folder/keyway.toml" $(TO)/share/doc/keyway/keyway.toml

# Has the loader take note of the library, unless it is for a package (DESTDIR); says how it is found where the loader does not look.
loader:
	@test -n "$(DESTDIR)" || { PATH="$$PATH:/usr/sbin:/sbin"; ldconfig 2>/dev/null; \
	  ldconfig -p 2>/dev/null | grep -q ' $(PREFIX)/lib/$(SONAME)$$' || \
	  echo 'Programs do not find $(SONAME) by themselves: set LD_LIBRARY_PATH=$(PREFIX)/lib, or add $(PREFIX)/lib to /etc/ld.so.conf.d and run ldconfig.'; }

# For every Linux with glibc 2.28 or later, wherever it is built: zig links with that version's symbols, and maturin checks them.
MANYLINUX = manylinux_2_28
WHEEL_TOOLS = $(NO_BLANK)$(abspath $(TARGET_DIR))/wheel-tools

wheel:
	test -x $(WHEEL_TOOLS)/bin/maturin || { python3 -m venv $(WHEEL_TOOLS) && $(WHEEL_TOOLS)/bin/pip install --quiet 'maturin[zig]>=1.10,<2'; }
	cd bindings/python && PATH=$(WHEEL_TOOLS)/bin:$$PATH CARGO_TARGET_DIR=$(abspath $(TARGET_DIR))/wheel-build maturin build \
	  --profile $(PROFILE) --locked --zig --compatibility $(MANYLINUX) --auditwheel check --out $(abspath $(TARGET_DIR))/wheels

# Everything that packages contain. The manual is written by a program for this machine: KEYWAY, or one that is built for it.
packaged: build
	$(CROSS_ENV) $(CARGO) build $(CARGO_BUILD) --package keyway-python
	$(if $(KEYWAY),$(KEYWAY),$(CARGO) run --quiet --profile $(PROFILE) --locked --package keyway-cli --) manual $(MANUAL)
	packaging/licences.py $(CROSS) >$(MANUAL)/licences

# Files have the time of the last commit, so that the same sources give the same packages.
PACKAGE_ENV = BUILT=$(BUILT) MANUAL=$(MANUAL) ARCH=$(ARCH) VERSION=$(VERSION) MAINTAINER="$(MAINTAINER)" \
  SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)}

deb: packaged
	$(PACKAGE_ENV) packaging/deb/build.sh $(TARGET_DIR)/deb

rpm: packaged
	$(PACKAGE_ENV) packaging/rpm/build.sh $(TARGET_DIR)/rpm

image:
	@test -n '$(CONTAINERS)' || { echo 'make image needs podman, docker or buildah' >&2; exit 1; }
	$(CONTAINERS) build $(if $(filter docker,$(CONTAINERS)),,--format docker) --build-arg BUILDER=$(BUILDER) --tag $(IMAGE) --file packaging/image/Containerfile .

clean:
	cargo clean
