package storm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// flush removes all rules.
func (s *storm) flush(one *step) (func(), error) {
	if s.options.backend != "iptables-legacy" && one.Chance%4 > 0 || s.options.backend == "nftables" || s.options.backend == "userspace" {
		return nil, s.nft("flush ruleset")
	}
	flavour := strings.TrimPrefix(s.options.backend, "iptables-")
	for _, family := range []string{"iptables-", "ip6tables-"} {
		for _, table := range []string{"nat", "filter"} {
			if _, err := s.atNode("", family+flavour, "-w", "1", "-t", table, "-F"); err != nil {
				return nil, err
			}
		}
	}
	return nil, nil
}

func (s *storm) nft(script string) error {
	_, err := s.atNode(script, "nft", "-f", "-")
	return err
}

// tamperSomething changes something of the agent's, or several things.
func (s *storm) tamperSomething(one *step) (func(), error) {
	if len(one.Run) > 0 {
		for _, r := range one.Run {
			_, err := s.atNode(r.Input, r.Command...)
			s.note("%v: %v", r.Command, err)
		}
		return nil, nil
	}
	r := rand.New(rand.NewPCG(one.Chance, 0))
	for range pick(r, 1, 1, 2, 4) {
		if err := s.tamperOnce(r); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func (s *storm) tamperOnce(r *rand.Rand) error {
	switch s.options.backend {
	case "iptables-legacy":
		return s.tamperLines(r, "legacy")
	case "iptables-nft":
		if r.IntN(2) == 0 {
			return s.tamperLines(r, "nft")
		}
	case "userspace":
		if r.IntN(4) == 0 {
			return s.tamperRoutes(r)
		}
	}
	return s.tamper(r)
}

// ran runs a program on the node, of which the step takes note if it succeeds.
func (s *storm) ran(input string, command ...string) bool {
	if _, err := s.atNode(input, command...); err != nil {
		return false
	}
	last := &s.done[len(s.done)-1]
	last.Run = append(last.Run, run{command, input})
	return true
}

// addSomething adds what no packet meets.
func (s *storm) addSomething(one *step) (func(), error) {
	name := fmt.Sprintf("added-%d", one.Chance%3)
	switch s.options.backend {
	case "iptables-legacy", "iptables-nft":
		program := s.options.backend
		_, err := s.atNode("*nat\n:VIPKIT-"+strings.ToUpper(name)+" - [0:0]\nCOMMIT\n", program+"-restore", "--noflush", "-w", "2")
		return nil, err
	}
	all, err := s.objects()
	if err != nil {
		return nil, err
	}
	for _, o := range all {
		if o.kind == "table" {
			what := []string{"chain %v %v %s", "set %v %v %s { type inet_service; }"}[one.Chance%2]
			return nil, s.nft("add " + fmt.Sprintf(what, o.body["family"], o.body["name"], name))
		}
	}
	return nil, nil
}

// foreign has others commit to tables of their own.
func (s *storm) foreign(*step) (func(), error) {
	ctx, cancel := context.WithCancel(s.t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			// What goes wrong, others do not mind.
			if s.options.backend == "iptables-legacy" {
				_, _ = s.atNode("", "iptables-legacy", "-w", "2", "-t", "mangle", "-"+[]string{"A", "D"}[n%2], "FORWARD", "-j", "ACCEPT")
			} else {
				_ = s.nft("add table ip foreign\ndelete table ip foreign\nadd table ip foreign\nadd chain ip foreign some\nadd rule ip foreign some counter\n")
			}
			pause(ctx, 10*time.Millisecond)
		}
	})
	return func() {
		cancel()
		work.Wait()
	}, nil
}

// lock holds the lock of iptables.
func (s *storm) lock(*step) (func(), error) {
	file, err := os.OpenFile(os.Getenv("XTABLES_LOCKFILE"), os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	// Whoever has it gives it back soon, unless it is an earlier step.
	for end := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		if err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			break
		}
		if time.Now().After(end) {
			return nil, errors.Join(err, file.Close())
		}
	}
	return func() { _ = file.Close() }, nil // which gives it back
}

// atNode runs a program on the node.
func (s *storm) atNode(input string, command ...string) (string, error) {
	var out, said bytes.Buffer
	cmd := exec.CommandContext(s.t.Context(), command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &said
	err := s.world.node.Do(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("%v: %w: %.300s", command, err, said.Bytes())
	}
	return out.String(), nil
}
