package hcn

import (
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestEnumerationsInJSON(t *testing.T) {
	testenv.RoundTrip(t, EndpointsChanged, Disconnected)
}
