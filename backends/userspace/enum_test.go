package userspace

import (
	"testing"

	"github.com/vipkit/vipkit/internal/testenv"
)

func TestEnumerationsInJSON(t *testing.T) {
	t.Parallel()
	testenv.RoundTrip(t, DefaultCapture, Loopback)
}
