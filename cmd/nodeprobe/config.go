package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// defaultConfig is the reference that "nodeprobe config default" prints, and
// where the defaults come from: there is no second list of them.
//
//go:embed default.yaml
var defaultConfig []byte

const (
	apiVersion = "nodeprobe.dev/v1alpha1"
	kind       = "NodeProbeConfiguration"
)

// config is the configuration file. default.yaml documents each field.
type config struct {
	APIVersion string `yaml:"apiVersion" json:"apiVersion"`
	Kind       string `yaml:"kind" json:"kind"`
	Mode       string `yaml:"mode" json:"mode"`
	NodeName   string `yaml:"nodeName" json:"nodeName"`

	SampleInterval   time.Duration `yaml:"sampleInterval" json:"sampleInterval"`
	StatfsTimeout    time.Duration `yaml:"statfsTimeout" json:"statfsTimeout"`
	BPF              string        `yaml:"bpf" json:"bpf"`
	RootDirectory    string        `yaml:"rootDirectory" json:"rootDirectory"`
	ImageDirectories []string      `yaml:"imageDirectories" json:"imageDirectories"`

	EvictionHard                     map[string]string `yaml:"evictionHard" json:"evictionHard"`
	EvictionSoft                     map[string]string `yaml:"evictionSoft" json:"evictionSoft"`
	EvictionSoftGracePeriod          map[string]string `yaml:"evictionSoftGracePeriod" json:"evictionSoftGracePeriod"`
	EvictionMinimumReclaim           map[string]string `yaml:"evictionMinimumReclaim" json:"evictionMinimumReclaim"`
	EvictionPressureTransitionPeriod time.Duration     `yaml:"evictionPressureTransitionPeriod" json:"evictionPressureTransitionPeriod"`

	Kubeconfig                    string            `yaml:"kubeconfig" json:"kubeconfig"`
	NodeStatusUpdateFrequency     time.Duration     `yaml:"nodeStatusUpdateFrequency" json:"nodeStatusUpdateFrequency"`
	NodeStatusReportFrequency     time.Duration     `yaml:"nodeStatusReportFrequency" json:"nodeStatusReportFrequency"`
	NodeLeaseDurationSeconds      int32             `yaml:"nodeLeaseDurationSeconds" json:"nodeLeaseDurationSeconds"`
	RegisterNode                  bool              `yaml:"registerNode" json:"registerNode"`
	NodeLabels                    map[string]string `yaml:"nodeLabels" json:"nodeLabels"`
	RegisterWithTaints            []taint           `yaml:"registerWithTaints" json:"registerWithTaints"`
	ProviderID                    string            `yaml:"providerID" json:"providerID"`
	EnableControllerAttachDetach  bool              `yaml:"enableControllerAttachDetach" json:"enableControllerAttachDetach"`
	NodeIP                        string            `yaml:"nodeIP" json:"nodeIP"`
	CloudProvider                 string            `yaml:"cloudProvider" json:"cloudProvider"`
	MaxPods                       int64             `yaml:"maxPods" json:"maxPods"`
	PodsPerCore                   int64             `yaml:"podsPerCore" json:"podsPerCore"`
	SystemReserved                map[string]string `yaml:"systemReserved" json:"systemReserved"`
	KubeReserved                  map[string]string `yaml:"kubeReserved" json:"kubeReserved"`
	LocalStorageCapacityIsolation bool              `yaml:"localStorageCapacityIsolation" json:"localStorageCapacityIsolation"`
	KubeletVersion                string            `yaml:"kubeletVersion" json:"kubeletVersion"`
	Port                          int32             `yaml:"port" json:"port"`

	WebListenAddress string `yaml:"webListenAddress" json:"webListenAddress"`
	LogLevel         string `yaml:"logLevel" json:"logLevel"`
	LogFormat        string `yaml:"logFormat" json:"logFormat"`
}

// taint is a taint as the kubelet's configuration spells it.
type taint struct {
	Key    string `yaml:"key" json:"key"`
	Value  string `yaml:"value" json:"value"`
	Effect string `yaml:"effect" json:"effect"`
}

// modes that mode may be.
const (
	modeObserve = "observe"
	modeAugment = "augment"
	modeOwn     = "own"
)

// defaults returns the configuration of default.yaml.
func defaults() config {
	var c config
	if err := yaml.Unmarshal(defaultConfig, &c); err != nil {
		panic("default.yaml: " + err.Error()) // a test parses it
	}
	return c
}

// loadConfig reads a configuration file over the defaults and checks it. An
// empty path is the defaults. Errors name file, line and field.
func loadConfig(path string) (config, *policy, error) {
	if path == "" {
		c := defaults()
		p, errs := c.policy()
		return c, p, joinProblems("defaults", nil, errs)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return config{}, nil, fmt.Errorf("read configuration: %w", err)
	}
	return parseConfig(path, data)
}

// parseConfig is loadConfig of a file's content.
func parseConfig(path string, data []byte) (config, *policy, error) {
	c := defaults()
	c.APIVersion, c.Kind = "", ""
	if err := decodeStrictly(data, &c); err != nil {
		return config{}, nil, locate(path, err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return config{}, nil, locate(path, err)
	}
	p, problems := c.policy()
	if err := joinProblems(path, &document, problems); err != nil {
		return config{}, nil, err
	}
	return c, p, nil
}

func decodeStrictly(data []byte, c *config) error {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	if err := decoder.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var second yaml.Node
	switch err := decoder.Decode(&second); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("line %d: a second document; the file must hold one", second.Line)
}

var (
	yamlLine = regexp.MustCompile(`^(?:yaml: )?line (\d+): `)
	goType   = regexp.MustCompile(` (?:in|into) (?:type )?main\.\w+`)
)

// locate turns the YAML library's errors into lines that begin with
// "file:line:", as compilers write them.
func locate(path string, err error) error {
	texts := []string{err.Error()}
	if typeErr := (*yaml.TypeError)(nil); errors.As(err, &typeErr) {
		texts = typeErr.Errors
	}
	for i, text := range texts {
		text = goType.ReplaceAllString(text, "")
		if m := yamlLine.FindStringSubmatch(text); m != nil {
			texts[i] = path + ":" + m[1] + ": " + text[len(m[0]):]
		} else {
			texts[i] = path + ": " + strings.TrimPrefix(text, "yaml: ")
		}
	}
	return errors.New(strings.Join(texts, "\n"))
}

// problem is a field with a wrong value.
type problem struct {
	field, key string // key is that of a map entry, or the index of a list, or ""
	err        error
}

// joinProblems makes one error of all of them, each with the line of its field.
func joinProblems(path string, document *yaml.Node, problems []problem) error {
	var errs []error
	for _, p := range problems {
		place, name := path, p.field
		if line := lineOf(document, p.field, p.key); line > 0 {
			place = fmt.Sprintf("%s:%d", path, line)
		}
		if p.key != "" {
			name += "[" + p.key + "]"
		}
		errs = append(errs, fmt.Errorf("%s: %s: %w", place, name, p.err))
	}
	return errors.Join(errs...)
}

// lineOf returns the line of a field, or of a key in it, or 0 if the document
// does not have it.
func lineOf(document *yaml.Node, field, key string) int {
	if document == nil || len(document.Content) == 0 {
		return 0
	}
	name, value := entry(document.Content[0], field)
	if name == nil {
		return 0
	}
	if key != "" && value.Kind == yaml.MappingNode {
		if k, _ := entry(value, key); k != nil {
			return k.Line
		}
	}
	return name.Line
}

func entry(mapping *yaml.Node, name string) (key, value *yaml.Node) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == name {
			return mapping.Content[i], mapping.Content[i+1]
		}
	}
	return nil, nil
}
