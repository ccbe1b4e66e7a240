// Package e2e tests the real nodeprobe, in mode own, against a real API server:
// what it writes there, what it leaves alone, and how it gets over everything
// that can go wrong in between.
//
// The tests take no wall-clock time for granted: they wait for a state, with a
// generous deadline, and then judge by what the API server, the fault proxy and
// nodeprobe's log have recorded. They share two control planes, one of which
// is stopped and started, and give each nodeprobe a Node of its own.
package e2e
