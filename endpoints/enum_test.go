package endpoints

import (
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestEnumerationsInJSON(t *testing.T) {
	testenv.RoundTrip(t, HintNone, HintHere)
	testenv.RoundTrip(t, FallbackTerminating, FallbackCluster)
}
