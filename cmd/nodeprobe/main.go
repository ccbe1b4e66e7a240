package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/config"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/process"
	"github.com/nodeprobe/nodeprobe/cmd/nodeprobe/internal/web"
)

// Exit codes.
const (
	exitFailed     = 1 // the command could not do its work
	exitUsage      = 2 // the command line or the configuration is wrong
	exitIncomplete = 3 // snapshot, preflight: something could not be read
	exitOccupied   = 4 // run: another program owns the node; do not restart
)

// exitError is an error with an exit code of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func main() {
	// One thread does: a second one would cost memory and twice the wake-ups; see
	// process.RelaxTimers. The variable of that name still wins.
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	// Sampling allocations costs memory, and is on in a program that can show them.
	runtime.MemProfileRate = 0
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// run is main with everything that a test wants to choose.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends a shutdown that hangs.
	context.AfterFunc(ctx, stop)

	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	coded := (*exitError)(nil)
	code := exitFailed
	if errors.As(err, &coded) {
		code = coded.code
	}
	printError(stderr, err)
	return code
}

// printError prints what ended the program, one line for each line of the error. A standard
// error that takes nothing keeps the program from ending for no longer than flushTimeout.
func printError(stderr io.Writer, err error) {
	lines := process.NewLogWriter(stderr, func(out io.Writer, lost uint64) {
		fmt.Fprintf(out, "nodeprobe: %d lines dropped: standard error did not take them in time\n", lost)
	})
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintf(lines, "nodeprobe: %s\n", line)
	}
	lines.Flush(flushTimeout)
}

// paths is where the node's own file systems are mounted. The flags are spelled
// as node_exporter's.
type paths struct{ procfs, sysfs, rootfs string }

func (p *paths) check() error {
	for _, flag := range []struct{ name, value string }{
		{"path.procfs", p.procfs}, {"path.sysfs", p.sysfs}, {"path.rootfs", p.rootfs},
	} {
		if err := absolute(flag.value); err != nil {
			return &exitError{exitUsage, fmt.Errorf("--%s: %w", flag.name, err)}
		}
	}
	return nil
}

func newRootCommand() *cobra.Command {
	var p paths
	root := &cobra.Command{
		Use:           "nodeprobe",
		Short:         "Report a Linux node's capacity and pressure to Kubernetes and Prometheus",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          usage(cobra.NoArgs),

		PersistentPreRunE: func(*cobra.Command, []string) error { return p.check() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError(cmd, err) })
	root.SetHelpCommand(newHelpCommand())
	// Cobra's own flag would print another line than the command version does.
	showVersion := root.Flags().Bool("version", false, "print the version")
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if *showVersion {
			return printVersion(cmd, args)
		}
		return cmd.Help()
	}
	flags := root.PersistentFlags()
	flags.StringVar(&p.procfs, "path.procfs", "/proc", "where the node's procfs is mounted")
	flags.StringVar(&p.sysfs, "path.sysfs", "/sys", "where the node's sysfs is mounted")
	flags.StringVar(&p.rootfs, "path.rootfs", "/", "where the node's root filesystem is mounted")
	root.AddCommand(
		newRunCommand(&p),
		newSnapshotCommand(&p),
		newPreflightCommand(&p),
		newCleanupCommand(&p),
		newConfigCommand(),
		newVersionCommand(),
	)
	return root
}

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Check a configuration, or print the default one", Args: usage(cobra.NoArgs), RunE: help}
	cmd.AddCommand(
		newConfigCheckCommand(),
		&cobra.Command{
			Use:   "default",
			Short: "Print the default configuration, with every field explained",
			Args:  usage(cobra.NoArgs),
			RunE: func(cmd *cobra.Command, _ []string) error {
				_, err := io.WriteString(cmd.OutOrStdout(), config.Default())
				return err
			},
		},
	)
	return cmd
}

func newConfigCheckCommand() *cobra.Command {
	var files config.Files
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Check a configuration file",
		Long: `Check a configuration file, and report each problem with its line.

The file of webConfigFile is checked too, if it exists on this machine. With
--kubelet-config or --kubelet-config-dir, FILE may be left out.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && (files.KubeletFile != "" || files.KubeletDir != "") {
				return nil
			}
			if len(args) != 1 {
				return usageError(cmd, fmt.Errorf("give one FILE to check, not %d", len(args)))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			files.Own = append(args, "")[0]
			loaded, err := config.Load(files)
			if err != nil {
				return &exitError{exitUsage, err}
			}
			name := cmp.Or(files.Own, "configuration")
			unchecked := ""
			if file := loaded.Web.ConfigFile; file != "" {
				err := web.CheckFile(file)
				switch _, absent := os.Stat(file); {
				case errors.Is(absent, fs.ErrNotExist): // files are checked on other machines, too
					unchecked = fmt.Sprintf("%s: warning: webConfigFile: not checked: %v\n", name, absent)
				case err != nil:
					return &exitError{exitUsage, err}
				}
			}
			if err := loaded.Remarks.Print(cmd.OutOrStdout()); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s%s: ok\n", unchecked, name)
			return err
		},
	}
	addKubeletFlags(cmd, &files)
	return cmd
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  usage(cobra.NoArgs),
		RunE:  printVersion,
	}
}

func printVersion(cmd *cobra.Command, _ []string) error {
	_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine())
	return err
}

func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil {
				return usageError(cmd.Root(), err)
			}
			if err := usage(cobra.NoArgs)(about, rest); err != nil {
				return err
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

// help is what a command does that only has subcommands.
func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// usage gives wrong arguments the exit code of wrong usage.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError(cmd, err, args...)
		}
		return nil
	}
}

// usageError adds a hint to what is wrong with a command line.
func usageError(cmd *cobra.Command, err error, args ...string) error {
	hint := fmt.Sprintf("see %s --help", cmd.CommandPath())
	if len(args) > 0 {
		cmd.SuggestionsMinimumDistance = 2 // cobra's default, which only cobra's own message gets
		if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
			hint = fmt.Sprintf("did you mean %q?", cmd.CommandPath()+" "+similar[0])
		}
	}
	return &exitError{exitUsage, fmt.Errorf("%w; %s", err, hint)}
}

// absolute checks a flag that is a path.
func absolute(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%q is not an absolute path", path)
	}
	return nil
}

// oneOf checks a flag that has a few values.
func oneOf(value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return fmt.Errorf("%q is not one of %s", value, strings.Join(allowed, ", "))
}

// printWarnings shows what is worth a user's attention in a configuration.
func printWarnings(cmd *cobra.Command, loaded *config.Loaded) {
	for _, r := range loaded.Remarks.Warnings() {
		fmt.Fprintf(cmd.ErrOrStderr(), "nodeprobe: %s\n", r)
	}
}
