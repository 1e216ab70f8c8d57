package topology

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// DefaultPrefix begins the names of the objects that delay strategies create.
const DefaultPrefix = "delay"

// maxPrefix leaves room for the longest name that a strategy makes with a prefix.
const maxPrefix = 64

// CheckPrefix refuses a prefix from which no names of broker objects can be
// made: an empty one, one of more than 64 bytes, one that is not UTF-8, one with
// line breaks, which brokers cut out of names, or one that begins with "amq.",
// which they reserve. The error is a *FieldError.
func CheckPrefix(prefix string) error {
	if prefix == "" || len(prefix) > maxPrefix || !utf8.ValidString(prefix) || strings.ContainsAny(prefix, "\r\n") || strings.HasPrefix(prefix, "amq.") {
		return &FieldError{
			Field: "Prefix", Value: prefix,
			Want: fmt.Sprintf("UTF-8 text of 1 to %d bytes without line breaks that does not begin with \"amq.\"", maxPrefix),
		}
	}
	return nil
}
