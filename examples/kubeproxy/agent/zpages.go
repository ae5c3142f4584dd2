package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

// The paths of pages about the program, as kube-proxy has them.
const (
	configzPath = "/configz"
	flagzPath   = "/flagz"
	statuszPath = "/statusz"
)

// configz serves the configuration in effect in the form of a file. It has no secrets: credentials are in
// the kubeconfig, which it names only.
func (a *instance) configz(w http.ResponseWriter, _ *http.Request) {
	config := a.inEffect().KubeProxyConfiguration
	config.Mode = v1alpha1.ProxyMode(a.mode)
	body, err := json.Marshal(map[string]any{v1alpha1.GroupName: config})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	respond(w, "application/json", body)
}

// flagz serves the flags with the values in effect, also of a file. Flags that are ignored are left out.
func (a *instance) flagz() http.Handler {
	flags := func() map[string]string {
		all, c := map[string]string{}, a.inEffect()
		settings := c.settings()
		f := newFlags("", settings)
		for _, s := range settings {
			switch {
			case s.flag == "" || s.traits.has(isIgnored):
			case s.flag == "master":
				all[s.flag] = withoutPassword(c.master)
			default:
				all[s.flag] = strings.Trim(f.Lookup(s.flag).Value.String(), "[]")
			}
		}
		return all
	}
	return &zpage{
		kind: "Flagz",
		text: func() (lines []string) {
			all := flags()
			for _, name := range slices.Sorted(maps.Keys(all)) {
				lines = append(lines, name+"="+all[name])
			}
			return lines
		},
		fields: func() map[string]any { return map[string]any{"flags": flags()} },
	}
}

// withoutPassword returns a URL without the password that it may have.
func withoutPassword(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Opaque != "" { // the latter without a scheme, as in name:password@host
		return "CLASSIFIED"
	}
	return u.Redacted()
}

// statusz serves what the program is, since when it runs, and its paths by their first part.
func (a *instance) statusz(start time.Time) http.Handler {
	paths := []string{"/debug", "/healthz", "/metrics", "/proxyMode", configzPath, statuszPath}
	if a.enabled(flagzGate) {
		paths = append(paths, flagzPath)
	}
	slices.Sort(paths)
	build := readBuild()
	return &zpage{
		kind: "Statusz",
		text: func() []string {
			up := int(time.Since(start).Seconds())
			return []string{
				"Started: " + start.Format(time.UnixDate),
				fmt.Sprintf("Up: %d hr %02d min %02d sec", up/3600, up/60%60, up%60),
				"Go version: " + build.GoVersion,
				"Binary version: " + build.GitVersion,
				"Paths: " + strings.Join(paths, " "),
			}
		},
		fields: func() map[string]any {
			return map[string]any{
				"startTime": start.UTC().Format(time.RFC3339), "uptimeSeconds": int64(time.Since(start).Seconds()),
				"goVersion": build.GoVersion, "binaryVersion": build.GitVersion, "paths": paths,
			}
		},
	}
}

// zpage serves lines of text for people. Programs ask for an object of the API group config.k8s.io, as of
// kube-proxy, by a header such as Accept: application/json;as=Flagz;v=v1beta1;g=config.k8s.io.
type zpage struct {
	kind string
	text func() []string
	// fields returns the fields that only this kind has.
	fields func() map[string]any
}

// component is the name under which kube-proxy, and this program in its place, is known in the API.
const component = "kube-proxy"

func (z *zpage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Vary", "Accept")
	form, version, ok := z.negotiate(strings.Join(r.Header.Values("Accept"), ","))
	if !ok {
		http.Error(w, fmt.Sprintf("want text/plain, or application/json or application/yaml with as=%s;v=v1beta1;g=config.k8s.io", z.kind), http.StatusNotAcceptable)
		return
	}
	if version == "" {
		lines := append([]string{"", component + " " + strings.ToLower(z.kind), "This text is for people, and may change; programs can ask for JSON.", ""}, z.text()...)
		respond(w, "text/plain; charset=utf-8", []byte(strings.Join(lines, "\n")+"\n"))
		return
	}
	object := z.fields()
	object["kind"], object["apiVersion"], object["metadata"] = z.kind, "config.k8s.io/"+version, map[string]string{"name": component}
	body, err := json.Marshal(object)
	if form == "application/yaml" {
		body, err = yaml.Marshal(object)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if version == "v1alpha1" {
		w.Header().Set("Warning", `299 - "v1alpha1 is deprecated, use v1beta1"`)
	}
	respond(w, form, body)
}

// negotiate returns the first form that the client accepts and this page has. Text has no version.
func (z *zpage) negotiate(accept string) (form, version string, ok bool) {
	if strings.TrimSpace(accept) == "" {
		return "text/plain", "", true
	}
	for part := range strings.SplitSeq(accept, ",") {
		form, parameters, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		version := parameters["v"]
		isObject := parameters["as"] == z.kind && parameters["g"] == "config.k8s.io" && (version == "v1alpha1" || version == "v1beta1")
		switch form {
		case "text/plain", "text/*", "*/*":
			if parameters["as"] == "" {
				return "text/plain", "", true
			}
		case "application/json", "application/yaml":
			if isObject {
				return form, version, true
			}
		}
	}
	return "", "", false
}
