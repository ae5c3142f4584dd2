package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/vipkit/vipkit/internal/nearest"
)

// The feature gates that this program acts on, and those that set the gates of a stage.
const (
	externalIPsGate       = "AllowServiceExternalIPs"
	ipvsGate              = "KubeProxyIPVS"
	localhostNodePortGate = "KubeProxyNFTablesLocalhostNodePorts"
	flagzGate             = "ComponentFlagz"
	statuszGate           = "ComponentStatusz"
	allAlphaGate          = "AllAlpha"
	allBetaGate           = "AllBeta"
)

// gate is a feature gate that kube-proxy 1.36 or 1.37 reads.
type gate struct {
	name  string
	stage stage
	usual bool // the default in 1.37
	use   gateUse
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

func (u gateUse) String() string { return [...]string{"meaningless", "honoured", "refused"}[u] }

// stage is the stage of a feature in 1.37.
type stage uint8

const (
	stable     stage = iota
	locked           // kube-proxy refuses any value but the default
	deprecated       // on, and will go
	alpha
	beta
)

func (s stage) String() string {
	return [...]string{"stable", "locked", "deprecated", "alpha", "beta"}[s]
}

// gates returns all feature gates that kube-proxy reads: its own, and those of its packages for
// metrics, pages, logging and the API server.
func gates() []gate {
	const (
		clientHelp = "The client of this program has its own defaults; the variable KUBE_FEATURE_ with the name of the gate sets it."
		logHelp    = "The log of this program needs no gate."
		lockedHelp = "It is always on; false is refused, as by kube-proxy."
	)
	return []gate{
		{externalIPsGate, stable, true, gateHonoured, "If false, external IPs are not served."},
		{ipvsGate, deprecated, true, gateHonoured, "If false, mode ipvs is refused, as by kube-proxy."},
		{localhostNodePortGate, alpha, false, gateHonoured, "In mode nftables, node ports answer at the loopback addresses that nodePortAddresses names, unless the gate or AllAlpha is set to false. UDP is served too. In other modes it has no effect, as in kube-proxy."},
		{"MultiCIDRServiceAllocator", locked, true, gateRefused, lockedHelp},
		{"NFTablesProxyMode", locked, true, gateRefused, lockedHelp},
		{"PreferSameTrafficDistribution", locked, true, gateRefused, lockedHelp},
		{"WinDSR", locked, true, gateRefused, lockedHelp},
		{"WinOverlay", locked, true, gateRefused, lockedHelp},
		{"InOrderInformers", locked, true, gateRefused, lockedHelp},
		{"NFTablesNetlink", beta, true, gateMeaningless, "This program always uses netlink, and never runs nft."},
		{"NativeHistograms", beta, true, gateMeaningless, "Histograms have classic buckets."},
		{flagzGate, beta, true, gateHonoured, "If false, /flagz is not served."},
		{statuszGate, beta, true, gateHonoured, "If false, /statusz is not served."},
		{"ContextualLogging", beta, true, gateMeaningless, logHelp},
		{"LoggingAlphaOptions", alpha, false, gateMeaningless, logHelp},
		{"LoggingBetaOptions", beta, true, gateMeaningless, logHelp},
		{"AtomicFIFO", beta, true, gateMeaningless, clientHelp},
		{"ClientsAllowCARotation", beta, true, gateMeaningless, clientHelp},
		{"ClientsAllowCBOR", alpha, false, gateMeaningless, clientHelp},
		{"ClientsAllowTLSCacheGC", beta, true, gateMeaningless, clientHelp},
		{"ClientsPreferCBOR", alpha, false, gateMeaningless, clientHelp},
		{"InformerResourceVersion", stable, true, gateMeaningless, clientHelp},
		{"InOrderInformersBatchProcess", beta, true, gateMeaningless, clientHelp},
		{"UnlockWhileProcessingFIFO", beta, true, gateMeaningless, clientHelp},
		{"WatchListClient", beta, true, gateMeaningless, clientHelp},
		{allAlphaGate, alpha, false, gateHonoured, "Sets all gates of stage alpha that are not named."},
		{allBetaGate, beta, false, gateHonoured, "Sets all gates of stage beta that are not named."},
	}
}

// featureGates are the feature gates that the configuration names.
type featureGates map[string]bool

// UnmarshalText adds the gates in the text of a flag, names with values.
func (g *featureGates) UnmarshalText(text []byte) error {
	for pair := range strings.SplitSeq(string(text), ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		switch name = strings.TrimSpace(name); {
		case !ok:
			return fmt.Errorf("%q: want name=true or name=false", pair)
		case err != nil:
			return fmt.Errorf("feature gate %s: %q %w", name, value, errNoBool)
		}
		g.set(name, on)
	}
	return nil
}

func (g *featureGates) set(name string, on bool) {
	if *g == nil {
		*g = featureGates{}
	}
	(*g)[name] = on
}

// decode sets the gates in a file. As in kube-proxy, a gate without a value is off.
func (g *featureGates) decode(value any) error {
	given, ok := value.(map[string]any)
	if !ok && value != nil {
		return errors.New("must have fields")
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		on, ok := given[name].(bool)
		if !ok && given[name] != nil {
			return fmt.Errorf("%s %w", printable(name), errNoBool)
		}
		g.set(name, on)
	}
	return nil
}

// enabled reports whether a feature gate is on.
func (g featureGates) enabled(name string) bool {
	on, given, usual := g.find(name)
	if given {
		return on
	}
	return usual
}

// find returns the value of a feature gate if it, or all gates of its stage, are given one, and its
// default.
func (g featureGates) find(name string) (on, given, usual bool) {
	all := gates()
	i := slices.IndexFunc(all, func(x gate) bool { return x.name == name })
	if on, given = g[name]; !given {
		on, given = g[map[stage]string{alpha: allAlphaGate, beta: allBetaGate}[all[i].stage]]
	}
	return on, given, all[i].usual
}

// checkGates refuses feature gates that kube-proxy refuses, and those that this program lacks if
// clients would notice it. It warns of unknown ones.
func (c *config) checkGates() error {
	var errs []error
	all := gates()
	var names []string
	for _, x := range all {
		names = append(names, x.name)
	}
	for _, name := range slices.Sorted(maps.Keys(c.FeatureGates)) {
		on := c.FeatureGates[name]
		i := slices.Index(names, name)
		switch {
		case i < 0:
			errs = append(errs, c.checkUnknownGate(name, on, names))
		case all[i].stage == locked && on != all[i].usual:
			errs = append(errs, fmt.Errorf("featureGates.%s: %t: it is locked to %t", name, on, all[i].usual))
		case all[i].use == gateMeaningless:
			c.notes = append(c.notes, "feature gate "+name+" has no effect: "+all[i].help)
		}
	}
	return errors.Join(append(errs, c.checkModeGates())...)
}

// checkUnknownGate warns of a feature gate that kube-proxy does not read. It refuses one that looks like a
// misspelled gate if that would have an effect: without it, clients may reach more than they should.
func (c *config) checkUnknownGate(name string, on bool, known []string) error {
	like, found := nearest.Name(name, known...)
	text := "feature gate " + name + " is ignored: kube-proxy does not read it"
	if found {
		meant := gates()[slices.Index(known, like)]
		if meant.use != gateMeaningless && on != meant.usual {
			return fmt.Errorf("featureGates.%s: %t: unknown feature gate; did you mean %s?", printable(name), on, like)
		}
		text += "; did you mean " + like + "?"
	}
	c.warnings = append(c.warnings, text)
	return nil
}

// checkModeGates checks the feature gates that depend on the mode.
func (c *config) checkModeGates() error {
	if c.Mode == ipvsMode && !c.FeatureGates.enabled(ipvsGate) {
		return fmt.Errorf("featureGates.%s: false: mode ipvs needs it", ipvsGate)
	}
	return nil
}
