package main

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/proxy"
)

// world is a cluster of equal services, each with the numbers of its endpoints.
// Two worlds with the same history are the same.
type world struct {
	random    *rand.Rand
	endpoints [][]uint32
	last      uint32
}

// newWorld makes a world without a history.
func newWorld(services, endpoints int) *world {
	w := &world{random: rand.New(rand.NewPCG(1, 2)), endpoints: make([][]uint32, services)}
	for i := range w.endpoints {
		for range endpoints {
			w.endpoints[i] = append(w.endpoints[i], w.next())
		}
	}
	return w
}

// next returns the number of a new endpoint.
func (w *world) next() uint32 {
	w.last++
	return w.last
}

// replace changes one endpoint of a random service, and returns the number of the service.
func (w *world) replace() int {
	i := w.random.IntN(len(w.endpoints))
	w.replaceIn(i)
	return i
}

func (w *world) replaceIn(i int) { w.endpoints[i][w.random.IntN(len(w.endpoints[i]))] = w.next() }

// replaceMany changes one endpoint of each of n services, or of all if there are fewer, and
// returns the numbers of the services.
func (w *world) replaceMany(n int) []int {
	services := w.random.Perm(len(w.endpoints))
	services = services[:min(n, len(services))]
	for _, i := range services {
		w.replaceIn(i)
	}
	return services
}

// grow adds an endpoint to a random service, and returns the number of the service; shrink removes
// the last endpoint of a service.
func (w *world) grow() int {
	i := w.random.IntN(len(w.endpoints))
	w.endpoints[i] = append(w.endpoints[i], w.next())
	return i
}

func (w *world) shrink(i int) { w.endpoints[i] = w.endpoints[i][:len(w.endpoints[i])-1] }

// replay makes the same changes to a new world as bench.changes.
func (w *world) replay(changes int) {
	for range changes {
		w.replace()
	}
	for range changes / 2 {
		w.shrink(w.grow())
	}
	w.replaceMany(burst)
}

// clusterIP returns addresses from 10.64.0.0/11, endpointAddr from 10.128.0.0/9.
func clusterIP(i int) netip.Addr { return address(10<<24 | 64<<16 | uint32(i+1)) }

func endpointAddr(n uint32) netip.Addr { return address(10<<24 | 128<<16 | n) }

func address(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

const (
	servicePort  = 80
	endpointPort = 8080
)

func serviceName(i int) string { return fmt.Sprintf("service-%d", i) }

// service and slice return the current API objects of a service.
func (w *world) service(i int) *v1.Service {
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "scale", Name: serviceName(i)},
		Spec: v1.ServiceSpec{
			ClusterIP: clusterIP(i).String(),
			Ports:     []v1.ServicePort{{Port: servicePort, Protocol: v1.ProtocolTCP}},
		},
	}
}

func (w *world) slice(i int) *discoveryv1.EndpointSlice {
	name, port, protocol := "", int32(endpointPort), v1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "scale", Name: serviceName(i) + "-slice",
			Labels: map[string]string{discoveryv1.LabelServiceName: serviceName(i)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
	node := fmt.Sprintf("node-%d", i%100)
	for _, e := range w.endpoints[i] {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{endpointAddr(e).String()}, NodeName: &node})
	}
	return s
}

// load passes all objects to a tracker, each made when it is needed.
func (w *world) load(t *proxy.ServiceChangeTracker) {
	for i := range w.endpoints {
		t.UpdateService(w.service(i))
		t.UpdateEndpointSlice(w.slice(i))
	}
	t.Synced()
}
