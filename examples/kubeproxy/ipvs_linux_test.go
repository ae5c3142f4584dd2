package main

import (
	"errors"
	"testing"

	"github.com/vipkit/vipkit/backends/ipvs"
	"github.com/vipkit/vipkit/proxy"
)

// TestIPVSOrNext checks that mode ipvs serves, or says what the node lacks and serves in the
// next mode.
func TestIPVSOrNext(t *testing.T) {
	w := newWorld(t, "mode: ipvs\n")
	want := ipvsMode
	err := w.node.Do(func() error {
		b, err := ipvs.New(ipvs.Options{})
		if err == nil {
			err = closeBackend(b)
		}
		return err
	})
	if errors.Is(err, proxy.ErrUnsupported) {
		want = nftablesMode
	}
	p := w.start()
	p.Await("msg=mode", "mode=ipvs", "reason=configured")
	if want != ipvsMode {
		p.Await("mode unsupported on this node; trying the next", "ip_vs")
		p.Await("msg=mode", "mode=nftables", "ipvs is unsupported on this node")
	}
	p.Await("msg=serving", "ports=1")
	w.wantAnswer(virtualIP, "8080")
	p.AwaitPage(metrics+"/proxyMode", "200 OK", want)
	p.Terminate(stopped)
}
