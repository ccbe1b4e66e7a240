package process

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestReadOnlyMapping(t *testing.T) {
	const exe = "/usr/bin/nodeprobe"
	text := mapping{0x400000, 0x8f8000}
	for _, test := range []struct {
		name, line, exe string
		want            mapping
		ok              bool
	}{
		{"code", "00400000-00cf8000 r-xp 00000000 fe:00 9981332                            /usr/bin/nodeprobe\n", exe, text, true},
		{"constants", "00400000-00cf8000 r--p 00000000 fe:00 9981332 /usr/bin/nodeprobe", exe, text, true},
		{"high addresses", "b81da000-b8285000 r-xp 000ab000 fe:00 9981332   /usr/bin/nodeprobe", exe, mapping{0xb81da000, 0xab000}, true},
		{"path with spaces", "00400000-00cf8000 r-xp 00000000 fe:00 1 /opt/my  tools/node probe\n", "/opt/my  tools/node probe", text, true},
		{"deleted", "00400000-00cf8000 r-xp 00000000 fe:00 1 /usr/bin/nodeprobe (deleted)", exe + " (deleted)", text, true},
		{"of which another is deleted", "00400000-00cf8000 r-xp 00000000 fe:00 1 /usr/bin/nodeprobe (deleted)", exe, mapping{}, false},
		{"writable", "00400000-00cf8000 rw-p 00000000 fe:00 1 /usr/bin/nodeprobe", exe, mapping{}, false},
		{"writable code", "00400000-00cf8000 rwxp 00000000 fe:00 1 /usr/bin/nodeprobe", exe, mapping{}, false},
		{"shared", "00400000-00cf8000 r--s 00000000 fe:00 1 /usr/bin/nodeprobe", exe, mapping{}, false},
		{"guard", "00400000-00cf8000 ---p 00000000 fe:00 1 /usr/bin/nodeprobe", exe, mapping{}, false},
		{"another file", "00400000-00cf8000 r-xp 00000000 fe:00 1 /usr/lib/libc.so.6", exe, mapping{}, false},
		{"a file whose name ends the same", "00400000-00cf8000 r-xp 00000000 fe:00 1 /a /usr/bin/nodeprobe", exe, mapping{}, false},
		{"a file whose name begins the same", "00400000-00cf8000 r-xp 00000000 fe:00 1 /usr/bin/nodeprobe2", exe, mapping{}, false},
		{"no file", "c000000000-c000400000 rw-p 00000000 00:00 0", exe, mapping{}, false},
		{"the vdso", "7ffd3cfd8000-7ffd3cfda000 r-xp 00000000 00:00 0                          [vdso]", exe, mapping{}, false},
		{"backwards", "00cf8000-00400000 r-xp 00000000 fe:00 1 /usr/bin/nodeprobe", exe, mapping{}, false},
		{"empty range", "00400000-00400000 r-xp 00000000 fe:00 1 /usr/bin/nodeprobe", exe, mapping{}, false},
		{"no range", "text r-xp 00000000 fe:00 1 /usr/bin/nodeprobe", exe, mapping{}, false},
		{"short permissions", "00400000-00cf8000 r-x 00000000 fe:00 1 /usr/bin/nodeprobe", exe, mapping{}, false},
		{"empty", "", exe, mapping{}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, ok := readOnlyMapping(test.line, test.exe)
			if ok != test.ok || ok && got != test.want {
				t.Errorf("got %+v, %v; want %+v, %v", got, ok, test.want, test.ok)
			}
		})
	}
}

// Read-only does not mean never written: the dynamic linker relocated the pointers in the
// second mapping before it made that read-only.
func TestPristineMappings(t *testing.T) {
	const smaps = `b0000000-b0100000 r-xp 00000000 fe:00 1                          /usr/bin/nodeprobe
Size:               1024 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me sd
b0100000-b0200000 r--p 00100000 fe:00 1                          /usr/bin/nodeprobe
Size:               1024 kB
Anonymous:           512 kB
Swap:                  0 kB
b0200000-b0300000 r--p 00200000 fe:00 1                          /usr/bin/nodeprobe
Size:               1024 kB
Anonymous:             0 kB
Swap:                  8 kB
b0300000-b0400000 rw-p 00300000 fe:00 1                          /usr/bin/nodeprobe
Anonymous:             0 kB
Swap:                  0 kB
b0400000-b0500000 r--p 00400000 fe:00 1                          /usr/bin/nodeprobe
Size:               1024 kB
b0500000-b0600000 r--p 00000000 fe:00 2                          /usr/lib/libc.so.6
Anonymous:             0 kB
Swap:                  0 kB
b0600000-b0700000 r--p 00600000 fe:00 1                          /usr/bin/nodeprobe
Anonymous:             0 kB
Swap:                  0 kB
`
	want := []mapping{{0xb0000000, 0x100000}, {0xb0600000, 0x100000}}
	got := pristineMappings(smaps, "/usr/bin/nodeprobe")
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(mapping{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Whatever this test binary is (static, with a dynamic linker, or position independent),
// it still works when its pages are gone. "go test -buildmode=pie" is the hard case.
func TestTrim(t *testing.T) {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Skip(err)
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skip(err)
	}
	if len(pristineMappings(string(smaps), exe)) == 0 {
		t.Error("nothing to release")
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"yes": []int{1, 2}})
	}))
	defer server.Close()
	for range 3 {
		if err := Trim(); err != nil {
			t.Fatal(err)
		}
		// Much of the program: interface tables, maps, reflection, regular expressions,
		// TLS and HTTP, the metrics, cgo's calls if there are any.
		server.Client().CloseIdleConnections()
		resp, err := server.Client().Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ Yes []int }
		if err := json.NewDecoder(resp.Body).Decode(&got); err != nil || len(got.Yes) != 2 {
			t.Errorf("got %v, %v", got, err)
		}
		resp.Body.Close()
		if !regexp.MustCompile(`^no+de`).MatchString("nodeprobe") {
			t.Error("no match")
		}
		if n := len(gather(t, NewCollector(time.Now()))); n != 5 {
			t.Errorf("%d metrics", n)
		}
		if _, err := os.Hostname(); err != nil {
			t.Error(err)
		}
	}
}
