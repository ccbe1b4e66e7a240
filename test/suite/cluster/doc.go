// Package cluster deploys nodeprobe as users do: its image and its manifests, by
// kubectl, on a whole Kubernetes that runs on this machine, and looks at what
// becomes of the Node. Its tests are in "make e2e".
package cluster
