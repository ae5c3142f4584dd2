package affinity

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

func TestFromService(t *testing.T) {
	seconds := func(n int32) *v1.SessionAffinityConfig {
		return &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &n}}
	}
	for _, c := range []struct {
		name    string
		kind    v1.ServiceAffinity
		config  *v1.SessionAffinityConfig
		want    time.Duration
		wantErr bool
	}{
		{name: "nothing said"},
		{name: "none", kind: v1.ServiceAffinityNone, config: seconds(10)},
		{name: "client IP without configuration", kind: v1.ServiceAffinityClientIP, want: DefaultTimeout},
		{name: "client IP with an empty configuration", kind: v1.ServiceAffinityClientIP, config: &v1.SessionAffinityConfig{}, want: DefaultTimeout},
		{name: "client IP without timeout", kind: v1.ServiceAffinityClientIP, config: &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{}}, want: DefaultTimeout},
		{name: "shortest", kind: v1.ServiceAffinityClientIP, config: seconds(1), want: time.Second},
		{name: "longest", kind: v1.ServiceAffinityClientIP, config: seconds(86_400), want: MaxTimeout},
		{name: "too long", kind: v1.ServiceAffinityClientIP, config: seconds(86_401), want: MaxTimeout, wantErr: true},
		{name: "zero", kind: v1.ServiceAffinityClientIP, config: seconds(0), want: DefaultTimeout, wantErr: true},
		{name: "negative", kind: v1.ServiceAffinityClientIP, config: seconds(-1), want: DefaultTimeout, wantErr: true},
		{name: "unknown kind", kind: "Cookie", wantErr: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := FromService(&v1.ServiceSpec{SessionAffinity: c.kind, SessionAffinityConfig: c.config})
			if got.Timeout != c.want || (err != nil) != c.wantErr {
				t.Errorf("FromService: got %v, error %v, want %v, error: %t", got.Timeout, err, c.want, c.wantErr)
			}
			if got.Enabled() != (c.want > 0) {
				t.Errorf("Enabled: got %t, want %t", got.Enabled(), c.want > 0)
			}
		})
	}
}
