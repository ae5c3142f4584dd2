package kernelspace

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/vipkit/vipkit/internal/journal"
)

// state has the IDs of the backend's own load balancers, and of endpoints that it has adopted. It
// also has the attempts to make load balancers whose outcome is not known.
//
// IDs of objects that two lists in a row do not have are removed: only a list shows that an object is
// gone, since HNS may report success and keep it.
type state struct {
	*journal.Set
	isLoaded bool
	missing  map[string]bool       // IDs that the last list did not have
	failed   atomic.Pointer[error] // the last error of the file
}

// failure returns the last error of the file. It may be called from any goroutine.
func (s *state) failure() error {
	if err := s.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// load reads the file, once. Without a file, or with one that is damaged, no load balancer is known. As
// long as the file cannot be read, it is not written either, and each list tries again.
func (s *state) load() {
	if s.isLoaded {
		return
	}
	meanwhile := slices.Collect(s.All())
	_, err := s.Load() // what is damaged is left out
	s.failed.Store(&err)
	s.isLoaded = err == nil
	for _, x := range meanwhile {
		s.Add(x)
	}
}

// keep forgets all IDs but the IDs of objects that exist. An ID that was missing in one list alone stays: the
// list may have been wrong, and then nobody would remove the object any more. Attempts stay, too, while some
// objects are unread: one of them may be what an attempt has made.
func (s *state) keep(exists map[string]bool, someUnread bool) {
	missing := map[string]bool{}
	for id := range s.All() {
		switch {
		case exists[id], someUnread && strings.HasPrefix(id, attempted):
		case s.missing[id]:
			s.Remove(id)
		default:
			missing[id] = true
		}
	}
	s.missing = missing
	s.Compact()
}

// flush writes what has changed.
func (s *state) flush() {
	if s.isLoaded {
		err := s.Flush()
		s.failed.Store(&err)
	}
}

// clear forgets everything, and removes the file.
func (s *state) clear() error {
	if !s.isLoaded {
		return s.failure()
	}
	return s.Clear()
}

// attempted begins what attempt returns.
const attempted = "attempted:"

// attempt is what the state has for a load balancer that may exist although its ID is not known. One
// with this key is the backend's own.
func attempt(k key) string {
	return fmt.Sprintf("%s%d:%v", attempted, k.protocol, k.addr)
}

// intend records that a load balancer is about to be made, or the next process would not know that
// it is the backend's own if this one ends before it has recorded the ID. It reports whether
// this is the first attempt since the outcome of the last one became known.
func (s *state) intend(k key) (first bool) {
	first = !s.Has(attempt(k))
	s.Add(attempt(k))
	s.flush()
	return first
}

// decided records the outcome of an attempt: the ID of a load balancer, or an empty one if none was
// made.
func (s *state) decided(k key, id string) {
	if id != "" {
		s.Add(id)
	}
	s.Remove(attempt(k))
}
