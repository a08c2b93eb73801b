# Two commands: `make run` and `make test`. Both install what is missing on Debian and Ubuntu; elsewhere they say what to install.

PREFIX ?= /usr/local
# What `keyway serve` is given besides its defaults, for example: make run ARGS='--memory 1G --threads 8'
ARGS ?=

# A toolchain that rustup has only just installed is not yet on the caller's PATH.
export PATH := $(HOME)/.cargo/bin:$(PATH)
TARGET_DIR = $(or $(CARGO_TARGET_DIR),target)

.PHONY: help run test build install clean

help:
	@echo 'make run      build in release mode and serve on 127.0.0.1:11211 (ARGS=… is passed on)'
	@echo 'make test     run the whole gate: cargo xtask ci'
	@echo 'make build    build $(TARGET_DIR)/release/keyway'
	@echo 'make install  copy keyway to PREFIX/bin (PREFIX=$(PREFIX), DESTDIR is honoured)'
	@echo 'make clean    remove what the build made'

run: build
	exec $(TARGET_DIR)/release/keyway serve --listen 127.0.0.1:11211 $(ARGS)

test:
	xtask/prerequisites.sh test
	cargo xtask ci

build:
	xtask/prerequisites.sh run
	cargo build --release --locked --package keyway-cli

# Builds only what is not there, so that `make && sudo make install` does not build as root.
install:
	test -x $(TARGET_DIR)/release/keyway || $(MAKE) build
	install -D -m 755 $(TARGET_DIR)/release/keyway $(DESTDIR)$(PREFIX)/bin/keyway

clean:
	cargo clean
