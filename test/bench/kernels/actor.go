package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeprobe/nodeprobe/test/bench/program"
	"github.com/nodeprobe/nodeprobe/test/harness/agent"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
	"github.com/nodeprobe/nodeprobe/test/harness/pressure"
)

// In a guest with a storm, the actor runs the nodeprobes that are on the disk, and the
// parts of the storm as the host asks for them. The text of the actor and of the parts is
// in the initramfs, which the kernel cannot reclaim.
const (
	actorPath = "/bin/actor"
	actorPort = 7000

	// stormDisk is read by the readers: more than there is memory.
	stormDisk     = "/dev/vdc"
	stormDiskSize = 3 << 30
	readers       = 3

	tasksMax = 4000
	podUID   = "0a1b2c3d-0000-4000-8000-00000000abcd"
	hogID    = "00000000000000000000000000000000000000000000000000000000000000aa"
)

// parts of a storm, by the names of their programs, with their cgroups. A part reads
// lines with a limit. It takes so much that less than that is available, and answers with
// what is left.
var parts = map[string]string{
	"hog":    "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + strings.ReplaceAll(podUID, "-", "_") + ".slice/cri-containerd-" + hogID + ".scope",
	"reader": "kubepods.slice/kubepods-besteffort.slice/reader",
	"tasks":  "kubepods.slice/kubepods-besteffort.slice/tasks",
}

// part is one that runs.
type part struct {
	cmd    *exec.Cmd
	stdin  io.Writer
	stdout *bufio.Reader
}

func actor(p *program.P) {
	must.OK(p, os.WriteFile(threadsMax, fmt.Append(nil, tasksMax), 0))
	for _, binary := range must.Get(filepath.Glob("/tmp/*/nodeprobe"))(p) {
		dir := filepath.Dir(binary)
		cmd := exec.CommandContext(p.Context(), binary, "run", "--config", dir+"/config.yaml", "--kubeconfig", dir+"/kubeconfig")
		cmd.Env = append(os.Environ(), agent.Env...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
		must.OK(p, startIn("system.slice/"+filepath.Base(dir)+".service", cmd))
		p.Cleanup(func() {
			must.Note(p, cmd.Process.Signal(syscall.SIGTERM))
			must.Note(p, cmd.Wait())
		})
	}
	// The host asks for one thing at a time.
	running, end := map[string]*part{}, make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("POST /end", func(http.ResponseWriter, *http.Request) { close(end) })
	mux.HandleFunc("POST /{part}", func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("part")
		var err error
		if running[name] == nil {
			running[name], err = startPart(name)
		}
		answer := ""
		if err == nil {
			answer, err = running[name].ask(r.Body)
		}
		if err != nil {
			delete(running, name)
			answer = err.Error()
		}
		fmt.Fprint(w, answer)
	})
	mux.HandleFunc("DELETE /{part}", func(_ http.ResponseWriter, r *http.Request) {
		ended := running[r.PathValue("part")]
		_, _ = ended.cmd.Process.Kill(), ended.cmd.Wait()
		delete(running, r.PathValue("part"))
	})
	server := &http.Server{Addr: fmt.Sprintf(":%d", actorPort), Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { fmt.Println("actor:", server.ListenAndServe()) }()
	<-end
}

func startPart(name string) (*part, error) {
	cmd := exec.Command("/bin/" + name)
	cmd.Stderr = os.Stdout
	stdin, err := cmd.StdinPipe()
	stdout, pipeErr := cmd.StdoutPipe()
	return &part{cmd, stdin, bufio.NewReader(stdout)}, errors.Join(err, pipeErr, startIn(parts[name], cmd))
}

// ask has the part read a line, and returns its answer, or why it has ended instead.
func (p *part) ask(line io.Reader) (string, error) {
	_, err := io.Copy(p.stdin, io.MultiReader(line, strings.NewReader("\n")))
	answer, readErr := p.stdout.ReadString('\n')
	if readErr != nil {
		return "", errors.Join(err, p.cmd.Wait(), readErr)
	}
	return answer, err
}

// startIn starts a process in a cgroup, which it makes.
func startIn(cgroup string, cmd *exec.Cmd) error {
	dir := "/sys/fs/cgroup"
	for name := range strings.SplitSeq(cgroup, "/") {
		if err := os.WriteFile(dir+"/cgroup.subtree_control", []byte("+memory +pids"), 0); err != nil {
			return err
		}
		dir += "/" + name
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(f.Fd())}
	return cmd.Start()
}

// play is a part's program.
func play(p *program.P) {
	available := func() (int64, error) { return -1, nil }
	var take func(n int64) error
	switch filepath.Base(os.Args[0]) {
	case "hog":
		available, take = pressure.AvailableMemory, func(n int64) error {
			_, err := unix.Mmap(-1, 0, int(max(n, 1<<20)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
			return err
		}
	case "tasks":
		ramp := must.Get(pressure.TaskRamp())(p)
		available, take = ramp.Available, ramp.Take
	case "reader":
		for i := range int64(readers) {
			go readAll(i*stormDiskSize/readers, stormDiskSize/readers)
		}
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var limit int64
		must.Get(fmt.Sscan(lines.Text(), &limit))(p)
		left := must.Get(available())(p)
		for ; left >= limit; left = must.Get(available())(p) {
			must.OK(p, take(1+(left-limit)/8))
		}
		fmt.Println(left)
	}
}

// readAll reads a part of the disk over and over.
func readAll(from, size int64) {
	disk, err := os.Open(stormDisk)
	for buf := make([]byte, 256<<10); err == nil; {
		for at := int64(0); at < size && err == nil; at += int64(len(buf)) {
			_, err = disk.ReadAt(buf, from+at)
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
