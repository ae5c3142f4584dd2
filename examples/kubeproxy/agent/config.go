package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	yaml "go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/vipkit/vipkit/internal/nearest"
	"github.com/vipkit/vipkit/proxy/conntrack"
)

// conntrackParameters returns the parameters of the kernel's connection tracking.
func conntrackParameters(c *v1alpha1.KubeProxyConntrackConfiguration) conntrack.Parameters {
	return conntrack.Parameters{
		MaxPerCore: int(*c.MaxPerCore), Min: int(*c.Min), TCPBeLiberal: c.TCPBeLiberal,
		TCPEstablishedTimeout: c.TCPEstablishedTimeout.Duration, TCPCloseWaitTimeout: c.TCPCloseWaitTimeout.Duration,
		UDPTimeout: c.UDPTimeout.Duration, UDPStreamTimeout: c.UDPStreamTimeout.Duration,
	}
}

// setDefaults sets fields that are nil to the defaults of kube-proxy.
func setDefaults(c *v1alpha1.KubeProxyConfiguration) {
	c.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: kind}
	orElse(&c.IPTables.MasqueradeBit, 14)
	orElse(&c.IPTables.LocalhostNodePorts, true)
	orElse(&c.NFTables.MasqueradeBit, 14)
	t := &c.Conntrack
	orElse(&t.MaxPerCore, 32<<10)
	orElse(&t.Min, 128<<10)
	orElse(&t.TCPEstablishedTimeout, metav1.Duration{Duration: 24 * time.Hour})
	orElse(&t.TCPCloseWaitTimeout, metav1.Duration{Duration: time.Hour})
}

// orElse sets a value that is not set.
func orElse[T any](value **T, usual T) {
	if *value == nil {
		*value = &usual
	}
}

// defaults returns the defaults of kube-proxy, except that minSyncPeriod is 0: syncs are
// cheap, so they need not wait for each other.
func defaults() (c v1alpha1.KubeProxyConfiguration) {
	c.ClientConnection.QPS, c.ClientConnection.Burst, c.Logging.Format = 5, 10, textFormat
	setDefaults(&c)
	return c
}

// kind is the kind of file that the program reads.
const kind = "KubeProxyConfiguration"

// maxFile bounds the size of a configuration file; a ConfigMap has 1 MiB at most.
const maxFile = 4 << 20

// readText returns the content of a configuration file.
func readText(path string) (text []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if text, err = io.ReadAll(io.LimitReader(f, maxFile+1)); len(text) > maxFile {
		err = fmt.Errorf("%s: larger than %d bytes", path, maxFile)
	}
	return text, err
}

// hasMoreDocuments reports whether a text has more than one YAML document, which kube-proxy does not read.
func hasMoreDocuments(text []byte) bool {
	var first, more any
	d := yaml.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&first); err != nil {
		return false // The reader of the first one reports it.
	}
	err := d.Decode(&more)
	return err == nil && more != nil || err != nil && !errors.Is(err, io.EOF)
}

// readFile reads the file, unless that was done, into settings. Like kube-proxy, it ignores unknown fields and duplicates;
// warnings name them. It returns an error for each wrong value, and err if the file has no configuration.
func (c *config) readFile(settings []setting) (wrong []error, err error) {
	if c.text == nil {
		if c.text, err = readText(c.configFile); err != nil {
			return nil, err
		}
	}
	if hasMoreDocuments(c.text) {
		c.warnings = append(c.warnings, "only the first YAML document is read, and the file has more")
	}
	text, err := sigsyaml.YAMLToJSONStrict(c.text)
	if err != nil {
		reason := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
		c.warnings = append(c.warnings, strings.Join(strings.Fields(reason), " "))
		text, err = sigsyaml.YAMLToJSON(c.text)
	}
	var given map[string]any
	if err == nil {
		given, err = parse(text)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.configFile, err)
	}
	for _, err := range c.read("", given, settings) {
		wrong = append(wrong, fmt.Errorf("%s: %w", c.configFile, err))
	}
	return wrong, nil
}

// parse returns the fields of a configuration, as a JSON object.
func parse(object []byte) (given map[string]any, err error) {
	d := json.NewDecoder(bytes.NewReader(object))
	d.UseNumber()
	if err := d.Decode(&given); err != nil {
		return nil, errors.New("want an object with fields, as kube-proxy's configuration is")
	}
	apiVersion := v1alpha1.SchemeGroupVersion.String()
	if given["apiVersion"] != apiVersion || given["kind"] != kind {
		return nil, fmt.Errorf("apiVersion %s, kind %s: want %s of %s", show(given["apiVersion"]), show(given["kind"]), kind, apiVersion)
	}
	delete(given, "apiVersion")
	delete(given, "kind")
	return given, nil
}

// read reads an object, whose own path ends with a dot.
func (c *config) read(path string, given map[string]any, settings []setting) (errs []error) {
	for _, name := range slices.Sorted(maps.Keys(given)) {
		field, value := path+name, given[name]
		s, isKnown := find(settings, field)
		isSection := slices.ContainsFunc(settings, func(s setting) bool { return strings.HasPrefix(s.field, field+".") })
		inner, isObject := value.(map[string]any)
		switch {
		case !isKnown && !isSection:
			c.warnings = append(c.warnings, fmt.Sprintf("field %s is unknown%s", field, didYouMean(field, settings)))
		case value == nil && field != "featureGates":
		case isKnown:
			if err := decode(s.into, value); err != nil {
				errs = append(errs, fmt.Errorf("%s: %s: %w", field, show(value), err))
			} else if s.traits.has(isIgnored) && !s.isUsual(value) {
				c.warnings = append(c.warnings, fmt.Sprintf("field %s is ignored", field))
			}
		case isObject:
			errs = append(errs, c.read(field+".", inner, settings)...)
		default:
			errs = append(errs, fmt.Errorf("%s: %s: must have fields", field, show(value)))
		}
	}
	return errs
}

// isUsual reports whether an ignored setting in a file is empty or has kube-proxy's default.
func (s *setting) isUsual(value any) bool {
	if inner, ok := value.(map[string]any); ok {
		return !slices.ContainsFunc(slices.Collect(maps.Values(inner)), func(x any) bool { return !s.isUsual(x) })
	}
	return slices.Contains([]string{s.usual, "", "0", "0s", "false", "[]", "<nil>"}, fmt.Sprint(value)) || s.text() == s.usual
}

// show returns a value of a file for an error.
func show(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	const most = 60
	if len(text) > most {
		return string(text[:most]) + "..."
	}
	return string(text)
}

// didYouMean returns the end of a sentence about an unknown field: a field of the same section with a
// similar name, or one of another section with the same name.
func didYouMean(field string, settings []setting) string {
	section := field[:strings.LastIndex(field, ".")+1]
	var beside []string
	for _, s := range settings {
		if name, ok := strings.CutPrefix(s.field, section); ok && name != "" {
			name, _, _ = strings.Cut(name, ".")
			beside = append(beside, name)
		}
	}
	if name, ok := nearest.Name(strings.TrimPrefix(field, section), beside...); ok {
		return "; did you mean " + section + name + "?"
	}
	for _, s := range settings {
		if name := s.field[strings.LastIndex(s.field, ".")+1:]; name != "" && strings.EqualFold(name, strings.TrimPrefix(field, section)) {
			return "; did you mean " + s.field + "?"
		}
	}
	return ""
}

// write writes the configuration into a file.
func (c *config) write(path string) error {
	text, err := sigsyaml.Marshal(&c.KubeProxyConfiguration)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}
