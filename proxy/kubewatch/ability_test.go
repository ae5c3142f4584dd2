package kubewatch

import (
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// plain is a handler that does not want to know service ranges.
type plain struct{ Handler }

// What nobody wants to know is not asked for: it would take rights that the program
// may not have.
func TestOnlyWhatIsWanted(t *testing.T) {
	server, client := newAPIServer(t, true)
	h := newRecorder()
	start(t, &Source{Client: client, Handler: plain{h}})
	h.until(t, "the start", func(s *state) bool { return s.synced == 1 })
	server.mu.Lock()
	defer server.mu.Unlock()
	var got []string
	for _, r := range server.requests {
		got = append(got, r.URL.Path)
	}
	slices.Sort(got)
	want := []string{"/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices"}
	if got = slices.Compact(got); !slices.Equal(got, want) {
		t.Errorf("asked for %q, want %q", got, want)
	}
}

// A failure says what could not be done. One that the API server may get over holds
// the start up, unless it is a refusal of what is optional.
func TestRefusals(t *testing.T) {
	for resource, isOptional := range map[string]bool{"servicecidrs": true, "services": false} {
		client := fake.NewClientset(service("a", "10.96.0.1"))
		var asked, lines atomic.Int64
		client.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			asked.Add(1)
			return true, nil, apierrors.NewForbidden(v1.Resource(resource), "", errors.New("not you"))
		})
		h := newRecorder()
		reports := make(chan error, 1000)
		logger := funcr.New(func(_, _ string) { lines.Add(1) }, funcr.Options{})
		start(t, &Source{Client: client, Handler: h, Logger: logger, Report: func(err error) {
			select {
			case reports <- err:
			default:
			}
			h.note(func(*state) {})
		}})
		h.until(t, "failures", func(s *state) bool { return asked.Load() > 3 && lines.Load() > 0 && (s.synced == 1 || !isOptional) })
		if got := h.get().synced == 1; got != isOptional {
			t.Errorf("%s are refused: Synced came: %v, want %v", resource, got, isOptional)
		}
		if err := <-reports; !strings.HasPrefix(err.Error(), "kubewatch: list *v1.Service") || !strings.Contains(err.Error(), "not you") {
			t.Errorf("reported is %q, want what could not be listed, and why", err)
		}
	}
}

// An API server that sends what makes no sense is asked again, and nothing is taken
// down for it.
func TestGarbage(t *testing.T) {
	for name, garbage := range map[string]string{
		"text":             "once upon a time",
		"another kind":     `{"type":"ADDED","object":{"kind":"Node","apiVersion":"v1","metadata":{"name":"x"}}}`,
		"unknown kind":     `{"type":"ADDED","object":{"kind":"Dragon","apiVersion":"fire/v1","metadata":{"name":"x"}}}`,
		"unknown event":    `{"type":"SUNRISE","object":{"kind":"Service","apiVersion":"v1","metadata":{"name":"a","namespace":"test"}}}`,
		"no object":        `{"type":"DELETED"}`,
		"half an event":    `{"type":"DELETED","object":{"kind":"Service","apiVersion":"v1","metadata":{"name":"a","namesp`,
		"nothing":          "{}",
		"error of no kind": `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			server, client := newAPIServer(t, true)
			fill(server)
			h := newRecorder()
			source := &Source{Client: client, Handler: h}
			server.talk(t, garbage)
			start(t, source)
			server.awaitRequests(t, 20)
			if got := h.get(); got.synced != 0 || got.updates != 0 || !source.Foreign(netip.MustParseAddr("192.0.2.1")) {
				t.Errorf("from garbage alone the handler knows %+v, want nothing", got)
			}
			server.talk(t, "")
			h.until(t, "the start", func(s *state) bool { return s.synced == 1 && len(s.slices) == 1 && len(s.services) == 2 })

			server.talk(t, garbage)
			server.awaitRequests(t, 20)
			if got := h.get(); got.removals != 0 || len(got.services) != 2 {
				t.Errorf("%d removals, services %v; want none removed", got.removals, got.services)
			}
			server.talk(t, "")
			server.put("services", service("c", "10.96.0.3"))
			h.until(t, "a change once it makes sense", func(s *state) bool { return s.services["c"] != "" })
		})
	}
}

// talk has the API server say garbage from now on, or sense.
func (s *apiServer) talk(t *testing.T, garbage string) {
	t.Helper()
	s.mu.Lock()
	s.garbage, s.served = garbage, make(chan struct{}, 1000)
	s.mu.Unlock()
	s.disconnect()
}

// awaitRequests waits until garbage has been served so often.
func (s *apiServer) awaitRequests(t *testing.T, n int) {
	t.Helper()
	s.mu.Lock()
	served := s.served
	s.mu.Unlock()
	late := time.After(limit)
	for i := range n {
		select {
		case <-served:
		case <-late:
			t.Fatalf("%d requests came, want %d", i, n)
		}
	}
}

// serveGarbage answers with it, if there is any.
func (s *apiServer) serveGarbage(w http.ResponseWriter) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.garbage == "" {
		return false
	}
	select {
	case s.served <- struct{}{}:
	default:
	}
	_, _ = w.Write([]byte(s.garbage)) // The client notices what is missing.
	return true
}
