package userspace

import (
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestEnumerationsInJSON(t *testing.T) {
	t.Parallel()
	testenv.RoundTrip(t, DefaultCapture, Loopback)
}

// The name of a removed capture gives an error that names the others, and changes nothing.
func TestRemovedCaptureNamesTheOthers(t *testing.T) {
	t.Parallel()
	c := Redirect
	if err := c.UnmarshalText([]byte("routes")); err == nil || !strings.Contains(err.Error(), "removed: use tproxy, or redirect") || c != Redirect {
		t.Errorf("got %v and error %v, want redirect, and an error that names tproxy and redirect", c, err)
	}
}
