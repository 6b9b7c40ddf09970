# Every target works on a fresh Debian 12 with rustup, as root, with no other step.

HOLDFAST = target/release/holdfast
SEED ?= 1
SEEDS ?= 200000

.PHONY: build setup demo test bench soak mutants
build: setup
	cargo build --release --workspace

setup:
	@scripts/setup

demo: build
	$(HOLDFAST) demo

test: setup
	@scripts/test

# All of the fault x workload matrix, and as many seeds of the simulated cluster
# as are asked for: `make test` runs a sample of both. And a hundredth of the
# mutants, another one each time.
soak: setup
	@HOLDFAST_MATRIX=full HOLDFAST_SEEDS=$(SEEDS) scripts/test
	@scripts/mutants --sharding round-robin --shard $$(shuf -n 1 -i 0-99)/100

# Is every line of the machines noticed by a test? Hours on two cores; with
# MUTANTS="-p holdfast-cluster" minutes.
mutants: setup
	@scripts/mutants $(MUTANTS)

bench: build
	$(HOLDFAST) lab bench takeover --runs 20 --seed $(SEED) --json
	$(HOLDFAST) lab bench throughput --json
	$(HOLDFAST) lab bench latency --json
	$(HOLDFAST) lab bench concurrency --json
	$(HOLDFAST) lab bench promotion --json
	$(HOLDFAST) lab bench simulate --json
	$(HOLDFAST) lab bench codec --json
