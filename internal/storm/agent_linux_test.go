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
	"github.com/vipkit/vipkit/backends/nftables"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/conntrack"
	"github.com/vipkit/vipkit/proxy/health"
)

// agentOptions say how an agent works.
type agentOptions struct {
	Backend  string        `json:"backend"`
	Identity string        `json:"identity"`
	Mark     uint32        `json:"mark"`
	Health   string        `json:"health"`
	Resync   time.Duration `json:"resync"`
	// Watched says that system calls wait for somebody to decide about them, and
	// Small is the size of the buffers of netlink sockets then, if it is not 0.
	Watched bool `json:"watched"`
	Small   int  `json:"small"`
}

// message is what an agent is told. The first one has all that there is.
type message struct {
	Sequence int `json:"sequence"`
	// Cleanup has the agent remove all that it has made, and end.
	Cleanup bool `json:"cleanup,omitempty"`
	change
}

// event is what an agent tells: that the dataplane holds all up to a message, that an
// Apply failed, or that the whole dataplane was found right by a look that began then.
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

// act is the agent: a tracker, a runner with its backend and the health server, put
// together as a program does it.
func act(args []string, stderr io.Writer) int {
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
	if err := work(context.Background(), &o, log); err != nil {
		log.Error(err, "the agent ends")
		return 1
	}
	return 0
}

func work(ctx context.Context, o *agentOptions, log logr.Logger) error {
	backend, err := o.open()
	if err != nil {
		return err
	}
	flows, err := conntrack.New(conntrack.Options{})
	if err != nil {
		return err
	}
	a := &account{events: json.NewEncoder(os.NewFile(eventsFile, "events"))}
	stuff := newInventory(trackerOptions())
	runner := &proxy.Runner{
		Source: stuff, Backend: flows.Wrap(backend), Logger: log, ResyncInterval: o.Resync, Observe: a.observe, Verified: a.verified,
	}
	server := health.New(health.Options{Address: o.Health})
	if err := server.Watch(runner); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var beside sync.WaitGroup
	beside.Go(func() { server.Run(ctx) })
	beside.Go(func() {
		defer cancel()
		if err := a.take(ctx, stuff); err != nil && !errors.Is(err, io.EOF) {
			log.Error(err, "changes")
		}
	})
	if err := runner.Run(ctx); err != nil {
		return err // The process ends, although it listens for changes.
	}
	cancel()
	beside.Wait()
	if a.cleanup {
		return cleanUp(context.WithoutCancel(ctx), backend)
	}
	return nil
}

// cleanUp removes everything, however often that has to be tried.
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
	case "userspace":
		// A busy machine may take longer than the default to reach an endpoint.
		dial := []time.Duration{2 * time.Second, 2 * time.Second}
		return userspace.New(userspace.Options{Identity: id, Timeouts: userspace.Timeouts{Dial: dial}})
	}
	return nil, fmt.Errorf("backend %q is none of %v", o.Backend, backendNames())
}

func backendNames() []string {
	return []string{"nftables", "iptables-nft", "iptables-legacy", "userspace"}
}

// account knows which messages the dataplane holds.
type account struct {
	mu      sync.Mutex
	events  *json.Encoder
	taken   []taken
	applied uint64    // generation
	full    time.Time // when the last Apply began, if it was one of everything
	cleanup bool
}

// taken is a message with the generation of the snapshot that has it.
type taken struct {
	sequence   int
	generation uint64
}

// take hands the messages to the tracker until there are no more.
func (a *account) take(ctx context.Context, stuff *inventory) error {
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
		stuff.apply(&m.change)
		if isFirst {
			stuff.tracker.Synced()
		}
		s, err := stuff.Next(ctx, proxy.Snapshot{})
		if err != nil {
			return err
		}
		a.mu.Lock()
		a.taken = append(a.taken, taken{m.Sequence, s.Generation()})
		a.tell()
		a.mu.Unlock()
	}
}

func (a *account) observe(s proxy.Sync) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.full = (time.Time{}); s.Full {
		a.full = s.Start
	}
	if s.Err != nil {
		_ = a.events.Encode(event{Failed: fmt.Sprintf("%.300v", s.Err)}) // Who does not read has gone.
		return
	}
	a.applied = s.Applied.Generation()
	a.tell()
}

func (a *account) verified(proxy.Snapshot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	begin := time.Now() // Nothing was applied, so that it was not a long look.
	if !a.full.IsZero() {
		begin, a.full = a.full, time.Time{}
	}
	_ = a.events.Encode(event{Verified: &begin}) // Who does not read has gone.
}

// tell tells which of the messages are applied.
func (a *account) tell() {
	var last int
	for len(a.taken) > 0 && a.taken[0].generation <= a.applied {
		last, a.taken = a.taken[0].sequence, a.taken[1:]
	}
	if last > 0 {
		_ = a.events.Encode(event{Applied: last}) // Who does not read has gone.
	}
}
