package proxy

import (
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestEnumerationsInJSON(t *testing.T) {
	testenv.RoundTrip(t, ClusterIP, NodePort)
	testenv.RoundTrip(t, Pass, Drop)
	testenv.RoundTrip(t, PoolCluster, PoolLocal)
	testenv.RoundTrip(t, MasqueradeNever, MasqueradeAlways)
}
