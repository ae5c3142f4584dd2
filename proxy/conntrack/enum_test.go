package conntrack

import (
	"testing"

	"github.com/vipkit/vipkit/internal/testenv"
)

func TestEnumerationsInJSON(t *testing.T) {
	t.Parallel()
	testenv.RoundTrip(t, KeepTCP, ResetTCP)
}
