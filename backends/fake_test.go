package backends_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"strconv"
	"testing"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// The kinds of objects of fakeKernel. A slot refers to a host, a frontend to a picker.
const (
	baseKind     = iota // one, static
	pickerKind          // one for each number of endpoints, shared
	hostKind            // one for each endpoint address, shared
	slotKind            // one for each frontend and endpoint
	frontendKind        // one for each frontend
)

type fakeKey struct {
	kind           int
	name, endpoint string
}

func (k fakeKey) Rank() int    { return k.kind }
func (k fakeKey) Shared() bool { return k.kind == pickerKind || k.kind == hostKind }

type (
	fakeObject = backends.Object[fakeKey, string]
	fakeOp     = backends.Op[fakeKey, string]
)

// poisonPort is the port of endpoints that the kernel refuses while it is poisoned.
const poisonPort = 666

// renderFake renders the objects of a service port. The zone of the node is part of most
// values.
func renderFake(env backends.Env, port *proxy.ServicePort, to []fakeObject) []fakeObject {
	return append(to, objectsOf(env.Node, port)...)
}

func objectsOf(node *proxy.Node, port *proxy.ServicePort) (out []fakeObject) {
	add := func(kind int, name, endpoint, value string) {
		out = append(out, rendered(fakeKey{kind, name, endpoint}, value))
	}
	if port == nil {
		add(baseKind, "base", "", node.Zone)
		return out
	}
	picker := strconv.Itoa(len(port.Cluster))
	for _, f := range port.Frontends {
		add(pickerKind, picker, "", node.Zone)
		for _, e := range port.Cluster {
			add(slotKind, f.Addr.String(), e.Addr.String(), node.Zone)
		}
		add(frontendKind, f.Addr.String(), "", picker)
	}
	for _, e := range port.Cluster {
		add(hostKind, e.Addr.Addr().String(), "", "")
	}
	return out
}

// rendered returns an object whose payload must not be compared: comparing functions panics.
func rendered(k fakeKey, value string) fakeObject {
	return fakeObject{Key: k, Value: value, Payload: func() string { return contentOf(k, value) }}
}

// contentOf returns what the payload of an object must return.
func contentOf(k fakeKey, value string) string {
	return fmt.Sprint(k.kind) + " " + k.name + " " + k.endpoint + "=" + value
}

// wanted returns all objects of a snapshot.
func wanted(s proxy.Snapshot) map[fakeKey]string {
	all := map[fakeKey]string{}
	if s.IsZero() {
		return all
	}
	for _, o := range objectsOf(s.Node(), nil) {
		all[o.Key] = o.Value
	}
	for p := range s.All() {
		for _, o := range objectsOf(s.Node(), p) {
			all[o.Key] = o.Value
		}
	}
	return all
}

var (
	errFault  = errors.New("a fault at random")
	errPoison = errors.New("the kernel refuses this")
)

// fakeKernel is a target that refuses what a kernel refuses. Operations that break the
// contract of Target fail the test.
type fakeKernel struct {
	t       testing.TB
	objects map[fakeKey]string
	// poisoned says that objects of endpoints at poisonPort are refused; single that the kernel
	// has no transactions; splits that it has one for each op that it can.
	poisoned, single, splits bool
	// refuse, if not nil, returns an error for an op that is not carried out.
	refuse func(fakeOp) error
	// fail, if not nil, returns an error for a List, or for a Commit before it does anything.
	fail func() error
	// lose, if not nil, decides whether the outcome of a commit is unknown, and how many of
	// its operations are carried out then.
	lose           func(ops int) (done int, lost bool)
	lists, commits int
	// committed, if not nil, is called after each commit.
	committed func()
	able      backends.TargetAbilities[fakeKey, string]
}

func newFakeKernel(t testing.TB) *fakeKernel {
	return &fakeKernel{t: t, objects: map[fakeKey]string{}}
}

func (k *fakeKernel) Abilities() backends.TargetAbilities[fakeKey, string] { return k.able }

func (k *fakeKernel) List(context.Context) iter.Seq2[fakeObject, error] {
	k.lists++
	return func(yield func(fakeObject, error) bool) {
		if k.fail != nil {
			if err := k.fail(); err != nil {
				yield(fakeObject{}, err)
				return
			}
		}
		for key, value := range k.objects {
			if !yield(fakeObject{Key: key, Value: value}, nil) {
				return
			}
		}
	}
}

func (k *fakeKernel) Commit(ctx context.Context, ops []fakeOp) backends.Outcome {
	k.commits++
	k.checkOrder(ops)
	if k.fail != nil {
		if err := k.fail(); err != nil {
			return backends.PartialOutcome(0, len(ops), err)
		}
	}
	if k.lose != nil {
		if done, lost := k.lose(len(ops)); lost {
			for _, op := range ops[:done] {
				_ = k.carryOut(op) // the outcome stays unknown
			}
			return backends.Outcome{Lost: errors.New("no answer")}
		}
	}
	out := k.commitTogether(ops)
	if k.single {
		out = k.commitEach(ctx, ops)
	}
	if len(out.Failed) == 0 && k.committed != nil {
		k.committed()
	}
	return out
}

// commitTogether makes one transaction.
func (k *fakeKernel) commitTogether(ops []fakeOp) backends.Outcome {
	if k.single {
		return backends.Outcome{}
	}
	before, done := maps.Clone(k.objects), 0
	err := func() error {
		for i, op := range ops {
			if k.splits && k.checkReferences() == nil {
				before, done = maps.Clone(k.objects), i
			}
			if err := k.carryOut(op); err != nil {
				return err
			}
		}
		return k.checkReferences()
	}()
	if err != nil {
		k.objects = before
	}
	return backends.PartialOutcome(done, len(ops), err)
}

// commitEach carries out each operation by itself. One that needs a failed one is not tried.
func (k *fakeKernel) commitEach(ctx context.Context, ops []fakeOp) backends.Outcome {
	failed := map[fakeKey]error{}
	return backends.Each(ctx, ops, func(op *fakeOp) (err error) {
		defer func() {
			if err != nil {
				failed[op.Key] = err
			}
		}()
		if op.Kind != backends.Remove {
			if needs, dangling := k.dangles(op.Key, op.Value); dangling {
				return cmp.Or(failed[needs], fmt.Errorf("%w: %v needs %v", backends.ErrConflict, op.Key, needs))
			}
			return k.carryOut(*op)
		}
		for key, value := range k.objects {
			if needs, _ := k.dangles(key, value); needs == op.Key {
				return cmp.Or(failed[key], fmt.Errorf("%w: %v needs %v", backends.ErrConflict, key, op.Key))
			}
		}
		return k.carryOut(*op)
	})
}

func (k *fakeKernel) carryOut(op fakeOp) error {
	k.checkPayload(op)
	if k.refuse != nil {
		if err := k.refuse(op); err != nil {
			return err
		}
	}
	value, exists := k.objects[op.Key]
	if exists == (op.Kind == backends.Add) {
		return fmt.Errorf("%w: %v %v, which exists: %t", backends.ErrConflict, op.Kind, op.Key, exists)
	}
	if op.Kind == backends.Remove {
		if op.Value != value {
			k.t.Errorf("remove %v: got value %q in the operation, want %q", op.Key, op.Value, value)
		}
		delete(k.objects, op.Key)
		return nil
	}
	if op.Kind == backends.Replace && op.Value == value {
		k.t.Errorf("replace %v: got value %q, want another one than before", op.Key, value)
	}
	if k.poisoned && poisonous(op.Key) {
		return fmt.Errorf("%w: %v", errPoison, op.Key)
	}
	k.objects[op.Key] = op.Value
	return nil
}

// checkPayload checks that an operation has the payload that was rendered.
func (k *fakeKernel) checkPayload(op fakeOp) {
	if op.Payload == nil && op.Kind == backends.Remove {
		return
	}
	content, ok := op.Payload.(func() string)
	if !ok {
		k.t.Errorf("%v %v: got payload %v, want the rendered one", op.Kind, op.Key, op.Payload)
		return
	}
	if got, want := content(), contentOf(op.Key, op.Value); got != want {
		k.t.Errorf("%v %v: payload: got %s, want %s", op.Kind, op.Key, got, want)
	}
}

func poisonous(k fakeKey) bool {
	e, err := netip.ParseAddrPort(k.endpoint)
	return err == nil && e.Port() == poisonPort
}

// checkOrder checks the order of operations that [backends.Target] documents.
func (k *fakeKernel) checkOrder(ops []fakeOp) {
	if len(ops) == 0 {
		k.t.Error("got a commit without operations, want none")
	}
	for i := 1; i < len(ops); i++ {
		a, b := ops[i-1], ops[i]
		aRemove, bRemove := a.Kind == backends.Remove, b.Kind == backends.Remove
		switch {
		case aRemove && !bRemove:
			k.t.Errorf("got %v %v before %v %v, want removals last", a.Kind, a.Key, b.Kind, b.Key)
		case !bRemove && a.Key.Rank() > b.Key.Rank():
			k.t.Errorf("got %v %v before %v %v, want rising ranks", a.Kind, a.Key, b.Kind, b.Key)
		case aRemove && a.Key.Rank() < b.Key.Rank():
			k.t.Errorf("got %v %v before %v %v, want falling ranks", a.Kind, a.Key, b.Kind, b.Key)
		}
	}
}

// checkReferences refuses a state in which an object refers to one that does
// not exist.
func (k *fakeKernel) checkReferences() error {
	for key, value := range k.objects {
		if needs, dangling := k.dangles(key, value); dangling {
			return fmt.Errorf("%w: %v refers to %v", backends.ErrConflict, key, needs)
		}
	}
	return nil
}

func (k *fakeKernel) dangles(key fakeKey, value string) (needs fakeKey, dangling bool) {
	switch key.kind {
	case frontendKind:
		needs = fakeKey{pickerKind, value, ""}
	case slotKind:
		needs = fakeKey{hostKind, netip.MustParseAddrPort(key.endpoint).Addr().String(), ""}
	default:
		return needs, false
	}
	_, exists := k.objects[needs]
	return needs, !exists
}

// makeConsistent removes objects that could not exist.
func (k *fakeKernel) makeConsistent() {
	maps.DeleteFunc(k.objects, func(key fakeKey, value string) bool {
		_, dangling := k.dangles(key, value)
		return dangling
	})
}
