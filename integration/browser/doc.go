// Package browser contains tests of the console in a real browser. They drive Debian's Chromium through its own
// protocol, against a running rabbitdelay serve with a broker and a database.
package browser
