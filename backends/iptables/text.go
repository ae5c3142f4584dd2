package iptables

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// Rules gives all rules of one IP family for a snapshot, as the input that makes
// them where there are none: for iptables-restore --noflush, or ip6tables-restore.
// Service ports that cannot be programmed are its error, beside the rules of all
// others.
func Rules(options Options, family v1.IPFamily, s proxy.Snapshot) (string, error) {
	o, err := options.complete()
	if err != nil {
		return "", err
	}
	if s.IsZero() || !slices.Contains(o.Families, family) {
		return "", nil
	}
	r := newRenderer(o, family)
	r.remembers = o.AffinityClients
	objects := r.render(s.Node(), nil, nil)
	if objects[0].Key.table == refused {
		return "", fmt.Errorf("iptables: %s", objects[0].Value)
	}
	failed := proxy.PortErrors{}
	for p := range s.All() {
		before := len(objects)
		objects = r.render(s.Node(), p, objects)
		if len(objects) > before && objects[before].Key.table == refused {
			failed[p.Name] = fmt.Errorf("iptables: %s", objects[before].Value)
			objects = objects[:before]
		}
	}
	script, err := newScript(additions(objects))
	if err != nil {
		return "", err
	}
	if len(failed) > 0 {
		return string(script.text), failed
	}
	return string(script.text), nil
}

// additions gives the operations that make objects, shared ones once.
func additions(objects []object) []op {
	ops := make([]op, 0, len(objects))
	shared := map[key]bool{}
	for _, o := range objects {
		if o.Key.shared && shared[o.Key] {
			continue
		}
		if o.Key.shared {
			shared[o.Key] = true
		}
		ops = append(ops, op{Kind: backends.Add, Key: o.Key, Value: o.Value})
	}
	return ops
}
