package agent

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/component-base/featuregate"

	"github.com/vipkit/vipkit/internal/nearest"
)

// The feature gates that this program acts on.
const (
	externalIPsGate       featuregate.Feature = "AllowServiceExternalIPs"
	ipvsGate              featuregate.Feature = "KubeProxyIPVS"
	localhostNodePortGate featuregate.Feature = "KubeProxyNFTablesLocalhostNodePorts"
	flagzGate             featuregate.Feature = "ComponentFlagz"
	statuszGate           featuregate.Feature = "ComponentStatusz"
)

// gate is a feature gate that kube-proxy 1.36 or 1.37 reads.
type gate struct {
	name featuregate.Feature
	// spec has the stage and the default in 1.37.
	spec featuregate.FeatureSpec
	use  gateUse
	// help is a sentence: what this program does instead, or what it does with the gate.
	help string
}

// gateUse is what this program does with a feature gate.
type gateUse uint8

const (
	gateMeaningless gateUse = iota // nothing, and a note in the log says so
	gateHonoured                   // the same as kube-proxy
	gateRefused                    // the program does not start with it, in some cases
)

// gates returns all feature gates that kube-proxy reads: its own, and the gates of its packages for
// metrics, pages, logging and the API server.
func gates() []gate {
	const (
		clientHelp = "The client of this program has its own defaults; the variable KUBE_FEATURE_ with the name of the gate sets it."
		logHelp    = "The log of this program needs no gate."
		lockedHelp = "It is always on; false is refused, as by kube-proxy."
	)
	stable := featuregate.FeatureSpec{Default: true}
	locked := featuregate.FeatureSpec{Default: true, LockToDefault: true}
	alpha := featuregate.FeatureSpec{PreRelease: featuregate.Alpha}
	beta := featuregate.FeatureSpec{Default: true, PreRelease: featuregate.Beta}
	return []gate{
		{externalIPsGate, stable, gateHonoured, "If false, external IPs are not served."},
		{ipvsGate, featuregate.FeatureSpec{Default: true, PreRelease: featuregate.Deprecated}, gateHonoured, "If false, mode ipvs is refused, as by kube-proxy."},
		{localhostNodePortGate, featuregate.FeatureSpec{Default: true, PreRelease: featuregate.Alpha}, gateHonoured, "In mode nftables, node ports answer at the loopback addresses that nodePortAddresses names, unless the gate or AllAlpha is set to false; kube-proxy's default is false. UDP is served too. In other modes it has no effect, as in kube-proxy."},
		{"MultiCIDRServiceAllocator", locked, gateRefused, lockedHelp},
		{"NFTablesProxyMode", locked, gateRefused, lockedHelp},
		{"PreferSameTrafficDistribution", locked, gateRefused, lockedHelp},
		{"WinDSR", locked, gateRefused, lockedHelp},
		{"WinOverlay", locked, gateRefused, lockedHelp},
		{"InOrderInformers", locked, gateRefused, lockedHelp},
		{"NFTablesNetlink", beta, gateMeaningless, "This program always uses netlink, and never runs nft."},
		{"NativeHistograms", beta, gateMeaningless, "Histograms have classic buckets."},
		{flagzGate, beta, gateHonoured, "If false, /flagz is not served."},
		{statuszGate, beta, gateHonoured, "If false, /statusz is not served."},
		{"ContextualLogging", beta, gateMeaningless, logHelp},
		{"LoggingAlphaOptions", alpha, gateMeaningless, logHelp},
		{"LoggingBetaOptions", beta, gateMeaningless, logHelp},
		{"AtomicFIFO", beta, gateMeaningless, clientHelp},
		{"ClientsAllowCARotation", beta, gateMeaningless, clientHelp},
		{"ClientsAllowCBOR", alpha, gateMeaningless, clientHelp},
		{"ClientsAllowTLSCacheGC", beta, gateMeaningless, clientHelp},
		{"ClientsPreferCBOR", alpha, gateMeaningless, clientHelp},
		{"InformerResourceVersion", stable, gateMeaningless, clientHelp},
		{"InOrderInformersBatchProcess", beta, gateMeaningless, clientHelp},
		{"UnlockWhileProcessingFIFO", beta, gateMeaningless, clientHelp},
		{"WatchListClient", beta, gateMeaningless, clientHelp},
		{"AllAlpha", alpha, gateHonoured, "Sets all gates of stage alpha that are not named."},
		{"AllBeta", featuregate.FeatureSpec{PreRelease: featuregate.Beta}, gateHonoured, "Sets all gates of stage beta that are not named."},
	}
}

// newGates returns the gates that this program acts on, with the values that are given.
func newGates(given map[string]bool) (featuregate.MutableFeatureGate, error) {
	f, known, values := featuregate.NewFeatureGate(), map[featuregate.Feature]featuregate.FeatureSpec{}, map[string]bool{}
	for _, g := range gates() {
		if g.use == gateMeaningless {
			continue
		}
		if g.name != "AllAlpha" && g.name != "AllBeta" { // They are known.
			known[g.name] = g.spec
		}
		if on, is := given[string(g.name)]; is {
			values[string(g.name)] = on
		}
	}
	if err := f.Add(known); err != nil {
		return f, err
	}
	return f, f.SetFromMapWithLogger(logr.Discard(), values)
}

// enabled reports whether a feature gate is on.
func (c *config) enabled(name featuregate.Feature) bool {
	f, err := newGates(c.FeatureGates)
	return err == nil && f.Enabled(name)
}

// checkGates refuses feature gates that kube-proxy refuses. It warns of unknown ones.
func (c *config) checkGates() (errs []error) {
	all := gates()
	var names []string
	for _, x := range all {
		names = append(names, string(x.name))
	}
	for _, name := range slices.Sorted(maps.Keys(c.FeatureGates)) {
		switch i := slices.Index(names, name); {
		case i < 0:
			errs = append(errs, c.checkUnknownGate(name, c.FeatureGates[name], names))
		case all[i].use == gateMeaningless:
			c.notes = append(c.notes, "feature gate "+name+" has no effect: "+all[i].help)
		}
	}
	if _, err := newGates(c.FeatureGates); err != nil {
		errs = append(errs, fmt.Errorf("featureGates: %w", err))
	} else if c.Mode == ipvsMode && !c.enabled(ipvsGate) {
		errs = append(errs, fmt.Errorf("featureGates.%s: false: mode ipvs needs it", ipvsGate))
	}
	return errs
}

// checkUnknownGate warns of a feature gate that kube-proxy does not read. It refuses one that looks like a
// misspelled gate if that would have an effect: without it, clients may reach more than they should.
func (c *config) checkUnknownGate(name string, on bool, known []string) error {
	like, found := nearest.Name(name, known...)
	text := "feature gate " + name + " is ignored: kube-proxy does not read it"
	if found {
		meant := gates()[slices.Index(known, like)]
		if meant.use != gateMeaningless && on != meant.spec.Default {
			return fmt.Errorf("featureGates.%s: %t: unknown feature gate; did you mean %s?", strings.Trim(strconv.Quote(name), `"`), on, like)
		}
		text += "; did you mean " + like + "?"
	}
	c.warnings = append(c.warnings, text)
	return nil
}
