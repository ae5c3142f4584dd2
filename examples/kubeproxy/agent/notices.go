package agent

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/proxy"
)

// The sources of Events, which are also their reasons.
const (
	fieldIgnored     = "FieldIgnored"
	servedWithLimits = "ServedWithLimits"
	notProgrammed    = "NotProgrammed"
	starting         = "Starting"
	listening        = "Listening" // no reason
)

// announceStart reports that the program starts, as kube-proxy does.
func (a *instance) announceStart() {
	a.reported.events.put(starting, notice{
		cause: cause{kind: "Node", NamespacedName: types.NamespacedName{Name: a.tracker.NodeName}, reason: starting}, eventType: v1.EventTypeNormal,
		action: "StartKubeProxy", note: fmt.Sprintf("Mode %s, %s", a.mode, version()), once: true,
	})
}

// announceProblems reports problems of Services: what is wrong with their fields.
func (a *instance) announceProblems(problems []*proxy.Problem) {
	a.reported.events.set(fieldIgnored, notices(fieldIgnored,
		"This part of the Service is not served, the rest is. Correct the field, or the Service that it conflicts with.", problems))
}

// announceLimits reports Services that are served with limits. A limit that several Services have is one
// of the node: it has one notice, and not one for each Service.
func (a *instance) announceLimits(limits []*proxy.Problem) {
	services := map[string][]types.NamespacedName{}
	for _, p := range limits {
		if text := limitText(p); p.Kind == "Service" && !slices.Contains(services[text][max(0, len(services[text])-1):], p.NamespacedName) {
			services[text] = append(services[text], p.NamespacedName)
		}
	}
	own := slices.DeleteFunc(slices.Clone(limits), func(p *proxy.Problem) bool { return len(services[limitText(p)]) > 1 })
	all := notices(servedWithLimits, "The Service is served, but not quite as it requests. Change the request, or the nodes.", own)
	for _, text := range slices.Sorted(maps.Keys(services)) {
		if some := services[text]; len(some) > 1 && len(all) < maxEvents {
			all = append(all, notice{
				cause:     cause{kind: "Node", NamespacedName: types.NamespacedName{Name: a.tracker.NodeName}, reason: servedWithLimits, about: text},
				eventType: v1.EventTypeWarning, action: "Serve",
				note: fmt.Sprintf("%s. %d Services, such as %.100s, are served, but not quite as they request. Change the node.", text, len(some), some[0]),
			})
		}
	}
	a.reported.events.set(servedWithLimits, all)
}

// limitText returns the text of a limit, as much as a note has room for.
func limitText(p *proxy.Problem) string { return cut(p.Field+": "+p.Err.Error(), maxNote-250) }

// announceRefused reports Services with ports that the kernel has refused. Errors may differ from sync to
// sync; that is no other cause.
func (a *instance) announceRefused(s proxy.Sync) {
	if s.Err != nil && s.Refused == nil {
		return // They are not known.
	}
	var problems []*proxy.Problem
	ports := map[types.NamespacedName]string{}
	for _, name := range slices.SortedFunc(maps.Keys(s.Refused), proxy.ServicePortName.Compare) {
		port := strings.Join([]string{cmp.Or(name.Port, "without name"), string(name.Protocol), string(name.Family)}, "/")
		problems = append(problems, &proxy.Problem{Kind: "Service", NamespacedName: name.NamespacedName, Field: "port " + port, Err: s.Refused[name]})
		ports[name.NamespacedName] = cut(ports[name.NamespacedName]+" "+port, maxNote)
	}
	all := notices(notProgrammed, fmt.Sprintf("Node %.100s serves these ports as before, or not at all, and tries again. Change the Service, or what the error names on the node.", a.tracker.NodeName), problems)
	for i := range all {
		all[i].about = ports[all[i].NamespacedName]
	}
	a.reported.events.set(notProgrammed, all)
}

// notices returns a notice for each Service that problems are about: the first ones, in the order of the
// problems, that the bounds of Events admit.
func notices(reason, advice string, problems []*proxy.Problem) (all []notice) {
	inNamespace, count := "", 0
	for i := 0; i < len(problems) && len(all) < maxEvents; {
		first, end := problems[i], i
		for end < len(problems) && problems[end].Kind == first.Kind && problems[end].NamespacedName == first.NamespacedName {
			end++
		}
		group := problems[i:end]
		i = end
		if first.Kind != "Service" {
			continue
		}
		if first.Namespace != inNamespace {
			inNamespace, count = first.Namespace, 0
		}
		if count++; count > maxNamespaceEvents {
			continue
		}
		text := summary(group)
		all = append(all, notice{
			cause: cause{kind: "Service", NamespacedName: first.NamespacedName, reason: reason, about: text}, eventType: v1.EventTypeWarning,
			action: "Serve", note: text + ". " + advice,
		})
	}
	return all
}

// summary returns the texts of problems of one Service, as many as a note has room for beside an advice.
func summary(problems []*proxy.Problem) string {
	const most = maxNote - 250
	var b strings.Builder
	last := ""
	for i, p := range problems {
		whole := p.Field + ": " + p.Err.Error()
		if whole == last {
			continue // Ports may have the same limit.
		}
		last = whole
		text := cut(whole, most)
		if b.Len() > 0 && b.Len()+len(text) > most {
			fmt.Fprintf(&b, "; and %d more", len(problems)-i)
			break
		}
		if b.Len() > 0 {
			b.WriteString("; ")
		}
		b.WriteString(text)
	}
	return b.String()
}

// announceServer reports that an HTTP server does not listen, or listens again. The reasons are
// kube-proxy's.
func (a *instance) announceServer(service types.NamespacedName, err error) {
	n := notice{cause: cause{kind: "Service", NamespacedName: service, reason: "FailedToStartServiceHealthcheck"}, eventType: v1.EventTypeWarning, action: "Listen"}
	if service.Namespace == "" {
		n.cause = cause{kind: "Node", NamespacedName: types.NamespacedName{Name: a.tracker.NodeName}, reason: "FailedToStartMetricServer"}
		n.action = "StartKubeProxy"
		if service.Name == "" {
			n.reason = "FailedToStartProxierHealthcheck"
		}
	}
	if err == nil {
		a.reported.events.remove(listening, n.cause)
		return
	}
	n.note = fmt.Sprintf("node %s: %v. The node tries again; free the port, or change it", a.tracker.NodeName, err)
	a.reported.events.put(listening, n)
}
