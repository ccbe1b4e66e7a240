# "make help" lists the targets. What a target needs and Debian packages, it
# installs itself when it runs as root.
VERSION  ?= v0.1.0-dev
PREFIX   := $(CURDIR)/bin
IMAGE    := $(PREFIX)/nodeprobe-image.tar
CACHE    := $(or $(NODEPROBE_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/nodeprobe)
LINTER   := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
# Commands that the tests and "make generate" call, and the packages they are in.
NEEDED   := clang:clang llvm-strip:llvm promtool:prometheus mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs losetup:mount dbus-daemon:dbus-daemon containerd:containerd systemd-analyze:systemd
BUILD    := CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.release=$(VERSION)"

.DEFAULT_GOAL := help

##@ Using it

build: ## build bin/nodeprobe, static and stripped
	$(BUILD) -o $(PREFIX)/nodeprobe ./cmd/nodeprobe

run: build ## watch this machine: a live table, and /metrics on 127.0.0.1:9732
	$(PREFIX)/nodeprobe run

demo: deps control-plane ## a real control plane sees each pressure condition flip (needs root)
	go -C test run ./bench/demo

# The binary is built here, and buildah has only to pack it: that takes no daemon
# and, what the Go modules apart, no network.
image: NEEDED := buildah:buildah
image: deps ## build the container image nodeprobe:$(VERSION) as bin/nodeprobe-image.tar (GOARCH=arm64 for another)
	@rm -f $(IMAGE)
	@if command -v buildah >/dev/null; then \
		$(MAKE) --no-print-directory build && arch=$$(go env GOARCH) && store=$$(mktemp -d) && trap 'rm -rf "$$store"' EXIT && \
		buildah="buildah --root $$store/root --runroot $$store/run --storage-driver vfs" && \
		sed -n '/^FROM scratch/,$$ s|--from=build /out/|/|; /^FROM scratch/,$$p' Dockerfile | \
			$$buildah bud --isolation chroot --quiet --arch $$arch --tag nodeprobe:$(VERSION) --file - $(PREFIX) >/dev/null && \
		$$buildah push --quiet nodeprobe:$(VERSION) docker-archive:$(IMAGE):nodeprobe:$(VERSION); \
	else \
		docker buildx build --platform linux/$$(go env GOARCH) --build-arg VERSION=$(VERSION) -t nodeprobe:$(VERSION) --output type=docker,dest=$(IMAGE) .; \
	fi
	@echo "image nodeprobe:$(VERSION): $$(wc -c <$(IMAGE)) bytes in $(IMAGE)"

##@ Working on it

# One of test's packages at a time: some press the machine, and others would feel it.
test: deps vet ## every test; says what it skips, and why, when it is not root
	go test -race -shuffle=on -count=1 ./...
	$(MAKE) --no-print-directory control-plane
	go -C test test -race -count=1 -p 1 -timeout 20m ./...

vet:
	go vet ./... && go -C test vet ./... && go -C test/outsider vet ./...
	GOARCH=arm64 go vet ./... && GOARCH=arm go build -o /dev/null ./cmd/nodeprobe

lint: ## golangci-lint, with the import graph as rules
	@test -x $(CACHE)/lint/golangci-lint || GOBIN=$(CACHE)/lint go install $(LINTER)
	$(CACHE)/lint/golangci-lint run ./...
	cd test && $(CACHE)/lint/golangci-lint run --disable depguard,noctx ./...

check: lint test ## what CI runs
	go mod tidy -diff && go -C test mod tidy -diff && go -C test/outsider mod tidy -diff
	$(MAKE) --no-print-directory size

test-kernels: NEEDED += qemu-system-x86_64:qemu-system-x86 qemu-system-aarch64:qemu-system-arm xz:xz-utils
test-kernels: deps ## bpf's tests and a snapshot on Debian's kernels in qemu, and a storm of 1 GiB (KERNELS="amd64-6.1 storm-amd64-6.1" for one)
	go -C test run ./bench/kernels $(KERNELS)

generate: deps ## rebuild the BPF objects from their C source
	go generate ./bpf

generate-btf: NEEDED += xz:xz-utils zstd:zstd lz4:lz4 bpftool:bpftool
generate-btf: deps ## renew the kernel types that bpf's tests look into (UPDATE=-update: of newer kernels)
	go -C test run ./bench/kernels $(UPDATE) -types $(CACHE)/kernels/types
	go test -count=1 -run '^TestRelocations$$' ./bpf -types $(CACHE)/kernels/types

fuzz: ## each fuzz target for FUZZTIME (default 30s)
	@set -e; for pkg in $$(go list ./...); do for f in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
		go test -run '^$$' -fuzz "^$$f$$" -fuzztime $(or $(FUZZTIME),30s) -fuzzminimizetime 10x $$pkg; done; done

bench: ## cost of a sample and a verdict, beside the bare system calls and procfs
	go test -count=1 -cpu 1 -run BenchReport -v ./probe -bench-report | grep -E 'RESULT|FAIL|^ok'

bench-latency: deps control-plane ## from a crossing to Go and to the Node; PEER=kubelet for a kubelet beside it (needs root)
	go -C test run ./bench/latency -peer "$(PEER)"

bench-overhead: ## what the probes cost forks, threads and writes, beside off/off (needs root)
	go -C test run ./bench/overhead

bench-storm: deps control-plane ## ten storms: what still works while the node thrashes, beside a kubelet and node_exporter; FAULTS=1 for faults in them (needs root, no swap)
	go -C test run ./bench/storm $(if $(FAULTS),-faults)

bench-idle: control-plane ## wake-ups and CPU while nothing happens, by cause
	go -C test run ./bench/footprint -causes -window 2m

size: ## lines of Go by package, without tests, and in all
	@go -C test run ./bench/size

footprint: control-plane ## memory, CPU and wake-ups beside node_exporter, for MINUTES (default 30) idle and as many busy (LOAD=idle or LOAD=busy for one)
	go -C test run ./bench/footprint -for $(or $(MINUTES),30)m $(if $(LOAD),-load $(LOAD))

footprint-containers: control-plane ## the same figures with 250 containers on the machine, over those without (needs root)
	go -C test run ./bench/footprint -containers 250

test-flap: deps control-plane ## values dance around each limit for three minutes: events, samples, patches (needs root)
	go -C test test -count=1 -v ./suite/flap -dance

test-page: NEEDED := chromium:chromium
test-page: deps ## the status page in a headless browser: light and dark, on a desk and a phone (300 MB of Debian packages)
	go -C test test -count=1 -v ./suite/page

test-outage: deps control-plane ## the API server is away for ten minutes: memory, Lease, the one patch after it (OUTAGE=1h for longer)
	go -C test test -count=1 -v -timeout 0 -run '^TestLongOutage$$' ./suite/e2e -outage $(or $(OUTAGE),10m)

test-flood: deps control-plane ## thousands of connections of each kind against 64 MiB of memory (needs root)
	go -C test test -count=1 -v -run '^TestFlood$$' ./suite/flood -each

parity: deps control-plane ## a real kubelet and nodeprobe on this machine: their Nodes, Leases, Events and writes compared (needs root)
	go -C test test -count=1 -v -timeout 10m ./suite/parity

# On one machine the pods' host is everybody's: see test/suite/cluster.
e2e: NEEDED += buildah:buildah
e2e: deps control-plane ## the image and the manifests in a whole Kubernetes, its pods on this machine, under every pressure (needs root)
	go -C test test -count=1 -v -timeout 10m ./suite/cluster -run '^TestCluster$$' -pods

test-beside: deps control-plane ## a kubelet's conditions flip beside ours for ten minutes (BESIDE=1h for another time; needs root)
	go -C test test -count=1 -v -timeout 0 ./suite/cluster -run '^TestBeside$$' -beside $(or $(BESIDE),10m)

control-plane: ## build etcd and Kubernetes' own programs (the first time takes minutes)
	go -C test run ./bench/controlplane -build-only

# Debian starts the containerd that it installs; the tests run one of their own.
deps:
	@missing=""; for need in $(NEEDED); do \
		command -v $${need%%:*} >/dev/null || missing="$$missing $${need##*:}"; done; \
	test -e /usr/include/bpf/bpf_helpers.h || missing="$$missing libbpf-dev"; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing$$missing"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
		case "$$missing" in *containerd*) systemctl disable --now containerd >/dev/null 2>&1 || true;; esac; \
	else echo "not installed, so some tests will be skipped:$$missing"; fi

clean: ## remove bin
	rm -rf $(PREFIX)

help: ## this list
	@awk -F ':.*## ' '/^##@/ { printf "\n%s\n", substr($$0, 5) } /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build run demo image test test-flap test-page test-outage test-flood parity vet lint check test-kernels generate generate-btf fuzz bench bench-latency bench-overhead bench-storm bench-idle size footprint e2e test-beside footprint-containers control-plane deps clean help
