package peer_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const fileHeader = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// outcome is what the agent does with a field.
type outcome string

const (
	honoured outcome = "honoured"             // -write-config-to writes its value
	warned   outcome = "named in a warning"   // it has no effect
	refused  outcome = "named in one error"   // the agent does not start
	silent   outcome = "ignored without word" // never right
)

// testFields sets each field of kube-proxy's type in turn. The agent must honour it, refuse it, or name
// it in a warning. A field that the type gets with another version fails the test.
func testFields(t *testing.T, agent string) {
	want := map[string]outcome{
		"bindAddressHardFail": warned, "clientConnection.acceptContentTypes": warned, "clientConnection.contentType": warned, "configSyncPeriod": warned,
		"logging.flushFrequency": warned, "logging.vmodule": warned, "oomScoreAdj": warned, "portRange": warned, "showHiddenMetricsForVersion": warned,
		"logging.options.json.infoBufferSize": warned, "logging.options.json.splitStream": warned,
		"logging.options.text.infoBufferSize": warned, "logging.options.text.splitStream": warned,
		// They are for Windows.
		"windowsRunAsService": warned, "winkernel.enableDSR": warned, "winkernel.forwardHealthCheckVip": warned, "winkernel.networkName": warned,
		"winkernel.rootHnsEndpointName": warned, "winkernel.sourceVip": warned,
	}
	fields := fieldsOf("", reflect.TypeFor[v1alpha1.KubeProxyConfiguration]())
	if len(fields) < len(want)+40 {
		t.Errorf("got %d fields, want all of them", len(fields))
	}
	for field, value := range fields {
		expected, isNamed := want[field]
		if !isNamed {
			expected = honoured
		}
		if got, out := outcomeOf(t, agent, field, value); got != expected {
			t.Errorf("%s: %s: it is %s, want it %s; output:\n%s", field, value, got, expected, out)
		}
		delete(want, field)
	}
	for field := range want {
		t.Errorf("%s is not in kube-proxy's type", field)
	}
}

// fieldsOf returns the paths of all fields of a type, each with a value that is not the default.
func fieldsOf(path string, of reflect.Type) map[string]string {
	valid := map[string]string{
		"bindAddress": "192.0.2.1", "healthzBindAddress": "192.0.2.1:1", "metricsBindAddress": "192.0.2.1:2", "mode": "nftables",
		"detectLocalMode": "NodeCIDR", "clusterCIDR": "10.0.0.0/8", "nodePortAddresses": "[10.0.0.0/8]", "ipvs.excludeCIDRs": "[10.0.0.0/8]",
		"featureGates": "{AllowServiceExternalIPs: false}", "iptables.localhostNodePorts": "false", "logging.format": "json",
		"logging.flushFrequency": "7s", "logging.vmodule": "[{filePattern: proxier, verbosity: 4}]",
		"logging.options.json.infoBufferSize": "1Ki", "logging.options.text.infoBufferSize": "1Ki", "showHiddenMetricsForVersion": "'1.36'",
	}
	all := map[string]string{}
	for f := range of.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		kind := f.Type
		if kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		value, isNamed := valid[path+name]
		switch {
		case f.Type == reflect.TypeFor[metav1.TypeMeta]():
		case isNamed:
			all[path+name] = value
		case kind == reflect.TypeFor[metav1.Duration]():
			all[path+name] = "7s"
		case kind.Kind() == reflect.Struct && name == "": // an embedded one
			maps.Copy(all, fieldsOf(path, kind))
		case kind.Kind() == reflect.Struct:
			maps.Copy(all, fieldsOf(path+name+".", kind))
		case kind.Kind() == reflect.Bool:
			all[path+name] = "true"
		case kind.Kind() == reflect.String:
			all[path+name] = "some"
		default:
			all[path+name] = "7"
		}
	}
	return all
}

// outcomeOf returns what the agent does with a value of a field, and its output.
func outcomeOf(t *testing.T, agent, field, value string) (outcome, string) {
	t.Helper()
	text := value
	names := strings.Split(field, ".")
	for _, name := range slices.Backward(names) {
		text = fmt.Sprintf("{%s: %s}", name, text)
	}
	folder := t.TempDir()
	file, written := filepath.Join(folder, "config.yaml"), filepath.Join(folder, "written.yaml")
	text = strings.TrimSuffix(strings.TrimPrefix(text, "{"), "}")
	testenv.NoError(t, os.WriteFile(file, []byte(fileHeader+text+"\n"), 0o600))
	out, err := exec.CommandContext(t.Context(), agent, "--config", file, "--write-config-to", written).CombinedOutput()
	if failed := new(exec.ExitError); errors.As(err, &failed) {
		if strings.Contains(string(out), field) && strings.Count(string(out), "\n") == 1 {
			return refused, string(out)
		}
		return silent, string(out)
	} else if err != nil {
		t.Fatal(err)
	}
	for name := field; name != ""; name = name[:max(0, strings.LastIndex(name, "."))] {
		if regexp.MustCompile(`field ` + regexp.QuoteMeta(name) + ` is ignored`).Match(out) {
			return warned, string(out)
		}
	}
	before, after := valueAt(t, file, names), valueAt(t, written, names)
	if strings.Contains(string(out), "is unknown") || !reflect.DeepEqual(before, after) {
		return silent, fmt.Sprintf("%swritten: %v", out, after)
	}
	return honoured, string(out)
}

// valueAt returns the value of a field in a file; nil if it has none.
func valueAt(t *testing.T, file string, names []string) any {
	t.Helper()
	text, err := os.ReadFile(file)
	testenv.NoError(t, err)
	var at any
	testenv.NoError(t, yaml.Unmarshal(text, &at))
	for _, name := range names {
		inner, ok := at.(map[string]any)
		if !ok {
			return nil
		}
		at = inner[name]
	}
	return at
}
