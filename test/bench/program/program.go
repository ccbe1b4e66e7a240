// Package program is what the programs below bench have in common: their flags, an
// end by ^C, a nodeprobe and a control plane to measure, and figures in one form.
package program

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/nodeprobe/nodeprobe/test/harness/build"
	"github.com/nodeprobe/nodeprobe/test/harness/controlplane"
	"github.com/nodeprobe/nodeprobe/test/harness/must"
)

// P is a running program. Like a test it ends at the first failure and undoes what
// it made, so what serves a test serves it as well.
type P struct {
	testing.TB // of which only what follows is there

	Flags *flag.FlagSet
	// Out is for the figures, Progress for the rest.
	Out, Progress io.Writer

	name   string
	args   []string
	ctx    context.Context
	failed error
	undo   []func()
}

// ended is what Fatal unwinds the stack with.
type ended struct{}

// Main runs a program and exits 1 if it fails. Its context ends on ^C or SIGTERM; a
// second one ends the process at once, and the kernel and the keepers of package
// pressure undo what it made.
func Main(name string, run func(*P)) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := Run(ctx, name, os.Args[1:], os.Stdout, os.Stderr, run); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, name+":", err)
		}
		os.Exit(1)
	}
}

// Run runs a program with arguments.
func Run(ctx context.Context, name string, args []string, stdout, stderr io.Writer, run func(*P)) error {
	p := &P{Flags: flag.NewFlagSet(name, flag.ContinueOnError), Out: stdout, Progress: stderr, name: name, args: args, ctx: ctx}
	p.Flags.SetOutput(stderr)
	p.catch(func() { p.Scope(func() { run(p) }) })
	if p.failed != nil && !p.Failed() {
		return context.Cause(ctx)
	}
	return p.failed
}

// Scope does something and undoes what it made, at once.
func (p *P) Scope(do func()) {
	outer := p.undo
	p.undo = nil
	err := p.Try(func() {
		p.catch(do)
		for _, undo := range slices.Backward(p.undo) {
			p.catch(undo)
		}
	})
	if p.undo = outer; err != nil {
		p.Fatal(err)
	}
}

// Try returns what ended do, if anything did; the program goes on.
func (p *P) Try(do func()) error {
	before := p.failed
	p.failed = nil
	p.catch(do)
	err := p.failed
	p.failed = before
	return err
}

func (p *P) catch(do func()) {
	defer func() {
		if r := recover(); r != nil && r != (ended{}) {
			panic(r)
		}
	}()
	do()
}

// What follows is as testing.TB has it. Cleanup's functions run at the end, the last
// first; Skip fails, because a program is run for what it does.

func (p *P) Context() context.Context          { return p.ctx }
func (p *P) Name() string                      { return p.name }
func (p *P) Helper()                           {}
func (p *P) Cleanup(undo func())               { p.undo = append(p.undo, undo) }
func (p *P) Logf(format string, args ...any)   { fmt.Fprintf(p.Progress, format+"\n", args...) }
func (p *P) Error(args ...any)                 { p.failed = errors.Join(p.failed, asError(args)) }
func (p *P) Errorf(format string, args ...any) { p.Error(fmt.Errorf(format, args...)) }
func (p *P) Fatalf(format string, args ...any) { p.Fatal(fmt.Errorf(format, args...)) }
func (p *P) Skip(args ...any)                  { p.Fatal(args...) }

// Failed reports whether something failed that was no consequence of ^C.
func (p *P) Failed() bool { return p.failed != nil && p.ctx.Err() == nil }

func (p *P) Fatal(args ...any) {
	p.Error(args...)
	panic(ended{})
}

func asError(args []any) error {
	if err, ok := args[0].(error); ok && len(args) == 1 {
		return err
	}
	return errors.New(strings.TrimSuffix(fmt.Sprintln(args...), "\n"))
}

// TempDir returns a directory that is removed at the end.
func (p *P) TempDir() string {
	dir := must.Get(os.MkdirTemp("", "nodeprobe-"+p.name+"-"))(p)
	p.Cleanup(func() { must.Note(p, os.RemoveAll(dir)) })
	return dir
}

// Parse reads the flags; there are no other arguments.
func (p *P) Parse() {
	if names := p.ParseNames(); len(names) > 0 {
		p.Fatalf("unknown argument %q", names[0])
	}
}

// ParseNames reads the flags and returns the other arguments.
func (p *P) ParseNames() []string {
	must.OK(p, p.Flags.Parse(p.args))
	return p.Flags.Args()
}

// ParseNodeprobe reads the flags, among them -nodeprobe, and returns the file to
// measure, built from the tree unless the flag names one.
func (p *P) ParseNodeprobe() string {
	file := p.Flags.String("nodeprobe", "", "measure this `file` instead of building it from the tree")
	p.Parse()
	if *file == "" {
		*file = build.Product(p, p.TempDir())
	}
	return *file
}

// ControlPlane starts one until the end.
func (p *P) ControlPlane(opts controlplane.Options) *controlplane.ControlPlane {
	return controlplane.StartExclusive(p, opts)
}

// Sleep pauses until ^C at the latest.
func (p *P) Sleep(d time.Duration) { p.SleepBeside(nil, d) }

// SleepBeside is Sleep, and fails if a process ends meanwhile.
func (p *P) SleepBeside(exited <-chan struct{}, d time.Duration) {
	select {
	case <-time.After(d):
	case <-exited:
		p.Fatal("a process that is measured has ended")
	case <-p.ctx.Done():
		p.Fatal(context.Cause(p.ctx))
	}
}

// Figure is one that other programs read, with a budget if that is not 0, and what a
// peer came to, if there was one.
type Figure struct {
	Name   string
	Value  float64
	Digits int
	Unit   string
	Budget float64
	Peer   string
	Beside float64
}

// String is the figure's line, whose form is fixed.
func (f Figure) String() string {
	s := fmt.Sprintf("RESULT %s=%.*f %s", f.Name, f.Digits, f.Value, f.Unit)
	if f.Budget > 0 {
		s += fmt.Sprintf(" budget=%g", f.Budget)
	}
	if f.Peer != "" {
		s += fmt.Sprintf(" peer=%s:%.*f", f.Peer, f.Digits, f.Beside)
	}
	return s
}

// Print prints figures.
func (p *P) Print(figures []Figure) {
	for _, f := range figures {
		fmt.Fprintln(p.Out, f)
	}
}

// Table prints rows whose cells are separated by tabs.
func (p *P) Table(rows ...string) {
	table := tabwriter.NewWriter(p.Out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(table, row)
	}
	table.Flush()
}

// Millis is a time in milliseconds.
func Millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Test runs a program in a test, and wants lines of figures that match patterns.
func Test(t *testing.T, run func(*P), want []string, args ...string) {
	t.Helper()
	var stdout bytes.Buffer
	must.OK(t, Run(t.Context(), t.Name(), args, &stdout, os.Stderr, run))
	t.Logf("\n%s", &stdout)
	for _, pattern := range want {
		if !regexp.MustCompile(`(?m)^RESULT ` + pattern + `$`).Match(stdout.Bytes()) {
			t.Errorf("no line like RESULT %s", pattern)
		}
	}
}
