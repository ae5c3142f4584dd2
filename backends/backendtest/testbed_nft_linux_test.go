package backendtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestCheckReadable(t *testing.T) {
	b := setUpVerdicts(t)
	n := findNFT(t, b.node())
	// Counters and remaining timeouts may differ.
	err := n.load(`table inet more {
		set seen { type ipv4_addr; flags timeout; elements = { 10.0.0.1 timeout 1h } }
		map ports { type inet_proto . inet_service : verdict; elements = { tcp . 80 : drop } }
		chain c { type filter hook input priority 10; counter accept; }
	}`)
	testenv.NoError(t, err)
	if err := n.checkReadable(); err != nil {
		t.Error(err)
	}
	text, err := n.list()
	testenv.NoError(t, err)
	for _, want := range []string{"table inet verdicts", "table inet more"} {
		if !strings.Contains(text, want) {
			t.Errorf("listing: got no %q in\n%s", want, text)
		}
	}
	if err := n.load("no such statement"); err == nil || !strings.Contains(err.Error(), "syntax error") {
		t.Errorf("loading an invalid ruleset: got error %v, want nft's syntax error", err)
	}
}

// checkReadable detects all failures. Scripts that behave as nft does with unreadable
// rulesets replace it.
func TestCheckReadableNotices(t *testing.T) {
	b := setUp(t)
	for name, c := range map[string]struct{ script, want string }{
		"aborts":        {`case "$*" in "list ruleset") kill -ABRT $$;; esac`, "aborted"},
		"JSON aborts":   {`case "$*" in *json*) exit 1;; esac`, "exit status 1"},
		"no JSON":       {`case "$*" in *json*) echo '{';; esac`, "no JSON"},
		"no text":       {`case "$*" in *json*) echo '{}';; *stateless*) exit 2;; esac`, "exit status 2"},
		"does not load": {`case "$*" in *json*) echo '{}';; *-f*) exit 3;; esac`, "exit status 3"},
		"changes":       {`case "$*" in *json*) echo '{}';; *) echo $$;; esac`, "changes when its text is loaded"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "nft")
			testenv.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\ncat >/dev/null\n"+c.script+"\n"), 0o700))
			err := nft{t, path, b.node()}.checkReadable()
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("checkReadable: got error %v, want one with %q", err, c.want)
			}
		})
	}
}
