package sidebyside

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	utilsysctl "k8s.io/component-helpers/node/util/sysctl"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
	kubeipvs "k8s.io/kubernetes/pkg/proxy/ipvs"
	utilipset "k8s.io/kubernetes/pkg/proxy/ipvs/ipset"
	utilipvs "k8s.io/kubernetes/pkg/proxy/ipvs/util"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"
	utiliptables "k8s.io/kubernetes/pkg/util/iptables"

	backend "github.com/vipkit/vipkit/backends/ipvs"
)

// Names of contenders.
const (
	ipvsOurs   = "vipkit ipvs"
	ipvsTheirs = "kube-proxy ipvs"
	ipvsFloor  = "moby/ipvs alone"
)

func isIPVS(name string) bool { return strings.Contains(name, "ipvs") }

func newIPVS() (dataplane, error) {
	b, err := backend.New(backend.Options{Families: []v1.IPFamily{v1.IPv4Protocol}})
	return newVipkit(b), err
}

func newKubeIPVS() (dataplane, error) {
	k := &kubeProxy{health: healthcheck.NewProxyHealthServer("", time.Hour, noNode{})}
	var err error
	k.Provider, err = kubeipvs.NewProxier(context.Background(), config(), v1.IPv4Protocol,
		utiliptables.New(utiliptables.ProtocolIPv4), utilipvs.New(), utilipset.New(), utilsysctl.New(),
		proxyutil.NewDetectLocalByCIDR(podRange), nodeName, net.ParseIP(nodeIP), nil, k.health, false)
	return k, err
}

// floor writes virtual servers and real servers by moby/ipvs, and nothing else.
type floor struct{ handle *ipvs.Handle }

func newFloor() (dataplane, error) {
	h, err := ipvs.New("")
	return floor{h}, err
}

// load writes everything. What another process has written it only reads.
func (f floor) load(w *world) error {
	if servers, _, err := f.count(); err != nil || servers > 0 {
		return err
	}
	for i := range w.services {
		if err := f.add(w.services[i], w.slices[i]); err != nil {
			return err
		}
	}
	return nil
}

func (f floor) add(s *v1.Service, slice *discoveryv1.EndpointSlice) error {
	server := virtualServer(net.ParseIP(s.Spec.ClusterIP).To4())
	if err := f.handle.NewService(server); err != nil {
		return err
	}
	for i := range slice.Endpoints {
		if err := f.handle.NewDestination(server, realServer(slice, i)); err != nil {
			return err
		}
	}
	return nil
}

// update replaces the first endpoint, if it differs. The name of the Service has its number,
// from which its address follows.
func (f floor) update(old, now *discoveryv1.EndpointSlice) error {
	if old.Endpoints[0].Addresses[0] == now.Endpoints[0].Addresses[0] {
		return nil
	}
	var n uint32
	if _, err := fmt.Sscanf(now.Labels[discoveryv1.LabelServiceName], "service-%d", &n); err != nil {
		return err
	}
	server := virtualServer(net.IP(clusterIP(n).AsSlice()))
	return errors.Join(f.handle.NewDestination(server, realServer(now, 0)), f.handle.DelDestination(server, realServer(old, 0)))
}

func virtualServer(ip net.IP) *ipvs.Service {
	return &ipvs.Service{
		AddressFamily: unix.AF_INET, Protocol: unix.IPPROTO_TCP, Address: ip, Port: servicePort, SchedName: ipvs.RoundRobin, Netmask: 0xffffffff,
	}
}

func realServer(slice *discoveryv1.EndpointSlice, i int) *ipvs.Destination {
	return &ipvs.Destination{
		AddressFamily: unix.AF_INET, Address: net.ParseIP(slice.Endpoints[i].Addresses[0]).To4(), Port: uint16(*slice.Ports[0].Port), Weight: 1,
	}
}

// count returns the numbers of virtual servers in the kernel, and of real servers that get
// connections.
func (f floor) count() (servers, real int, err error) {
	all, err := f.handle.GetServices()
	if err != nil {
		return 0, 0, err
	}
	for _, s := range all {
		some, err := f.handle.GetDestinations(s)
		if err != nil {
			return 0, 0, err
		}
		for _, d := range some {
			real += min(d.Weight, 1)
		}
	}
	return len(all), real, nil
}

// checkIPVS returns an error if the kernel has not as many virtual servers and real servers as
// the world has Services and endpoints.
func checkIPVS(w *world) error {
	h, err := ipvs.New("")
	if err != nil {
		return err
	}
	defer h.Close()
	servers, real, err := floor{h}.count()
	if want := len(w.services); err == nil && (servers != want || real != want*endpointsEach) {
		err = fmt.Errorf("%d virtual servers and %d real servers, want %d and %d", servers, real, want, want*endpointsEach)
	}
	return err
}
