package kernelspace_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vipkit/vipkit/backends/kernelspace"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m, testenv.Waiting)) }

// running is a machine with a Runner, in a bubble of synctest.
type running struct {
	*machine
	tracker *proxy.ServiceChangeTracker
	// verified counts how often everything was found right.
	verified atomic.Int64
}

// run starts a Runner that resyncs once in an hour. The test must be in a bubble.
func run(t *testing.T, m *machine) *running {
	r := &running{machine: m, tracker: proxy.NewServiceChangeTracker(proxy.TrackerOptions{
		NodeName: "node-1", NodeAddresses: []netip.Addr{nodeAddr, nodeAddr6},
	})}
	r.tracker.Synced()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	runner := proxy.Runner{Source: r.tracker, Backend: m.backend, ResyncInterval: time.Hour,
		Observers: []proxy.Observer{{Verified: func(proxy.Snapshot) { r.verified.Add(1) }}}}
	go func() { done <- runner.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return r
}

// serve gives the tracker a Service with one endpoint on this node.
func (r *running) serve(name string, clusterIP, endpoint netip.Addr) {
	r.serveOn("node-1", name, clusterIP, endpoint)
}

// serveOn is serve with an endpoint on another node.
func (r *running) serveOn(node, name string, clusterIP, endpoint netip.Addr) {
	objects.Hand(r.tracker, objects.Service("test/"+name, clusterIP.String()), objects.Slice("test/"+name, name, endpoint.String()+" @"+node))
	synctest.Wait()
}

const webLine = "load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.1"

// A Service of the API gets to HNS through a tracker and a Runner. Nothing is listed again as long
// as nothing happens: the resync after an hour lists once.
func TestRunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, newMachine(t, newest()))
		r.serve("web", clusterIP(1), pod(1))
		r.want("a Service", webLine)
		before := r.Total()
		time.Sleep(59 * time.Minute)
		if got := r.Total() - before; got != 0 {
			t.Errorf("in an hour in which nothing happens: got %d calls, want 0", got)
		}
		r.tracker.DeleteService(nameOf("web"))
		synctest.Wait()
		r.want("the Service is gone")
	})
}

// An endpoint of this node that does not exist yet is looked for soon, and at once when HNS
// notifies of an endpoint.
func TestMissingLocalEndpointIsRetriedSoon(t *testing.T) {
	for _, within := range []time.Duration{200 * time.Millisecond, 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(t, newest())
			if within > time.Second {
				m.Silence()
			}
			r := run(t, m)
			r.serve("web", clusterIP(1), pod(77))
			r.want("no endpoint yet")
			time.Sleep(100 * time.Millisecond)
			r.addPod(pod(77))
			time.Sleep(within)
			r.want("soon", "load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.77")
		})
	}
}

// deaf is an HNS of which no notification can be had.
type deaf struct{ *hcntest.Sim }

func (deaf) Wait(context.Context) (hcn.Event, error) { return 0, errDenied }

// What is retried soon is so also while notifications cannot be had, which is a problem of the node.
func TestNotificationsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, newest())
		m.backend = must(kernelspace.New(deaf{m.Sim}, m.options))
		r := run(t, m)
		time.Sleep(time.Minute)
		r.serve("web", clusterIP(1), pod(77))
		time.Sleep(100 * time.Millisecond)
		r.addPod(pod(77))
		time.Sleep(2 * time.Second)
		r.want("soon", "load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.77")
		if p := m.problems(); len(p) != 1 || !errors.Is(p[0], errDenied) {
			t.Errorf("got problems %v, want one", p)
		}
	})
}

// A delete that fails is tried again with growing pauses, until it succeeds.
func TestFailedDeleteIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, newMachine(t, newest()))
		r.serve("web", clusterIP(1), pod(1))
		failed := r.fail(-1, denied(), "DeleteLoadBalancer")
		r.tracker.DeleteService(nameOf("web"))
		time.Sleep(time.Minute)
		if n := failed(); n < 3 || n > 15 {
			t.Errorf("in a minute: got %d tries, want 3 to 15", n)
		}
		r.want("while deletes fail", webLine)
		r.SetFault(nil)
		time.Sleep(5 * time.Minute)
		r.want("after deletes work again")
	})
}

// A load balancer that can never be deleted makes the proxy no less healthy: what Services need is
// right.
func TestGarbageIsNoIllness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, newMachine(t, newest()))
		r.serve("web", clusterIP(1), pod(1))
		r.serve("other", clusterIP(2), pod(2))
		r.fail(-1, denied(), "DeleteLoadBalancer")
		r.tracker.DeleteService(nameOf("other"))
		time.Sleep(10 * time.Minute)
		before := r.verified.Load()
		time.Sleep(30 * time.Minute)
		if got := r.verified.Load() - before; got < 3 {
			t.Errorf("in half an hour: got %d times that everything was right, want some", got)
		}
	})
}

// What has lacked something for long does not delay what does so since now.
func TestOldFailureDelaysNoNewOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, newest())
		m.Silence()
		r := run(t, m)
		r.serve("never", clusterIP(2), pod(99))
		time.Sleep(20 * time.Minute)
		r.serve("web", clusterIP(1), pod(77))
		r.addPod(pod(77))
		time.Sleep(2 * time.Second)
		r.want("soon", "load balancer 10.96.0.1:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.77")
	})
}

// Everything is read again after HNS has ended, and after the network was made again.
func TestNotifications(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, newMachine(t, newest()))
		r.serve("web", clusterIP(1), pod(1))
		for _, b := range r.LoadBalancers() {
			testenv.NoError(t, r.DeleteLoadBalancer(t.Context(), b.ID))
		}
		r.Notify(hcn.Disconnected)
		time.Sleep(time.Second)
		r.want("after HNS lost everything", webLine)
		r.RemoveNetwork(r.network)
		time.Sleep(time.Second)
		r.addNetwork(hcn.Network{Name: networkName, Type: "L2Bridge"})
		time.Sleep(time.Minute)
		r.want("after the network was made again", webLine)
	})
}

// While HNS does not run, nothing changes; afterwards the newest state is applied.
func TestServiceStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, newMachine(t, newest()))
		r.serve("web", clusterIP(1), pod(1))
		r.SetFault(func(hcntest.Call) hcntest.Fault {
			return hcntest.Fault{Err: &hcn.Error{Op: "HcnOp", Code: 0x6b5}}
		})
		r.serve("other", clusterIP(2), pod(2))
		time.Sleep(10 * time.Minute)
		r.want("while HNS is down", webLine)
		r.SetFault(nil)
		time.Sleep(time.Minute)
		r.want("afterwards", webLine, "load balancer 10.96.0.2:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.2")
	})
}
