package manifest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// serving follows a folder with a tracker.
type serving struct {
	t       *testing.T
	dir     string
	files   *follower
	tracker *proxy.ServiceChangeTracker
}

func serve(t *testing.T, dir string) *serving {
	t.Helper()
	s := &serving{t: t, dir: dir, tracker: proxy.NewServiceChangeTracker(proxy.TrackerOptions{})}
	var err error
	if s.files, err = newFollower(&Watcher{Path: dir, Handler: s.tracker}); err != nil {
		t.Fatal(err)
	}
	return s
}

// want checks the files, and that one Service has the address and the losers have a Problem.
func (s *serving) want(when, owner string, losers ...string) {
	s.t.Helper()
	untilStable(s.t, s.files)
	snapshot, err := s.tracker.Next(s.t.Context(), proxy.Snapshot{})
	testenv.NoError(s.t, err)
	var owners, refused []string
	for p := range snapshot.All() {
		for _, f := range p.Frontends {
			if f.Addr.String() == "10.96.0.10:80" {
				owners = append(owners, p.Name.Name)
			}
		}
	}
	for p := range snapshot.Problems() {
		refused = append(refused, p.Name)
	}
	if !slices.Equal(owners, []string{owner}) || !slices.Equal(refused, losers) {
		s.t.Errorf("%s: got owners %q and problems of %q, want %q and %q", when, owners, refused, owner, losers)
	}
}

// claimant returns a Service that claims 10.96.0.10.
func claimant(name string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata:\n  name: %s\nspec:\n  clusterIP: 10.96.0.10\n  ports:\n  - port: 80\n", name)
}

// age sets the age of a file in seconds.
func age(t *testing.T, dir, name string, seconds int) {
	t.Helper()
	then := time.Now().Add(-time.Duration(seconds) * time.Second)
	testenv.NoError(t, os.Chtimes(filepath.Join(dir, name), then, then))
}

// TestFirstHolderStays: the first Service with an address keeps it, whatever happens to the
// files, until its own file is deleted.
func TestFirstHolderStays(t *testing.T) {
	dir := t.TempDir()
	rename := func(from, to string) {
		t.Helper()
		testenv.NoError(t, os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)))
	}
	write(t, dir, "m.yaml", claimant("web"))
	s := serve(t, dir)
	s.want("alone", "web")
	write(t, dir, "a.yaml", claimant("another"))
	age(t, dir, "a.yaml", 1000)
	s.want("with a newcomer that is first by file and name", "web", "another")
	write(t, dir, "m.yaml", claimant("web")+"  sessionAffinity: ClientIP\n")
	s.want("after its file was written again", "web", "another")
	rename("m.yaml", "z.yaml")
	s.want("after its file was renamed", "web", "another")
	write(t, dir, "b.yaml", claimant("third"))
	s.want("with a third", "web", "another", "third")
	rename("b.yaml", "m.yaml")
	write(t, dir, "z.yaml", "a: [\n")
	s.want("while its file is broken", "web", "another", "third")
	testenv.NoError(t, os.Remove(filepath.Join(dir, "z.yaml")))
	s.want("when it is gone", "another", "third")
	write(t, dir, "z.yaml", claimant("web"))
	s.want("when it is back", "another", "third", "web")
}

// TestEditedServiceTakesNothing: an edited Service does not get the address of another one, even
// if it is older than that one.
func TestEditedServiceTakesNothing(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.yaml", "apiVersion: v1\nkind: Service\nmetadata:\n  name: old\nspec:\n  clusterIP: 10.96.0.9\n  ports:\n  - port: 80\n")
	s := serve(t, dir)
	untilStable(t, s.files)
	write(t, dir, "b.yaml", claimant("web"))
	s.want("alone", "web")
	write(t, dir, "a.yaml", claimant("old"))
	s.want("wanted by an older one", "web", "old")
}

// TestRestartGoesByFiles: after a restart, the Service of the file that was changed first gets the
// address; of files changed in one second, the first by name.
func TestRestartGoesByFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.yaml", claimant("another"))
	write(t, dir, "m.yaml", claimant("web"))
	age(t, dir, "a.yaml", 100)
	age(t, dir, "m.yaml", 1000)
	serve(t, dir).want("by time", "web", "another")
	age(t, dir, "m.yaml", 10)
	serve(t, dir).want("written again later", "another", "web")
	then := time.Now().Truncate(time.Second)
	for i, name := range []string{"m.yaml", "a.yaml"} {
		testenv.NoError(t, os.Chtimes(filepath.Join(dir, name), then, then.Add(time.Duration(i)*time.Millisecond)))
	}
	serve(t, dir).want("in one second", "another", "web")
	write(t, dir, "a.yaml", claimant("web")+"---\n"+claimant("another"))
	write(t, dir, "m.yaml", "")
	serve(t, dir).want("in one file", "web", "another")
}
