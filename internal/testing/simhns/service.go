package simhns

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/internal/hcnschema"
)

// Call is one call of a function of the API.
type Call struct {
	// Function is its name, such as HcnOpenEndpoint; of HNSCall with method and path:
	// "HNSCall GET /globals/version".
	Function string
	// Handle is the handle of the object, or of the network of a new endpoint; 0 if the function takes
	// none.
	Handle uint64
	// ID is the GUID of the object, if the function takes one.
	ID string
	// Text is the settings or the query.
	Text string
}

// Reply is what a function returns.
type Reply struct {
	// Code is the HRESULT.
	Code uint32
	// Handle is the handle of the object that was made or opened.
	Handle uint64
	// Text is the result of a query or a list.
	Text string
	// Record is the error record.
	Record string
}

// Codes that are no codes of HNS.
const (
	codeUnexpected = 0x80004005 // E_FAIL
	codeNoHandle   = 0x80070006 // E_HANDLE
)

// Codes of notifications (HCN_NOTIFICATIONS).
const (
	networkCreated     = 0x2
	endpointAttached   = 0x9
	serviceDisconnects = 0x01000000
)

// Service is a service by the functions of its API. Networks must be enumerated by name before they
// are opened, because a client cannot be asked by ID. All methods may be called from any goroutine.
type Service struct {
	client hcn.Client
	cancel context.CancelFunc
	ended  sync.WaitGroup

	mu          sync.Mutex
	handles     map[uint64]object
	made        uint64
	networks    map[string]hcn.Network
	fault       func(Call) (Reply, bool)
	functions   []string
	subscribers map[uint64]func(code uint32)
}

// object is what a handle is for.
type object struct{ kind, id string }

// New returns a service with the objects of a client, of which it takes the notifications. Close
// ends it.
func New(client hcn.Client) *Service {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Service{
		client: client, cancel: cancel,
		handles: map[uint64]object{}, networks: map[string]hcn.Network{}, subscribers: map[uint64]func(uint32){},
	}
	s.ended.Go(func() { s.notify(ctx) })
	return s
}

// Close ends notifications. The client stays as it is.
func (s *Service) Close() {
	s.cancel()
	s.ended.Wait()
}

// SetFault has f decide about each call but those that close a handle; nil ends all faults. If f
// returns true, the code of its reply is returned, and unless that is 0 the call has no effect. If it
// is 0, the record of the reply is returned, and its text if it has one. f may wait.
func (s *Service) SetFault(f func(Call) (Reply, bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// OpenHandles returns the number of handles that were not closed.
func (s *Service) OpenHandles() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.handles)
}

// Functions returns the names of the functions that were called since it was called before.
func (s *Service) Functions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := s.functions
	s.functions = nil
	return names
}

// Subscribe has f called with the code of each notification, until cancel is called
// (HcnRegisterServiceCallback). No other notification comes while f runs.
func (s *Service) Subscribe(f func(code uint32)) (cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	id := s.made
	s.subscribers[id] = f
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.subscribers, id)
	}
}

func (s *Service) notify(ctx context.Context) {
	for {
		e, err := s.client.Wait(ctx)
		if err != nil {
			return
		}
		code := map[hcn.Event]uint32{
			hcn.EndpointsChanged: endpointAttached, hcn.NetworksChanged: networkCreated, hcn.Disconnected: serviceDisconnects,
		}[e]
		s.mu.Lock()
		all := slices.Collect(maps.Values(s.subscribers))
		s.mu.Unlock()
		for _, f := range all {
			f(code)
		}
	}
}

// Call calls a function.
func (s *Service) Call(c Call) Reply {
	s.mu.Lock()
	s.functions = append(s.functions, c.Function)
	fault := s.fault
	s.mu.Unlock()
	var wanted Reply
	var fails bool
	if fault != nil && !strings.HasPrefix(c.Function, "HcnClose") {
		wanted, fails = fault(c)
	}
	if fails && wanted.Code != 0 {
		return wanted
	}
	r, err := s.do(context.Background(), c)
	if err != nil {
		r.Code, r.Record = codeUnexpected, err.Error()
		if known := (*hcn.Error)(nil); errors.As(err, &known) {
			r.Code, r.Record = known.Code, known.Record
		}
	}
	if fails {
		r.Text, r.Record = cmp.Or(wanted.Text, r.Text), wanted.Record
	}
	return r
}

func (s *Service) do(ctx context.Context, c Call) (r Reply, err error) {
	if strings.HasPrefix(c.Function, "HNSCall ") {
		var v hcn.Version
		if c.Function != "HNSCall GET /globals/version" {
			return r, &hcn.Error{Op: c.Function, Code: hcn.CodeInvalidParameter}
		}
		v, err = s.client.Version(ctx)
		return Reply{Text: hcnschema.VersionText(v)}, err
	}
	verb, kind := split(c.Function)
	switch verb {
	case "Enumerate":
		r.Text, err = s.enumerate(ctx, kind, c.Text)
	case "Open":
		r.Handle, err = s.open(ctx, object{kind, c.ID})
	case "Create":
		r.Handle, err = s.create(ctx, kind, c)
	case "Modify":
		err = s.modify(ctx, c)
	case "Query":
		r.Text, err = s.query(ctx, c.Handle)
	case "Delete":
		err = s.delete(ctx, object{kind, c.ID})
	case "Close":
		err = s.close(c.Handle)
	default:
		err = &hcn.Error{Op: c.Function, Code: hcn.CodeNotImplemented}
	}
	return r, err
}

// split splits the name of a function into verb and kind of object.
func split(function string) (verb, kind string) {
	rest := strings.TrimPrefix(function, "Hcn")
	for _, verb := range []string{"Enumerate", "Open", "Create", "Modify", "Query", "Delete", "Close"} {
		if kind, ok := strings.CutPrefix(rest, verb); ok {
			return verb, strings.TrimSuffix(strings.TrimSuffix(kind, "Properties"), "s")
		}
	}
	return "", ""
}

func (s *Service) put(o object) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	s.handles[s.made] = o
	return s.made
}

func (s *Service) get(handle uint64) (object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.handles[handle]
	if !ok {
		return o, &hcn.Error{Op: "handle", Code: codeNoHandle}
	}
	return o, nil
}

func (s *Service) close(handle uint64) error {
	if _, err := s.get(handle); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.handles, handle)
	return nil
}
