package process

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// narrowFaults makes the kernel map, and thereby lock, only those pages of the program that
// are used. Otherwise it maps with each whatever else of the surrounding 64 KiB is in the
// page cache (fault-around): three times as much.
//
// It does not look beyond a mapping. So this cuts the mappings into pages, of which every
// other one differs from its neighbours in that it would not be in a core dump. They cost
// memory of the kernel, some 200 bytes each, until [widenFaults] joins them. If there may
// not be so many, they are joined at once: the runtime needs room for its own.
func narrowFaults(program []mapping) error {
	err := divide(program)
	if err != nil {
		_ = widenFaults(program) // as far as it was divided
	}
	return err
}

func divide(program []mapping) error {
	page := uintptr(os.Getpagesize())
	for _, m := range program {
		for offset := uintptr(0); offset < m.length; offset += 2 * page {
			if err := (mapping{m.start + offset, page}).advise(unix.MADV_DONTDUMP); err != nil {
				return fmt.Errorf("divide mappings of the program: %w", err) // there may be vm.max_map_count
			}
		}
	}
	return nil
}

// widenFaults undoes what narrowFaults does.
func widenFaults(program []mapping) error {
	for _, m := range program {
		if err := m.advise(unix.MADV_DODUMP); err != nil {
			return fmt.Errorf("join mappings of the program: %w", err)
		}
	}
	return nil
}
