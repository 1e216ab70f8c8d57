// Package address finds URLs that read otherwise than they were meant.
package address

import (
	"net/url"
	"strings"
)

// Whole tells whether nothing of a URL's user or password can have been taken for
// something else. In amqp://user:12#34@host the # ends the address, so that user
// would be the host and a part of the password its port, which errors and logs
// show. Such characters have to be percent-encoded.
func Whole(s string) bool {
	return !strings.Contains(s, "#") && !strings.Contains(afterHost(s), "@")
}

// afterHost is what follows the host of a URL.
func afterHost(s string) string {
	_, after, _ := strings.Cut(s, ":")
	after = strings.TrimPrefix(after, "//")
	if i := strings.IndexAny(after, "/?#"); i >= 0 {
		return after[i:]
	}
	return ""
}

// Split is the text of an error about a URL that is not whole.
const Split = "a character of the user or the password ends the address; percent-encode # as %23, / as %2F, ? as %3F and @ as %40"

// HasHost tells whether a URL names a host. Without one the client library takes
// localhost, as it does for what is no //user:password@host at all.
func HasHost(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Hostname() != ""
}

// NoHost is the text of an error about a URL without a host.
const NoHost = "no host in the URL; is a variable not set? Expected a URL like amqp://user:password@host:5672/vhost"
