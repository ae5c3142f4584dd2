package agent

import (
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// apiServer is a fake API server that supports lists and watches, and forgets Events.
type apiServer struct {
	mu      sync.Mutex
	version int
	objects map[string]map[string]metav1.Object // by resource and name
	events  []apiEvent
	changed chan struct{} // closed with every event
}

type apiEvent struct {
	version  int
	resource string
	Type     string        `json:"type"`
	Object   metav1.Object `json:"object"`
}

func newAPIServer() *apiServer {
	return &apiServer{version: 1, objects: map[string]map[string]metav1.Object{}, changed: make(chan struct{})}
}

// serve serves at l until stop is called.
func (s *apiServer) serve(t *testing.T, l net.Listener) (stop func()) {
	t.Helper()
	web := &http.Server{Handler: s} //nolint:gosec // only the test sends requests
	ended := make(chan error, 1)
	go func() { ended <- web.Serve(l) }()
	stop = sync.OnceFunc(func() {
		if err := web.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// kinds are the API group and version, and the kind of each resource.
func kinds() map[string]schema.GroupVersionKind {
	return map[string]schema.GroupVersionKind{
		"services":       v1.SchemeGroupVersion.WithKind("Service"),
		"nodes":          v1.SchemeGroupVersion.WithKind("Node"),
		"endpointslices": discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"),
		"servicecidrs":   networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"),
	}
}

// object is a watched object.
type object interface {
	runtime.Object
	metav1.Object
}

// put creates or changes an object.
func (s *apiServer) put(resource string, o object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.GetObjectKind().SetGroupVersionKind(kinds()[resource])
	kind := "MODIFIED"
	if s.objects[resource] == nil {
		s.objects[resource] = map[string]metav1.Object{}
	}
	if s.objects[resource][o.GetName()] == nil {
		kind = "ADDED"
	}
	s.objects[resource][o.GetName()] = o
	s.record(resource, kind, o)
}

func (s *apiServer) remove(resource, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[resource][name]
	delete(s.objects[resource], name)
	s.record(resource, "DELETED", o)
}

func (s *apiServer) record(resource, kind string, o metav1.Object) {
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
	s.events = append(s.events, apiEvent{s.version, resource, kind, o})
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	w.Header().Set("Content-Type", "application/json")
	switch q := r.URL.Query(); {
	case r.Method == http.MethodPost: // Events, which tests with a real API server read
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"kind":"Event","apiVersion":"events.k8s.io/v1"}`))
	case q.Get("sendInitialEvents") != "":
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = json.NewEncoder(w).Encode(metav1.Status{ // The client falls back to a list.
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure",
			Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: "lists cannot be streamed",
		})
	case q.Get("watch") != "":
		s.watch(w, r, resource)
	default:
		s.list(w, resource)
	}
}

func (s *apiServer) list(w http.ResponseWriter, resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := kinds()[resource]
	// Not nil: JSON has null for that.
	items := slices.AppendSeq([]metav1.Object{}, maps.Values(s.objects[resource]))
	_ = json.NewEncoder(w).Encode(map[string]any{ // A client that has disconnected gets no response.
		"apiVersion": kind.GroupVersion().String(), "kind": kind.Kind + "List", "metadata": map[string]string{"resourceVersion": strconv.Itoa(s.version)}, "items": items,
	})
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, resource string) {
	from, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	flusher, ok := w.(http.Flusher)
	if err != nil || !ok {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	for next := 0; ; {
		s.mu.Lock()
		for ; next < len(s.events); next++ {
			if e := s.events[next]; e.resource == resource && e.version > from {
				_ = json.NewEncoder(w).Encode(e)
			}
		}
		changed := s.changed
		s.mu.Unlock()
		flusher.Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}
