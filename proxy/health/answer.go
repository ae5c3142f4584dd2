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

// proxyAnswer is the body of /healthz and /livez.
type proxyAnswer struct {
	LastUpdated  time.Time                    `json:"lastUpdated"`
	CurrentTime  time.Time                    `json:"currentTime"`
	NodeEligible *bool                        `json:"nodeEligible,omitempty"`
	Healthy      bool                         `json:"healthy"`
	Status       map[v1.IPFamily]familyAnswer `json:"status,omitempty"`
}

type familyAnswer struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// ServeHTTP answers /healthz and /livez, for programs that have a server of
// their own. Other paths are not found.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	if path != "/healthz" && path != "/livez" {
		http.NotFound(w, r)
		return
	}
	body, eligible := s.proxyAnswer(time.Now())
	status := http.StatusOK
	if path == "/healthz" {
		body.NodeEligible = &eligible
	}
	if !body.Healthy || path == "/healthz" && !eligible {
		status = http.StatusServiceUnavailable
	} else {
		body.LastUpdated = body.CurrentTime
	}
	if s.options.Answered != nil {
		s.options.Answered(path, status)
	}
	text, err := json.Marshal(body)
	answer(w, status, text, err)
}

func (s *Server) proxyAnswer(now time.Time) (a proxyAnswer, eligible bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	a = proxyAnswer{LastUpdated: s.fresh.updated, CurrentTime: now, Healthy: s.fresh.healthy(now)}
	if !s.fresh.updated.IsZero() {
		one := familyAnswer{LastUpdated: s.fresh.updated, Healthy: a.Healthy}
		a.Status = map[v1.IPFamily]familyAnswer{v1.IPv4Protocol: one, v1.IPv6Protocol: one}
	}
	return a, s.eligible
}

// serviceAnswer is the body at a health check node port.
type serviceAnswer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

// serviceHandler answers at the health check node port of one Service.
func (s *Server) serviceHandler(name types.NamespacedName) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body serviceAnswer
		body.Service.Namespace, body.Service.Name = name.Namespace, name.Name
		s.mu.RLock()
		body.LocalEndpoints = s.counts.services[name].of(askedFamily(r))
		body.ServiceProxyHealthy = s.fresh.healthy(time.Now())
		s.mu.RUnlock()

		status := http.StatusOK
		if body.LocalEndpoints == 0 || !body.ServiceProxyHealthy {
			status = http.StatusServiceUnavailable
		}
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(body.LocalEndpoints))
		text, err := json.MarshalIndent(body, "", "\t")
		answer(w, status, text, err)
	})
}

// askedFamily gives the family of the address at which a request came in. On a
// socket for both families IPv4 addresses are mapped into IPv6.
func askedFamily(r *http.Request) v1.IPFamily {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if ok && local.IP.To4() == nil {
		return v1.IPv6Protocol
	}
	return v1.IPv4Protocol
}

func answer(w http.ResponseWriter, status int, body []byte, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body) // Whoever asked has gone.
}
