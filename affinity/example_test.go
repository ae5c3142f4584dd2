package affinity_test

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
)

func ExampleFromService() {
	seconds := int32(600)
	config, err := affinity.FromService(&v1.ServiceSpec{
		SessionAffinity: v1.ServiceAffinityClientIP,
		SessionAffinityConfig: &v1.SessionAffinityConfig{
			ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &seconds},
		},
	})
	fmt.Println(config.Enabled(), config.Timeout, err)
	// Output: true 10m0s <nil>
}
