package allocatorcli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/vipkit/vipkit/allocator"
)

const (
	columns = 64
	maxRows = 4 // of a band
)

// show draws every range, and lists the claims.
func (a *app) show(ctx context.Context, _ []string) error {
	if err := a.pool.Sync(ctx); err != nil {
		return err
	}
	claims := a.pool.Claims()
	var b strings.Builder
	for _, status := range a.pool.Ranges() {
		r, err := allocator.NewRange(status.Config)
		if err != nil {
			return err
		}
		s := status.Stats
		fmt.Fprintf(&b, "%v: %d keys, %d taken, %d free\n", r, s.Size, s.Used, s.Free())
		band{"lower band", r, 0, s.BandSize}.draw(&b, claims)
		band{"upper band", r, s.BandSize, s.Size}.draw(&b, claims)
	}
	for _, c := range claims {
		state := "bound"
		if !c.IsBound() {
			state = "reserved until " + c.Expires.Format("15:04:05 MST")
		}
		fmt.Fprintf(&b, "%-20v %s, %s\n", c.Key, escaped(c.Owner), state)
	}
	return a.printf("%s", b.String())
}

// band is a part of a range, by its offsets.
type band struct {
	name       string
	r          *allocator.Range
	first, end uint64
}

// draw draws the band as a block of cells. Each cell stands for perCell keys.
func (d band) draw(b *strings.Builder, claims []allocator.Claim) {
	size := d.end - d.first
	if size == 0 {
		return
	}
	fmt.Fprintf(b, "  %s, %v to %v", d.name, d.r.Key(d.first), d.r.Key(d.end-1))
	perCell := uint64(1)
	if size > columns*maxRows {
		perCell = size/(columns*maxRows) + 1
		fmt.Fprintf(b, ", %d a cell", perCell)
	}
	taken := make([]uint64, (size-1)/perCell+1)
	for _, c := range claims {
		if i, ok := d.r.Offset(c.Key); ok && i >= d.first && i < d.end {
			taken[(i-d.first)/perCell]++
		}
	}
	for i, n := range taken {
		if i%columns == 0 {
			b.WriteString("\n    ")
		}
		b.WriteRune(shade(n, min(perCell, size-uint64(i)*perCell)))
	}
	b.WriteString("\n")
}

// shade returns a darker rune the more keys of a cell are taken; a single taken key is visible.
func shade(taken, size uint64) rune {
	switch share := float64(taken) / float64(size); {
	case taken == 0:
		return '·'
	case taken == size:
		return '█'
	case share < 1.0/3:
		return '░'
	case share < 2.0/3:
		return '▒'
	}
	return '▓'
}

// escaped is the name of an owner with control characters escaped.
func escaped(owner allocator.Owner) string {
	text := strconv.Quote(string(owner))
	return text[1 : len(text)-1]
}
