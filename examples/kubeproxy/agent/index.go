package agent

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"text/tabwriter"
)

//go:embed index.html
var indexFile embed.FS

// index lists the paths: as HTML for browsers, and otherwise as text.
type index struct {
	Title string
	Paths []path
}

func (x *index) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Vary", "Accept")
	var body bytes.Buffer
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		x.writeText(&body)
		respond(w, "text/plain; charset=utf-8", body.Bytes())
		return
	}
	page, err := template.ParseFS(indexFile, "index.html")
	if err == nil {
		err = page.Execute(&body, x)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	respond(w, "text/html; charset=utf-8", body.Bytes())
}

func (x *index) writeText(body *bytes.Buffer) {
	fmt.Fprintf(body, "%s\n\n", x.Title)
	lines := tabwriter.NewWriter(body, 0, 0, 2, ' ', 0)
	for _, p := range x.Paths {
		only := ""
		if p.Local {
			only = " Only for clients on this node."
		}
		_, _ = fmt.Fprintf(lines, "%s\t%s%s\n", p.At, p.Help, only) // A buffer has no errors.
	}
	_ = lines.Flush()
}
