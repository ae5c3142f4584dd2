package manifest

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Handler takes what a Source reads; every proxy.ServiceChangeTracker is one.
// One goroutine calls it, the one that runs the Source. Objects handed over
// belong to the Source: the handler neither keeps nor changes them.
type Handler interface {
	ServiceHandler
	EndpointSliceHandler
	// UpdateNode takes a Node that is new or has changed. All Nodes are handed
	// over; that one vanished is not told.
	UpdateNode(*v1.Node)
	// Synced says that everything that could be read has been handed over
	// once. It is called once, and not before Path could be read.
	Synced()
}

// ServiceHandler takes changes of Services.
type ServiceHandler interface {
	// UpdateService takes a Service that is new or has changed.
	UpdateService(*v1.Service)
	// DeleteService takes that a Service is gone.
	DeleteService(types.NamespacedName)
}

// EndpointSliceHandler takes changes of EndpointSlices.
type EndpointSliceHandler interface {
	// UpdateEndpointSlice takes a slice that is new or has changed.
	UpdateEndpointSlice(*discoveryv1.EndpointSlice)
	// DeleteEndpointSlice takes that a slice is gone.
	DeleteEndpointSlice(types.NamespacedName)
}

// Summary counts what is in the files after a pass.
type Summary struct {
	// Files counts the files that exist, good or bad.
	Files int
	// Services, EndpointSlices and Nodes count the objects that are in force,
	// with those that are kept because their file has an error.
	Services, EndpointSlices, Nodes int
	// Kept counts those of them that are in no file at present.
	Kept int
	// Ignored counts the documents and list items of other kinds, by
	// apiVersion and kind: "apps/v1 Deployment".
	Ignored map[string]int
}

// Source reads manifests and hands their objects to a Handler. It holds
// settings only: Run and Load may be called at any time and from any
// goroutine, each call begins from nothing. The settings must not be changed
// during a call.
type Source struct {
	// Path is a file of any name, or a folder whose *.yaml, *.yml and *.json
	// files are read.
	Path string
	// Interval is how often Run looks at the files. Zero means a second.
	Interval time.Duration
	// Handler takes the objects.
	Handler Handler
	// Report, if set, takes each new state of the problems: joined
	// DocumentErrors and, if Path itself cannot be read, the reason; nil when
	// all is well again. If all is well from the start it is not called.
	Report func(error)
	// Observe, if set, is called after each pass that read something new, when
	// the handler has been told.
	Observe func(Summary)
}

// Load makes one pass: it hands over everything that can be read, calls the
// handler's Synced and returns the problems, joined, each a *DocumentError. If
// Path itself cannot be read it returns the reason, and Synced is not called;
// the same holds if ctx ends first. It waits up to an Interval for files that
// are being written.
func (s *Source) Load(ctx context.Context) error {
	f, err := newFollower(s)
	if err != nil {
		return err
	}
	for {
		settled, err := f.look(ctx)
		switch {
		case err != nil:
			return err
		case f.synced || f.pathErr != nil:
			return f.problems()
		}
		if err := f.wait(ctx, settled); err != nil {
			return err
		}
	}
}

// Run makes the pass that Load makes and then follows the files until ctx ends,
// whose error it returns. It waits for a Path that cannot be read, also at the
// start. Any other error is one of the settings and returned at once.
func (s *Source) Run(ctx context.Context) error {
	f, err := newFollower(s)
	if err != nil {
		return err
	}
	for {
		settled, err := f.look(ctx)
		if err != nil {
			return err
		}
		if err := f.wait(ctx, settled); err != nil {
			return err
		}
	}
}
