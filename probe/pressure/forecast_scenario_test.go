package pressure

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodeprobe/nodeprobe/probe"
)

// TestForecastScenarios plays testdata/forecast/*.txt. A file says what it
// proves, names limits, and then shows a forecaster one snapshot per "at" line,
// in the language of TestScenarios, with one addition:
//
//	# What this proves.
//	limit memory.available 100Mi    an entry of evictionHard
//	move memory.available -5Mi      from now on it changes by so much per second
//	jitter memory.available 5Mi     ... and strays by so much at most
//
//	at 10s memory.available=4Gi/8Gi
//	  memory.available<100Mi 3996.0Mi above, -5.0Mi/s, perhaps in 13m19s
//	at 20s..60s/10s
//	  ...
//
// A reading says where a signal is, and it moves on from there. The indented
// lines hold one estimate per limit and the interval that NextSample asks for;
// of a range, those of its last snapshot. "in" is the forecast, "perhaps in" what the
// pace goes by.
func TestForecastScenarios(t *testing.T) {
	playFiles(t, "testdata/forecast/*.txt", func() command { return (&forecastScenario{limits: entries{}}).command })
}

// forecastScenario is the state of one script as it is played.
type forecastScenario struct {
	limits     entries
	forecaster *Forecaster
	interval   time.Duration
	now        time.Duration
	samples    int
	// readings are where the signals are at time now, without their jitter.
	readings     [probe.NumSignals]probe.Observation
	move, jitter [probe.NumSignals]int64
}

func (s *forecastScenario) command(name string, args []string) (estimates string, err error) {
	switch {
	case name == "at" && len(args) > 0:
		return s.at(args[0], args[1:])
	case name == "limit" && len(args) == 2 && s.forecaster == nil:
		s.limits[args[0]] = args[1]
		return "", nil
	case (name == "move" || name == "jitter") && len(args) == 2:
		signal, ok := probe.ParseSignal(args[0])
		if !ok {
			return "", fmt.Errorf("no signal %q", args[0])
		}
		of := &s.move
		if name == "jitter" {
			of = &s.jitter
		}
		of[signal], err = parseAmount(args[1], 0)
		return "", err
	default:
		return "", errors.New("no such command")
	}
}

func (s *forecastScenario) at(when string, readings []string) (string, error) {
	if s.forecaster == nil {
		thresholds, _, err := Parse(Config{Hard: s.limits})
		if err != nil {
			return "", err
		}
		s.forecaster = NewForecaster(thresholds)
	}
	times, err := parseTimes(when)
	if err != nil {
		return "", err
	}
	var estimates []Estimate
	for i, now := range times {
		for signal := range s.readings {
			s.readings[signal].Available += int64(float64(s.move[signal]) * (now - s.now).Seconds())
		}
		s.now = now
		if i == 0 {
			if err := s.read(readings); err != nil {
				return "", err
			}
		}
		snapshot := probe.Snapshot{Time: start.Add(now), Signals: s.readings}
		for signal := range snapshot.Signals {
			snapshot.Signals[signal].Available += int64(float64(s.jitter[signal]) * stray(s.samples))
		}
		s.samples++
		estimates = s.forecaster.Observe(&snapshot)
		s.interval = NextSample(estimates, s.interval, Pace{})
	}
	var b strings.Builder
	for _, e := range estimates {
		fmt.Fprintf(&b, "  %v %s\n", e.Threshold, formatEstimate(e))
	}
	fmt.Fprintf(&b, "  next sample in %v\n", s.interval.Round(time.Millisecond))
	return b.String(), nil
}

func (s *forecastScenario) read(readings []string) error {
	for _, reading := range readings {
		name, text, _ := strings.Cut(reading, "=")
		signal, ok := probe.ParseSignal(name)
		if !ok {
			return fmt.Errorf("no signal %q", name)
		}
		var err error
		if s.readings[signal], err = parseObservation(text); err != nil {
			return err
		}
	}
	return nil
}

// stray returns a number from -1 to 1 that looks random.
func stray(i int) float64 {
	h := uint64(i)*0x9e3779b97f4a7c15 + 1
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return float64(int64(h)) / (1 << 63)
}

func formatEstimate(e Estimate) string {
	if !e.OK && e.Capacity == 0 {
		return "unknown"
	}
	amount := func(n float64) string {
		if e.Signal.Unit() == "bytes" {
			return strconv.FormatFloat(n/float64(mi), 'f', 1, 64) + "Mi"
		}
		return strconv.FormatFloat(n, 'f', 0, 64)
	}
	text := fmt.Sprintf("%s above, %s/s, ", amount(float64(e.Headroom)), amount(e.Rate))
	switch {
	case e.OK && e.TimeToLimit == 0:
		return text + "reached"
	case e.OK && e.Earliest < e.TimeToLimit:
		text += "in " + formatTime(e.TimeToLimit) + ", "
	case e.OK:
		return text + "in " + formatTime(e.TimeToLimit)
	}
	if e.Earliest == 0 {
		return text + "never"
	}
	return text + "perhaps in " + formatTime(e.Earliest)
}

func formatTime(d time.Duration) string {
	if d < time.Minute {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
