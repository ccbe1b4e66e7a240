package bpf

// The objects are committed, so that building needs no clang. To make them
// again: apt-get install clang llvm libbpf-dev, then go generate ./bpf.
// TestGeneratedObjectsMatchSource runs the same line and compares.

//go:generate go tool bpf2go -tags linux -target amd64,arm64 -no-global-types -type totals -type event -type edge -type want -type level -type watch_config -type watch_levels -type pressure_args nodeprobe nodeprobe.bpf.c -- -O2 -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter
