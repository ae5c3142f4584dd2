package storm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/iptables"
	"github.com/vipkit/vipkit/backends/ipvs"
	"github.com/vipkit/vipkit/backends/nftables"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/conntrack"
	"github.com/vipkit/vipkit/proxy/health"
)

// agentOptions are the settings of an agent.
type agentOptions struct {
	Backend  string        `json:"backend"`
	Identity string        `json:"identity"`
	Mark     uint32        `json:"mark"`
	Health   string        `json:"health"`
	Resync   time.Duration `json:"resync"`
	// Watched says that the storm decides about each system call. Small is then the size
	// of the buffers of netlink sockets, unless it is 0.
	Watched bool `json:"watched"`
	Small   int  `json:"small"`
}

// message is a change that the storm sends to an agent. The first message has all Services
// and the Node.
type message struct {
	Sequence int `json:"sequence"`
	// Cleanup tells the agent to remove its rules and end.
	Cleanup bool `json:"cleanup,omitempty"`
	change
}

// event is a report of an agent: that all messages up to Applied are in the dataplane, that
// an Apply failed, or that a check of the whole dataplane, which began at the time Verified,
// succeeded.
type event struct {
	Applied  int        `json:"applied,omitempty"`
	Failed   string     `json:"failed,omitempty"`
	Verified *time.Time `json:"verified,omitempty"`
}

// The files of an agent beside the standard ones.
const (
	changesFile = 3
	eventsFile  = 4
)

// agentMain is the agent: a tracker, a runner with its backend, and the health server.
func agentMain(args []string, stderr io.Writer) int {
	log := logr.FromSlogHandler(slog.NewTextHandler(stderr, nil))
	var o agentOptions
	if err := json.Unmarshal([]byte(args[0]), &o); err != nil {
		log.Error(err, "options")
		return 1
	}
	if o.Watched {
		if err := installFilter(); err != nil {
			log.Error(err, "watching system calls")
			return 1
		}
	}
	if err := runAgent(context.Background(), &o, log); err != nil {
		log.Error(err, "the agent ends")
		return 1
	}
	return 0
}

func runAgent(ctx context.Context, o *agentOptions, log logr.Logger) error {
	backend, err := o.open()
	if err != nil {
		return err
	}
	flows, err := conntrack.New(conntrack.Options{})
	if err != nil {
		return err
	}
	a := &reporter{log: log, events: json.NewEncoder(os.NewFile(eventsFile, "events"))}
	inv := newInventory(trackerOptions())
	server, err := health.New(health.Options{Address: o.Health})
	if err != nil {
		return err
	}
	runner := &proxy.Runner{
		Source: inv, Backend: backend, FlowCleaner: flows, Logger: log, ResyncInterval: o.Resync,
		Observers: []proxy.Observer{server.Observer(), {Synced: a.observe, Verified: a.verified}},
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var beside sync.WaitGroup
	beside.Go(func() { server.Run(ctx) })
	beside.Go(func() {
		defer cancel()
		if err := a.readMessages(ctx, inv); err != nil && !errors.Is(err, io.EOF) {
			log.Error(err, "changes")
		}
	})
	if err := runner.Run(ctx); err != nil {
		return err // The process ends without waiting for readMessages.
	}
	cancel()
	beside.Wait()
	if a.cleanup {
		return cleanUp(context.WithoutCancel(ctx), backend)
	}
	return nil
}

// cleanUp calls Cleanup until it succeeds, for patience/2 at most.
func cleanUp(ctx context.Context, b proxy.Backend) error {
	for end := time.Now().Add(patience / 2); ; time.Sleep(100 * time.Millisecond) {
		if err := b.Cleanup(ctx); err == nil || time.Now().After(end) {
			return err
		}
	}
}

func (o *agentOptions) open() (proxy.Backend, error) {
	id := backends.Identity{Name: o.Identity, Mark: o.Mark}
	switch o.Backend {
	case "nftables":
		return nftables.New(nftables.Options{Identity: id})
	case "iptables-nft":
		return iptables.New(iptables.Options{Identity: id, Flavour: iptables.NFT})
	case "iptables-legacy":
		return iptables.New(iptables.Options{Identity: id, Flavour: iptables.Legacy})
	case "ipvs":
		return ipvs.New(ipvs.Options{Identity: id, Flavour: ipvs.NFT})
	case "ipvs-legacy":
		return ipvs.New(ipvs.Options{Identity: id, Flavour: ipvs.Legacy})
	case "userspace":
		// A busy machine may take longer than the default to reach an endpoint.
		dial := []time.Duration{2 * time.Second, 2 * time.Second}
		return userspace.New(userspace.Options{Identity: id, Timeouts: userspace.Timeouts{Dial: dial}})
	}
	return nil, fmt.Errorf("unknown backend %q, want one of %v", o.Backend, backendNames())
}

func backendNames() []string {
	return append([]string{"nftables", "iptables-nft", "iptables-legacy", "userspace"}, testedIPVS()...)
}

// reporter reports to the storm which messages the dataplane contains.
type reporter struct {
	log     logr.Logger
	mu      sync.Mutex
	events  *json.Encoder
	waiting []receivedMessage
	applied uint64    // generation
	full    time.Time // when the last Apply began, if it was a full one
	cleanup bool
}

// receivedMessage is a message with the generation of the snapshot that contains it.
type receivedMessage struct {
	sequence   int
	generation uint64
}

// readMessages passes the messages to the tracker until there are no more.
func (a *reporter) readMessages(ctx context.Context, inv *inventory) error {
	messages := json.NewDecoder(os.NewFile(changesFile, "changes"))
	for isFirst := true; ; isFirst = false {
		var m message
		if err := messages.Decode(&m); err != nil {
			return err
		}
		if m.Cleanup {
			a.cleanup = true
			return nil
		}
		inv.apply(&m.change)
		if isFirst {
			inv.tracker.Synced()
		}
		s, err := inv.Next(ctx, proxy.Snapshot{})
		if err != nil {
			return err
		}
		a.mu.Lock()
		a.waiting = append(a.waiting, receivedMessage{m.Sequence, s.Generation()})
		a.reportApplied()
		a.mu.Unlock()
	}
}

func (a *reporter) observe(s proxy.Sync) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.full = (time.Time{}); s.Full {
		a.full = s.Start
		// Two full Applies in a row that write something keep health from being good.
		a.log.Info("full apply", "operations", s.Operations, "duration", s.Duration, "failed", s.Err != nil)
	}
	if s.Err != nil {
		_ = a.events.Encode(event{Failed: fmt.Sprintf("%.300v", s.Err)}) // It fails only if the storm has ended.
		return
	}
	a.applied = s.Applied.Generation()
	a.reportApplied()
}

func (a *reporter) verified(proxy.Snapshot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	begin := time.Now() // Without an Apply, the check was short.
	if !a.full.IsZero() {
		begin, a.full = a.full, time.Time{}
		a.log.Info("verified the full apply")
	}
	_ = a.events.Encode(event{Verified: &begin}) // It fails only if the storm has ended.
}

// reportApplied reports the last message that is applied, if there is a new one.
func (a *reporter) reportApplied() {
	var last int
	for len(a.waiting) > 0 && a.waiting[0].generation <= a.applied {
		last, a.waiting = a.waiting[0].sequence, a.waiting[1:]
	}
	if last > 0 {
		_ = a.events.Encode(event{Applied: last}) // It fails only if the storm has ended.
	}
}
