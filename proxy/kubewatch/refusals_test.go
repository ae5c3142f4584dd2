package kubewatch

import (
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// A failed request is reported with the kind of its objects. It delays Synced, unless the API
// server refuses an optional kind.
func TestRefusals(t *testing.T) {
	for resource, isOptional := range map[string]bool{"servicecidrs": true, "services": false} {
		t.Run(resource, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { testRefusals(t, resource, isOptional) }) })
	}
}

func testRefusals(t *testing.T, resource string, isOptional bool) {
	t.Helper()
	client := FakeClient(service("a", "10.96.0.1"))
	var requests, lines atomic.Int64
	client.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		requests.Add(1)
		return true, nil, apierrors.NewForbidden(v1.Resource(resource), "", errors.New("not you"))
	})
	h := newRecorder()
	reports := make(chan error, 1000)
	logger := funcr.New(func(_, _ string) { lines.Add(1) }, funcr.Options{})
	start(t, &Watcher{Client: client, Handler: h, Logger: logger, Report: func(err error) {
		select {
		case reports <- err:
		default:
		}
		h.note(func(*state) {})
	}})
	h.until(t, "failures", func(s *state) bool { return requests.Load() > 3 && lines.Load() > 0 && (s.synced == 1 || !isOptional) })
	if got := h.get().synced == 1; got != isOptional {
		t.Errorf("%s are refused: got Synced called %v, want %v", resource, got, isOptional)
	}
	if err := <-reports; !strings.HasPrefix(err.Error(), "kubewatch: list *v1.Service") || !strings.Contains(err.Error(), "not you") {
		t.Errorf("got report %q, want the kind that could not be listed, and the reason", err)
	}
}

// A Watcher retries an API server that sends garbage, and removes nothing because of it.
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
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { testGarbage(t, garbage) }) })
	}
}

func testGarbage(t *testing.T, garbage string) {
	t.Helper()
	server, client := newAPIServer(t, true)
	fill(server)
	h := newRecorder()
	source := &Watcher{Client: client, Handler: h}
	server.setGarbage(t, garbage)
	start(t, source)
	server.awaitRequests(t, 20)
	if got := h.get(); got.synced != 0 || got.updates != 0 || !source.Foreign(netip.MustParseAddr("192.0.2.1")) {
		t.Errorf("after garbage alone: got %+v, want nothing", got)
	}
	server.setGarbage(t, "")
	h.until(t, "the start", func(s *state) bool { return s.synced == 1 && len(s.slices) == 1 && len(s.services) == 2 })

	server.setGarbage(t, garbage)
	server.awaitRequests(t, 20)
	if got := h.get(); got.removals != 0 || len(got.services) != 2 {
		t.Errorf("got %d removals and Services %v, want none removed", got.removals, got.services)
	}
	server.setGarbage(t, "")
	server.put("services", service("c", "10.96.0.3"))
	h.until(t, "a change after the garbage", func(s *state) bool { return s.services["c"] != "" })
}

// setGarbage makes the API server send garbage from now on, or no more if it is empty.
func (s *apiServer) setGarbage(t *testing.T, garbage string) {
	t.Helper()
	s.mu.Lock()
	s.garbage, s.served = garbage, make(chan struct{}, 1000)
	s.mu.Unlock()
	s.disconnect()
}

// awaitRequests waits until garbage has been sent n times.
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
			t.Fatalf("got %d requests, want %d", i, n)
		}
	}
}

// serveGarbage sends the garbage, if there is any, and reports whether it did.
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
	_, _ = w.Write([]byte(s.garbage)) // The client notices a truncated response.
	return true
}
