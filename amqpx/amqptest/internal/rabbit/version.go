package rabbit

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Version of RabbitMQ whose rules apply, e.g. 3.10.8.
type Version struct{ Major, Minor, Patch int }

// ParseVersion reads "4.3.0" or "4.3".
func ParseVersion(s string) (Version, error) {
	parts := strings.Split(s, ".")
	var n [3]int
	if len(parts) < 2 || len(parts) > 3 {
		return Version{}, fmt.Errorf("version %q; expected one like 4.3.0", s)
	}
	for i, p := range parts {
		v, err := strconv.Atoi(p)
		if err != nil || v < 0 {
			return Version{}, fmt.Errorf("version %q; expected one like 4.3.0", s)
		}
		n[i] = v
	}
	return Version{n[0], n[1], n[2]}, nil
}

func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }

// AtLeast reports whether v is the given version or a later one.
func (v Version) AtLeast(major, minor, patch int) bool {
	return cmp.Or(cmp.Compare(v.Major, major), cmp.Compare(v.Minor, minor), cmp.Compare(v.Patch, patch)) >= 0
}
