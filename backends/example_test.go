package backends_test

import (
	"context"
	"fmt"
	"iter"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// route is the only kind of object in the dataplane of this example: connections to one
// address may be forwarded to another one.
type route struct{ from, to netip.AddrPort }

func (route) Rank() int    { return 0 }
func (route) Shared() bool { return false }

// routes renders the routes that a service port needs.
func routes(_ backends.Env, port *proxy.ServicePort, to []object) []object {
	if port == nil {
		return to // there are no static objects
	}
	for _, f := range port.Frontends {
		for _, e := range port.Cluster {
			to = append(to, object{Key: route{f.Addr, e.Addr}})
		}
	}
	return to
}

type object = backends.Object[route, struct{}]

// printer is a target without objects that prints the operations.
type printer struct{}

func (printer) List(context.Context) iter.Seq2[object, error] {
	return func(func(object, error) bool) {}
}

func (printer) Commit(_ context.Context, ops []backends.Op[route, struct{}]) backends.Outcome {
	for _, op := range ops {
		fmt.Println(op.Kind, op.Key.from, "->", op.Key.to)
	}
	fmt.Println("commit")
	return backends.Outcome{}
}

func (printer) Abilities() (none backends.TargetAbilities[route, struct{}]) { return none }

func ExampleNew() {
	backend := backends.New(routes, printer{})

	web := func(addrs ...string) proxy.Snapshot {
		port := &proxy.ServicePort{
			Name: proxy.ServicePortName{
				NamespacedName: types.NamespacedName{Namespace: "shop", Name: "web"},
				Protocol:       v1.ProtocolTCP, Family: v1.IPv4Protocol,
			},
			Frontends: []proxy.Frontend{{Addr: netip.MustParseAddrPort("10.96.0.1:80")}},
		}
		for _, a := range addrs {
			port.Cluster = append(port.Cluster, &endpoints.Endpoint{Addr: netip.MustParseAddrPort(a)})
		}
		return proxy.NewSnapshot(nil, port)
	}

	ctx := context.Background()
	before := web("10.0.0.1:8080", "10.0.0.2:8080")
	if err := backend.Apply(ctx, proxy.Snapshot{}, before); err != nil {
		fmt.Println(err)
	}
	if err := backend.Apply(ctx, before, web("10.0.0.1:8080", "10.0.0.3:8080")); err != nil {
		fmt.Println(err)
	}
	// Output:
	// add 10.96.0.1:80 -> 10.0.0.1:8080
	// add 10.96.0.1:80 -> 10.0.0.2:8080
	// commit
	// add 10.96.0.1:80 -> 10.0.0.3:8080
	// remove 10.96.0.1:80 -> 10.0.0.2:8080
	// commit
}
