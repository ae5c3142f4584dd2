package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// faulty is a backend with faults.
type faulty struct {
	proxy.Backend
	apply   func(real proxy.Backend, ctx context.Context, old, new proxy.Snapshot) error
	cleanup func(context.Context) error
}

func (f faulty) Apply(ctx context.Context, old, new proxy.Snapshot) error {
	if f.apply == nil {
		return f.Backend.Apply(ctx, old, new)
	}
	return f.apply(f.Backend, ctx, old, new)
}

func (f faulty) Cleanup(ctx context.Context) error {
	if f.cleanup == nil {
		return f.Backend.Cleanup(ctx)
	}
	return f.cleanup(ctx)
}

// onNode records the namespace of the node, in which the backend is made.
type onNode struct{ *netns.NS }

func (n *onNode) backend(t *testing.T, f faulty) func() (proxy.Backend, error) {
	return func() (_ proxy.Backend, err error) {
		if n.NS, err = netns.Current(); err != nil {
			return nil, err
		}
		testenv.CloseAtEnd(t, n)
		f.Backend, err = newNFTables()
		return f, err
	}
}

// checkClean checks that the nftables of the node are empty.
func (n *onNode) checkClean(t *testing.T) {
	t.Helper()
	if !hasNFT() {
		return
	}
	if got := nft(t, n.NS, "list", "ruleset"); got != "" {
		t.Errorf("nftables of the node: got\n%s\nwant nothing", got)
	}
}

func TestRunCleansUp(t *testing.T) {
	newMachine(t)
	var node onNode
	var out bytes.Buffer
	if err := run(t.Context(), &screen{out: &out}, node.backend(t, faulty{})); err != nil {
		t.Fatalf("%v, after\n%s", err, &out)
	}
	checkStory(t, out.String())
	node.checkClean(t)
}

// trigger calls a function when something is written.
type trigger struct {
	on   string
	then func()
}

func (w trigger) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(w.on)) {
		w.then()
	}
	return len(p), nil
}

func TestRunInterrupted(t *testing.T) {
	for _, at := range []string{"small cluster", "\n1. ", "\n4. ", "\n9. ", "\n10. "} {
		t.Run(strings.TrimSpace(at), func(t *testing.T) {
			newMachine(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var node onNode
			err := run(ctx, &screen{out: trigger{at, cancel}}, node.backend(t, faulty{}))
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got error %v, want %v", err, context.Canceled)
			}
			node.checkClean(t)
		})
	}
}

// The program notices a backend that does not do what it should.
func TestRunFindsFaults(t *testing.T) {
	unsupported := fmt.Errorf("%w: no NAT", proxy.ErrUnsupported)
	nothing := func(context.Context) error { return nil }
	for _, test := range []struct {
		name  string
		fault faulty
		want  string
	}{
		{"does nothing", faulty{apply: func(proxy.Backend, context.Context, proxy.Snapshot, proxy.Snapshot) error {
			return nil
		}}, "step 2: "},
		{"does not change", faulty{apply: func(real proxy.Backend, ctx context.Context, old, new proxy.Snapshot) error {
			if !old.IsZero() {
				return nil
			}
			return real.Apply(ctx, old, new)
		}}, "step 4: pod-c still answers"},
		{"fails", faulty{apply: func(proxy.Backend, context.Context, proxy.Snapshot, proxy.Snapshot) error {
			return io.ErrUnexpectedEOF
		}}, "step 1: the backend: unexpected EOF"},
		{"cannot work here", faulty{apply: func(proxy.Backend, context.Context, proxy.Snapshot, proxy.Snapshot) error {
			return unsupported
		}}, "step 1: the backend: " + unsupported.Error()},
		{"does not clean up", faulty{cleanup: nothing}, "still answers at 10.96.0.10:80, although"},
		{"cannot clean up", faulty{cleanup: func(context.Context) error { return io.ErrUnexpectedEOF }}, "unexpected EOF"},
	} {
		t.Run(test.name, func(t *testing.T) {
			newMachine(t)
			var node onNode
			err := run(t.Context(), &screen{out: io.Discard}, node.backend(t, test.fault))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestRunWithoutBackend(t *testing.T) {
	newMachine(t)
	err := run(t.Context(), &screen{out: io.Discard}, func() (proxy.Backend, error) { return nil, proxy.ErrUnsupported })
	if !errors.Is(err, proxy.ErrUnsupported) {
		t.Errorf("got error %v, want %v", err, proxy.ErrUnsupported)
	}
}

func TestRemedy(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{&netns.UserNamespaceError{Err: syscall.EPERM, Reason: "run as root"}, "sudo /tmp/quickstart"},
		{fmt.Errorf("x: %w: %w", proxy.ErrUnsupported, syscall.EPERM), "modprobe -a nf_tables"},
		{syscall.EOPNOTSUPP, "modprobe veth"},
		{&os.PathError{Err: syscall.EROFS}, "--privileged"},
		{syscall.EPERM, "--privileged"},
	} {
		if got := remedy(test.err); !strings.Contains(got, test.want) {
			t.Errorf("remedy for %q: got %q, want one with %q", test.err, got, test.want)
		}
	}
	if got := remedy(io.EOF); got != "" {
		t.Errorf("remedy for %v: got %q, want none", io.EOF, got)
	}
}

func TestReadManifest(t *testing.T) {
	for _, test := range []struct{ name, old, new, want string }{
		{"as it is", "", "", ""},
		{"one object", "\n---\n", "\n", "a line --- between them"},
		{"no such field", "clusterIP:", "clusterAddress:", "Service: "},
		{"no such field of a slice", "addressType:", "addresstyp:", "EndpointSlice: "},
		{"no address", "clusterIP: 10.96.0.10", "clusterIP: None", "spec.clusterIP: "},
		{"not a pod's address", "[10.244.1.12]", "[10.96.0.12]", "endpoint pod-b: 10.96.0.12 is not an address of a pod"},
		{"no pod's address", "[10.244.1.12]", "[web]", "endpoint pod-b: "},
		{"two addresses", "[10.244.1.12]", "[10.244.1.12, 10.244.1.14]", "one address and a targetRef"},
		{"two ports", "ports:\n- name: http\n  protocol: TCP\n  port: 8080", "ports:\n- {port: 1}\n- {port: 2}", "one port each"},
		{"no pods", "endpoints:\n", "endpoints: []\nx:\n", "EndpointSlice: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := readManifest(strings.Replace(manifestYAML, test.old, test.new, 1))
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got error %v, want one with %q", err, test.want)
			}
		})
	}
	one := manifestYAML[:strings.Index(manifestYAML, "- addresses: [10.244.1.12]")]
	if _, err := readManifest(one); err == nil || !strings.Contains(err.Error(), "at least two endpoints") {
		t.Errorf("one pod: got error %v, want one that says that two are required", err)
	}
}

func TestScreenColours(t *testing.T) {
	terminal, err := os.Open("/dev/ptmx")
	testenv.NoError(t, err)
	defer func() { _ = terminal.Close() }() // Nothing was written.
	t.Setenv("NO_COLOR", "")
	if got := newScreen(terminal).painted(bold, "x"); got != "\x1b[1mx\x1b[0m" {
		t.Errorf("bold x on a terminal: got %q, want escape codes", got)
	}
	t.Setenv("NO_COLOR", "1")
	if got := newScreen(terminal).painted(bold, "x"); got != "x" {
		t.Errorf("bold x with NO_COLOR: got %q, want x", got)
	}
}
