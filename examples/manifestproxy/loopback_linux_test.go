package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/inspect"
)

// TestLoopback checks that node ports answer at loopback addresses, beside backends of the kernel and of
// the program, and that a port that another program has is in the log until it is free.
func TestLoopback(t *testing.T) {
	t.Parallel()
	const local, metrics = "127.0.0.1:30080", "127.0.0.1:9102"
	for _, backend := range []string{"nftables", "userspace"} {
		n := newNetwork(t)
		taken, err := n.Listen(t.Context(), "tcp", local)
		testenv.NoError(t, err)
		p := n.start(t, append(flags("demo", "-backend", backend, "-nodeport-addresses", "localhost"), "-metrics-bind-address", metrics)...)
		p.Await(`level=ERROR msg="node port not served at loopback addresses"`, "object=default/web", local)
		p.AwaitPage("http://"+metrics+"/debug/services", "Served with limits", local)
		testenv.NoError(t, taken.Close())
		p.Await(`level=INFO msg="node port not served at loopback addresses resolved"`, "object=default/web")
		on := *n.Node
		on.Client = n.NS
		for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			if _, err := on.Ask(t.Context(), local); err == nil {
				break
			} else if time.Now().After(end) {
				t.Fatalf("%s: node port at %s: got error %v, want an answer", backend, local, err)
			}
		}
		p.Terminate(stopped)
	}
}

// TestLoopbackTakesNoChanges checks that metrics of changes are about the backend that -backend names: a change
// stays pending after a sync of the loopback addresses, until that backend takes it up.
func TestLoopbackTakesNoChanges(t *testing.T) {
	t.Parallel()
	at, err := proxy.ParseNodePortAddresses("localhost")
	testenv.NoError(t, err)
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1", NodePortAddresses: at})
	tracker.UpdateService(objects.Service("web", "10.96.0.10", objects.LoadBalancer()))
	tracker.Synced()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	l := &loopback{at: at, journal: newJournal(logr.Discard()), page: inspect.New("test")}
	runner, err := l.open(tracker)
	testenv.NoError(t, err)
	syncs := 0
	runner.Observers = append(runner.Observers, proxy.Observer{Synced: func(proxy.Sync) { syncs++; cancel() }})
	if err := errors.Join(runner.Run(ctx), l.close()); err != nil || syncs == 0 {
		t.Fatalf("got %d syncs, error %v, want a sync", syncs, err)
	}
	source, can := tracker.(interface {
		ChangeCounts() (total, pending [2]uint64)
	})
	if !can {
		t.Fatalf("%T counts no changes", tracker)
	}
	if _, pending := source.ChangeCounts(); pending[0] != 1 {
		t.Errorf("got %d changes of Services pending, want one", pending[0])
	}
}
