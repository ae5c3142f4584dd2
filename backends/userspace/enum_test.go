package userspace

import (
	"testing"

	"github.com/vipkit/vipkit/internal/testenv"
)

func TestEnumerationsInJSON(t *testing.T) {
	testenv.RoundTrip(t, DefaultCapture, Loopback)
}
