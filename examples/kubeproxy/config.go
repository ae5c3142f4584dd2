package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// config is what a KubeProxyConfiguration, or flags in its place, say.
type config struct {
	task             task
	client           clientConfig
	hostnameOverride string
	mode             string
	serving          servingConfig
	pods             podsConfig
	nodePorts        []string
	iptables         modeConfig
	nftables         modeConfig
	conntrack        conntrackConfig
	verbosity        int
	// notes are what was passed over, for people.
	notes []string
}

// task says what is to be done at all. Only flags say it.
type task struct {
	configFile        string
	cleanup, initOnly bool
}

type clientConfig struct {
	kubeconfig, master string
	qps, burst         int
}

type servingConfig struct {
	bindAddress, healthz, metrics string
	profiling                     bool
}

// podsConfig tells pods from others.
type podsConfig struct{ mode, clusterCIDR, bridge, prefix string }

// modeConfig is what each mode has a section for.
type modeConfig struct {
	masqueradeAll               bool
	masqueradeBit               int
	syncPeriod, minimumInterval metav1.Duration
}

// conntrackConfig is what the kernel's connection tracking is told; zero leaves
// things alone.
type conntrackConfig struct {
	maxPerCore, minimum         int
	beLiberal                   bool
	established, closeWait      metav1.Duration
	udpTimeout, udpTimeoutReply metav1.Duration
}

// defaults are those of kube-proxy.
func defaults() *config {
	day, hour := metav1.Duration{Duration: 24 * time.Hour}, metav1.Duration{Duration: time.Hour}
	mode := modeConfig{masqueradeBit: 14}
	return &config{
		client: clientConfig{qps: 5, burst: 10}, iptables: mode, nftables: mode,
		conntrack: conntrackConfig{maxPerCore: 32 << 10, minimum: 128 << 10, established: day, closeWait: hour},
	}
}

// readFile takes a KubeProxyConfiguration. Like kube-proxy it passes over fields that
// it does not know, and duplicates, and says so.
func (c *config) readFile(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	object, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		c.note("%v", err)
		if object, err = yaml.YAMLToJSON(text); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	var kind metav1.TypeMeta
	var fields map[string]any
	if err := errors.Join(json.Unmarshal(object, &kind), json.Unmarshal(object, &fields)); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if kind.APIVersion != "kubeproxy.config.k8s.io/v1alpha1" || kind.Kind != "KubeProxyConfiguration" {
		return fmt.Errorf("%s: %s %s is no KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1", path, kind.APIVersion, kind.Kind)
	}
	if err := c.readObject("", fields); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// readObject takes the fields of an object whose own path ends with a dot.
func (c *config) readObject(path string, fields map[string]any) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		errs = append(errs, c.readField(path+name, fields[name]))
	}
	return errors.Join(errs...)
}

func (c *config) readField(path string, value any) error {
	all := c.settings()
	at := slices.IndexFunc(all, func(s setting) bool {
		return s.field == path || s.field != "" && s.into == nil && strings.HasPrefix(path, s.field+".")
	})
	hasFields := slices.ContainsFunc(all, func(s setting) bool { return strings.HasPrefix(s.field, path+".") })
	fields, isObject := value.(map[string]any)
	switch {
	case value == nil:
	case at >= 0 && all[at].into != nil:
		return all[at].take(value)
	case isObject && (at >= 0 || hasFields):
		return c.readObject(path+".", fields)
	case hasFields:
		return fmt.Errorf("%s: %v is no object", path, value)
	case at < 0:
		c.note("field %s is not known", path)
	case !slices.Contains([]string{"", "0", "0s", "false", "[]"}, fmt.Sprint(value)): // which say no more than nothing
		c.note("field %s is ignored", path)
	}
	return nil
}

func (c *config) note(format string, args ...any) {
	c.notes = append(c.notes, fmt.Sprintf(format, args...))
}

// take takes the value of a field.
func (s *setting) take(value any) error {
	text, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(text, s.into)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.field, err)
	}
	return nil
}

// set takes the text of a flag.
func (s *setting) set(text string) (err error) {
	switch into := s.into.(type) {
	case *string:
		*into = text
	case *[]string:
		*into = strings.FieldsFunc(text, func(c rune) bool { return c == ',' })
	case *bool:
		*into, err = strconv.ParseBool(text)
	case *int:
		*into, err = strconv.Atoi(text)
	case *metav1.Duration:
		into.Duration, err = time.ParseDuration(text)
	}
	return err
}
