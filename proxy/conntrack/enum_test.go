package conntrack

import (
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestEnumerationsInJSON(t *testing.T) {
	t.Parallel()
	testenv.RoundTrip(t, KeepTCP, ResetTCP)
}
