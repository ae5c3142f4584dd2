package manifest

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/problemlog"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const goodService = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  clusterIP: 10.96.0.1\n  ports:\n  - {name: http, port: 80}\n"

// sliceOf returns an EndpointSlice whose labels and ports are YAML.
func sliceOf(labels, ports string) string {
	return "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: web-1\n  labels: " + labels + "\naddressType: IPv4\nports: " + ports + "\n"
}

// TestWarnings checks that each part without effect has one warning with its line, and that
// everything is read.
func TestWarnings(t *testing.T) {
	const label = "{kubernetes.io/service-name: web}"
	item := "- " + strings.ReplaceAll(strings.TrimSuffix(strings.Replace(goodService, "ports:", "port:", 1), "\n"), "\n", "\n  ") + "\n"
	const why = "without spec.clusterIP it is not served: give it an unused address, for example clusterIP: 10.96.0.10"
	for _, c := range []struct {
		name, text string
		warnings   []string
		objects    int
	}{
		{"good", goodService + "---\n" + sliceOf(label, "[{name: http, port: 1}]"), nil, 2},
		{"no ClusterIP", strings.Replace(goodService, "  clusterIP: 10.96.0.1\n", "", 1), []string{"1: Service default/web: " + why}, 1},
		{"headless", strings.Replace(goodService, "10.96.0.1", "None", 1), nil, 1},
		{"external name", "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {type: ExternalName, externalName: a.b}\n", nil, 1},
		{
			"wrong field", strings.Replace(goodService, "ports:", "port:", 1),
			[]string{"1: Service default/web: without spec.ports it answers nowhere", `6: Service default/web: unknown field "spec.port"`}, 1,
		},
		{"no ports", "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  clusterIP: 10.96.0.1\n", []string{"1: Service default/web: without spec.ports it answers nowhere"}, 1},
		{
			"wrong field of an item", "apiVersion: v1\nkind: List\nitems:\n" + item,
			[]string{"4: items[0]: Service default/web: without spec.ports it answers nowhere", `9: items[0]: Service default/web: unknown field "spec.port"`}, 1,
		},
		{"wrong field of a flow", "---\n# A comment.\n{kind: List, apiVersion: v1, items: [\n{apiVersion: v1, kind: Node, metadata: {name: one}},\n{apiVersion: v1, kind: Node, metadata: {\nnam: x, name: two}}]}\n", []string{`6: items[1]: Node two: unknown field "metadata.nam"`}, 2},
		{
			"wrong field in JSON", "{\"apiVersion\": \"v1\", \"kind\": \"NodeList\", \"items\": [\n{\"metadata\":\n{\"name\": \"n\"},\n\"stat\": {}}]}\n",
			[]string{`1: items[0]: Node n: unknown field "stat"`}, 1,
		},
		{
			"field twice in JSON", `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "name": "n"}}`,
			[]string{`1: Node n: duplicate field "metadata.name"`}, 1,
		},
		{"deep field", strings.Replace(goodService, "port: 80", "port: 80, nodeport: 30000", 1), []string{`7: Service default/web: unknown field "spec.ports[0].nodeport"`}, 1},
		{"no such Service", goodService + "---\n" + sliceOf("{kubernetes.io/service-name: wbe}", "[]"), []string{"9: EndpointSlice default/web-1: no file has its Service default/wbe"}, 2},
		{"slice of a headless Service", strings.Replace(goodService, "10.96.0.1", "None", 1) + "---\n" + sliceOf(label, "[{name: x, port: 1}]"), nil, 2},
		{"Service of another namespace", strings.Replace(goodService, "{name: web}", "{name: web, namespace: a}", 1) + "---\n" + sliceOf(label, "[]"), []string{"9: EndpointSlice default/web-1: no file has its Service default/web"}, 2},
		{"no label", sliceOf("{app: web}", "[]"), []string{"1: EndpointSlice default/web-1: without the label kubernetes.io/service-name it is of no Service"}, 1},
		{
			"wrong port name", goodService + "---\n" + sliceOf(label, "[{name: htp, port: 1}, {name: http, protocol: UDP, port: 1}]"),
			[]string{
				`9: EndpointSlice default/web-1: ports[0]: the Service default/web has no port "htp"/TCP`,
				`9: EndpointSlice default/web-1: ports[1]: the Service default/web has no port "http"/UDP`,
			}, 2,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.yaml")
			write(t, filepath.Dir(path), "a.yaml", c.text)
			r := newRecorder(t)
			var got []string
			s := &Watcher{Path: path, Handler: r, Logger: warnings(func(text string) { got = append(got, strings.TrimPrefix(text, path+":")) })}
			if err := s.Load(t.Context()); err != nil {
				t.Errorf("Load: %v, want no error", err)
			}
			testenv.Same(t, c.warnings, got, "warnings")
			if len(r.objects) != c.objects {
				t.Errorf("got objects %q, want %d", r.names(), c.objects)
			}
		})
	}
}

func TestManyWarnings(t *testing.T) {
	r := newRecorder(t)
	dir := t.TempDir()
	var text strings.Builder
	for range 150 {
		text.WriteString("---\napiVersion: v1\nkind: Node\nmetadata: {name: one, extra: 1}\n")
	}
	write(t, dir, "a.yaml", text.String())
	var lines []string
	s := &Watcher{Path: dir, Handler: r, Logger: warnings(func(text string) { lines = append(lines, text) })}
	_ = s.Load(t.Context()) // The duplicates are errors.
	if want := "a.yaml: " + "50 more, which are not listed"; len(lines) != problemlog.Most || !strings.HasSuffix(lines[0], want) {
		t.Errorf("got %d warnings, the first one %q, want %d and %q", len(lines), lines[0], problemlog.Most, want)
	}
}

func TestMisspelledKinds(t *testing.T) {
	for text, want := range map[string]string{
		"apiVersion: v1\nkind: Servce\n":                          ":1: unknown kind Servce: did you mean Service?",
		"apiVersion: v1\nkind: nodes\n":                           ":1: unknown kind nodes: did you mean Node?",
		"apiVersion: v1\nkind: ServceList\nitems: []\n":           ":1: unknown kind ServceList: did you mean ServiceList?",
		"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlices\n": ":1: unknown kind EndpointSlices: did you mean EndpointSlice?",
		"apiVersion: v1\nkind: EndpointSlice\n":                   `:1: EndpointSlice of apiVersion "v1", want "discovery.k8s.io/v1"`,
		"apiVersion: v1\nkind: Secret\n":                          "",
		"apiVersion: v1\nkind: Endpoints\n":                       "",
		"apiVersion: v1\nkind: Pod\n":                             "",
		"apiVersion: serving.knative.dev/v1\nkind: Service\n":     "",
		"apiVersion: x.io/v1\nkind: Servce\n":                     "",
	} {
		_, err := loadText(t, text+"metadata: {name: x}\n")
		got := ""
		if err != nil {
			_, got, _ = strings.Cut(err.Error(), "a.yaml")
		}
		if got != want {
			t.Errorf("%q: got error %q, want %q", text, got, want)
		}
	}
}

// TestWrongTypes checks that a value of a wrong type is reported at its line.
func TestWrongTypes(t *testing.T) {
	const label = "{kubernetes.io/service-name: web}"
	for text, want := range map[string]string{
		sliceOf(label, "\n- name: http\n  port: \"80\""):                                  ":7: EndpointSlice default/web-1: json: cannot unmarshal string into Go struct field EndpointPort.ports.port of type int32",
		strings.Replace(goodService, "10.96.0.1", "10", 1):                                ":5: Service default/web: json: cannot unmarshal number into Go struct field ServiceSpec.spec.clusterIP of type string",
		strings.Replace(goodService, "{name: web}", "{name: web, labels: [a]}", 1):        ":3: Service default/web: json: cannot unmarshal array into Go struct field ObjectMeta.metadata.labels of type map[string]string",
		strings.Replace(goodService, "\n  - {name: http, port: 80}", " http", 1):          ":6: Service default/web: json: cannot unmarshal string into Go struct field ServiceSpec.spec.ports of type []v1.ServicePort",
		strings.Replace(goodService, "port: 80", "port: 3000000000", 1):                   ":6: Service default/web: json: cannot unmarshal number 3000000000 into Go struct field ServicePort.spec.ports.port of type int32",
		sliceOf(label, "[]") + "endpoints:\n- addresses: [a]\n  conditions: {ready: 1}\n": ":8: EndpointSlice default/web-1: json: cannot unmarshal number into Go struct field EndpointConditions.endpoints.conditions.ready of type bool",
	} {
		_, err := loadText(t, text)
		got := ""
		if err != nil {
			_, got, _ = strings.Cut(err.Error(), "a.yaml")
		}
		if got != want {
			t.Errorf("%q: got error %q, want %q", text, got, want)
		}
	}
}
