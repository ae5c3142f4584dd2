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
		"unavailable": backends.ErrUnavailable, "locked": ErrLocked, "conflict": backends.ErrConflict, "exhausted": backends.ErrExhausted,
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

// The output of the programs of both flavours is translated to errors that callers act on, if
// necessary by the line of the script that it names.
func TestExplain(t *testing.T) {
	t.Parallel()
	failed := ended(t, "exit 4")
	s := &script{text: []byte("*nat\n:VIPKIT-SVC-X - [0:0]\n-A VIPKIT-SERVICES -j VIPKIT-SVC-X\n-D VIPKIT-SERVICES -j VIPKIT-SVC-Y\nCOMMIT\n")}
	for output, want := range map[string]string{
		"Another app is currently holding the xtables lock; still 2s 0us time ahead to have a chance to grab the lock...\n" +
			"Another app is currently holding the xtables lock. Stopped waiting after 5s.": "unavailable locked",
		"iptables-restore: Cannot allocate memory":                                                             "unavailable",
		"iptables: Memory allocation problem.":                                                                 "unavailable",
		"iptables-nft-restore: sendmsg() failed: No buffer space available":                                    "unavailable",
		"Fatal: can't open lock file /run/xtables.lock: Permission denied":                                     "unavailable unsupported",
		"iptables v1.8.9 (legacy): can't initialize iptables table `nat': you must be root":                    "unavailable unsupported",
		"iptables-restore v1.8.9 (nf_tables): line 3: TABLE_FLUSH failed (Operation not permitted): table nat": "unavailable unsupported",
		"modprobe: not found\niptables-restore v1.8.9 (legacy): iptables-restore: unable to initialize table 'nat'\n" +
			"Table does not exist": "unsupported",
		"can't initialize ip6tables table `nat': do you need to insmod?": "unsupported",
		"iptables-restore v1.8.9 (legacy): Couldn't load match `recent':No such file or directory\n\n" +
			"Error occurred at line: 3": "unsupported",
		"iptables-restore v1.8.9 (legacy): Couldn't load target `CT':No such file or directory\n\nError occurred at line: 3": "unsupported",
		"Warning: Extension REJECT revision 0 not supported, missing kernel module?\niptables-nft-restore: line 5 failed":    "unsupported",
		"iptables-restore v1.8.9 (legacy): Couldn't load target `VIPKIT-SVC-X':No such file or directory\n\n" +
			"Error occurred at line: 3": "conflict",
		"iptables: Bad rule (does a matching rule exist in that chain?).":                                                    "conflict",
		"iptables: No chain/target/match by that name.":                                                                      "conflict",
		"iptables-nft-restore v1.8.9 (nf_tables): \nline 4: RULE_DELETE failed (No such file or directory): rule in chain X": "conflict",
		"iptables-nft-restore v1.8.9 (nf_tables): \nline 3: Chain 'VIPKIT-SVC-X' does not exist":                             "conflict",
		"iptables-nft-restore v1.8.9 (nf_tables): \nline 2: CHAIN_ADD failed (File exists): chain VIPKIT-SVC-X":              "conflict",
		"iptables-restore: line 4 failed":                                                                                    "conflict",  // the legacy flavour's message for a missing rule
		"iptables-restore: line 5 failed":                                                                                    "exhausted", // the line of COMMIT
		"iptables-restore: line 2 failed":                                                                                    "",
		"iptables-restore: line 9 failed":                                                                                    "",
		"iptables-restore v1.8.9 (legacy): host/network `x' not found\nError occurred at line: 3\nTry `iptables-restore -h'": "",
		"":                       "",
		"Segmentation violation": "",
	} {
		err := explain(failed, []byte(output))
		stop, ok := errors.AsType[*stopError](err)
		if !ok {
			t.Fatalf("%q: got a %T, want a *stopError", output, err)
		}
		stop.markConflict(s, newNames("vipkit"))
		stop.markExhausted(s)
		means(t, output, err, want)
		if !errors.Is(err, failed) || output != "" && !strings.Contains(err.Error(), strings.Join(strings.Fields(output), " ")) {
			t.Errorf("%q: got error %q, want one that has this text and wraps %v", output, err, failed)
		}
	}
	means(t, "a program that was killed", explain(ended(t, "kill -9 $$"), []byte("line 3 failed")), "lost")
	means(t, "a program with an unknown end", explain(errors.New("waiting failed"), nil), "lost")
}

// The line at which a program stopped is read from its output.
func TestExplainLine(t *testing.T) {
	t.Parallel()
	failed := ended(t, "exit 1")
	for output, want := range map[string]int{
		"iptables-restore: line 12 failed": 12, "Error occurred at line: 345\n": 345, "line 6: RULE_ADD failed (x): rule in chain y": 6,
		"at line 99999999999999999999999": 0, "no place": 0, "in line x": 0, "": 0,
	} {
		if stop, ok := errors.AsType[*stopError](explain(failed, []byte(output))); !ok || stop.line != want {
			t.Errorf("%q: got %+v, want line %d", output, stop, want)
		}
	}
	long := strings.Repeat("many words ", 100) + "line 7 failed"
	if text := explain(failed, []byte(long)).Error(); len(text) > 500 || !strings.HasSuffix(text, "line 7 failed") {
		t.Errorf("error for %d bytes of output: got %d bytes, want at most 500 and the end of the output: %s", len(long), len(text), text)
	}
}
