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

// show draws every range, and lists who has what.
func (a *app) show(ctx context.Context, _ []string) error {
	if err := a.pool.Sync(ctx); err != nil {
		return err
	}
	claims := a.pool.Claims()
	var b strings.Builder
	for _, status := range a.pool.Ranges() {
		if err := draw(&b, status, claims); err != nil {
			return err
		}
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

// draw draws a range: each band a block of cells, each cell some keys.
func draw(b *strings.Builder, status allocator.RangeStatus, claims []allocator.Claim) error {
	r, err := allocator.NewRange(status.Config)
	if err != nil {
		return err
	}
	s := status.Stats
	fmt.Fprintf(b, "%v: %d keys, %d taken, %d free\n", r, s.Size, s.Used, s.Free())
	lower := newPicture(r, 0, s.BandSize)
	upper := newPicture(r, s.BandSize, s.Size)
	for _, c := range claims {
		if i, ok := r.Offset(c.Key); ok {
			lower.add(i)
			upper.add(i)
		}
	}
	lower.write(b, "lower band")
	upper.write(b, "upper band")
	return nil
}

// picture is a band in cells.
type picture struct {
	r          *allocator.Range
	first, end uint64
	perCell    uint64
	taken      []uint64
}

func newPicture(r *allocator.Range, first, end uint64) *picture {
	p := &picture{r: r, first: first, end: end, perCell: 1}
	if n := end - first; n > columns*maxRows {
		p.perCell = n/(columns*maxRows) + 1
	}
	if end > first {
		p.taken = make([]uint64, (end-first-1)/p.perCell+1)
	}
	return p
}

func (p *picture) add(i uint64) {
	if i >= p.first && i < p.end {
		p.taken[(i-p.first)/p.perCell]++
	}
}

func (p *picture) write(b *strings.Builder, name string) {
	if len(p.taken) == 0 {
		return
	}
	fmt.Fprintf(b, "  %s, %v to %v", name, p.r.Key(p.first), p.r.Key(p.end-1))
	if p.perCell > 1 {
		fmt.Fprintf(b, ", %d a cell", p.perCell)
	}
	b.WriteString("\n")
	for row := 0; row < len(p.taken); row += columns {
		b.WriteString("    ")
		for at, n := range p.taken[row:min(row+columns, len(p.taken))] {
			size := min(p.perCell, p.end-p.first-uint64(row+at)*p.perCell)
			b.WriteRune(shade(n, size))
		}
		b.WriteString("\n")
	}
}

// shade is darker the more of a cell is taken; a single key can be seen.
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

// escaped is the name of an owner without what could be a command to a terminal.
func escaped(owner allocator.Owner) string {
	text := strconv.Quote(string(owner))
	return text[1 : len(text)-1]
}
