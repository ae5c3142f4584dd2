package storm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vipkit/vipkit/internal/pause"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/objects"
)

// flush removes all rules, or all virtual servers.
func (s *storm) flush(one *step) (func(), error) {
	if s.options.isIPVS() {
		_, err := s.runOnNode("", "ipvsadm", "-C")
		return nil, errors.Join(err, s.addForeign())
	}
	if s.options.backend != "iptables-legacy" && one.Chance%4 > 0 || s.options.backend == "nftables" || s.options.backend == "userspace" {
		return nil, s.nft("flush ruleset\n" + resetsTable)
	}
	for _, family := range []string{"iptables-", "ip6tables-"} {
		for _, table := range []string{"nat", "filter"} {
			if _, err := s.runOnNode("", family+s.options.flavour(), "-w", "1", "-t", table, "-F"); err != nil {
				return nil, err
			}
		}
	}
	return nil, nil
}

func (s *storm) nft(script string) error {
	_, err := s.runOnNode(script, "nft", "-f", "-")
	return err
}

// failedPrograms counts the programs of a history that failed when it was played again.
const failedPrograms = "failed programs"

// tamperSomething changes one or several objects of the agent.
func (s *storm) tamperSomething(one *step) (func(), error) {
	if len(one.Run) > 0 {
		for _, r := range one.Run {
			if _, err := s.runOnNode(r.Input, r.Command...); err != nil {
				s.judge.count(failedPrograms, 1)
				s.note("%v: %v", r.Command, err)
			}
		}
		return nil, nil
	}
	r := rand.New(rand.NewPCG(one.Chance, 0))
	for range objects.OneOf(r, 1, 1, 2, 4) {
		if err := s.tamperOnce(r); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func (s *storm) tamperOnce(r *rand.Rand) error {
	switch s.options.backend {
	case "ipvs", "ipvs-legacy":
		if r.IntN(5) > 0 {
			return s.tamperIPVS(r)
		}
	}
	switch s.options.backend {
	case "iptables-legacy", "ipvs-legacy":
		return s.tamperLines(r, "legacy")
	case "iptables-nft", "ipvs":
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

// runAndRecord runs a program on the node, and records it in the step if it succeeds.
func (s *storm) runAndRecord(input string, command ...string) bool {
	if _, err := s.runOnNode(input, command...); err != nil {
		return false
	}
	last := &s.done[len(s.done)-1]
	last.Run = append(last.Run, run{command, input})
	return true
}

// addSomething adds an object that no packet reaches, where all objects are the agent's. The
// backend ipvs has only those objects that it names.
func (s *storm) addSomething(one *step) (func(), error) {
	name := fmt.Sprintf("added-%d", one.Chance%3)
	switch s.options.backend {
	case "iptables-legacy", "iptables-nft":
		program := "iptables-" + s.options.flavour()
		_, err := s.runOnNode("*nat\n:VIPKIT-"+strings.ToUpper(name)+" - [0:0]\nCOMMIT\n", program+"-restore", "--noflush", "-w", "2")
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

// foreign commits to tables that belong to no agent.
func (s *storm) foreign(*step) (func(), error) {
	ctx, cancel := context.WithCancel(s.t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			// Failures do not matter here.
			if s.options.isIPVS() {
				s.changeForeignServers(n)
			}
			if s.options.flavour() == "legacy" {
				_, _ = s.runOnNode("", "iptables-legacy", "-w", "2", "-t", "mangle", "-"+[]string{"A", "D"}[n%2], "FORWARD", "-j", "ACCEPT")
			} else {
				_ = s.nft("add table ip foreign\ndelete table ip foreign\nadd table ip foreign\nadd chain ip foreign some\nadd rule ip foreign some counter\n")
			}
			_ = pause.For(ctx, 10*time.Millisecond) // The loop ends with ctx, too.
		}
	})
	return func() {
		cancel()
		work.Wait()
		if s.options.isIPVS() {
			s.changeForeignServers(1)
		}
	}, nil
}

// lock holds the lock of iptables.
func (s *storm) lock(*step) (func(), error) {
	file, err := os.OpenFile(os.Getenv("XTABLES_LOCKFILE"), os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	// A program releases it soon; an earlier step may hold it for longer.
	for end := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		if err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			break
		}
		if time.Now().After(end) {
			return nil, errors.Join(err, file.Close())
		}
	}
	return func() { _ = file.Close() }, nil // Closing the file releases the lock.
}

// programTime bounds each program on the node: "nft list" starts again whenever another program
// commits meanwhile, which [storm.foreign] does until the goroutine that waits here ends it.
const programTime = 10 * time.Second

// runOnNode runs a program on the node.
func (s *storm) runOnNode(input string, command ...string) (string, error) {
	return s.runWithin(programTime, input, command...)
}

// runWithin runs a program on the node, and ends it after a while.
func (s *storm) runWithin(limit time.Duration, input string, command ...string) (string, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), limit)
	defer cancel()
	return netnstest.RunContext(ctx, s.world.node, input, command[0], command[1:]...)
}
