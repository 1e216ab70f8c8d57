package observed

import (
	"cmp"
	"fmt"
)

// Version is a broker's version; the zero value is an unknown one.
type Version struct{ Major, Minor, Patch int }

// ParseVersion reads a version as brokers report it, such as "4.0.5" or "3.13". What
// it cannot read is unknown.
func ParseVersion(s string) Version {
	var v Version
	if n, _ := fmt.Sscanf(s, "%d.%d.%d", &v.Major, &v.Minor, &v.Patch); n < 2 {
		return Version{}
	}
	return v
}

// Known reports whether the version is known.
func (v Version) Known() bool { return v != Version{} }

// Before reports whether the version is known and older than another.
func (v Version) Before(major, minor, patch int) bool {
	return v.Known() && cmp.Or(cmp.Compare(v.Major, major), cmp.Compare(v.Minor, minor), cmp.Compare(v.Patch, patch)) < 0
}

// AtLeast reports whether the version is known and not older than another.
func (v Version) AtLeast(major, minor, patch int) bool {
	return v.Known() && !v.Before(major, minor, patch)
}
