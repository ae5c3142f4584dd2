package nearest

import (
	"strings"
)

// Name returns the known name that is most like a word, and false if none is. One edit for
// each four letters of the known name is allowed, at least one and at most two; an edit
// inserts, removes or replaces a letter, or swaps two neighbours. Letter case does not count.
// Of several names with as few edits, the first one is returned.
func Name(word string, known ...string) (string, bool) {
	const perEdit, most = 4, 2
	best, edits := "", most+1
	for _, name := range known {
		allowed := min(max(len(name)/perEdit, 1), most)
		if d := len(name) - len(word); d > most || -d > most {
			continue
		}
		if n := distance(strings.ToLower(word), strings.ToLower(name)); n <= allowed && n < edits {
			best, edits = name, n
		}
	}
	return best, edits <= most
}

// distance returns how many edits make one text of another.
func distance(a, b string) int {
	var before []int // the row before the last one
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			replaced := last[j]
			if a[i] != b[j] {
				replaced++
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, replaced)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
