package probe

import (
	"strings"
	"testing"

	"github.com/nodeprobe/nodeprobe/probe/hotfile"

	"github.com/nodeprobe/nodeprobe/probe/internal/probetest"
)

func TestParseLoadavg(t *testing.T) {
	for _, test := range []struct {
		name, text     string
		running, total int64
		err            error
	}{
		{name: "idle", text: "0.20 0.18 0.12 1/80 11206\n", running: 1, total: 80},
		{name: "nobody runs", text: "0.00 0.00 0.00 0/80 1\n", total: 80},
		{name: "more than 16 bits", text: "9.99 9.99 9.99 70000/4194304 4194303\n", running: 70000, total: 4194304},
		{name: "without the newline, as the 5th field suffices", text: "0.20 0.18 0.12 1/80 1", running: 1, total: 80},
		{name: "fields to come", text: "0.20 0.18 0.12 1/80 11206 7 8 9\n", running: 1, total: 80},
		{name: "no 5th field: the 4th may be cut", text: "0.20 0.18 0.12 1/8\n", err: errLoadavg},
		{name: "no 4th", text: "0.20 0.18 0.12\n", err: errLoadavg},
		{name: "no slash", text: "0.20 0.18 0.12 80 11206\n", err: errLoadavg},
		{name: "no total", text: "0.20 0.18 0.12 1/ 11206\n", err: hotfile.ErrNumber},
		{name: "no running", text: "0.20 0.18 0.12 /80 11206\n", err: hotfile.ErrNumber},
		{name: "two slashes", text: "0.20 0.18 0.12 1/80/2 11206\n", err: hotfile.ErrNumber},
		{name: "no task at all", text: "0.00 0.00 0.00 0/0 1\n", err: hotfile.ErrZero},
		{name: "negative", text: "0.00 0.00 0.00 1/-80 1\n", err: hotfile.ErrNegative},
		{name: "too many", text: "0.00 0.00 0.00 1/9223372036854775808 1\n", err: hotfile.ErrRange},
		{name: "empty", text: "", err: hotfile.ErrEmpty},
	} {
		t.Run(test.name, func(t *testing.T) {
			running, total, err := parseLoadavg([]byte(test.text))
			probetest.CheckError(t, err, test.err)
			if running != test.running || total != test.total {
				t.Errorf("%d/%d, want %d/%d", running, total, test.running, test.total)
			}
			if err != nil && test.text != "" && !strings.Contains(err.Error(), strings.TrimSpace(test.text)) {
				t.Errorf("error %q does not quote the line", err)
			}
		})
	}
}

func TestTaskLimitIsTheSmaller(t *testing.T) {
	for _, test := range []struct {
		pidMax, threadsMax string
		want               int64
	}{
		{"4194304\n", "127000\n", 127000},
		{"32768\n", "127000\n", 32768},
		{"32768\n", "", 32768},
		{"x\n", "127000\n", 127000},
		{"0\n", "127000\n", 127000},
	} {
		n := machine{"proc/sys/kernel/pid_max": test.pidMax, "proc/sys/kernel/threads-max": test.threadsMax}.boot(t)
		r := newTaskReader(n.Path("proc"))
		got, err := r.readLimit()
		r.close()
		if got != test.want {
			t.Errorf("pid_max %q, threads-max %q: %d, %v; want %d", test.pidMax, test.threadsMax, got, err, test.want)
		}
	}
}
