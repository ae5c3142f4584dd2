package agent

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestSettings checks that each setting has a sentence, that names are unique, and that the table has all
// fields of kube-proxy's type and all flags of kube-proxy.
func TestSettings(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, s := range newConfig("linux").settings() {
		if s.help == "" || !strings.HasSuffix(s.help, ".") || s.help != strings.ToUpper(s.help[:1])+s.help[1:] || s.field+s.flag == "" || s.into == nil {
			t.Errorf("setting %q, flag %q: got help %q, want a name, a value and a sentence", s.field, s.flag, s.help)
		}
		for _, name := range []string{"field " + s.field, "flag " + s.flag} {
			if seen[name] && !strings.HasSuffix(name, " ") {
				t.Errorf("%s is there twice", name)
			}
			seen[name] = true
		}
	}
	groups := newConfig("linux").groups()
	for i, g := range groups {
		for _, s := range g.settings {
			if s.traits.has(isIgnored) != (i == len(groups)-1) {
				t.Errorf("setting %q, flag %q: want ignored ones, and no others, in the last group", s.field, s.flag)
			}
		}
	}
	for name := range strings.FieldsSeq(`bind-address bind-address-hard-fail cleanup cluster-cidr config config-sync-period conntrack-max-per-core
		conntrack-min conntrack-tcp-be-liberal conntrack-tcp-timeout-close-wait conntrack-tcp-timeout-established conntrack-udp-timeout
		conntrack-udp-timeout-stream detect-local-mode enable-dsr feature-gates forward-healthcheck-vip healthz-bind-address healthz-port
		hostname-override init-only iptables-localhost-nodeports iptables-masquerade-bit iptables-min-sync-period iptables-sync-period
		ipvs-exclude-cidrs ipvs-min-sync-period ipvs-scheduler ipvs-strict-arp ipvs-sync-period ipvs-tcp-timeout ipvs-tcpfin-timeout
		ipvs-udp-timeout kube-api-burst kube-api-content-type kube-api-qps kubeconfig log-flush-frequency log-json-info-buffer-size
		log-json-split-stream log-text-info-buffer-size log-text-split-stream logging-format masquerade-all master metrics-bind-address
		metrics-port network-name nodeport-addresses oom-score-adj pod-bridge-interface pod-interface-name-prefix profiling proxy-mode
		root-hnsendpoint-name show-hidden-metrics-for-version source-vip v version vmodule windows-service write-config-to`) {
		if !seen["flag "+name] {
			t.Errorf("flag -%s of kube-proxy is unknown", name)
		}
	}
}

// TestSettingsDocument checks that docs/configuration.md has the table of settings.
func TestSettingsDocument(t *testing.T) {
	t.Parallel()
	want := ""
	code := func(text string) string {
		if text == "" {
			return ""
		}
		return "`" + text + "`"
	}
	for _, g := range newConfig("linux").groups() {
		want += "## " + g.title + "\n\n| field | flag | what it does | followed |\n|---|---|---|---|\n"
		for _, s := range g.settings {
			flag := s.flag
			if flag != "" {
				flag = "-" + flag
			}
			want += fmt.Sprintf("| %s | %s | %s | %s |\n", code(s.field), code(flag), s.help, s.followed())
		}
		want += "\n"
	}
	hasTable(t, "../../../docs/configuration.md", strings.TrimSuffix(want, "\n"))
}

func hasTable(t *testing.T, path, want string) {
	t.Helper()
	text, err := os.ReadFile(path)
	testenv.NoError(t, err)
	if !strings.Contains(string(text), want) {
		t.Errorf("%s lacks, or has otherwise:\n%s", path, want)
	}
}

// followed says what a change of the field in the file does.
func (s *setting) followed() string {
	switch {
	case s.field == "":
		return ""
	case s.traits.has(isIgnored):
		return "ignored"
	case s.traits.has(isLive):
		return "applied at once"
	}
	return "the program ends"
}
