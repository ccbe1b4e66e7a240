// Package cri asks a node's container runtime for what the Node's status reports
// of it: its version, whether it and its network are ready, its handlers and
// features, its images, and the filesystems it keeps them on. It speaks version
// 1 of the Container Runtime Interface (k8s.io/cri-api) over the runtime's socket,
// and keeps of each reply only what a Snapshot holds.
package cri
