package kubewatch

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// foreignTimeout bounds the question whose addresses are foreign.
const foreignTimeout = 5 * time.Second

// foreign are the ClusterIPs of Services for other proxies.
type foreign struct {
	mu sync.Mutex
	// ask is nil before Run.
	ask   func() (map[netip.Addr]struct{}, error)
	asked bool
	known map[netip.Addr]struct{} // nil if they could not be had
}

// Foreign reports whether an address may be a ClusterIP of a Service for another
// proxy, as Options of package conntrack ask. The API server is asked for all of them
// when the first call comes, and again when service ranges have changed; that takes
// some seconds at most. Where it does not answer, and before Run, every address may
// be one. It may be called from any goroutine.
func (s *Source) Foreign(a netip.Addr) bool {
	f := &s.foreign
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ask == nil {
		return true
	}
	if !f.asked {
		f.asked = true
		var err error
		if f.known, err = f.ask(); err != nil {
			s.report(fmt.Errorf("kubewatch: all addresses may be other proxies', as their Services cannot be listed: %w", err))
		}
	}
	_, isKnown := f.known[a.Unmap()]
	return isKnown || f.known == nil
}

func (f *foreign) set(ask func() (map[netip.Addr]struct{}, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ask, f.asked = ask, false
}

// forget has the API server asked again.
func (f *foreign) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = false
}

func (s *Source) listForeign(ctx context.Context) (map[netip.Addr]struct{}, error) {
	ctx, cancel := context.WithTimeout(ctx, foreignTimeout)
	defer cancel()
	list, err := s.Client.CoreV1().Services("").List(ctx, metav1.ListOptions{LabelSelector: foreignLabels(s.ProxyName)})
	if err == nil {
		err = checkList(list)
	}
	if err != nil {
		return nil, err
	}
	known := map[netip.Addr]struct{}{}
	for i := range list.Items {
		spec := &list.Items[i].Spec
		for _, text := range append(spec.ClusterIPs, spec.ClusterIP) {
			if a, err := netip.ParseAddr(text); err == nil {
				known[a.Unmap()] = struct{}{}
			}
		}
	}
	return known, nil
}

// foreignLabels selects the Services that serviceLabels does not.
func foreignLabels(proxyName string) string {
	if proxyName == "" {
		return labelProxyName
	}
	return labelProxyName + "!=" + proxyName
}
