package main

import (
	"github.com/go-logr/logr"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/manifest"
)

// journal logs what is in the files, and syncs; the proxy.Runner logs syncs that failed, problems of objects,
// limits, and settings of the node, the manifest.Source problems of the files. The manifest.Source calls passed and
// the proxy.Runner synced; these run concurrently, and their methods share only the logger.
type journal struct {
	log  logr.Logger
	last proxy.Snapshot
}

func newJournal(log logr.Logger) *journal { return &journal{log: log} }

// passed logs the numbers of objects in the files, and that there are no Services: the path may be wrong.
func (j *journal) passed(s manifest.Summary) {
	if s.Services == 0 {
		j.log.Info("no Services in the manifests", "files", s.Files, "ignored", s.Ignored)
	}
	j.log.V(1).Info("manifests read", "files", s.Files, "services", s.Services, "endpointSlices", s.EndpointSlices,
		"nodes", s.Nodes, "kept", s.Kept, "ignored", s.Ignored)
}

// synced logs a sync.
func (j *journal) synced(s proxy.Sync) {
	if v := j.log.V(2); v.Enabled() {
		for c := range s.Snapshot.Changes(j.last) {
			if c.New == nil {
				v.Info("service port removed", "port", c.Old.Name.String())
				continue
			}
			v.Info("service port", "port", c.New.Name.String(), "frontends", len(c.New.Frontends),
				"clusterEndpoints", len(c.New.Cluster), "localEndpoints", len(c.New.Local))
		}
	}
	j.last = s.Snapshot
	values := []any{"full", s.Full, "changed", s.Changed, "operations", s.Operations, "took", s.Duration, "ports", s.Snapshot.Len()}
	if s.Err != nil {
		values = append(values, "failed", true)
	}
	j.log.Info("sync", values...)
}
