package xtables

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// meanings returns all errors that callers distinguish.
func meanings() map[string]error {
	return map[string]error{
		"lost": proxy.ErrDataplaneLost, "unsupported": proxy.ErrUnsupported,
		"unavailable": backends.ErrUnavailable, "locked": ErrLocked, "conflict": backends.ErrConflict,
	}
}

// means checks that an error has exactly the named meanings.
func means(t *testing.T, what string, err error, want string) {
	t.Helper()
	for name, meaning := range meanings() {
		if got := errors.Is(err, meaning); got != strings.Contains(" "+want+" ", " "+name+" ") {
			t.Errorf("%s: error %q has meaning %s: got %t, want the meanings %q", what, err, name, got, want)
		}
	}
}

// ended runs a script, which must fail, and returns the error.
func ended(t *testing.T, script string) error {
	t.Helper()
	err := exec.CommandContext(t.Context(), "sh", "-c", script).Run()
	if err == nil {
		t.Fatalf("script %q: got no error, want one", script)
	}
	return err
}

// The output of the programs of both flavours is translated to errors that callers act on. All else
// is a refusal.
func TestExplain(t *testing.T) {
	t.Parallel()
	failed := ended(t, "exit 4")
	for output, want := range map[string]string{
		"Another app is currently holding the xtables lock; still 2s 0us time ahead to have a chance to grab the lock...\n" +
			"Another app is currently holding the xtables lock. Stopped waiting after 5s.": "unavailable locked",
		"iptables-restore: Cannot allocate memory":                                                             "unavailable",
		"iptables: Memory allocation problem.":                                                                 "unavailable",
		"iptables-nft-restore: sendmsg() failed: No buffer space available":                                    "unavailable",
		"Fatal: can't open lock file /run/xtables.lock: Permission denied":                                     "unavailable unsupported",
		"iptables v1.8.9 (legacy): can't initialize iptables table `nat': you must be root":                    "unavailable unsupported",
		"iptables-restore v1.8.9 (nf_tables): line 3: TABLE_FLUSH failed (Operation not permitted): table nat": "unavailable unsupported",
		"iptables-restore v1.8.9 (legacy): Couldn't load match `recent':No such file or directory\n\n" +
			"Error occurred at line: 3": "",
		"iptables-restore: line 4 failed": "",
		"":                                "",
	} {
		err := explain(failed, []byte(output))
		means(t, output, err, want)
		if got := isRefusal(err); got != (want == "") {
			t.Errorf("%q: refusal: got %t, want %t", output, got, want == "")
		}
		if !errors.Is(err, failed) || output != "" && !strings.Contains(err.Error(), strings.Join(strings.Fields(output), " ")) {
			t.Errorf("%q: got error %q, want one that has this text and wraps %v", output, err, failed)
		}
	}
	means(t, "a program that was killed", explain(ended(t, "kill -9 $$"), []byte("line 3 failed")), "lost")
	means(t, "a program with an unknown end", explain(errors.New("waiting failed"), nil), "lost")
	long := strings.Repeat("many words ", 100) + "line 7 failed"
	if text := explain(failed, []byte(long)).Error(); len(text) > 500 || !strings.Contains(text, "line 7 failed") {
		t.Errorf("error for %d bytes of output: got %d bytes, want at most 500 and the end of the output: %s", len(long), len(text), text)
	}
}
