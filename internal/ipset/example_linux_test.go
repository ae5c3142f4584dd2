package ipset_test

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/ipset"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
)

// The example makes a set that gives marks to packets for frontends, and reads it.
func Example() {
	if err := frontends(os.Stdout); err != nil {
		fmt.Println(err)
	}
}

func frontends(out io.Writer) error {
	ctx := context.Background()
	c, err := ipset.Open()
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	set := ipset.Set{Name: "FRONTENDS", Type: ipset.HashIPPort, MaxElem: 1 << 24, SkbInfo: true}
	if err := c.Create(ctx, set); err != nil {
		return err
	}
	dns := ipset.Entry{Addr: netip.MustParseAddr("10.96.0.10"), Protocol: unix.IPPROTO_UDP, Port: 53, Mark: 16}
	old := ipset.Entry{Addr: netip.MustParseAddr("10.96.0.9"), Protocol: unix.IPPROTO_UDP, Port: 53}
	failed, err := c.Do(ctx, []ipset.Op{
		{Set: set.Name, Entry: dns},
		{Set: set.Name, Entry: old, Delete: true},
	})
	if err != nil {
		return err
	}
	for _, f := range failed {
		_, _ = fmt.Fprintln(out, f)
	}
	return c.Entries(ctx, set.Name, func(e ipset.Entry) error {
		_, err := fmt.Fprintf(out, "%v has mark %d\n", e, e.Mark)
		return err
	})
}

func TestExample(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	err := netnstest.NewNS(t).Do(func() error { return frontends(&out) })
	if want := "10.96.0.10,udp:53 has mark 16\n"; err != nil || out.String() != want {
		t.Errorf("got %q, error %v, want %q", out.String(), err, want)
	}
}
