package manifest

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// Handler receives the objects that a Watcher reads; every proxy.ServiceChangeTracker is
// one. Only the goroutine that runs the Watcher calls it. The objects belong to the
// Watcher: the handler must neither keep nor change them.
type Handler interface {
	proxy.ServiceHandler
	// UpdateNode receives a Node that is new or has changed. All Nodes are handed
	// over; deletions are not.
	UpdateNode(*v1.Node)
	// Synced is called once, after all objects that could be read, and not before
	// Path could be read.
	Synced()
}

// Summary counts the objects after a pass.
type Summary struct {
	// Files counts the files that exist, good or bad.
	Files int
	// Services counts the Services in effect, with those that are kept because their file has an error.
	Services int
	// Errors counts what could not be read: files, documents and list items.
	Errors int
	// Warnings counts what was read and has no effect.
	Warnings int
	// Ignored counts the documents and list items of other kinds, by
	// apiVersion and kind: "apps/v1 Deployment".
	Ignored map[string]int
}

// Watcher reads manifests, also when they change, and passes their objects to a Handler. It has only settings,
// and no state: Run and Load may be called at any time and from any goroutine. The
// settings must not be changed during a call.
type Watcher struct {
	// Path is a file of any name, or a folder whose *.yaml, *.yml and *.json
	// files are read.
	Path string
	// Interval is how often Run checks the files. Zero means a second.
	Interval time.Duration
	// Handler receives the objects.
	Handler Handler
	// Logger gets a line for each error that begins or ends: of the files, and of Path itself. It also
	// gets one for each warning, which is about a part that was read and has no effect: an unknown
	// field; an EndpointSlice without the label of its Service, or with a port that its Service does
	// not have; a Service without ports or ClusterIP. Warnings are no errors of Load. Of errors and of
	// warnings, it gets at most a hundred lines in a minute each. The zero value discards all lines.
	Logger logr.Logger
	// Observe, if set, is called after each pass that read something new, after the
	// handler.
	Observe func(Summary)
}

// Load makes one pass: it hands over everything that can be read, calls the
// handler's Synced and returns the errors, joined, each a *DocumentError. If Path
// itself cannot be read, or ctx ends first, it returns the reason, does not log it, and does
// not call Synced. It waits up to an Interval for files that are being written.
func (s *Watcher) Load(ctx context.Context) error { return s.follow(ctx, true) }

// Run does what Load does and then watches the files until ctx ends, and then returns
// nil. It waits for a Path that cannot be read, also at the start. It returns an error of the
// settings at once.
func (s *Watcher) Run(ctx context.Context) error {
	if err := s.follow(ctx, false); ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
		return err
	}
	return nil
}

func (s *Watcher) follow(ctx context.Context, once bool) error {
	f, err := newFollower(s)
	if err != nil {
		return err
	}
	for {
		stable, err := f.check(ctx)
		switch {
		case err != nil:
			return err
		case once && f.pathErr != nil:
			return f.problems() // It is all that Load returns, and the caller logs it.
		case f.handed != nil || f.pathErr != nil:
			f.report()
		}
		if once && f.handed != nil {
			return f.problems()
		}
		if err := f.wait(ctx, stable); err != nil {
			return err
		}
	}
}
