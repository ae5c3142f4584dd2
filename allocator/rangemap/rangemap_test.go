package rangemap_test

import (
	"errors"
	"maps"
	"math/big"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/rangemap"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestAgainstBigInt compares with the arithmetic that defines the form. The Example has the map
// of a real cluster.
func TestAgainstBigInt(t *testing.T) {
	rnd := testenv.Random(t)
	for _, text := range []string{"30000-32767", "10.96.0.0/24", "10.96.0.0/29", "fd00::/64"} {
		c, err := allocator.ParseConfig(text)
		testenv.NoError(t, err)
		r, err := allocator.NewRange(c)
		testenv.NoError(t, err)
		for round := range 50 {
			number, taken := new(big.Int), map[allocator.Key]bool{}
			for range round * 10 {
				i := rnd.Uint64N(min(r.Size(), rangemap.Limit-1))
				number.SetBit(number, int(i), 1)
				taken[r.Key(i)] = true
			}
			got, err := rangemap.Map{Range: text, Data: number.Bytes()}.Keys()
			if want := slices.SortedFunc(maps.Keys(taken), allocator.Key.Compare); err != nil || !slices.Equal(got, want) {
				t.Fatalf("%s: keys of %x: got %v, error %v, want %v", text, number.Bytes(), got, err, want)
			}
		}
	}
}

func TestBeyondTheRange(t *testing.T) {
	for _, m := range []rangemap.Map{
		{Range: "10.96.0.0/29", Data: []byte{0x40}}, // bit 6 of 6
		{Range: "10.96.0.0/24", Data: append([]byte{1}, make([]byte, 40)...)},
	} {
		if got, err := m.Keys(); !errors.Is(err, rangemap.ErrOutOfRange) {
			t.Errorf("%s %x: got %v, error %v, want %v", m.Range, m.Data, got, err, rangemap.ErrOutOfRange)
		}
	}
	for _, text := range []string{"", "nonsense", "10.96.0.0/0", "10.0.0.0/4"} {
		if _, err := (rangemap.Map{Range: text}).Keys(); err == nil {
			t.Errorf("a map of %q: got no error, want one", text)
		}
	}
}

// stored returns an object as an API server stores it, by the API's own code.
func stored(t testing.TB, m rangemap.Map) []byte {
	t.Helper()
	object := v1.RangeAllocation{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "RangeAllocation"},
		ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7", Labels: map[string]string{"a": "b"}},
		Range:      m.Range, Data: m.Data,
	}
	raw, err1 := object.Marshal()
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "RangeAllocation"}, Raw: raw}
	envelope, err2 := unknown.Marshal()
	testenv.NoError(t, errors.Join(err1, err2))
	return append([]byte("k8s\x00"), envelope...)
}

func TestObjectsOfALiveCluster(t *testing.T) {
	want := rangemap.Map{Range: "30000-32767", Data: []byte{8, 1, 3}}
	for name, object := range map[string][]byte{"the API's own code": stored(t, want), "Marshal": want.Marshal()} {
		got, err := rangemap.Unmarshal(object)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: error %v (-want +got):\n%s", name, err, diff)
		}
	}
}

// TestTheAPIReadsMarshal reads the bytes of Marshal with the code of the Kubernetes API.
func TestTheAPIReadsMarshal(t *testing.T) {
	want := rangemap.Map{Range: "10.96.0.0/24", Data: []byte{8, 1, 3}}
	var unknown runtime.Unknown
	var object v1.RangeAllocation
	testenv.NoError(t, unknown.Unmarshal(want.Marshal()[4:]))
	testenv.NoError(t, object.Unmarshal(unknown.Raw))
	got := rangemap.Map{Range: object.Range, Data: object.Data}
	if diff := cmp.Diff(want, got); diff != "" || unknown.Kind != "RangeAllocation" {
		t.Errorf("kind %q (-want +got):\n%s", unknown.Kind, diff)
	}
}

func TestMalformed(t *testing.T) {
	service, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Service"}}).Marshal()
	testenv.NoError(t, err)
	for name, object := range map[string][]byte{
		"nothing":      nil,
		"text":         []byte("hello"),
		"another kind": append([]byte("k8s\x00"), service...),
		"cut off":      stored(t, rangemap.Map{Range: "30000-32767", Data: []byte{1}})[:20],
	} {
		if m, err := rangemap.Unmarshal(object); !errors.Is(err, rangemap.ErrMalformed) {
			t.Errorf("%s: got %v, error %v, want %v", name, m, err, rangemap.ErrMalformed)
		}
	}
}

// FuzzUnmarshal reads any bytes. The keys of a valid map must be the same after it was
// written and read again.
func FuzzUnmarshal(f *testing.F) {
	m := rangemap.Map{Range: "30000-32767", Data: []byte{8, 1, 3}}
	f.Add(stored(f, m))
	f.Add(m.Marshal())
	f.Fuzz(func(t *testing.T, object []byte) {
		first, err := rangemap.Unmarshal(object)
		if err != nil {
			return
		}
		taken, err := first.Keys()
		if err != nil {
			return
		}
		second, err := rangemap.Unmarshal(first.Marshal())
		if err != nil {
			t.Fatalf("reading the map that was written: %v", err)
		}
		again, err := second.Keys()
		if err != nil || !slices.Equal(taken, again) {
			t.Errorf("got %v, error %v, want %v", again, err, taken)
		}
	})
}
