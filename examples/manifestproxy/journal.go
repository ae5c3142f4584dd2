package main

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/go-logr/logr"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/manifest"
)

// journal logs problems of the files and syncs; the proxy.Runner logs syncs that failed, problems of objects,
// limits, and settings of the node. The manifest.Source calls reported, warned and passed and the proxy.Runner synced;
// these run concurrently, and their methods share only the logger.
type journal struct {
	log             logr.Logger
	files, warnings ledger
	loopback        ledger // of another Runner
	last            proxy.Snapshot
}

func newJournal(log logr.Logger) *journal {
	return &journal{
		log: log, files: ledger{what: "manifest problem"}, warnings: ledger{what: "manifest warning"},
		loopback: ledger{what: "node port not served at loopback addresses"},
	}
}

// reported logs the problems of the files: joined errors, or nil.
func (j *journal) reported(err error) { update(j.log, &j.files, split(err)) }

// warned logs what the files have without effect, like reported.
func (j *journal) warned(err error) { update(j.log, &j.warnings, split(err)) }

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

// ledger logs each problem of a kind once when it appears and once when it is resolved.
type ledger struct {
	what string
	open map[string]error // by their text
}

// update logs the differences between the problems of l and the current ones.
func update[E error](log logr.Logger, l *ledger, problems []E) {
	now := map[string]error{}
	for _, p := range problems {
		now[p.Error()] = p
	}
	for _, text := range slices.Sorted(maps.Keys(l.open)) {
		if now[text] == nil {
			at, reason := describe(l.open[text])
			log.Info(l.what+" resolved", append(at, "was", reason.Error())...)
		}
	}
	for _, text := range slices.Sorted(maps.Keys(now)) {
		if l.open[text] == nil {
			at, reason := describe(now[text])
			log.Error(reason, l.what, at...)
		}
	}
	l.open = now
}

// describe returns the object or document of a problem, as keys and values of the log, and the
// reason.
func describe(err error) (at []any, reason error) {
	if p, ok := errors.AsType[*proxy.Problem](err); ok {
		return []any{"kind", p.Kind, "object", strings.TrimPrefix(p.NamespacedName.String(), "/"), "field", p.Field}, p.Err
	}
	doc, ok := errors.AsType[*manifest.DocumentError](err)
	switch {
	case !ok:
		return nil, err
	case doc.Item < 0:
		return []any{"file", doc.File, "line", doc.Line}, doc.Err
	}
	return []any{"file", doc.File, "line", doc.Line, "item", doc.Item}, doc.Err
}

// split returns the errors that errors.Join has joined.
func split(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}
