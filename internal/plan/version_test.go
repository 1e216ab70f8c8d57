package plan

import (
	"testing"
)

func TestVersions(t *testing.T) {
	for s, want := range map[string]Version{
		"4.3.6": {4, 3, 6}, "3.10.8": {3, 10, 8}, "4.1.0-rc.1": {4, 1, 0}, "4.2": {4, 2, 0}, "": {}, "x": {}, "4": {},
	} {
		if got := ParseVersion(s); got != want {
			t.Errorf("ParseVersion(%q) = %v, want %v", s, got, want)
		}
	}
	for _, c := range []struct {
		version             string
		major, minor, patch int
		before              bool
	}{{"4.0.5", 4, 0, 5, false}, {"4.0.5", 4, 0, 6, true}, {"3.13.7", 4, 0, 0, true}, {"4.3.0", 4, 2, 9, false}} {
		v := ParseVersion(c.version)
		if v.Before(c.major, c.minor, c.patch) != c.before || v.AtLeast(c.major, c.minor, c.patch) == c.before {
			t.Errorf("version comparison %+v: got Before = %t and AtLeast = %t, want %t and %t", c,
				v.Before(c.major, c.minor, c.patch), v.AtLeast(c.major, c.minor, c.patch), c.before, !c.before)
		}
	}
	if (Version{}).Before(9, 9, 9) || (Version{}).AtLeast(0, 0, 0) {
		t.Error("Before or AtLeast of an unknown version: got true, want false")
	}
}
