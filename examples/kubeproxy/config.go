package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/vipkit/vipkit/proxy/conntrack"
)

// kubeProxyConfiguration has the fields of kube-proxy's type that this program supports.
type kubeProxyConfiguration struct {
	metav1.TypeMeta
	serving
	pods
	client
	forWindows
	Mode         string          `json:"mode"`
	IPTables     modeConfig      `json:"iptables"`
	NFTables     modeConfig      `json:"nftables"`
	IPVS         ipvsConfig      `json:"ipvs"`
	Conntrack    conntrackConfig `json:"conntrack"`
	Logging      logging         `json:"logging"`
	FeatureGates featureGates    `json:"featureGates,omitzero"`
}

// client says how the program is connected to the API server, and for which node.
type client struct {
	HostnameOverride string           `json:"hostnameOverride"`
	ClientConnection clientConnection `json:"clientConnection"`
}

// featureGates has the feature gates that this program supports. A nil one has kube-proxy's
// default, and is not written, as not all versions have it.
type featureGates struct {
	AllowServiceExternalIPs *bool `json:"AllowServiceExternalIPs,omitempty"`
}

// set parses the flag, names with values, and returns notes about unsupported gates.
func (g *featureGates) set(text string) (notes []string, err error) {
	for pair := range strings.SplitSeq(text, ",") {
		if pair == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		switch name = strings.TrimSpace(name); {
		case !ok:
			return nil, fmt.Errorf("%q: want name=true or name=false", pair)
		case err != nil:
			return nil, fmt.Errorf("feature gate %s: %w", name, err)
		case name == "AllowServiceExternalIPs":
			g.AllowServiceExternalIPs = &on
		default:
			notes = append(notes, fmt.Sprintf("feature gate %s is ignored", name))
		}
	}
	return notes, nil
}

type serving struct {
	BindAddress        string   `json:"bindAddress"`
	HealthzBindAddress string   `json:"healthzBindAddress"`
	MetricsBindAddress string   `json:"metricsBindAddress"`
	EnableProfiling    bool     `json:"enableProfiling"`
	NodePortAddresses  []string `json:"nodePortAddresses"`
}

// pods are the settings that distinguish the traffic of pods from other traffic.
type pods struct {
	DetectLocalMode string `json:"detectLocalMode"`
	ClusterCIDR     string `json:"clusterCIDR"`
	DetectLocal     struct {
		BridgeInterface     string `json:"bridgeInterface"`
		InterfaceNamePrefix string `json:"interfaceNamePrefix"`
	} `json:"detectLocal"`
}

type clientConnection struct {
	Kubeconfig string  `json:"kubeconfig"`
	QPS        float64 `json:"qps"`
	Burst      int     `json:"burst"`
}

// modeConfig is the section of a mode.
type modeConfig struct {
	MasqueradeAll bool     `json:"masqueradeAll"`
	MasqueradeBit int      `json:"masqueradeBit"`
	SyncPeriod    duration `json:"syncPeriod"`
	MinSyncPeriod duration `json:"minSyncPeriod"`
}

// conntrackConfig are the parameters of the kernel's connection tracking.
type conntrackConfig struct {
	MaxPerCore            int      `json:"maxPerCore"`
	Min                   int      `json:"min"`
	TCPEstablishedTimeout duration `json:"tcpEstablishedTimeout"`
	TCPCloseWaitTimeout   duration `json:"tcpCloseWaitTimeout"`
	TCPBeLiberal          bool     `json:"tcpBeLiberal"`
	UDPTimeout            duration `json:"udpTimeout"`
	UDPStreamTimeout      duration `json:"udpStreamTimeout"`
}

// prepare sets parameters that need more privileges than the running program has.
func (c *conntrackConfig) prepare() error {
	return conntrack.Parameters{
		MaxPerCore: c.MaxPerCore, Min: c.Min, TCPBeLiberal: c.TCPBeLiberal,
		TCPEstablishedTimeout: c.TCPEstablishedTimeout.Duration, TCPCloseWaitTimeout: c.TCPCloseWaitTimeout.Duration,
		UDPTimeout: c.UDPTimeout.Duration, UDPStreamTimeout: c.UDPStreamTimeout.Duration,
	}.Set()
}

type logging struct {
	Verbosity int `json:"verbosity"`
}

// duration is a duration that is written like 1m30s.
type duration struct{ time.Duration }

func (d duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

func (d *duration) UnmarshalText(text []byte) (err error) {
	if d.Duration, err = time.ParseDuration(string(text)); err != nil {
		// To an error of this type package json adds the name of the field.
		return &json.UnmarshalTypeError{Value: fmt.Sprintf("%q", text), Type: reflect.TypeFor[duration]()}
	}
	return nil
}

// defaults returns the defaults of kube-proxy, except that minSyncPeriod is 0: syncs are
// cheap, so they need not wait for each other.
func defaults() kubeProxyConfiguration {
	mode := modeConfig{MasqueradeBit: 14}
	return kubeProxyConfiguration{
		TypeMeta: metav1.TypeMeta{APIVersion: "kubeproxy.config.k8s.io/v1alpha1", Kind: "KubeProxyConfiguration"},
		client:   client{ClientConnection: clientConnection{QPS: 5, Burst: 10}},
		IPTables: mode, NFTables: mode,
		Conntrack: conntrackConfig{
			MaxPerCore: 32 << 10, Min: 128 << 10,
			TCPEstablishedTimeout: duration{24 * time.Hour}, TCPCloseWaitTimeout: duration{time.Hour},
		},
	}
}

// readFile returns the configuration in a file. Like kube-proxy it ignores unknown fields and
// duplicates; notes name them.
func readFile(path string) (c kubeProxyConfiguration, notes []string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return c, nil, err
	}
	object, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		notes = append(notes, err.Error())
		object, err = yaml.YAMLToJSON(text)
	}
	if err == nil {
		var passed []string
		c, passed, err = parse(object)
		notes = append(notes, passed...)
	}
	if err != nil {
		return c, notes, fmt.Errorf("%s: %w", path, err)
	}
	return c, notes, nil
}

// write writes the configuration in the form that readFile reads.
func (c *kubeProxyConfiguration) write(path string) error {
	text, err := yaml.Marshal(c)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

func parse(object []byte) (c kubeProxyConfiguration, notes []string, err error) {
	var given, known map[string]any
	if err := json.Unmarshal(object, &given); err != nil {
		return c, nil, err
	}
	c = defaults()
	if given["apiVersion"] != c.APIVersion || given["kind"] != c.Kind {
		return c, nil, fmt.Errorf("%v %v: want %s of %s", given["apiVersion"], given["kind"], c.Kind, c.APIVersion)
	}
	model := c
	model.FeatureGates.AllowServiceExternalIPs = new(true)
	model.WindowsRunAsService, model.Winkernel.EnableDSR = true, true
	text, err := json.Marshal(model)
	if err == nil {
		err = json.Unmarshal(text, &known)
	}
	if err != nil {
		return c, nil, err
	}
	notes = prune("", given, known)
	if object, err = json.Marshal(given); err == nil {
		err = json.Unmarshal(object, &c)
	}
	return c, notes, err
}

// prune removes unknown fields from an object, whose own path ends with a dot. It returns notes
// about those that are not empty.
func prune(path string, given, known map[string]any) (notes []string) {
	for _, name := range slices.Sorted(maps.Keys(given)) {
		value, field := given[name], path+name
		inner, isObject := value.(map[string]any)
		model, isKnown := known[name]
		fields, hasFields := model.(map[string]any)
		switch {
		case isObject && (hasFields || isIgnored(field)):
			notes = append(notes, prune(field+".", inner, fields)...)
		case isKnown, value == nil:
		case !isIgnored(field):
			notes = append(notes, fmt.Sprintf("field %s is unknown", field))
		case path == "featureGates." || !slices.Contains([]string{"", "0", "0s", "false", "[]"}, fmt.Sprint(value)): // not an empty value
			notes = append(notes, fmt.Sprintf("field %s is ignored", field))
		}
		if !isKnown {
			delete(given, name)
		}
	}
	return notes
}

// isIgnored reports whether a field, or a field that contains it, is one of kube-proxy's that
// this program ignores.
func isIgnored(field string) bool {
	return slices.ContainsFunc([]string{
		"bindAddressHardFail", "clientConnection.acceptContentTypes", "clientConnection.contentType", "configSyncPeriod",
		"featureGates", "iptables.localhostNodePorts", "logging.flushFrequency", "logging.format", "logging.options",
		"logging.vmodule", "oomScoreAdj", "portRange", "showHiddenMetricsForVersion", "udpIdleTimeout",
	}, func(ignored string) bool { return field == ignored || strings.HasPrefix(field, ignored+".") })
}
