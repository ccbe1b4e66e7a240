// Package check checks values of a configuration. Each function returns what is wrong with
// one, and what to write instead, or nil.
package check

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodeprobe/nodeprobe/probe/cri"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status"
)

// OneOf wants one of the allowed values.
func OneOf[T ~string](value T, allowed ...T) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	texts := make([]string, len(allowed))
	for i, a := range allowed {
		texts[i] = fmt.Sprintf("%q", a)
	}
	return fmt.Errorf("%q is not %s", value, strings.Join(texts, " or "))
}

// AtLeast wants a value that is not less.
func AtLeast[T cmp.Ordered](value, least T) error {
	if value < least {
		return fmt.Errorf("%v is less than %v", value, least)
	}
	return nil
}

// Between wants a value from least to most.
func Between[T cmp.Ordered](value, least, most T) error {
	if value > most {
		return fmt.Errorf("%v is more than %v", value, most)
	}
	return AtLeast(value, least)
}

// Absolute wants an absolute path.
func Absolute(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%q is not an absolute path", path)
	}
	return nil
}

// NodeName wants the name of a Node.
func NodeName(name string) error {
	if len(validation.IsDNS1123Subdomain(name)) == 0 {
		return nil
	}
	return fmt.Errorf("%q is not the name of a node: use lower-case letters, digits, '-' and '.', such as %s", Cut(name), similarName(name))
}

// similarName returns the name of a node that is like one that is not valid.
func similarName(name string) string {
	similar := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '.':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, name)
	similar = strings.Trim(similar, "-.")
	if len(validation.IsDNS1123Subdomain(similar)) > 0 {
		return "node-1.example.com"
	}
	return similar
}

// FieldManager wants one word, which nobody takes for a kubelet.
func FieldManager(name string) error {
	switch {
	case strings.ContainsAny(name, "/ ") || len(name) > 128 || !Sendable(name):
		return fmt.Errorf("%q is not a field manager: use one word of at most 128 characters without '/'", Cut(name))
	case strings.Contains(name, "kubelet"):
		return fmt.Errorf("%q would be taken for a kubelet; choose another name", name)
	}
	return nil
}

// Sendable reports whether text can be sent in a header. Of a field manager, the API
// server drops all else.
func Sendable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// LeaseDuration wants whole seconds, as a Lease has them.
func LeaseDuration(d time.Duration) error {
	if d%time.Second != 0 {
		return fmt.Errorf("%v is not a whole number of seconds", d)
	}
	return Between(d, time.Second, (1<<31-1)*time.Second)
}

// NodeIPs checks that there is none, one, or one of each family.
func NodeIPs(ips []net.IP) error {
	for _, ip := range ips {
		if ip.To16() == nil {
			return fmt.Errorf("%q is not an IP address", ip.String())
		}
		if len(ips) > 1 && ip.IsUnspecified() {
			return fmt.Errorf("%s stands for any address of its family, and must stand alone", ip)
		}
	}
	if len(ips) > 2 || len(ips) == 2 && (ips[0].To4() == nil) == (ips[1].To4() == nil) {
		return fmt.Errorf("%d addresses; give one, or one of each family", len(ips))
	}
	return nil
}

// Label wants the key and the value of a label.
func Label(key, value string) error {
	if err := QualifiedName(key); err != nil {
		return err
	}
	if len(validation.IsValidLabelValue(value)) > 0 {
		return fmt.Errorf("value %q: use at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends", Cut(value))
	}
	return nil
}

// QualifiedName wants a name with or without a domain.
func QualifiedName(name string) error {
	if len(validation.IsQualifiedName(name)) == 0 {
		return nil
	}
	why := "use letters, digits, '-', '_' and '.', with a letter or digit at both ends"
	prefix, base, hasPrefix := strings.Cut(name, "/")
	if !hasPrefix {
		base = prefix
	}
	switch {
	case hasPrefix && len(validation.IsDNS1123Subdomain(prefix)) > 0:
		why = "what stands before '/' is not a domain"
	case strings.Contains(base, "/"):
		why = "it has more than one '/'"
	case len(base) > maxNamePart:
		why = fmt.Sprintf("%d characters, of which at most %d are allowed after '/'", len(base), maxNamePart)
	}
	return fmt.Errorf("%q is not a qualified name such as example.com/rack: %s", Cut(name), why)
}

// maxNamePart is how long a name is at most, without its domain.
const maxNamePart = 63

// Taint wants a taint that the API server takes.
func Taint(t *v1.Taint) error {
	if err := Label(t.Key, t.Value); err != nil {
		return err
	}
	if err := OneOf(t.Effect, v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute); err != nil {
		return fmt.Errorf("effect: %w", err)
	}
	return nil
}

// Condition returns everything that is wrong with a condition of one's own.
func Condition(r *pressure.Rule) (errs []error) {
	add := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	if slices.Contains(status.BuiltIn, v1.NodeConditionType(r.Type)) {
		add(fmt.Errorf("a kubelet writes this condition; choose a type of your own, such as example.com/%s", r.Type))
	}
	add(QualifiedName(r.Type))
	if len(r.When) == 0 {
		add(errors.New("when: is empty, so that the condition would never be True"))
	}
	if slices.ContainsFunc(r.When, func(c pressure.Clause) bool { return len(c) == 0 }) {
		add(errors.New("when: a clause is empty, so that the condition would always be True"))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"for", r.For}, {"hold", r.Hold}} {
		if err := AtLeast(d.value, 0); err != nil {
			add(fmt.Errorf("%s: %w", d.name, err))
		}
	}
	for _, reason := range []struct{ name, value string }{{"reason", r.Reason}, {"okReason", r.OKReason}} {
		if err := status.CheckReason(reason.value); err != nil {
			add(fmt.Errorf("%s: %w", reason.name, err))
		}
	}
	return errs
}

// Socket checks the address of a socket; "" is none.
func Socket(endpoint string) error {
	if endpoint == "" {
		return nil
	}
	_, err := cri.SocketPath(endpoint)
	return err
}

// Cut shortens a value for a message.
func Cut(value string) string {
	const limit = 100
	if len(value) <= limit {
		return value
	}
	return value[:limit] + "…"
}
