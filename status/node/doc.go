// Package node makes what a kubelet posts of its Node: the status, and the Node itself.
//
// A [Content] is made from a [Config]. [Content.Observe] gives it the latest [Facts], and
// a status.Updater asks it for drafts: a pipeline of setters turns the facts into the
// status of a copy of the last known Node. The setters, their order, the words of the
// conditions and the form of the patches are those of the kubelet 1.36, so that the
// control plane cannot tell the two apart.
//
// # Differences from a kubelet
//
// What follows is different on purpose, here and in the agent that this package is part
// of. A test runs both on one machine under one control plane and compares everything
// that they write.
//
// Conditions:
//
//   - If a signal cannot be read, the one condition that depends on it keeps its status.
//     A kubelet freezes all three.
//   - As long as no signal of a condition could be read, its status is Unknown, with the
//     reason SignalUnavailable. A kubelet's is False.
//   - A restart under pressure does not end a condition before its transition period. A
//     kubelet's flips to False and back.
//   - The transition time of a condition that changed while the API server was away is
//     when it changed. A kubelet's is when it was posted.
//   - Conditions by configured rules are posted after the kubelet's. By default these are
//     nodeprobe.dev/IOContention, MemoryContention and ReadonlyFilesystem. They have no Events.
//
// Capacity and information about the node:
//
//   - Changes of CPU, memory, swap, disk and huge pages show within a minute. A kubelet has
//     to be restarted.
//   - Changes of the kernel, the OS image, the address and the images show within a minute.
//     A kubelet's show in 10 s, those of images in 40 s.
//   - kubeletVersion is configured, or the agent's own.
//   - Capacity, or a version of the runtime, that cannot be read stays as the Node has it. A
//     kubelet posts 0 or Unknown.
//   - If swap is turned off, it is removed from the Node. A kubelet leaves it there.
//   - A CPU without topology files counts if it is online. A kubelet leaves it out.
//   - A filesystem without inode counts has no inode signal. With a kubelet, absolute inode
//     thresholds are always met on it.
//   - The root directory may be on any type of filesystem. A kubelet posts no status at all
//     if it does not know the type.
//   - While no name server answers, the Node keeps its address. A kubelet's becomes the one
//     of the default route. A node IP that is none is an error; a kubelet ignores it.
//   - Without a container runtime, what only a runtime knows is absent.
//   - Extended resources that others put on the Node are left alone, allocatable too, which
//     follows a capacity that is written alone. There is no device manager. A kubelet makes
//     allocatable equal to capacity, and 0 after a restart without its device plugins.
//
// Registration:
//
//   - Ready is True at once. There is no CSINode to wait for: this agent makes none. A
//     kubelet's Node is not ready before it has made its CSINode.
//   - declaredFeatures are not posted: they are promises about running pods. Those that a
//     kubelet declared on the Node are removed at registration.
//   - Labels under kubernetes.io are left to the API server to judge. A kubelet refuses
//     those that are not on its list.
//   - A deleted Node is not registered again before a restart, as with a kubelet, but its
//     Lease is neither renewed nor created again either. A kubelet renews it until it is
//     collected. /readyz, a metric and an alert report it. If another client creates the Node
//     again, what registration owns is mended before the status is posted.
//   - If another program writes the Node's status or Lease, the agent refuses to start, or
//     stops writing until a restart. It writes nothing before it could read both.
//
// Volumes and pods:
//
//   - Volumes in use are those that are mounted, of CSI drivers only, and are posted after
//     the mount. One about which nothing is known stays. A kubelet posts attachable volumes
//     that are wanted or attached, before it mounts them.
//   - Limits on volumes are on the Node too, on request, as with kubelets before the CSINode.
//   - A pod CIDR is passed to the container runtime, again if that was away. A kubelet posts
//     the status anew as well.
//
// Events:
//
//   - They hold the Node's UID, so that kubectl describe node shows them, and are recorded
//     once per change that the API server has taken. A kubelet's have no UID, and are recorded
//     at each attempt.
//   - There are none about a kubelet's own work, such as Starting and EvictionThresholdMet.
//   - A process that is killed for lack of memory is one, with its pod and container. A
//     kubelet records it only if the whole node was out of memory.
//   - A filesystem that turns read-only is one, FilesystemIsReadOnly.
//
// Lease, API server and shutdown:
//
//   - The Lease is renewed only while samples keep coming. A kubelet's is renewed even if it
//     is stuck otherwise.
//   - A Lease that another holder keeps is left alone until it was not renewed for its
//     duration. A kubelet renews it all the same.
//   - renewTime keeps moving forward if the clock is set back.
//   - Retry-After is obeyed: by the status and Events up to a minute, by the Lease up to a
//     quarter of its duration. A kubelet obeys it within the deadline of the request.
//   - A shutdown is delayed no longer than logind's InhibitDelayMaxSec, which a kubelet
//     raises.
//
// Configuration:
//
//   - A single key of evictionHard is merged with the defaults, of which pid.available is
//     5%. With a kubelet, the other defaults are dropped, and there is none for PIDs.
//   - nodeStatusReportFrequency does not follow nodeStatusUpdateFrequency.
//   - In nodeprobe's own file, evictionPressureTransitionPeriod: 0s is no time at all, and
//     maxPods: 0 is no pods. A kubelet takes 5m and 110.
//   - A configuration that changes is reloaded.
package node
