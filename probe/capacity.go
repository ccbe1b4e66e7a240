package probe

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeprobe/nodeprobe/probe/hotfile"
)

// readCPUs counts the CPUs that are online, whichever of them this process may use. The
// kubelet skips a CPU without topology files, which some ARM kernels lack; this does not.
func readCPUs(sysfs string, at func(path string)) (int64, error) {
	online := filepath.Join(sysfs, "devices/system/cpu/online")
	at(online)
	b, err := os.ReadFile(online)
	if err != nil {
		return 0, err
	}
	line, _, whole := hotfile.NextLine(b)
	n, err := countList(string(line))
	if err == nil && !whole {
		err = hotfile.ErrCut
	}
	if err != nil {
		return 0, readError(online, hotfile.LineError(line, err))
	}
	return n, nil
}

var errList = errors.New(`not a list such as "0-3,8"`)

// countList counts the members of a list such as "0-3,8".
func countList(list string) (int64, error) {
	const limit = 1 << 16 // more CPUs than any kernel supports
	var n int64
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		from, err := strconv.ParseUint(first, 10, 32)
		if err != nil {
			return 0, errList
		}
		to := from
		if isRange {
			if to, err = strconv.ParseUint(last, 10, 32); err != nil {
				return 0, errList
			}
		}
		n += int64(to) - int64(from) + 1
		if to < from || to >= limit || n > limit {
			return 0, errList
		}
	}
	return n, nil
}

// readHugePages reads the persistent pool of every page size that the machine supports;
// none if the kernel lacks huge pages. If it returns an error, the pools that could not
// be read have a Total of -1.
func readHugePages(sysfs string, at func(path string)) ([]HugePages, error) {
	dir := filepath.Join(sysfs, "kernel/mm/hugepages")
	at(dir)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read huge pages: %w", err)
	}
	if len(entries) > MaxHugePageSizes {
		return nil, fmt.Errorf("read huge pages: %d page sizes in %s, more than %d", len(entries), dir, MaxHugePageSizes)
	}
	pools := make([]HugePages, 0, len(entries))
	var errs []error
	for _, e := range entries {
		pool, err := readHugePagePool(dir, e.Name(), at)
		if err != nil {
			errs = append(errs, err)
		}
		if pool.PageSize > 0 {
			pools = append(pools, pool)
		}
	}
	return pools, errors.Join(errs...)
}

// setHugePages stores the pools of readHugePages in ascending order. A pool that could
// not be read keeps its value.
func (c *Capacity) setHugePages(found []HugePages) {
	known := c.HugePages
	c.HugePages, c.NumHugePages = [MaxHugePageSizes]HugePages{}, 0
	for _, pool := range found {
		if pool.Total < 0 {
			i := slices.IndexFunc(known[:], func(p HugePages) bool { return p.PageSize == pool.PageSize })
			if i < 0 {
				continue
			}
			pool = known[i]
		}
		c.HugePages[c.NumHugePages] = pool
		c.NumHugePages++
	}
	slices.SortFunc(c.HugePages[:c.NumHugePages], func(a, b HugePages) int { return cmp.Compare(a.PageSize, b.PageSize) })
}

// readHugePagePool reads the pool in the directory of that name, such as
// hugepages-2048kB. With an error, its Total is -1, and PageSize may be set nevertheless.
func readHugePagePool(dir, name string, at func(path string)) (HugePages, error) {
	kib, found := strings.CutPrefix(name, "hugepages-")
	kib, ok := strings.CutSuffix(kib, "kB")
	size, err := strconv.ParseUint(kib, 10, 40)
	if !found || !ok || err != nil || size == 0 {
		return HugePages{}, fmt.Errorf("read huge pages: unexpected name %q in %s", name, dir)
	}
	pool := HugePages{PageSize: int64(size) * 1024, Total: -1}
	path := filepath.Join(dir, name, "nr_hugepages")
	at(path)
	b, err := os.ReadFile(path)
	if err != nil {
		return pool, fmt.Errorf("read huge pages: %w", err)
	}
	n, err := hotfile.ParseNumber(b)
	if err == nil && n > math.MaxInt64/pool.PageSize {
		err = hotfile.ErrRange
	}
	if err != nil {
		return pool, readError(path, err)
	}
	pool.Total = n
	return pool, nil
}
