package agent

import (
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// refusals logs errors of the API server. Refused credentials or permissions cause the same error with
// each request, until somebody changes them: the first one is logged, and then a summary each minute.
// All requests have the same credentials, and so one summary; each missing permission has its own.
type refusals struct {
	mu      sync.Mutex
	entries map[string]*refusal // by text; empty for the credentials
}

type refusal struct {
	logged   time.Time
	requests int // since then
}

const (
	// refusalPause is the time between two lines about the same refusal.
	refusalPause = time.Minute
	// maxRefusals bounds the texts that are remembered: some per kind of object are usual.
	maxRefusals = 100
)

// report logs an error of a request.
func (r *refusals) report(log logr.Logger, err error) {
	if !apierrors.IsUnauthorized(err) && !apierrors.IsForbidden(err) {
		log.Error(err, "API server")
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key := ""
	if apierrors.IsForbidden(err) {
		key = err.Error()
	}
	e := r.entries[key]
	if e == nil {
		if r.entries == nil || len(r.entries) == maxRefusals {
			r.entries = map[string]*refusal{}
		}
		e = &refusal{}
		r.entries[key] = e
	}
	e.requests++
	if time.Since(e.logged) < refusalPause {
		return
	}
	log.Error(err, "API server refuses the credentials or permissions; trying again", "requests", e.requests)
	*e = refusal{logged: time.Now()}
}
