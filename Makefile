# Every target works on a fresh Debian 12 with rustup, as root, with no other step.

HOLDFAST = target/release/holdfast
LAB = target/release/holdfast-lab
SEED ?= 1
SEEDS ?= 200000

.PHONY: build setup demo test bench soak mutants miri install uninstall deb deny
build: setup
	cargo build --release --workspace

setup:
	@scripts/setup

# What was built goes to $(PREFIX), below $(DESTDIR); LAB=1 adds the laboratory.
PREFIX ?= /usr/local
export PREFIX DESTDIR PROFILE LAB

install:
	@scripts/install

uninstall:
	@scripts/install --remove

# target/deb/*.deb, for this machine's architecture and release of Debian.
deb: setup
	@scripts/deb

demo: build
	$(HOLDFAST) demo

test: setup
	@scripts/test

# All of the fault x workload matrix, and as many seeds of the simulated cluster
# as are asked for: `make test` runs a sample of both. The packages, installed and
# purged. And a hundredth of the mutants, another one each time.
soak: setup
	@HOLDFAST_MATRIX=full HOLDFAST_SEEDS=$(SEEDS) scripts/test
	@PROFILE=checked scripts/deb-test
	@scripts/mutants --sharding round-robin --shard $$(shuf -n 1 -i 0-99)/100

# Known faults, licences, sources and duplicates of all that is depended on, by cargo-deny, which
# fetches the list of faults.
deny:
	cargo deny --locked check

# Is every line of the machines noticed by a test? Hours on two cores; with
# MUTANTS="-p holdfast-cluster" minutes.
mutants: setup
	@scripts/mutants $(MUTANTS)

# The shim's unit tests, but for those that need a kernel, in an interpreter that
# notices undefined behaviour. Only nightly toolchains have it.
miri:
	rustup component add --toolchain nightly miri rust-src
	MIRIFLAGS="-Zmiri-permissive-provenance" cargo +nightly miri test --locked -p holdfast-shim --lib

bench: build
	$(LAB) bench takeover --runs 20 --seed $(SEED) --json
	$(LAB) bench throughput --json
	$(LAB) bench latency --json
	$(LAB) bench concurrency --json
	$(LAB) bench promotion --json
	$(LAB) bench rejoin --seed $(SEED) --json
	$(LAB) bench switchover --seed $(SEED) --json
	$(LAB) bench simulate --json
	$(LAB) bench codec --json
