package inspect

import (
	"html/template"
	"iter"
	"net/netip"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// maxListed bounds each list of endpoints, frontends or source ranges in the list of service
// ports, maxShown each list of problems and each table on the page of a Service.
const (
	maxListed = 10
	maxShown  = 200
)

// functions are those that templates call.
func functions() template.FuncMap {
	return template.FuncMap{
		"endpoints": first[*endpoints.Endpoint], "frontends": first[proxy.Frontend], "destinations": first[proxy.Destination],
		"sources": first[netip.Prefix], "explained": first[explained], "maxListed": func() int { return maxListed },
		"maxShown":  func() int { return maxShown },
		"beyond":    func(most, n int) int { return max(0, n-most) },
		"ago":       ago,
		"count":     count,
		"round":     round,
		"protocols": func() []v1.Protocol { return protocols() },
		"add":       func(a, b int) int { return a + b },
	}
}

// first returns the part of a list that the HTML shows.
func first[T any](most int, all []T) []T { return all[:min(len(all), most)] }

// only yields the elements that keep selects.
func only[T any](all iter.Seq[T], keep func(T) bool) iter.Seq[T] {
	return func(yield func(T) bool) {
		for x := range all {
			if keep(x) && !yield(x) {
				return
			}
		}
	}
}

// appendTexts appends the texts of problems, up to maxShown. Ports of one Service may have the
// same limit, which is shown once.
func appendTexts(shown []string, problems iter.Seq[*proxy.Problem]) []string {
	for problem := range problems {
		if len(shown) == maxShown {
			break
		}
		if text := problem.Error(); len(shown) == 0 || shown[len(shown)-1] != text {
			shown = append(shown, text)
		}
	}
	return shown
}

// count writes a number of things.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// ago says how long ago a time was.
func ago(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	d := time.Since(t)
	if d < time.Second {
		return "just now"
	}
	return d.Truncate(time.Second).String() + " ago"
}

// round leaves three digits of a duration.
func round(d time.Duration) time.Duration {
	for unit := time.Duration(1); unit <= time.Hour; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit)
		}
	}
	return d.Round(time.Second)
}
