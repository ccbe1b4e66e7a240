package probe

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// readCPUs counts the CPUs that are online. The kubelet skips a CPU without
// topology files, which some ARM kernels do not have; this does not.
func readCPUs(procfsRoot, sysfsRoot string) (int64, error) {
	online := filepath.Join(sysfsRoot, "devices/system/cpu/online")
	b, err := os.ReadFile(online)
	if err == nil {
		n, err := countList(strings.TrimSpace(string(b)))
		if err != nil {
			return 0, readError(online, err)
		}
		return n, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	// A kernel without CPU hot-plug support need not have the file.
	proc, err := procfs.NewFS(procfsRoot)
	if err != nil {
		return 0, fmt.Errorf("count CPUs: %w", err)
	}
	info, err := proc.CPUInfo()
	if err != nil {
		return 0, fmt.Errorf("count CPUs: %w", err)
	}
	if len(info) == 0 {
		return 0, fmt.Errorf("count CPUs: no processor in %s", filepath.Join(procfsRoot, "cpuinfo"))
	}
	return int64(len(info)), nil
}

var errList = errors.New(`not a list such as "0-3,8"`)

// countList counts the members of a list such as "0-3,8".
func countList(list string) (int64, error) {
	const most = 1 << 16 // more CPUs than any kernel supports
	var n int64
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		from, err := strconv.ParseUint(first, 10, 32)
		if err != nil {
			return 0, fmt.Errorf("%q: %w", list, errList)
		}
		to := from
		if isRange {
			if to, err = strconv.ParseUint(last, 10, 32); err != nil {
				return 0, fmt.Errorf("%q: %w", list, errList)
			}
		}
		if to < from || to >= most {
			return 0, fmt.Errorf("%q: %w", list, errList)
		}
		n += int64(to - from + 1)
	}
	return n, nil
}

// readHugePages reads the persistent pool of every page size that the machine
// supports, in ascending order. A kernel without huge pages has none.
func readHugePages(sysfsRoot string, c *Capacity) error {
	dir := filepath.Join(sysfsRoot, "kernel/mm/hugepages")
	c.NumHugePages = 0
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read huge pages: %w", err)
	}
	var pools []HugePages
	var errs []error
	for _, e := range entries {
		pool, err := readHugePagePool(dir, e.Name())
		if err != nil {
			errs = append(errs, err)
			continue
		}
		pools = append(pools, pool)
	}
	if len(pools) > MaxHugePageSizes {
		return fmt.Errorf("read huge pages: %d page sizes in %s, more than %d", len(pools), dir, MaxHugePageSizes)
	}
	slices.SortFunc(pools, func(a, b HugePages) int { return cmp.Compare(a.PageSize, b.PageSize) })
	c.NumHugePages = copy(c.HugePages[:], pools)
	return errors.Join(errs...)
}

func readHugePagePool(dir, name string) (HugePages, error) {
	kib, found := strings.CutPrefix(name, "hugepages-")
	kib, ok := strings.CutSuffix(kib, "kB")
	size, err := strconv.ParseInt(kib, 10, 40)
	if !found || !ok || err != nil || size <= 0 {
		return HugePages{}, fmt.Errorf("read huge pages: unexpected name %q in %s", name, dir)
	}
	path := filepath.Join(dir, name, "nr_hugepages")
	b, err := os.ReadFile(path)
	if err != nil {
		return HugePages{}, fmt.Errorf("read huge pages: %w", err)
	}
	n, err := parseNumberFile(b)
	if err != nil {
		return HugePages{}, readError(path, err)
	}
	if n > 1<<40 {
		return HugePages{}, readError(path, errRange)
	}
	return HugePages{PageSize: size * 1024, Total: n}, nil
}
