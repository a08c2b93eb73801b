# Two commands: `make run` and `make test`. Both install what is missing on Debian and Ubuntu; elsewhere they say what to install.

PREFIX ?= /usr/local
# What `keyway serve` is given besides its defaults, for example: make run ARGS='--memory 1G --threads 8'
ARGS ?=

# A toolchain that rustup has only just installed is not yet on the caller's PATH.
export PATH := $(HOME)/.cargo/bin:$(PATH)
TARGET_DIR = $(or $(CARGO_TARGET_DIR),target)
# How to build, as cargo names it: release, or dev to have it sooner.
PROFILE ?= release
BUILT = $(TARGET_DIR)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# The part of the library's version that programs are linked to; crates/keyway-capi/build.rs has it too.
SONAME = libkeyway.so.0
TO = $(DESTDIR)$(PREFIX)

# The manual pages, completions and configuration of packages.
MANUAL = $(TARGET_DIR)/manual

.PHONY: help run test program build install loader wheel deb manual clean

help:
	@echo 'make run      build in release mode and serve on 127.0.0.1:11211 (ARGS=… is passed on)'
	@echo 'make test     run all checks: cargo xtask ci'
	@echo 'make build    build the program, the library for C and the drop-in for libmemcached in $(BUILT)'
	@echo 'make install  copy them, keyway.h and keyway.pc to PREFIX (PREFIX=$(PREFIX), DESTDIR is honoured)'
	@echo 'make wheel    build the package for Python in $(TARGET_DIR)/wheels (needs pip, which fetches maturin and zig)'
	@echo 'make deb      build the packages for Debian in $(TARGET_DIR)/deb'
	@echo 'make clean    remove what the build made'

run: program
	exec $(BUILT)/keyway serve --listen 127.0.0.1:11211 $(ARGS)

test:
	xtask/prerequisites.sh test
	cargo xtask ci

program:
	xtask/prerequisites.sh run
	cargo build --profile $(PROFILE) --locked --package keyway-cli

# The library without its form for Rust programs, which are tests: with it, nothing is optimized across crates.
build: program
	cargo rustc --profile $(PROFILE) --locked --package keyway-capi --lib --crate-type cdylib,staticlib
	cargo build --profile $(PROFILE) --locked --package keyway-libmemcached
	cargo rustc --profile $(PROFILE) --locked --package keyway-libmemcachedutil --lib --crate-type cdylib

# Builds only if something is not there, so that `make build && sudo make install` does not build as root.
install:
	test -x $(BUILT)/keyway -a -f $(BUILT)/libkeyway_capi.so -a -f $(BUILT)/libkeyway_capi.a -a -f $(BUILT)/libmemcached.so -a -f $(BUILT)/libmemcachedutil.so || $(MAKE) build
	install -D -m 755 $(BUILT)/keyway $(TO)/bin/keyway
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

# Has the loader take note of the library, unless it is for a package (DESTDIR); says how it is found where the loader does not look.
loader:
	@test -n "$(DESTDIR)" || { PATH="$$PATH:/usr/sbin:/sbin"; ldconfig 2>/dev/null; \
	  ldconfig -p 2>/dev/null | grep -q ' $(PREFIX)/lib/$(SONAME)$$' || \
	  echo 'Programs do not find $(SONAME) by themselves: set LD_LIBRARY_PATH=$(PREFIX)/lib, or add $(PREFIX)/lib to /etc/ld.so.conf.d and run ldconfig.'; }

# For every Linux with glibc 2.28 or later, wherever it is built: zig links with that version's symbols, and maturin checks them.
MANYLINUX = manylinux_2_28
WHEEL_TOOLS = $(abspath $(TARGET_DIR))/wheel-tools

wheel:
	test -x $(WHEEL_TOOLS)/bin/maturin || { python3 -m venv $(WHEEL_TOOLS) && $(WHEEL_TOOLS)/bin/pip install --quiet 'maturin[zig]>=1.10,<2'; }
	cd bindings/python && PATH=$(WHEEL_TOOLS)/bin:$$PATH CARGO_TARGET_DIR=$(abspath $(TARGET_DIR))/wheel-build maturin build \
	  --profile $(PROFILE) --locked --zig --compatibility $(MANYLINUX) --auditwheel check --out $(abspath $(TARGET_DIR))/wheels

manual:
	cargo run --quiet --profile $(PROFILE) --locked --package keyway-cli -- manual $(MANUAL)

# Files have the time of the last commit, so that the same sources give the same packages.
deb: build manual
	cargo build --profile $(PROFILE) --locked --package keyway-python
	BUILT=$(BUILT) MANUAL=$(MANUAL) ARCH=$$(dpkg --print-architecture) VERSION=$(VERSION) \
	  SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} packaging/deb/build.sh $(TARGET_DIR)/deb

clean:
	cargo clean
