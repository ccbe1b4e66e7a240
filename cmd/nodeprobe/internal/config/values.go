package config

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodeprobe/nodeprobe/internal/printable"
	"github.com/nodeprobe/nodeprobe/probe/pressure"
	"github.com/nodeprobe/nodeprobe/status/node"
)

// explain returns the error of parsing a text in words that say what to write instead.
func explain(text string, err error) error {
	numErr, isNumber := errors.AsType[*strconv.NumError](err)
	switch {
	case errors.Is(err, resource.ErrFormatWrong), errors.Is(err, resource.ErrNumeric), errors.Is(err, resource.ErrSuffix):
		return fmt.Errorf("%q is not a quantity%s", printable.Line(text, 60), suggestQuantity(text))
	case isNumber && numErr.Func == "ParseFloat":
		return fmt.Errorf("%q is not a share such as 10%%", printable.Line(text, 60))
	case err != nil && strings.HasPrefix(err.Error(), "time: "):
		return fmt.Errorf("%q is not a duration such as 10s or 1m30s", printable.Line(text, 60))
	}
	return err
}

// explainClause is explain for the amount in a line of a condition.
func explainClause(clause string, err error) error {
	for part := range strings.SplitSeq(clause, " and ") {
		words := strings.Fields(part)
		if len(words) != 3 || !strings.HasPrefix(err.Error(), strconv.Quote(strings.TrimSpace(part))+": ") {
			continue
		}
		if better := explain(words[2], err); better.Error() != err.Error() {
			return fmt.Errorf("%q: %w", strings.TrimSpace(part), better)
		}
	}
	return err
}

var almostQuantity = regexp.MustCompile(`^\s*([0-9]+(?:\.[0-9]+)?)\s*([kKmMgGtTpPeE]?)([iI]?)[bB]?(?:ytes?)?\s*$`)

// suggestQuantity returns what may have been meant by a text that is no quantity.
func suggestQuantity(text string) string {
	m := almostQuantity.FindStringSubmatch(text)
	if m == nil {
		return " such as 100Mi, 1Gi or 1000"
	}
	number, unit := m[1], strings.ToUpper(m[2])
	decimal := unit
	if unit == "K" {
		decimal = "k"
	}
	switch {
	case unit == "":
		return ": use " + number
	case m[3] != "":
		return fmt.Sprintf(": use %s%si", number, unit)
	}
	return fmt.Sprintf(": use %s%s or %s%si", number, decimal, number, unit)
}

// volumeLimits reads volumeLimits, whose keys are CSI drivers or resources.
func (r *resolver) volumeLimits() map[v1.ResourceName]int64 {
	limits := map[v1.ResourceName]int64{}
	for _, key := range slices.Sorted(maps.Keys(r.VolumeLimits)) {
		text := r.VolumeLimits[key]
		name, err := volumeLimitName(key)
		limit, notNumber := strconv.ParseInt(text, 10, 64)
		_, twice := limits[name]
		switch {
		case err != nil:
		case twice:
			err = fmt.Errorf("%s has a limit already", name)
		case notNumber != nil || limit < 0:
			err = fmt.Errorf("%q is not a whole number, 0 or more", text)
		}
		if err != nil {
			r.check("volumeLimits", key, err)
			continue
		}
		limits[name] = limit
	}
	return limits
}

// maxDriverName is how long the name of a CSI driver may be.
const maxDriverName = 63

// volumeLimitName returns the resource that a driver, or the resource itself, stands for.
func volumeLimitName(key string) (v1.ResourceName, error) {
	if strings.HasPrefix(key, v1.ResourceAttachableVolumesPrefix) {
		if len(validation.IsQualifiedName(key)) > 0 {
			return "", fmt.Errorf("not the name of a resource; use one such as %saws-ebs", v1.ResourceAttachableVolumesPrefix)
		}
		return v1.ResourceName(key), nil
	}
	switch {
	case len(key) > maxDriverName:
		return "", fmt.Errorf("not the name of a CSI driver: it has %d characters, of which at most %d are allowed", len(key), maxDriverName)
	case len(validation.IsDNS1123Subdomain(strings.ToLower(key))) > 0:
		return "", errors.New("not the name of a CSI driver; use letters, digits, '-' and '.', such as disk.example.com")
	}
	return node.VolumeLimitName(key), nil
}

// minLockedMemory is less than nodeprobe uses in any mode.
const minLockedMemory = 16 << 20

func lockedMemoryLimit(text string) (int64, error) {
	q, err := pressure.ParseQuantity(text)
	if err != nil {
		return 0, explain(text, err)
	}
	switch bytes := q.AsApproximateFloat64(); {
	case bytes >= math.MaxInt64: // which Value would wrap
		return math.MaxInt64, nil
	case bytes == 0 || bytes >= minLockedMemory:
		return q.Value(), nil
	}
	return 0, fmt.Errorf("%s is less than nodeprobe uses; use 16Mi or more, or 0 to lock nothing", printable.Line(text, 60))
}

// listenAddress checks what net.Listen is to get; "" is no address at all.
func listenAddress(address string) error {
	if address == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is not an address with a port, such as 127.0.0.1:9732 or [::1]:9732", printable.Line(address, 60))
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q is not a port in %q; use a number from 0 to 65535", port, address)
	}
	return nil
}

func healthAddress(health, web string) error {
	if err := listenAddress(health); err != nil || health == "" {
		return err
	}
	if _, port, _ := net.SplitHostPort(health); health == web && strings.Trim(port, "0") != "" {
		return errors.New("is webListenAddress already, which serves the health endpoints too; use another port")
	}
	return nil
}

func oneOf(value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	texts := make([]string, len(allowed))
	for i, a := range allowed {
		texts[i] = strconv.Quote(a)
	}
	return fmt.Errorf("%q is not %s", value, strings.Join(texts, " or "))
}

// unjoin returns the errors that were joined into err.
func unjoin(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}
