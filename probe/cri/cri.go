// Package cri asks a node's container runtime for what the node's status tells
// of it: its version, whether it and its network are ready, its handlers and
// features, its images, and the filesystems it keeps them on. It speaks version
// 1 of the Container Runtime Interface over the runtime's socket.
//
// The calls have empty requests and small answers, so it does without
// k8s.io/cri-api. Its generated code brings google.golang.org/grpc with it, and
// the two together add 6.6 MB to a binary of 20 and 5 MiB to the memory of a
// running one. What gRPC needs for one call at a time, on HTTP/2 frames that the
// binary holds anyway, is in conn.go; test/suite/cri holds this package together with
// the real thing.
package cri
