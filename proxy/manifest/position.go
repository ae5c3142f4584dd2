package manifest

import (
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

// maxLocated bounds the text in which the line of a field is looked up: a file can have a hundred
// warnings.
const maxLocated = 64 << 10

// lineOf returns the line of a field of the object, or of the nearest part around it that
// exists. A path is that of a strict decoder: "spec.ports[0].nodePort". It parses the text
// again, and so is only for messages.
func (r raw) lineOf(path string) int {
	var root yaml.Node
	if len(r.source.text) > maxLocated || yaml.Unmarshal(r.source.text, &root) != nil || len(root.Content) == 0 {
		return r.line
	}
	at := root.Content[0]
	if r.item != noItem { // The text is the whole List, or one item with its dash, or without one.
		if _, list := child(at, "items"); list != nil {
			_, at = child(list, strconv.Itoa(r.item))
		} else if at.Kind == yaml.SequenceNode {
			_, at = child(at, "0")
		}
	}
	if at == nil {
		return r.line
	}
	line := at.Line
	for step := range strings.FieldsFuncSeq(path, func(c rune) bool { return c == '.' || c == '[' || c == ']' }) {
		mark, value := child(at, step)
		if value == nil {
			break
		}
		line, at = mark.Line, value
	}
	return r.source.line + line - 1
}

// child returns the value of a key of a mapping and the key, or the entry of a sequence at
// an index, twice; nil if there is none.
func child(n *yaml.Node, step string) (mark, value *yaml.Node) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.SequenceNode {
		index, err := strconv.Atoi(step)
		if err != nil || index < 0 || index >= len(n.Content) {
			return nil, nil
		}
		return n.Content[index], n.Content[index]
	}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == step {
			return n.Content[i], n.Content[i+1]
		}
	}
	return nil, nil
}
