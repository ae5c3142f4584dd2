package storm

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/internal/testing/objects"
)

// object is an object of nf_tables in the JSON of nft: a table, chain, rule, set, map or
// element.
type object struct {
	kind string
	body map[string]any
}

// command returns a command of nft, such as to add an object.
func command(verb string, o object) map[string]any {
	return map[string]any{verb: map[string]any{o.kind: o.body}}
}

// with returns the object with another value of a field, or without the field if the value
// is nil.
func (o object) with(field string, value any) object {
	body := maps.Clone(o.body)
	if body[field] = value; value == nil {
		delete(body, field)
	}
	return object{o.kind, body}
}

// name returns the object with only the fields that identify it.
func (o object) name() object {
	body := map[string]any{}
	fields := []string{"family", "table", "name"}
	switch o.kind {
	case "rule":
		fields = []string{"family", "table", "chain", "handle"}
	case "element":
		fields = append(fields, "elem")
	}
	for _, f := range fields {
		if v, ok := o.body[f]; ok {
			body[f] = v
		}
	}
	if o.kind == "element" {
		body["elem"] = []any{keyOf(o.body)}
	}
	return object{o.kind, body}
}

// keyOf returns the key of an element of a set or map.
func keyOf(element map[string]any) any {
	all, _ := element["elem"].([]any)
	if pair, isPair := all[0].([]any); isPair && len(pair) > 0 {
		return pair[0]
	}
	return all[0]
}

// objects returns all objects of agents in nf_tables.
func (s *storm) objects() ([]object, error) {
	text, err := s.runOnNode("", "nft", "-j", "-a", "list", "ruleset")
	if err != nil {
		return nil, err
	}
	var list struct {
		All []map[string]map[string]any `json:"nftables"`
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&list); err != nil {
		return nil, err
	}
	var all []object
	for _, entry := range list.All {
		for kind, body := range entry {
			if o := (object{kind, body}); kind != "metainfo" && s.isOurs(o) {
				all = append(all, o)
				all = append(all, elementsOf(o)...)
			}
		}
	}
	return all, nil
}

func elementsOf(o object) (all []object) {
	list, _ := o.body["elem"].([]any)
	for _, e := range list {
		all = append(all, object{"element", map[string]any{
			"family": o.body["family"], "table": o.body["table"], "name": o.body["name"], "elem": []any{e},
		}})
	}
	return all
}

// isOurs reports whether an object belongs to an agent only, unlike the tables of iptables.
func (s *storm) isOurs(o object) bool {
	text := func(field string) string {
		t, _ := o.body[field].(string)
		return t
	}
	if s.options.flavour() == "nft" {
		return o.kind == "chain" && strings.HasPrefix(text("name"), "VIPKIT-") || o.kind == "rule" && strings.HasPrefix(text("chain"), "VIPKIT-")
	}
	return o.kind == "table" && strings.HasPrefix(text("name"), "vipkit") || strings.HasPrefix(text("table"), "vipkit")
}

// tampering returns commands that change an object; nil if it does not apply to the object.
type tampering func(r *rand.Rand, o object, all []object) []map[string]any

func tamperings(kind string) []tampering {
	switch kind {
	case "table":
		return []tampering{remove, flushObject, makeDormant}
	case "chain":
		return []tampering{remove, flushObject, insertRule, alterDeclaration, rename, reload}
	case "rule":
		return []tampering{remove, remove, duplicate, move, alterRule, reload}
	case "set", "map":
		return []tampering{remove, flushObject, alterDeclaration, reload}
	}
	return []tampering{remove, alterElement, alterElement, alterElement, copyElement}
}

func remove(_ *rand.Rand, o object, _ []object) []map[string]any {
	return []map[string]any{command("delete", o.name())}
}

func flushObject(_ *rand.Rand, o object, _ []object) []map[string]any {
	return []map[string]any{command("flush", o.name())}
}

func makeDormant(_ *rand.Rand, o object, _ []object) []map[string]any {
	return []map[string]any{command("add", o.name().with("flags", []any{"dormant"}))}
}

func insertRule(r *rand.Rand, o object, _ []object) []map[string]any {
	rule := object{"rule", map[string]any{
		"family": o.body["family"], "table": o.body["table"], "chain": o.body["name"],
		"expr": []any{map[string]any{objects.OneOf(r, "drop", "accept", "return", "counter"): nil}},
	}}
	return []map[string]any{command(objects.OneOf(r, "insert", "add"), rule)}
}

func rename(_ *rand.Rand, o object, _ []object) []map[string]any {
	return []map[string]any{command("rename", o.name().with("newname", "renamed"))}
}

func duplicate(r *rand.Rand, o object, _ []object) []map[string]any {
	return []map[string]any{command(objects.OneOf(r, "insert", "add"), o.with("handle", nil))}
}

func move(r *rand.Rand, o object, _ []object) []map[string]any {
	return append(remove(r, o, nil), duplicate(r, o, nil)...)
}

func alterRule(r *rand.Rand, o object, all []object) []map[string]any {
	if other := alter(r, o, all); other != nil {
		return []map[string]any{command("replace", *other)}
	}
	return nil
}

// alterDeclaration declares a chain or set again with another attribute. The kernel rejects
// most such changes; reload does them.
func alterDeclaration(r *rand.Rand, o object, all []object) []map[string]any {
	o = o.with("elem", nil)
	if other := alter(r, o, all); other != nil {
		return []map[string]any{command("add", other.with("handle", nil))}
	}
	return nil
}

func alterElement(r *rand.Rand, o object, all []object) []map[string]any {
	if other := alter(r, o, all); other != nil {
		return append(remove(r, o, nil), command("add", *other))
	}
	return nil
}

// copyElement sets the value of one element for another element.
func copyElement(r *rand.Rand, o object, all []object) []map[string]any {
	other := all[r.IntN(len(all))]
	list, _ := o.body["elem"].([]any)
	pair, isPair := list[0].([]any)
	if other.kind != "element" || other.body["name"] != o.body["name"] || !isPair {
		return nil
	}
	changed := other.with("elem", []any{[]any{keyOf(other.body), pair[1]}})
	return append(remove(r, other, nil), command("add", changed))
}

// reload replaces the whole table by a copy in which one object is altered.
func reload(r *rand.Rand, o object, all []object) []map[string]any {
	other := alter(r, o, all)
	if other == nil {
		return nil
	}
	table := object{"table", map[string]any{"family": o.body["family"], "name": o.body["table"]}}
	commands := []map[string]any{command("delete", table), command("add", table)}
	for _, kinds := range [][]string{{"chain"}, {"set", "map"}, {"rule"}, {"element"}} {
		for _, x := range all {
			if x.body["table"] != o.body["table"] || x.body["family"] != o.body["family"] || !slices.Contains(kinds, x.kind) {
				continue
			}
			if x.kind == o.kind && fmt.Sprint(x.name().body) == fmt.Sprint(o.name().body) {
				x = *other
			}
			commands = append(commands, command("add", x.with("handle", nil).withoutElements()))
		}
	}
	return commands
}

func (o object) withoutElements() object {
	if o.kind == "element" {
		return o
	}
	return o.with("elem", nil)
}

// leaf is a scalar value within an object.
type leaf struct {
	path  string
	value any
	set   func(any) // replaces the value
}

// leaves returns all scalar values within a value, except those that identify an object.
func leaves(path string, v any, set func(any)) (all []leaf) {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if path == "" && slices.Contains([]string{"family", "table", "name", "chain", "handle", "comment"}, k) {
				continue
			}
			all = append(all, leaves(path+"/"+k, v[k], func(x any) { v[k] = x })...)
		}
	case []any:
		for i := range v {
			at := path
			if strings.HasSuffix(path, "concat") {
				at = fmt.Sprintf("%s/%d", path, i)
			}
			all = append(all, leaves(at, v[i], func(x any) { v[i] = x })...)
		}
	case nil:
	default:
		all = append(all, leaf{path, v, set})
	}
	return all
}

// alter returns a copy of an object with one value replaced: by one that another object has
// in the same field, or by a number that is larger by one.
func alter(r *rand.Rand, o object, all []object) *object {
	text, err := json.Marshal(o.body)
	if err != nil {
		return nil
	}
	other := object{kind: o.kind}
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	if d.Decode(&other.body) != nil {
		return nil
	}
	own := leaves("", other.body, nil)
	if len(own) == 0 {
		return nil
	}
	chosen := own[r.IntN(len(own))]
	var values []any
	for _, x := range all {
		if x.kind != o.kind {
			continue
		}
		for _, l := range leaves("", x.body, nil) {
			if l.path == chosen.path && l.value != chosen.value {
				values = append(values, l.value)
			}
		}
	}
	n, isNumber := chosen.value.(json.Number)
	switch i, err := n.Int64(); {
	case isNumber && err == nil && r.IntN(2) == 0:
		chosen.set(i + 1)
	case len(values) > 0:
		chosen.set(values[r.IntN(len(values))])
	default:
		return nil
	}
	return &other
}

// tamper changes an object of an agent in nf_tables.
func (s *storm) tamper(r *rand.Rand) error {
	all, err := s.objects()
	if err != nil || len(all) == 0 {
		return err
	}
	kinds := map[string][]object{}
	for _, o := range all {
		kinds[o.kind] = append(kinds[o.kind], o)
	}
	const tries = 30
	for range tries {
		// Most objects are elements and rules.
		some := kinds[objects.OneOf(r, append(slices.Sorted(maps.Keys(kinds)), "rule", "rule", "element")...)]
		if len(some) == 0 {
			continue
		}
		o := some[r.IntN(len(some))]
		choices := tamperings(o.kind)
		commands := choices[r.IntN(len(choices))](r, o, all)
		if commands == nil {
			continue
		}
		text, err := json.Marshal(map[string]any{"nftables": commands})
		if err != nil {
			return err
		}
		if s.runAndRecord(string(text), "nft", "-j", "-f", "-") {
			return nil
		}
	}
	return nil // The kernel rejected all attempts.
}
