package backendtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
)

// nft is the program nft, run in a namespace.
type nft struct {
	t    testing.TB
	path string
	ns   *netns.NS
}

// findNFT finds the program, for use in a namespace; without it the test ends.
func findNFT(t testing.TB, ns *netns.NS) nft {
	t.Helper()
	return nft{t, netnstest.NFT(t), ns}
}

// run runs the program with input and arguments, and returns its output.
func (n nft) run(input string, args ...string) (string, error) {
	return netnstest.Run(n.t, n.ns, input, n.path, args...)
}

// load loads a ruleset in the language of nft into the kernel.
func (n nft) load(ruleset string) error {
	_, err := n.run(ruleset, "-f", "-")
	return err
}

// list returns the ruleset of the namespace, without counters and the like.
func (n nft) list() (string, error) {
	return n.run("", "--stateless", "list", "ruleset")
}

// checkReadable checks what operators expect of the ruleset of the namespace: that
// nft lists it, as text and as JSON, and that the text can be loaded and then lists
// the same.
func (n nft) checkReadable() error {
	if _, err := n.run("", "list", "ruleset"); err != nil {
		return err
	}
	objects, err := n.run("", "--json", "list", "ruleset")
	if err != nil {
		return err
	}
	if !json.Valid([]byte(objects)) {
		return errors.New("nft --json list ruleset: output is no JSON")
	}
	text, err := n.list()
	if err != nil {
		return err
	}
	again, err := n.relist(text)
	if err != nil {
		return err
	}
	if diff := cmp.Diff(text, again); diff != "" {
		return fmt.Errorf("the ruleset changes when its text is loaded (-listed +loaded):\n%s", diff)
	}
	return nil
}

// relist loads a ruleset into a namespace of its own, and lists it there.
func (n nft) relist(text string) (listing string, err error) {
	scratch := nft{n.t, n.path, netnstest.NewNS(n.t)}
	if err := scratch.load(text); err != nil {
		return "", err
	}
	return scratch.list()
}
