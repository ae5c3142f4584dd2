package kubestore

import (
	"errors"
	"fmt"
	"strconv"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/storetest"
)

// TestRecentIsBounded checks that recent keeps at most maxRecent objects, and no deleted one.
func TestRecentIsBounded(t *testing.T) {
	t.Parallel()
	var r recent
	for i := range 3 * maxRecent {
		k, version := storetest.Key(i), i+1
		o := &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.Itoa(version)}}
		r.put(k, o)
		if got := r.get(allocator.Claim{Key: k, Version: allocator.Version(version)}); got != o {
			t.Fatalf("object %d: got %v, want the one that was put", i, got)
		}
		if got := r.get(allocator.Claim{Key: k, Version: allocator.Version(version + 1)}); got != nil {
			t.Fatalf("object %d in another version: got %v, want nothing", i, got)
		}
		before := allocator.Claim{Key: storetest.Key(i - 1), Version: allocator.Version(version - 1)}
		if i%maxRecent > 0 && r.get(before) == nil {
			t.Fatalf("object %d after the next one was put: got none, want it", i-1)
		}
		if len(r.objects) > maxRecent {
			t.Fatalf("objects: got %d, want at most %d", len(r.objects), maxRecent)
		}
	}
	last := storetest.Key(3*maxRecent - 1)
	r.put(last, nil)
	if _, isKept := r.objects[last]; isKept {
		t.Errorf("object of %v after it was deleted: got one, want none", last)
	}
}

// TestWorst checks that any other error is preferred to a conflict, which would mean that
// nothing was written.
func TestWorst(t *testing.T) {
	t.Parallel()
	conflict := func(port uint16) error { return &allocator.ConflictError{Key: allocator.PortKey(port)} }
	lost := errors.New("no reply")
	for _, c := range []struct {
		errs []error
		want error
	}{
		{},
		{errs: []error{nil, nil}},
		{errs: []error{nil, lost, nil}, want: lost},
		{errs: []error{conflict(1), nil, lost}, want: lost},
		{errs: []error{nil, fmt.Errorf("foreign: %w", conflict(1)), conflict(2)}, want: fmt.Errorf("foreign: %w", conflict(1))},
	} {
		if got := worst(c.errs); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("of %v: got %v, want %v", c.errs, got, c.want)
		}
	}
}
