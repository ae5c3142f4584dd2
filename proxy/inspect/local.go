package inspect

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// LocalOnly serves only clients on this node. It refuses requests from pages of other sites in a
// browser on this node: a site can resolve its own name to this node, and then read the response,
// but it can use neither an IP address nor localhost nor one of names, which are names of the
// node. Status 403 and one line say what was wrong.
func LocalOnly(h http.Handler, names ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if from, err := netip.ParseAddrPort(r.RemoteAddr); err != nil || !from.Addr().Unmap().IsLoopback() {
			http.Error(w, "only for clients on this node", http.StatusForbidden)
			return
		}
		if err := foreign(r, names); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// foreign returns an error if a request may come from a page of another site.
func foreign(r *http.Request, names []string) error {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	_, err := netip.ParseAddr(host)
	if err != nil && host != "localhost" && (host == "" || !slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, host) })) {
		return fmt.Errorf("host of the URL %q: want an IP address, localhost or the name of the node", r.Host)
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" || site == "same-site" {
		return errors.New("not for pages of other sites: open the URL directly")
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || u.Host != r.Host {
			return fmt.Errorf("not for pages of other sites, such as %q: open the URL directly", origin)
		}
	}
	return nil
}
