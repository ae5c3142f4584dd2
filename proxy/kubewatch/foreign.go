package kubewatch

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// foreignTimeout bounds the request for the Services of other proxies.
const foreignTimeout = 5 * time.Second

// foreign are the ClusterIPs of Services for other proxies.
type foreign struct {
	mu sync.Mutex
	// list is nil before Run.
	list   func() (map[netip.Addr]struct{}, error)
	listed bool
	known  map[netip.Addr]struct{} // nil if the request failed
}

// Foreign reports whether an address may be a ClusterIP of a Service for another
// proxy, for the Options of package conntrack. The first call lists these Services, and
// so does the first one after the service ranges changed; that takes some seconds at
// most. If the API server does not answer, and before Run, every address may be one.
// It may be called from any goroutine.
func (s *Source) Foreign(a netip.Addr) bool {
	f := &s.foreign
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.list == nil {
		return true
	}
	if !f.listed {
		f.listed = true
		var err error
		if f.known, err = f.list(); err != nil {
			s.report(fmt.Errorf("kubewatch: listing Services of other proxies failed, so all addresses count as theirs: %w", err))
		}
	}
	_, isKnown := f.known[a.Unmap()]
	return isKnown || f.known == nil
}

func (f *foreign) set(list func() (map[netip.Addr]struct{}, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list, f.listed = list, false
}

// forget makes the next call of Foreign list the Services again.
func (f *foreign) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listed = false
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
		for _, a := range clusterIPs(&list.Items[i].Spec) {
			known[a] = struct{}{}
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
