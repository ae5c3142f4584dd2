package affinity

import (
	"errors"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

func TestFromService(t *testing.T) {
	seconds := func(n int32) *v1.SessionAffinityConfig {
		return &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &n}}
	}
	const timeout = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
	for _, c := range []struct {
		name   string
		kind   v1.ServiceAffinity
		config *v1.SessionAffinityConfig
		want   time.Duration
		field  string // that the error names
	}{
		{name: "empty"},
		{name: "none", kind: v1.ServiceAffinityNone, config: seconds(10)},
		{name: "client IP without configuration", kind: v1.ServiceAffinityClientIP, want: DefaultTimeout},
		{name: "client IP with an empty configuration", kind: v1.ServiceAffinityClientIP, config: &v1.SessionAffinityConfig{}, want: DefaultTimeout},
		{name: "client IP without timeout", kind: v1.ServiceAffinityClientIP, config: &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{}}, want: DefaultTimeout},
		{name: "shortest", kind: v1.ServiceAffinityClientIP, config: seconds(1), want: time.Second},
		{name: "longest", kind: v1.ServiceAffinityClientIP, config: seconds(86_400), want: MaxTimeout},
		{name: "too long", kind: v1.ServiceAffinityClientIP, config: seconds(86_401), want: MaxTimeout, field: timeout},
		{name: "zero", kind: v1.ServiceAffinityClientIP, config: seconds(0), want: DefaultTimeout, field: timeout},
		{name: "negative", kind: v1.ServiceAffinityClientIP, config: seconds(-1), want: DefaultTimeout, field: timeout},
		{name: "unknown kind", kind: "Cookie", field: "spec.sessionAffinity"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := FromService(&v1.ServiceSpec{SessionAffinity: c.kind, SessionAffinityConfig: c.config})
			field := ""
			if e, ok := errors.AsType[*FieldError](err); ok {
				field = e.Field
			}
			if got.Timeout != c.want || (err != nil) != (c.field != "") || field != c.field {
				t.Errorf("FromService: got %v, error %v, want %v, error of %q", got.Timeout, err, c.want, c.field)
			}
			if got.Enabled() != (c.want > 0) {
				t.Errorf("Enabled: got %t, want %t", got.Enabled(), c.want > 0)
			}
		})
	}
}
