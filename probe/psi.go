package probe

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/nodeprobe/nodeprobe/probe/hotfile"

	"golang.org/x/sys/unix"
)

// stallReader reads /proc/pressure (Linux 4.20, CONFIG_PSI). A kernel with PSI compiled
// in but turned off, as RHEL's is by default, lacks the directory or, before 5.10,
// returns EOPNOTSUPP.
type stallReader struct {
	procfs string
	files  [NumResources]hotfile.File
	// lacks has the files that the kernel does not provide. They are not read again
	// before discover.
	lacks [NumResources]bool
}

// errUnsupported names what this kernel lacks, and is errors.ErrUnsupported.
type errUnsupported string

func (e errUnsupported) Error() string        { return string(e) }
func (e errUnsupported) Is(target error) bool { return target == errors.ErrUnsupported }

const errNoPSI errUnsupported = "PSI is turned off: boot with psi=1 (Linux 4.20, CONFIG_PSI)"

func newStallReader(procfs string) *stallReader {
	r := &stallReader{procfs: procfs}
	for i := range r.files {
		r.files[i] = hotfile.New(filepath.Join(procfs, "pressure", Resource(i).String()))
	}
	return r
}

// discover makes read try again the files that were missing: /proc may not have been
// mounted yet.
func (r *stallReader) discover() { r.lacks = [NumResources]bool{} }

// read fills in the pressure part of s.
func (r *stallReader) read(s *Snapshot) {
	for i := range r.files {
		var err error
		if !r.lacks[i] {
			s.Pressure[i], err = r.readFile(&r.files[i])
			r.lacks[i] = r.unsupported(err)
		}
		if r.lacks[i] {
			s.Pressure[i], err = Stall{Err: errNoPSI}, nil
		}
		s.Errors[SourcePressureCPU+Source(i)] = err
	}
}

// unsupported reports whether err means a kernel without PSI, not a procfs that cannot
// be read.
func (r *stallReader) unsupported(err error) bool {
	if !errors.Is(err, fs.ErrNotExist) {
		return errors.Is(err, unix.EOPNOTSUPP)
	}
	_, noDirectory := os.Stat(filepath.Join(r.procfs, "pressure"))
	_, noProcfs := os.Stat(filepath.Join(r.procfs, "loadavg"))
	return errors.Is(noDirectory, fs.ErrNotExist) && noProcfs == nil
}

func (r *stallReader) readFile(f *hotfile.File) (Stall, error) {
	b, err := f.Read()
	if err != nil {
		return Stall{Err: err}, err
	}
	stall, err := parseStall(b)
	if err != nil {
		err = readError(f.Path, err)
		return Stall{Err: err}, err
	}
	return stall, nil
}

var (
	errNoSome = errors.New(`no "some" line`)
	errField  = errors.New("missing field")
)

// parseStall reads a file such as
//
//	some avg10=0.00 avg60=0.10 avg300=2.35 total=184412
//	full avg10=0.00 avg60=0.00 avg300=0.00 total=0
func parseStall(b []byte) (Stall, error) {
	if len(b) == 0 {
		return Stall{}, hotfile.ErrEmpty
	}
	var s Stall
	for len(b) > 0 {
		line, rest, whole := hotfile.NextLine(b)
		b = rest
		if !whole {
			return Stall{}, hotfile.LineError(line, hotfile.ErrCut)
		}
		kind, fields := hotfile.NextField(line)
		var target *StallLine
		var ok *bool
		switch string(kind) {
		case "some":
			target, ok = &s.Some, &s.OK
		case "full":
			target, ok = &s.Full, &s.FullOK
		default:
			continue
		}
		parsed, err := parseStallLine(fields)
		if err != nil {
			return Stall{}, hotfile.LineError(line, err)
		}
		*target, *ok = parsed, true
	}
	if !s.OK {
		return Stall{}, errNoSome
	}
	return s, nil
}

func parseStallLine(b []byte) (StallLine, error) {
	var l StallLine
	var seen [4]bool
	for {
		var field []byte
		if field, b = hotfile.NextField(b); len(field) == 0 {
			break
		}
		key, value, _ := bytes.Cut(field, []byte{'='})
		var err error
		switch string(key) {
		case "avg10":
			seen[0] = true
			l.Avg10, err = parsePercent(value)
		case "avg60":
			seen[1] = true
			l.Avg60, err = parsePercent(value)
		case "avg300":
			seen[2] = true
			l.Avg300, err = parsePercent(value)
		case "total":
			seen[3] = true
			var us int64
			us, err = hotfile.ParseUint(value)
			if err == nil && us > math.MaxInt64/int64(time.Microsecond) {
				err = hotfile.ErrRange
			}
			l.Total = time.Duration(us) * time.Microsecond
		}
		if err != nil {
			return StallLine{}, err
		}
	}
	if seen != [4]bool{true, true, true, true} {
		return StallLine{}, errField
	}
	return l, nil
}

func (r *stallReader) close() {
	for i := range r.files {
		r.files[i].Close()
	}
}

// parsePercent reads a number such as "12.34", in hundredths of a whole, and
// returns it as a share of 1, as exact as a float64 can be.
func parsePercent(b []byte) (float64, error) {
	whole, frac, _ := bytes.Cut(b, []byte{'.'})
	w, err := hotfile.ParseUint(whole)
	if err != nil {
		return 0, err
	}
	if w > 100 || len(frac) > 9 {
		return 0, hotfile.ErrRange
	}
	digits, scale := w, int64(1)
	for _, c := range frac {
		if c < '0' || c > '9' {
			return 0, hotfile.ErrNumber
		}
		digits, scale = digits*10+int64(c-'0'), scale*10
	}
	return float64(digits) / float64(scale*100), nil
}
