package iptables

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// meanings are all errors that callers tell apart.
func meanings() map[string]error {
	return map[string]error{
		"lost": proxy.ErrDataplaneLost, "unsupported": proxy.ErrUnsupported,
		"unavailable": backends.ErrUnavailable, "locked": ErrLocked, "conflict": backends.ErrConflict,
	}
}

// means checks that an error has the meanings that are named, and no other one.
func means(t *testing.T, what string, err error, want string) {
	t.Helper()
	for name, meaning := range meanings() {
		if got := errors.Is(err, meaning); got != strings.Contains(" "+want+" ", " "+name+" ") {
			t.Errorf("%s: error %q means %s: got %t, want the meanings %q", what, err, name, got, want)
		}
	}
}

// ended gives how a shell ends that runs a script.
func ended(t *testing.T, script string) error {
	t.Helper()
	err := exec.CommandContext(t.Context(), "sh", "-c", script).Run()
	if err == nil {
		t.Fatalf("the script %q succeeds", script)
	}
	return err
}

// What the programs of both flavours say is put in terms that callers can act on, by
// the place in the script too, where they say that.
func TestExplain(t *testing.T) {
	failed := ended(t, "exit 4")
	s := &script{text: []byte("*nat\n:VIPKIT-SVC-X - [0:0]\n-A VIPKIT-SERVICES -j VIPKIT-SVC-X\n-D VIPKIT-SERVICES -j VIPKIT-SVC-Y\nCOMMIT\n")}
	for said, want := range map[string]string{
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
		"iptables-restore: line 4 failed":                                                                                    "conflict", // all that the legacy flavour says of a rule that is not there
		"iptables-restore: line 5 failed":                                                                                    "",         // that is a whole table
		"iptables-restore: line 2 failed":                                                                                    "",
		"iptables-restore: line 9 failed":                                                                                    "",
		"iptables-restore v1.8.9 (legacy): host/network `x' not found\nError occurred at line: 3\nTry `iptables-restore -h'": "",
		"":                       "",
		"Segmentation violation": "",
	} {
		err := explain(failed, []byte(said))
		stop, ok := errors.AsType[*stopError](err)
		if !ok {
			t.Fatalf("%q: got a %T", said, err)
		}
		stop.blame(s, newNames("vipkit"))
		means(t, said, err, want)
		if !errors.Is(err, failed) || said != "" && !strings.Contains(err.Error(), strings.Join(strings.Fields(said), " ")) {
			t.Errorf("%q: got error %q, want one that holds all of that, and how the program ended", said, err)
		}
	}
	means(t, "a program that was killed", explain(ended(t, "kill -9 $$"), []byte("line 3 failed")), "lost")
	means(t, "a program of which nobody knows how it ended", explain(errors.New("waiting failed"), nil), "lost")
}

// Where a program stopped is to be found in what it says.
func TestExplainLine(t *testing.T) {
	failed := ended(t, "exit 1")
	for said, want := range map[string]int{
		"iptables-restore: line 12 failed": 12, "Error occurred at line: 345\n": 345, "line 6: RULE_ADD failed (x): rule in chain y": 6,
		"at line 99999999999999999999999": 0, "no place": 0, "in line x": 0, "": 0,
	} {
		if stop, ok := errors.AsType[*stopError](explain(failed, []byte(said))); !ok || stop.line != want {
			t.Errorf("%q: got %+v, want line %d", said, stop, want)
		}
	}
	long := strings.Repeat("many words ", 100) + "line 7 failed"
	if text := explain(failed, []byte(long)).Error(); len(text) > 500 || !strings.HasSuffix(text, "line 7 failed") {
		t.Errorf("of %d bytes that were said, the error has %d: %s", len(long), len(text), text)
	}
}
