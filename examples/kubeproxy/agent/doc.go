// Package agent serves Kubernetes Services on a node, in place of kube-proxy, inside of a program that has more to do,
// such as a distribution of Kubernetes or a CNI agent:
//
//	a, err := agent.New(agent.Options{Configuration: configuration, RESTConfig: config, NodeName: "node-1", Logger: log})
//	if err != nil {
//		return err // It names each wrong field.
//	}
//	return a.Run(ctx)
//
// README.md of the folder above says what the agent does, docs/configuration.md what each field does.
//
// Agents with different identities may run in one process. Metrics of the process, of its clients of API servers, and of
// feature gates are in the registry of k8s.io/component-base/metrics/legacyregistry, as kube-proxy's are, and so all
// agents of a process have them.
package agent
