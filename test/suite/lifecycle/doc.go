// Package lifecycle tests that a cluster treats a Node kept by nodeprobe, in
// mode own, as it treats a kubelet's: the real kube-controller-manager taints it
// by its conditions and misses it when it is silent, and the real kube-scheduler
// places pods by what is allocatable. Nobody runs the pods: that they are bound
// is all there is to see.
//
// The tests share one control plane, in which a Node may be silent for a few
// seconds only. Where possible they judge by all versions of the Node that a
// watch has seen. nodeprobe has the rights of a kubelet, and no others.
package lifecycle
