package nftables

// name stands for the name of a set or chain. Objects hold such numbers instead
// of text: there are many of them, in maps that are searched often, and without
// text they are small, quickly compared and nothing to the garbage collector.
type name uint32

// noName is the name of nothing.
const noName name = 0

// names gives numbers to texts. A number is free for another text once it is
// released.
type names struct {
	byText map[string]name
	texts  []string
	free   []name
}

// familyNames are the names of both families. One that comes and goes with an
// object of one family may be that of another object of the other.
type familyNames struct{ v4, v6 names }

// familyName is a name with the family that it is of: each family counts its own.
type familyName struct {
	fam  family
	name name
}

func (n *familyNames) of(fam family) *names {
	if fam == ipv6 {
		return &n.v6
	}
	return &n.v4
}

func (n *names) number(text string) name {
	if text == "" {
		return noName
	}
	if id, ok := n.byText[text]; ok {
		return id
	}
	if n.byText == nil {
		n.byText, n.texts = map[string]name{}, []string{""}
	}
	var id name
	if last := len(n.free) - 1; last >= 0 {
		id, n.free = n.free[last], n.free[:last]
		n.texts[id] = text
	} else {
		id, n.texts = name(len(n.texts)), append(n.texts, text)
	}
	n.byText[text] = id
	return id
}

// ofBytes does the same for text in a buffer, which is copied only if it is new.
func (n *names) ofBytes(text []byte) name {
	if id, ok := n.byText[string(text)]; ok {
		return id
	}
	return n.number(string(text))
}

func (n *names) text(id name) string {
	if id == noName {
		return ""
	}
	return n.texts[id]
}

// release takes the number of a text back.
func (n *names) release(id name) {
	if id != noName {
		delete(n.byText, n.texts[id])
		n.texts[id] = ""
		n.free = append(n.free, id)
	}
}
