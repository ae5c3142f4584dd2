package health

import (
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// proxyState is the body of /healthz and /livez.
type proxyState struct {
	LastUpdated  time.Time                   `json:"lastUpdated"`
	CurrentTime  time.Time                   `json:"currentTime"`
	NodeEligible *bool                       `json:"nodeEligible,omitempty"`
	Healthy      bool                        `json:"healthy"`
	Status       map[v1.IPFamily]familyState `json:"status,omitempty"`
}

type familyState struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// ServeHTTP serves /healthz and /livez, for programs that have a server of their own. Other
// paths are not found.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	if path != "/healthz" && path != "/livez" {
		http.NotFound(w, r)
		return
	}
	now, status := time.Now(), http.StatusOK
	isEligible := s.options.NodeEligible() // not under the lock, for which the Runner may wait
	s.mu.RLock()
	updated, isHealthy := s.fresh.updated, s.fresh.healthy(now)
	s.mu.RUnlock()
	body := proxyState{LastUpdated: updated, CurrentTime: now, Healthy: isHealthy}
	if !updated.IsZero() {
		one := familyState{LastUpdated: updated, Healthy: isHealthy}
		body.Status = map[v1.IPFamily]familyState{v1.IPv4Protocol: one, v1.IPv6Protocol: one}
	}
	if path == "/healthz" {
		body.NodeEligible = &isEligible
	}
	if !isHealthy || path == "/healthz" && !isEligible {
		status = http.StatusServiceUnavailable
	} else {
		body.LastUpdated = now
	}
	if s.options.Answered != nil {
		s.options.Answered(path, status)
	}
	text, err := json.Marshal(body)
	reply(w, status, text, err)
}

// serviceState is the body at a health check node port.
type serviceState struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

// serviceHandler returns the handler of the health check node port of one Service.
func (s *Server) serviceHandler(name types.NamespacedName) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body serviceState
		body.Service.Namespace, body.Service.Name = name.Namespace, name.Name
		s.mu.RLock()
		ports := s.counts.portsOf(name)
		body.ServiceProxyHealthy = s.fresh.healthy(time.Now())
		s.mu.RUnlock()
		// Service ports do not change. Counting them under the lock would delay the Runner, which waits for it.
		body.LocalEndpoints = readyLocal(ports, requestFamily(r))

		status := http.StatusOK
		if body.LocalEndpoints == 0 || !body.ServiceProxyHealthy {
			status = http.StatusServiceUnavailable
		}
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(body.LocalEndpoints))
		text, err := json.MarshalIndent(body, "", "\t")
		reply(w, status, text, err)
	})
}

// requestFamily returns the family of the address that a request was sent to. On a
// socket for both families IPv4 addresses are mapped into IPv6.
func requestFamily(r *http.Request) v1.IPFamily {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if ok && local.IP.To4() == nil {
		return v1.IPv6Protocol
	}
	return v1.IPv4Protocol
}

func reply(w http.ResponseWriter, status int, body []byte, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body) // The client notices a truncated response.
}
