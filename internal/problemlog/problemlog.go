package problemlog

import (
	"slices"
	"time"

	"github.com/go-logr/logr"
)

// Most is how many lines of one Log are written in a minute, so that users who create objects
// cannot fill the log. A problem beyond that has its line at an Update in a later minute, if it lasts.
const Most = 100

// Log has the problems that last. The zero Log has none.
type Log[E interface {
	comparable
	error
}] struct {
	last   []E
	open   map[string]bool // the texts of last that have a line
	minute time.Time       // start of the current minute
	lines  int             // in that minute
}

// Update logs each problem that is new, and each that has ended since the last call. Message says
// what they are; describe returns the place of one as keys and values, and its reason.
func (l *Log[E]) Update(to logr.Logger, message string, problems []E, describe func(E) (place []any, reason error)) {
	if slices.Equal(problems, l.last) && (l.lines <= Most || time.Since(l.minute) < time.Minute) {
		return // the usual case
	}
	if l.open == nil {
		l.open = map[string]bool{}
	}
	now := make(map[string]bool, len(problems))
	for _, p := range problems {
		now[p.Error()] = true
	}
	for _, p := range l.last {
		text := p.Error()
		if l.open[text] && !now[text] && l.admits(to, message) {
			place, reason := describe(p)
			to.Info(message+" resolved", append(place, "was", reason.Error())...)
		}
		if !now[text] {
			delete(l.open, text)
		}
	}
	for _, p := range problems {
		text := p.Error() // The ports of one Service may have the same problem.
		if !l.open[text] && l.admits(to, message) {
			place, reason := describe(p)
			to.Error(reason, message, place...)
			l.open[text] = true
		}
	}
	l.last = problems
}

// admits reports whether one more line may be logged.
func (l *Log[E]) admits(to logr.Logger, message string) bool {
	if time.Since(l.minute) >= time.Minute {
		l.minute, l.lines = time.Now(), 0
	}
	if l.lines++; l.lines == Most+1 {
		to.Info(message + ": too many to log in a minute")
	}
	return l.lines <= Most
}
