package backendtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
)

// nft is the program nft, run in a namespace.
type nft struct {
	path string
	ns   *netns.NS
}

// findNFT finds the program, for use in a namespace; without it the test ends.
func findNFT(t testing.TB, ns *netns.NS) nft {
	t.Helper()
	return nft{path: netnstest.NFT(t), ns: ns}
}

// run runs the program with input and arguments, and returns its output.
func (n nft) run(ctx context.Context, input string, args ...string) (string, error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, n.path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	err := n.ns.Do(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("nft %s: %w: %s", strings.Join(args, " "), err, &errs)
	}
	return out.String(), nil
}

// load loads a ruleset in the language of nft into the kernel.
func (n nft) load(ctx context.Context, ruleset string) error {
	_, err := n.run(ctx, ruleset, "-f", "-")
	return err
}

// list returns the ruleset of the namespace, without counters and the like.
func (n nft) list(ctx context.Context) (string, error) {
	return n.run(ctx, "", "--stateless", "list", "ruleset")
}

// checkReadable checks what operators expect of the ruleset of the namespace: that
// nft lists it, as text and as JSON, and that the text can be loaded and then lists
// the same.
func (n nft) checkReadable(ctx context.Context) error {
	if _, err := n.run(ctx, "", "list", "ruleset"); err != nil {
		return err
	}
	objects, err := n.run(ctx, "", "--json", "list", "ruleset")
	if err != nil {
		return err
	}
	if !json.Valid([]byte(objects)) {
		return errors.New("nft --json list ruleset: output is no JSON")
	}
	text, err := n.list(ctx)
	if err != nil {
		return err
	}
	again, err := n.relist(ctx, text)
	if err != nil {
		return err
	}
	if diff := cmp.Diff(text, again); diff != "" {
		return fmt.Errorf("the ruleset changes when its text is loaded (-listed +loaded):\n%s", diff)
	}
	return nil
}

// relist loads a ruleset into a namespace of its own, and lists it there.
func (n nft) relist(ctx context.Context, text string) (listing string, err error) {
	ns, err := netns.New()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	scratch := nft{path: n.path, ns: ns}
	if err := scratch.load(ctx, text); err != nil {
		return "", err
	}
	return scratch.list(ctx)
}
