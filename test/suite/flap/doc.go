// Package flap has values dance around their limits on a real kernel, and counts
// what nodeprobe makes of it: events, samples, patches. Its tests are in
// "make test-flap".
package flap
