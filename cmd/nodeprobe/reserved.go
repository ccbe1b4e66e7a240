package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/utils/cpuset"
)

// checkReserved fails, in the kubelet's words, where a CPU that pods shall not
// have is not online (/sys/devices/system/cpu/online).
func checkReserved(reserved cpuset.CPUSet, sysfs string) error {
	if reserved.IsEmpty() {
		return nil
	}
	path := filepath.Join(sysfs, "devices/system/cpu/online")
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("check reservedSystemCPUs: %w", err)
	}
	online, err := cpuset.Parse(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("check reservedSystemCPUs: read %s: %w", path, err)
	}
	if !reserved.IsSubsetOf(online) {
		return fmt.Errorf("reserved-cpus: %s is not a subset of online-cpus: %s", reserved, online)
	}
	return nil
}
