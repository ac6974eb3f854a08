# SPDX-License-Identifier: BSD-2-Clause
# make            builds the programs
# make demo       sends real packets through pipes and prints a table
# make test       runs all tests
# make core       builds and tests what is netmap: all but the folders apps and bench, in a folder of its own
# make soak       MINUTES=60: hostile tenants of every kind beside honest traffic (root)
# make test-long  fuzz targets (SECONDS=60 each), Miri, sanitizers, oracle; STEPS="fuzz miri c threads oracle upgrades crashes restarts previous reproducible"
# make test-inline faults of programs in the wire (root; some minutes); KILLS=1000 HANGS=200 STARVATIONS=200 repeats those instead
# make host-matrix  host rings: all attachments with all kinds of traffic
# make test-kubelet  pods of a real kubelet, which is built once, by containerd (root; Go 1.25; minutes the first time, then one or two)
# make test-evpn  switches of several hosts, joined by VXLAN with FRR's EVPN (root; Debian's FRR is fetched); HOSTS=3 to 8
# make test-vm    all kernels and drivers in QEMU guests; KERNELS="6.1 6.18" and DRIVERS="igb,veth" choose
# make test-arm64  builds for arm64; unit tests, make demo and interfaces in emulations (QEMU)
# make test-bare  make demo and make test in fresh Debian 12 and 13 roots (root; about an hour)
# make test-nic   IF=eth1 PEER=eth2: real interfaces, joined by a cable and otherwise unused (root)
# make lint       formatting, clippy, layout and words of the source, decisions, documents and their patches, headers, manual pages, licences
# make bench      measures; BENCH="pipe --json" chooses
# make install    to PREFIX (/usr/local) and LIBDIR (PREFIX/lib), below DESTDIR; make uninstall removes it; install-c: headers and libraries alone
# make deb        Debian packages, in target/deb; root installs the tools; test-deb and test-systemd test them (root)
# make repository KEY=ID URL=ADDRESS  signed archives for apt and dnf of the packages of `make deb` and `make rpm`, in target/repository
# make reproducible  builds the Debian packages twice, in other folders and surroundings, and compares them byte by byte (half an hour)
# make rpm        rpm packages, in target/rpm
# make wheel      the Python package, in target/wheel (docs/python.md)

PREFIX ?= /usr/local
# Of the libraries; Debian's packages have /usr/lib/x86_64-linux-gnu.
LIBDIR ?= $(PREFIX)/lib
STRIP ?= strip
CARGO ?= cargo
MINUTES ?= 60
SECONDS ?= 60
BENCH ?= pipe pipe-batch pipe-1core pipe-rtt

PACKAGES := unetmap-daemon unetmap-cli unetmap-cni unetmap-device-plugin pkt-gen bridge unetmap-fw lb vale-ctl unetmap-examples
PROGRAMS := unetmapd unetmap pkt-gen bridge unetmap-fw lb vale-ctl unetmap-device-plugin
# An example that `unetmap bench` runs; it is not installed into bin.
HELPERS := collector
# Run by container runtimes, which look for it in a folder of plugins.
CNI := unetmap-cni
DEMO_PACKAGES := unetmap-daemon unetmap-cli pkt-gen bridge
# Whose crates' licences are installed.
CONTAINED := $(PACKAGES) unetmap-capi
TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
BIN := $(TARGET)/release
MAN_SECTIONS := 1 3 4 5 7 8
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# The library's file; crates/capi/build.rs writes this name into it, and the loader looks for it.
SONAME := libunetmap.so.0
COMPLETIONS := bash-completion/completions zsh/site-functions fish/vendor_completions.d
UNITS := $(DESTDIR)$(PREFIX)/lib/systemd
# Of programs in the wire.
WIRE_UNITS := unetmap-bridge@.service unetmap-fw@.service unetmap-suricata@.service

# The folder of rustup's cargo, for shells that were started before rustup was installed.
export PATH := $(PATH):$(HOME)/.cargo/bin

.PHONY: build debug core setup setup-tests demo test test-long test-inline test-kubelet test-evpn soak test-bare test-nic test-vm test-arm64 host-matrix loom
.PHONY: deb repository reproducible rpm wheel test-deb test-systemd lint lint-source lint-adding lint-crates lint-headers lint-man lint-bpf lint-go bench install install-c uninstall
.DEFAULT_GOAL := build

# A release names no folder of the machine that built it, so that any two builds are the same.
CARGO_HOME ?= $(HOME)/.cargo
build wheel: export RUSTFLAGS := $(RUSTFLAGS) $(join --remap-path-prefix=$(CARGO_HOME)= --remap-path-prefix=$(TARGET)= \
	--remap-path-prefix=$(CURDIR)=,cargo target unetmap)
build: export UNETMAP_COMMIT ?= $(or $(shell git describe --always --dirty --exclude='*' --abbrev=12 2>/dev/null),no commit)
build: export CFLAGS := $(or $(CFLAGS),-O2 -g) -ffile-prefix-map=$(CURDIR)=unetmap
build: setup
	@echo "build: all programs, each optimized as a whole, which takes about 10 minutes on two cores the first time"
	$(CARGO) build --locked --release --bins --lib $(CONTAINED:%=-p %)
	$(MAKE) -C crates/capi OUT=$(BIN)
	$(MAKE) -C pcap OUT=$(BIN)/pcap
	.ci/notices $(BIN)/NOTICES $(CONTAINED)
	.ci/sbom $(BIN)/sbom.cdx.json $(CONTAINED)

setup-tests:
	@.ci/setup tests

setup:
	@.ci/setup

# Only what the demo runs, by a profile of its own (Cargo.toml): a fifth of the work of `make build`.
demo: setup
	@echo "demo: builds $(words $(DEMO_PACKAGES)) programs first, which takes 1 to 3 minutes on two cores the first time; then runs for half a minute"
	$(CARGO) build --locked --profile demo --no-default-features --bins $(DEMO_PACKAGES:%=-p %)
	@BIN=$(TARGET)/demo demo/run

# For Python 3.11 and later. With cargo's features and lock file of its own, so no program's build needs Python.
wheel: setup
	CARGO_TARGET_DIR=$(TARGET) .ci/wheel release $(TARGET)/wheel

# Programs, C libraries and tests, which run them. One build of all: with fewer targets cargo unites other features of
# the crates, and compiles most of them twice.
debug: setup
	$(CARGO) build --locked --workspace --all-targets
	$(MAKE) -C crates/capi OUT=$(TARGET)/debug
	$(MAKE) -C pcap OUT=$(TARGET)/debug/pcap
	FOR_TEST=1 CARGO_TARGET_DIR=$(TARGET) .ci/wheel dev $(TARGET)/debug/wheel

test: setup-tests loom debug
	.ci/test --locked --workspace --no-fail-fast

# Everything but these: the crates in apps and bench, and what is made of them and of the core.
APPS := $(shell grep -hm1 '^name = ' apps/*/Cargo.toml | cut -d '"' -f 2) unetmap-bench unetmap-budgets unetmap-examples
CORE := --locked --workspace $(APPS:%=--exclude %) --no-default-features
# The Cargo features `apps` and `bench` are off, so in a folder of its own.
core: export CARGO_TARGET_DIR := $(TARGET)/core
core: setup-tests
	@echo "core: without $(APPS)"
	$(CARGO) build $(CORE) --all-targets
	$(MAKE) -C crates/capi OUT=$(CARGO_TARGET_DIR)/debug
	$(MAKE) -C pcap OUT=$(CARGO_TARGET_DIR)/debug/pcap
	.ci/test $(CORE) --no-fail-fast

# The code under test is built another way, so in a folder of its own.
loom: setup
	RUSTFLAGS="$(RUSTFLAGS) --cfg loom" CARGO_TARGET_DIR=$(TARGET)/loom \
		$(CARGO) test --locked --release -p unetmap-mem --test loom

test-long: setup-tests
	@FUZZ_SECONDS=$(SECONDS) .ci/test-long $(STEPS)

# Optimized, with the assertions of debug builds.
soak: setup-tests
	$(CARGO) build --locked --profile soak -p unetmap-daemon -p unetmap-cli -p bridge -p conformance-hostile --bins
	SOAK_MINUTES=$(MINUTES) $(CARGO) test --locked --profile soak -p conformance-hostile --test soak

# Writes its tables into the document. Some faults many times in place of all once, into the folder target/inline only.
INLINE := $(KILLS:%=--kills=%) $(HANGS:%=--hangs=%) $(STARVATIONS:%=--starvations=%)
INLINE_DOCUMENT := $(if $(WAYS),$(filter suricata,$(WAYS)),inline)
test-inline: debug
	$(CARGO) test --locked -p conformance --test inline -- --whole $(WAYS) $(INLINE) --out=$(TARGET)/inline \
		$(if $(INLINE),,$(INLINE_DOCUMENT:%=--document=$(CURDIR)/docs/%.md))

test-kubelet:
	$(CARGO) build --locked -p unetmap-daemon -p unetmap-cli -p unetmap-cni --bins
	.ci/test-kubelet $(TARGET)/debug $(TARGET)/kubelet

test-evpn:
	$(CARGO) build --locked -p unetmap-daemon -p unetmap-cli -p vale-ctl --bins
	.ci/test-evpn $(TARGET)/debug $(TARGET)/evpn $(HOSTS)

# Host rings: each way to attach an interface with each kind of traffic.
host-matrix: debug
	$(CARGO) test --locked -p conformance --test tables -- host_matrix

test-bare:
	@.ci/bare

test-nic: build
	@BIN=$(BIN) .ci/test-nic "$(IF)" "$(PEER)"

# VM=--short is the form for CI: one kernel, two drivers. VM=--every: every driver with every kernel.
test-vm: debug
	vm/prepare
	vm/table $(VM)

test-arm64:
	@CARGO=$(CARGO) vm/arm64

lint: setup lint-source lint-crates lint-headers lint-man lint-bpf lint-adding lint-go
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --all --check
	$(CARGO) fmt --manifest-path python/Cargo.toml --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	@{ python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' && $(CARGO) fetch --quiet --locked --manifest-path python/Cargo.toml; } || \
		{ echo "lint: the wheel's crate was not checked: no Python 3.11, or its crates cannot be fetched"; exit 0; }; \
		CARGO_TARGET_DIR=$(TARGET) $(CARGO) clippy --locked --manifest-path python/Cargo.toml -- -D warnings

# Crates that are for the registry; cargo publish sends them in the order of their dependencies.
PUBLISHED := unetmap-abi unetmap-sys unetmap-mem unetmap-core unetmap unetmap-adapters

# Sizes, words; import circles; decisions and the links to them; the table of resources; the C files in the library's package.
lint-source:
	@.ci/check-source
	@.ci/check-imports
	@.ci/check-decisions
	@.ci/check-docs
	@.ci/check-resources
	@$(CARGO) package --locked -p unetmap-capi --allow-dirty --list | grep -qx preload/hooks.c || \
		{ echo "lint: the package of unetmap-capi lacks the C files"; exit 1; }
	@$(CARGO) package --locked --no-verify --allow-dirty $(PUBLISHED:%=-p %) >/dev/null || \
		{ echo "lint: the crates of the registry cannot be packaged"; exit 1; }

# The patches of docs/adding.md against the source: they apply, and compile.
lint-adding: setup
	@.ci/check-adding

# Licences, sources and advisories of the crates that are used.
lint-crates:
	@.ci/check-crates

# Layout of the Go sources; says so and passes where there is no Go.
lint-go:
	@command -v gofmt >/dev/null || { echo "lint: no gofmt (golang), so the Go sources were not checked"; exit 0; }; \
	unformatted=$$(gofmt -l go conformance/go) && [ -z "$$unformatted" ] || { echo "gofmt -w $$unformatted"; exit 1; }

# The compiled BPF objects against their sources; says so and passes where that version of clang is not installed.
lint-bpf:
	@$(MAKE) --no-print-directory -C crates/sys/bpf check

# Each header alone, as strictly as its users may compile it.
lint-headers: setup
	@cd include && for header in $$(find . -name '*.h' | sort); do \
		echo "header $$header"; \
		echo "#include \"$$header\"" | $(CC) -std=gnu99 -Wall -Wextra -Werror -fsyntax-only -I. -x c - || exit 1; \
		command -v c++ >/dev/null || continue; \
		echo "#include \"$$header\"" | c++ -std=c++11 -Wall -Wextra -Werror -fsyntax-only -I. -x c++ - || exit 1; \
	done; \
	command -v c++ >/dev/null || exit 0; echo "header unetmap.hpp"; \
	echo "#include \"unetmap.hpp\"" | c++ -std=c++17 -Wall -Wextra -pedantic -Werror -fsyntax-only -I. -x c++ -

lint-man:
	@command -v groff >/dev/null || { echo "lint: no groff (groff-base), so manual pages were not checked"; exit 0; }; \
	for page in man/*.[1-9]; do \
		echo "manual $$page"; \
		output=$$(groff -man -t -Kutf8 -Tutf8 -ww -z "$$page" 2>&1) && [ -z "$$output" ] || { echo "$$output"; exit 1; }; \
	done

bench: build
	$(BIN)/unetmap bench $(BENCH)

# Headers and libraries for programs in C and C++, and the files by which pkg-config and CMake find them.
SUBSTITUTED = s|@PREFIX@|$(PREFIX)|g; s|@LIBDIR@|$(LIBDIR)|g; s|@VERSION@|$(VERSION)|g; s|@SONAME@|$(SONAME)|g
define INSTALL_C
install -d $(DESTDIR)$(PREFIX)/include/net $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(LIBDIR)/cmake/unetmap
install -m 644 include/net/*.h $(DESTDIR)$(PREFIX)/include/net
install -m 644 include/*.h include/*.hpp $(DESTDIR)$(PREFIX)/include
install -s --strip-program=$(STRIP) -m 644 $(BIN)/c/libunetmap.so $(DESTDIR)$(LIBDIR)/$(SONAME)
ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/libunetmap.so
install -m 644 $(BIN)/c/libunetmap.a $(BIN)/c/libnetmap.a $(DESTDIR)$(LIBDIR)
$(STRIP) --strip-debug $(DESTDIR)$(LIBDIR)/libunetmap.a $(DESTDIR)$(LIBDIR)/libnetmap.a
set -e; for name in unetmap netmap libnetmap; do \
	case $$name in unetmap) from=unetmap ;; *) from=netmap ;; esac; \
	sed "$(SUBSTITUTED); s|@NAME@|$$name|" preload/$$from.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/$$name.pc; \
done
set -e; for name in unetmap-config unetmap-config-version; do \
	sed "$(SUBSTITUTED)" preload/$$name.cmake.in >$(DESTDIR)$(LIBDIR)/cmake/unetmap/$$name.cmake; \
done
endef

install-c:
	$(INSTALL_C)

# Builds only what is missing, so that root needs no Rust.
install:
	@for program in $(PROGRAMS) $(HELPERS) $(CNI); do test -x $(BIN)/$$program || { $(MAKE) build || exit 1; break; }; done
	@test -e $(BIN)/NOTICES || .ci/notices $(BIN)/NOTICES $(CONTAINED)
	@test -e $(BIN)/sbom.cdx.json || .ci/sbom $(BIN)/sbom.cdx.json $(CONTAINED)
	install -D -m 644 $(BIN)/NOTICES $(DESTDIR)$(PREFIX)/share/doc/unetmap/NOTICES
	install -m 644 $(BIN)/sbom.cdx.json $(DESTDIR)$(PREFIX)/share/doc/unetmap
	install -d $(DESTDIR)$(PREFIX)/bin
	install -s --strip-program=$(STRIP) $(PROGRAMS:%=$(BIN)/%) $(DESTDIR)$(PREFIX)/bin
	$(INSTALL_C)
	install -d $(DESTDIR)$(PREFIX)/lib/unetmap
	install -s --strip-program=$(STRIP) -m 644 $(BIN)/pcap/libpcap.so.0.8 $(DESTDIR)$(PREFIX)/lib/unetmap
	ln -sf libpcap.so.0.8 $(DESTDIR)$(PREFIX)/lib/unetmap/libpcap.so
	ln -sf libpcap.so.0.8 $(DESTDIR)$(PREFIX)/lib/unetmap/libpcap.so.1
	install -s --strip-program=$(STRIP) $(HELPERS:%=$(BIN)/%) $(DESTDIR)$(PREFIX)/lib/unetmap
	install -d $(DESTDIR)$(PREFIX)/lib/cni
	install -s --strip-program=$(STRIP) $(BIN)/$(CNI) $(DESTDIR)$(PREFIX)/lib/cni/unetmap
	# Where unetmap run finds it.
	ln -sfr $(DESTDIR)$(LIBDIR)/$(SONAME) $(DESTDIR)$(PREFIX)/lib/unetmap/libunetmap.so
	install -d $(COMPLETIONS:%=$(DESTDIR)$(PREFIX)/share/%)
	for program in $(filter-out unetmapd,$(PROGRAMS)); do \
		set -e; share=$(DESTDIR)$(PREFIX)/share; program_completions="$(BIN)/$$program --completions"; \
		$$program_completions bash >$$share/bash-completion/completions/$$program; \
		$$program_completions zsh >$$share/zsh/site-functions/_$$program; \
		$$program_completions fish >$$share/fish/vendor_completions.d/$$program.fish; \
	done
	install -d $(UNITS)/system $(UNITS)/user $(DESTDIR)$(PREFIX)/lib/sysusers.d
	for unit in unetmapd.socket unetmapd.service; do \
		sed 's|@BINDIR@|$(PREFIX)/bin|' service/$$unit >$(UNITS)/system/$$unit && \
		sed 's|@BINDIR@|$(PREFIX)/bin|' service/user/$$unit >$(UNITS)/user/$$unit || exit 1; \
	done
	for unit in unetmap-metrics.service $(WIRE_UNITS); do \
		sed 's|@BINDIR@|$(PREFIX)/bin|' service/$$unit >$(UNITS)/system/$$unit || exit 1; \
	done
	install -d $(DESTDIR)$(PREFIX)/share/unetmap
	install -m 644 service/grafana.json service/alerts.yml $(DESTDIR)$(PREFIX)/share/unetmap
	# The Go module, as source.
	for folder in . gopacket examples/echo examples/rate; do \
		install -d $(DESTDIR)$(PREFIX)/share/unetmap/go/$$folder && \
		install -m 644 $(wildcard go/LICENSE) $$(ls go/$$folder/*.go go/$$folder/go.* 2>/dev/null | sort -u) \
			$(DESTDIR)$(PREFIX)/share/unetmap/go/$$folder || exit 1; \
	done
	install -m 644 service/unetmap.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/unetmap.conf
	@for section in $(MAN_SECTIONS); do \
		for page in man/*.$$section; do \
			test -e "$$page" || continue; \
			install -d $(DESTDIR)$(PREFIX)/share/man/man$$section; \
			install -m 644 "$$page" $(DESTDIR)$(PREFIX)/share/man/man$$section || exit 1; \
		done; \
	done
	# The other names of that page.
	ln -sf unetmap-capture.1 $(DESTDIR)$(PREFIX)/share/man/man1/unetmap-replay.1
	ln -sf unetmap-capture.1 $(DESTDIR)$(PREFIX)/share/man/man1/unetmap-extract.1
	# The loader's cache; not for a package.
	@test -n "$(DESTDIR)" || test "$$(id -u)" -ne 0 || ldconfig

deb:
	@.ci/deb

repository:
	@KEY="$(KEY)" URL="$(URL)" .ci/repository

reproducible:
	@.ci/reproducible

rpm:
	@.ci/rpm

test-deb: deb
	@.ci/test-deb

# The service under systemd, which runs in namespaces of its own.
test-systemd: deb
	@.ci/test-systemd

uninstall:
	rm -f $(PROGRAMS:%=$(DESTDIR)$(PREFIX)/bin/%)
	rm -f $(patsubst include/%,$(DESTDIR)$(PREFIX)/include/%,$(wildcard include/*.h include/*.hpp include/net/*.h))
	rm -rf $(DESTDIR)$(LIBDIR)/cmake/unetmap
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,libunetmap.so $(SONAME) libunetmap.a libnetmap.a)
	rm -f $(patsubst %,$(DESTDIR)$(LIBDIR)/pkgconfig/%.pc,unetmap netmap libnetmap)
	rm -rf $(DESTDIR)$(PREFIX)/lib/unetmap
	rm -f $(DESTDIR)$(PREFIX)/lib/cni/unetmap
	rm -f $(foreach kind,system user,$(addprefix $(UNITS)/$(kind)/,unetmapd.socket unetmapd.service))
	rm -f $(addprefix $(UNITS)/system/,unetmap-metrics.service $(WIRE_UNITS))
	rm -f $(DESTDIR)$(PREFIX)/lib/sysusers.d/unetmap.conf
	rm -rf $(DESTDIR)$(PREFIX)/share/unetmap $(DESTDIR)$(PREFIX)/share/doc/unetmap
	cd $(DESTDIR)$(PREFIX)/share && rm -f $(foreach program,$(filter-out unetmapd,$(PROGRAMS)), \
		bash-completion/completions/$(program) zsh/site-functions/_$(program) fish/vendor_completions.d/$(program).fish)
	rm -f $(foreach page,$(wildcard man/*.[1-9]),$(DESTDIR)$(PREFIX)/share/man/man$(subst .,,$(suffix $(page)))/$(notdir $(page)))
	rm -f $(DESTDIR)$(PREFIX)/share/man/man1/unetmap-replay.1 $(DESTDIR)$(PREFIX)/share/man/man1/unetmap-extract.1
