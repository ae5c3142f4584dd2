package differential

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/vipkit/vipkit/backends/backendtest"
	"github.com/vipkit/vipkit/backends/iptables"
	"github.com/vipkit/vipkit/backends/nftables"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func TestMain(m *testing.M) { os.Exit(backendtest.Main(m)) }

// worldsVariable names the environment variable with the number of random worlds to compare; each
// takes about a second.
const worldsVariable = "VIPKIT_WORLDS"

const defaultWorlds = 15

// In the same worlds, all backends do with the same packets what the specification says.
func TestBackendsAgree(t *testing.T) {
	worlds := testenv.Count(t, worldsVariable, defaultWorlds)
	backendtest.Compare(t, worlds, map[string]backendtest.Config{
		"nftables":           {New: newNFTables},
		"iptables-legacy":    {New: newIPTables(iptables.Legacy)},
		"iptables-nft":       {New: newIPTables(iptables.NFT)},
		"userspace":          {New: newUserspace(userspace.TPROXY)},
		"userspace-redirect": {New: newUserspace(userspace.Redirect), Lacks: []backendtest.Capability{backendtest.ClientAddresses}},
	})
}

func newNFTables(t testing.TB) proxy.Backend {
	b, err := nftables.New(nftables.Options{})
	testenv.NoError(t, err)
	return b
}

func newIPTables(flavour iptables.Flavour) func(testing.TB) proxy.Backend {
	return func(t testing.TB) proxy.Backend {
		b, err := iptables.New(iptables.Options{Flavour: flavour})
		if errors.Is(err, proxy.ErrUnsupported) {
			testenv.CannotRun(t, err.Error())
		}
		testenv.NoError(t, err)
		return b
	}
}

func newUserspace(capture userspace.Capture) func(testing.TB) proxy.Backend {
	return func(t testing.TB) proxy.Backend {
		// A busy machine may take longer than the default to reach an endpoint.
		patience := []time.Duration{5 * time.Second, 5 * time.Second}
		b, err := userspace.New(userspace.Options{Capture: capture, Timeouts: userspace.Timeouts{Dial: patience}})
		testenv.NoError(t, err)
		return unforked{b}
	}
}

// unforked is a backend that closes its listeners while no program starts, which would have them open.
type unforked struct{ *userspace.Backend }

func (b unforked) Close() error { return testenv.Close(b.Backend) }
