package iptables

import (
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/nodecheck"
	"github.com/vipkit/vipkit/proxy"
)

// New returns a backend that programs the network namespace of the calling
// thread. It needs CAP_NET_ADMIN there, for the legacy flavour also CAP_NET_RAW, and
// CAP_SYS_ADMIN if threads of the process are in other namespaces. If privileges, programs
// or parts of the kernel are missing, [New] or the first Apply fails with
// [proxy.ErrUnsupported].
//
// The backend counts rules and chains that it has written or removed
// ([proxy.OperationCounter]). If all families use nf_tables, it reports whether other
// programs may have changed rules ([proxy.DriftChecker]), at the cost of one request to the
// kernel; otherwise it always reports that they may have. It has an open file, and a socket if it uses nf_tables, until it is
// closed ([io.Closer]).
func New(options Options) (proxy.Backend, error) {
	return newBackend(options, rememberedClients, nil)
}

// newBackend makes a backend. Tests may count other clients, and pass all commits to around.
func newBackend(options Options, countClients func() uint32, around func(commit func() error) error) (proxy.Backend, error) {
	o, err := options.complete()
	if err != nil {
		return nil, err
	}
	b, err := xtables.New(o.config(countClients, around))
	if err != nil {
		return nil, err
	}
	return &backend{b}, nil
}

// backend adds to the engine the settings of the node that translation needs.
type backend struct{ *xtables.Backend }

// CheckNode implements [backends.NodeChecker].
func (*backend) CheckNode(s proxy.Snapshot) []*proxy.Problem { return nodecheck.Translation(s) }
