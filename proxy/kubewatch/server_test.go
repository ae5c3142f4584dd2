package kubewatch

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// apiServer implements as much of the API as lists and watches need.
type apiServer struct {
	mu       sync.Mutex
	version  int
	oldest   int // watches from before are too old
	objects  map[string]map[string]object
	events   []event
	changed  chan struct{} // closed with every event
	cut      chan struct{} // closed to end all watches
	down     bool          // it answers 503
	refuses  bool          // it refuses connections
	conns    []net.Conn
	streams  bool // whether it can stream lists
	requests []*http.Request
	garbage  string // sent in place of any response, if not empty
	served   chan struct{}
}

type event struct {
	version  int
	resource string
	Type     string `json:"type"`
	Object   any    `json:"object"`
}

func newAPIServer(t testing.TB, streams bool) (*apiServer, kubernetes.Interface) {
	t.Helper()
	s := &apiServer{version: 10, objects: map[string]map[string]object{}, changed: make(chan struct{}), cut: make(chan struct{}), streams: streams}
	l := &pipes{made: make(chan net.Conn), closed: make(chan struct{})}
	web := &http.Server{Handler: s}
	served := make(chan error, 1)
	go func() { served <- web.Serve(l) }()
	t.Cleanup(func() {
		s.disconnect()
		testenv.NoError(t, web.Close())
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve: got error %v, want %v", err, http.ErrServerClosed)
		}
	})
	client, err := NewClient(&rest.Config{Host: "http://192.0.2.1", QPS: -1, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.refuses {
			return nil, syscall.ECONNREFUSED
		}
		c, err := l.dial(ctx, network, addr)
		s.conns = append(s.conns, c)
		return c, err
	}})
	testenv.NoError(t, err)
	return s, client
}

// pipes is a listener in memory, so that synctest notices when all goroutines wait.
type pipes struct {
	made   chan net.Conn
	closed chan struct{}
}

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.made <- theirs:
		return ours, nil
	case <-p.closed:
		return nil, syscall.ECONNREFUSED
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.made:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { close(p.closed); return nil }

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// put creates or changes an object.
func (s *apiServer) put(resource string, o object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := "ADDED"
	if s.objects[resource][o.GetName()] != nil {
		kind = "MODIFIED"
	}
	s.store(resource, o)
	s.send(event{s.version, resource, kind, o})
}

// store stores an object under a new version. It requires s.mu.
func (s *apiServer) store(resource string, o object) {
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
	// A client treats an event without a kind as a broken watch, and lists again.
	o.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(kinds()[resource][0], kinds()[resource][1]))
	if s.objects[resource] == nil {
		s.objects[resource] = map[string]object{}
	}
	s.objects[resource][o.GetName()] = o
}

func (s *apiServer) remove(resource, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	o := s.objects[resource][name]
	delete(s.objects[resource], name)
	s.send(event{s.version, resource, "DELETED", o})
}

// forget ends all watches and makes changes without events: all versions that clients have are
// too old from now on. Requests wait until it returns.
func (s *apiServer) forget(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cutAll()
	change()
	s.version++
	s.oldest = s.version
}

func (s *apiServer) send(e event) {
	s.events = append(s.events, e)
	close(s.changed)
	s.changed = make(chan struct{})
}

// bookmark sends a bookmark to all watches.
func (s *apiServer) bookmark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	for resource := range kinds() {
		s.send(event{s.version, resource, "BOOKMARK", bookmarkOf(resource, s.version, false)})
	}
}

func kinds() map[string][2]string {
	return map[string][2]string{
		"services": {"v1", "Service"}, "nodes": {"v1", "Node"},
		"endpointslices": {"discovery.k8s.io/v1", "EndpointSlice"}, "servicecidrs": {"networking.k8s.io/v1", "ServiceCIDR"},
	}
}

func bookmarkOf(resource string, version int, isEnd bool) any {
	meta := map[string]any{"resourceVersion": strconv.Itoa(version)}
	if isEnd {
		meta["annotations"] = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	}
	return map[string]any{"apiVersion": kinds()[resource][0], "kind": kinds()[resource][1], "metadata": meta}
}

// disconnect ends all watches.
func (s *apiServer) disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cutAll()
}

// cutAll ends all watches. It requires s.mu.
func (s *apiServer) cutAll() {
	close(s.cut)
	s.cut = make(chan struct{})
}

func (s *apiServer) setRefusing(refuses bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses = refuses
	for _, c := range s.conns {
		_ = c.Close() // A pipe has no errors.
	}
	s.conns = nil
}

func (s *apiServer) setDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	q := r.URL.Query()
	s.mu.Lock()
	s.requests = append(s.requests, r)
	down, streams := s.down, s.streams
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if s.serveGarbage(w) {
		return
	}
	switch {
	case down:
		http.Error(w, "down", http.StatusServiceUnavailable)
	case q.Get("watch") == "":
		s.list(w, resource)
	case q.Get("sendInitialEvents") != "" && !streams:
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = json.NewEncoder(w).Encode(status(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid))
	default:
		s.watch(w, r, resource)
	}
}

func status(code int32, reason metav1.StatusReason) metav1.Status {
	return metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: code, Reason: reason}
}

func (s *apiServer) list(w http.ResponseWriter, resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []object{}
	for _, o := range s.objects[resource] {
		items = append(items, o)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": kinds()[resource][0], "kind": kinds()[resource][1] + "List",
		"metadata": map[string]string{"resourceVersion": strconv.Itoa(s.version)}, "items": items,
	})
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, resource string) {
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	out := json.NewEncoder(w)
	s.mu.Lock()
	cut, next := s.cut, 0
	switch {
	case r.URL.Query().Get("sendInitialEvents") == "true":
		for _, o := range s.objects[resource] {
			_ = out.Encode(event{Type: "ADDED", Object: o})
		}
		_ = out.Encode(event{Type: "BOOKMARK", Object: bookmarkOf(resource, s.version, true)})
		from = s.version
	case from < s.oldest:
		_ = out.Encode(event{Type: "ERROR", Object: status(http.StatusGone, metav1.StatusReasonExpired)})
		s.mu.Unlock()
		return
	}
	for {
		for ; next < len(s.events); next++ {
			if e := s.events[next]; e.resource == resource && e.version > from {
				_ = out.Encode(e)
			}
		}
		changed := s.changed
		s.mu.Unlock()
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
		select {
		case <-changed:
		case <-cut:
			return
		case <-r.Context().Done():
			return
		}
		s.mu.Lock()
	}
}
