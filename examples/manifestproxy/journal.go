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

// journal logs what happens. The manifest.Source calls files and passed, the
// proxy.Runner calls synced; they run at the same time and share nothing here
// but the logger.
type journal struct {
	log           logr.Logger
	files, object ledger
	last          proxy.Snapshot
	node          nodeChecker // nil if the backend is none
}

// nodeChecker is the ability of backends that has this name there.
type nodeChecker interface {
	CheckNode(s proxy.Snapshot) []*proxy.Problem
}

func newJournal(log logr.Logger) *journal {
	return &journal{log: log, files: ledger{log: log, what: "manifest problem"}, object: ledger{log: log, what: "object problem"}}
}

// reported takes the problems of the files: joined errors, or nil.
func (j *journal) reported(err error) {
	now := map[string]entry{}
	for _, err := range split(err) {
		doc, ok := errors.AsType[*manifest.DocumentError](err)
		if !ok {
			now[err.Error()] = entry{err: err}
			continue
		}
		at := []any{"file", doc.File, "line", doc.Line}
		if doc.Item >= 0 {
			at = append(at, "item", doc.Item)
		}
		now[doc.Error()] = entry{at: at, err: doc.Err}
	}
	j.files.update(now)
}

// passed takes what the files hold.
func (j *journal) passed(s manifest.Summary) {
	j.log.V(1).Info("manifests read", "files", s.Files, "services", s.Services, "endpointSlices", s.EndpointSlices,
		"nodes", s.Nodes, "kept", s.Kept, "ignored", s.Ignored)
}

// synced takes the account of a sync.
func (j *journal) synced(s proxy.Sync) {
	j.look(s.Snapshot)
	if v := j.log.V(2); v.Enabled() {
		for c := range s.Snapshot.Changes(j.last) {
			if c.New == nil {
				v.Info("service port gone", "port", c.Old.Name.String())
				continue
			}
			v.Info("service port", "port", c.New.Name.String(), "frontends", len(c.New.Frontends),
				"clusterEndpoints", len(c.New.Cluster), "localEndpoints", len(c.New.Local))
		}
	}
	j.last = s.Snapshot
	values := []any{"full", s.Full, "changed", s.Changed, "operations", s.Operations, "took", s.Duration, "ports", s.Snapshot.Len()}
	if s.Err != nil {
		j.log.Error(s.Err, "sync", values...)
		return
	}
	j.log.Info("sync", values...)
}

// verified takes that all is as it must be, also after a resync that needed no sync:
// settings of the node change meanwhile.
func (j *journal) verified(proxy.Snapshot) { j.look(j.last) }

// look looks for what is wrong with objects and with the node.
func (j *journal) look(s proxy.Snapshot) {
	now := map[string]entry{}
	problems := slices.Collect(s.Problems())
	if j.node != nil {
		problems = append(problems, j.node.CheckNode(s)...)
	}
	for _, p := range problems {
		now[p.Error()] = entry{at: []any{"kind", p.Kind, "object", strings.TrimPrefix(p.NamespacedName.String(), "/"), "field", p.Field}, err: p.Err}
	}
	j.object.update(now)
}

// ledger logs each of a kind of problems once when it appears and once when it
// is gone.
type ledger struct {
	log  logr.Logger
	what string
	open map[string]entry
}

// entry is a problem: where it is, and what.
type entry struct {
	at  []any
	err error
}

// update takes all problems that there are now, by their text.
func (l *ledger) update(now map[string]entry) {
	for _, text := range slices.Sorted(maps.Keys(l.open)) {
		if e := l.open[text]; now[text].err == nil {
			l.log.Info(l.what+" gone", append(e.at, "was", e.err.Error())...)
		}
	}
	for _, text := range slices.Sorted(maps.Keys(now)) {
		if e := now[text]; l.open[text].err == nil {
			l.log.Error(e.err, l.what, e.at...)
		}
	}
	l.open = now
}

// split gives the errors that errors.Join has joined.
func split(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}
