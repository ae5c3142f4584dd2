package metrics

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy/prommetrics"
)

// metric is what dashboards depend on.
type metric struct{ name, kind, labels string }

// source is what kube-proxy's source says: its metrics by the variables, and the variables that it registers
// in each mode; the key "" is for all modes.
type source struct {
	byVariable map[string]metric
	registered map[string][]string
}

// TestMetricsOfKubeProxy checks that each metric that kube-proxy has in a mode is there, with its type and labels.
// Package prommetrics says why some are not.
func TestMetricsOfKubeProxy(t *testing.T) {
	kubeProxy := readSource(t)
	for mode, name := range map[string]string{"iptables": "ProxyModeIPTables", "ipvs": "ProxyModeIPVS", "nftables": "ProxyModeNFTables"} {
		all := slices.Concat(kubeProxy.registered[""], kubeProxy.registered[name])
		if len(all) < 14 {
			t.Fatalf("mode %s: got %d metrics from the source of kube-proxy, want at least 14", mode, len(all))
		}
		ours := register(t, mode)
		for _, variable := range all {
			want := kubeProxy.byVariable[variable]
			if strings.HasPrefix(want.name, "kubeproxy_nftables_localhost_nodeport_") {
				continue // They are metrics of the agent, whose tests check them.
			}
			if got := ours[want.name]; want.name == "" || got != want {
				t.Errorf("mode %s: %s: got %+v, want %+v", mode, variable, got, want)
			}
		}
	}
}

// collected keeps what is registered.
type collected struct {
	prometheus.Registerer

	all []prometheus.Collector
}

func (c *collected) Register(m prometheus.Collector) error {
	c.all = append(c.all, m)
	return nil
}

// register returns the metrics of a mode by name.
func register(t *testing.T, mode string) map[string]metric {
	t.Helper()
	c := &collected{}
	if _, err := prommetrics.New(c, prommetrics.Options{Mode: mode}); err != nil {
		t.Fatal(err)
	}
	all := map[string]metric{}
	text := regexp.MustCompile(`fqName: "([^"]*)".*variableLabels: \{([^}]*)\}`)
	for _, m := range c.all {
		descriptions := make(chan *prometheus.Desc, 100)
		m.Describe(descriptions)
		close(descriptions)
		for d := range descriptions {
			found := text.FindStringSubmatch(d.String())
			if found == nil {
				t.Fatalf("got the description %s, want one with a name and labels", d)
			}
			all[found[1]] = metric{found[1], kindOf(m), sorted(strings.Split(found[2], ","))}
		}
	}
	return all
}

// kindOf returns the type of a metric. Functions of Prometheus, and collectors of gauges, tell nothing else.
func kindOf(c prometheus.Collector) string {
	switch m := c.(type) {
	case *prometheus.HistogramVec:
		return "Histogram"
	case *prometheus.CounterVec:
		return "Counter"
	case *prometheus.GaugeVec:
		return "Gauge"
	case prometheus.Metric:
		into := &dto.Metric{}
		if m.Write(into) == nil && into.Counter != nil {
			return "Counter"
		}
	}
	return "Gauge"
}

func sorted(labels []string) string {
	slices.Sort(labels)
	return strings.Join(labels, ",")
}

// readSource reads the source of the module that go.mod requires.
func readSource(t *testing.T) source {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	testenv.NoError(t, err)
	path := filepath.Join(strings.TrimSpace(string(dir)), "pkg/proxy/metrics/metrics.go")
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	testenv.NoError(t, err)
	s := source{map[string]metric{}, map[string][]string{}}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			if call, is := valueOf(n).(*ast.CallExpr); is {
				if m := readMetric(call); m.name != "" {
					s.byVariable[n.Names[0].Name] = m
				}
			}
		case *ast.FuncDecl:
			if n.Name.Name == "RegisterMetrics" {
				s.readRegistrations(n.Body, "")
			}
		}
		return true
	})
	return s
}

func valueOf(v *ast.ValueSpec) ast.Expr {
	if len(v.Values) != 1 {
		return nil
	}
	return v.Values[0]
}

// readMetric reads a call such as metrics.NewGaugeVec(&metrics.GaugeOpts{...}, []string{...}).
func readMetric(call *ast.CallExpr) (m metric) {
	function, is := call.Fun.(*ast.SelectorExpr)
	if !is || !strings.HasPrefix(function.Sel.Name, "New") {
		return m
	}
	m.kind = strings.TrimSuffix(strings.TrimPrefix(function.Sel.Name, "New"), "Vec")
	var labels []string
	for i, argument := range call.Args {
		ast.Inspect(argument, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.KeyValueExpr:
				if fmt.Sprint(n.Key) == "Name" {
					m.name = "kubeproxy_" + text(n.Value)
				}
				return false
			case *ast.BasicLit:
				if i > 0 {
					labels = append(labels, text(n))
				}
			}
			return true
		})
	}
	m.labels = sorted(labels)
	return m
}

func text(e ast.Expr) string {
	l, is := e.(*ast.BasicLit)
	if !is {
		return ""
	}
	s, err := strconv.Unquote(l.Value)
	if err != nil {
		return l.Value
	}
	return s
}

// readRegistrations reads what a block registers, by the mode of the case in which it is.
func (s *source) readRegistrations(block ast.Node, mode string) {
	ast.Inspect(block, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CaseClause:
			for _, e := range n.List {
				if of, is := e.(*ast.SelectorExpr); is {
					for _, statement := range n.Body {
						s.readRegistrations(statement, of.Sel.Name)
					}
				}
			}
			return false
		case *ast.CallExpr:
			if f, is := n.Fun.(*ast.SelectorExpr); is && f.Sel.Name == "MustRegister" {
				for _, a := range n.Args {
					s.registered[mode] = append(s.registered[mode], fmt.Sprint(a))
				}
			}
		}
		return true
	})
}
