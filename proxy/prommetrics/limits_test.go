package prommetrics

import (
	"errors"
	"io"
	"testing"

	"github.com/vipkit/vipkit/proxy"
)

// The number of limits is that of the last sync that did not fail.
func TestLimits(t *testing.T) {
	m, r := newMetrics(t, "iptables")
	two := []*proxy.Problem{{Kind: "Service", Err: errors.New("a")}, {Kind: "Service", Err: errors.New("b")}}
	held := proxy.NewSnapshot(&proxy.Node{})
	for _, step := range []struct {
		what string
		sync proxy.Sync
		want string
	}{
		{"without limits", proxy.Sync{Snapshot: held, Applied: held}, "0"},
		{"with two", proxy.Sync{Snapshot: held, Applied: held, Limits: two}, "2"},
		{"after a failure", proxy.Sync{Snapshot: held, Err: io.ErrUnexpectedEOF}, "2"},
		{"with one", proxy.Sync{Snapshot: held, Applied: held, Limits: two[1:]}, "1"},
	} {
		m.synced(step.sync)
		wantSamples(t, r, step.what, "^vipkit_service_port_limits", "vipkit_service_port_limits "+step.want)
	}
}
